"""What paired rounds tell, and what they can't: differences with their error, and the noise of the base itself."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.spread_load import BUSY_PCT

#: Student's t at 95 %, two-sided, by degrees of freedom from 1 on; the last one stands for more.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


class Seen(NamedTuple):
    """What the clients of one arm saw in one round; times in ms. `generator_pct`: of a core, the busiest process's."""

    seconds: float
    tokens_per_s: float
    ttft_mean: float
    itl_mean: float
    itl_p99: float
    longest: float
    generator_pct: float


class Difference(NamedTuple):
    """In tokens/s against the base, in percent, round by round; `error` is the standard error of its mean.

    `least` is the least difference that these rounds can tell: t at 95 % × error. Both are None with one round.
    """

    mean: float
    error: float | None
    least: float | None


def difference(base: Sequence[Seen], seen: Sequence[Seen]) -> Difference:
    """Of an arm that has at least one round."""
    # An arm that is left out at some round has none of the later ones.
    changes = [100.0 * (b.tokens_per_s / a.tokens_per_s - 1.0) for a, b in zip(base, seen, strict=False)]
    if len(changes) < 2:
        return Difference(changes[0], None, None)
    error = statistics.stdev(changes) / len(changes) ** 0.5
    return Difference(statistics.fmean(changes), error, _T[min(len(changes) - 1, len(_T)) - 1] * error)


def table(found: Mapping[str, Sequence[Seen]], base: str) -> Iterator[str]:
    """Lines of Markdown; every arm against `base`."""
    yield f"| arm | rounds | tokens/s | against {base} | can tell from | TTFT | mean ITL | p99 ITL | longest gap |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for arm, seen in found.items():
        if not seen:
            yield f"| {arm} | 0 | – | – | – | – | – | – | – |"
            continue
        means = Seen(*(statistics.fmean(values) for values in zip(*seen, strict=True)))
        times = " | ".join(f"{value:.2f} ms" for value in means[2:6])
        against, least = "–", "–"
        if arm != base:
            one = difference(found[base], seen)
            against = f"{one.mean:+.2f} %" + ("" if one.error is None else f" ± {one.error:.2f}")
            least = "–" if one.least is None else f"{one.least:.2f} %"
        yield f"| {arm} | {len(seen)} | {means.tokens_per_s:.0f} | {against} | {least} | {times} |"


def noise(found: Mapping[str, Sequence[Seen]], base: str, asked_pct: float) -> Iterator[str]:
    """Lines that say how far the base itself varies, and what can't be told. `asked_pct`: the difference asked for."""
    rates = [one.tokens_per_s for one in found[base]]
    spread = f"{base}: {min(rates):.0f} to {max(rates):.0f} tokens/s in {len(rates)} rounds"
    if len(rates) > 1:
        spread += f", standard deviation {100.0 * statistics.stdev(rates) / statistics.fmean(rates):.1f} % of the mean"
    yield spread
    busiest = max(one.generator_pct for seen in found.values() for one in seen)
    yield f"busiest process that sends: {busiest:.0f} % of a core" + (
        ": it may be what limits the rate; give more --processes" if busiest > BUSY_PCT else ""
    )
    for arm, seen in found.items():
        if arm == base or not seen:
            continue
        least = difference(found[base], seen).least
        if least is None:
            yield f"{arm}: nothing can be told from one round"
        elif least > asked_pct:
            what = f"no difference below {least:.1f} % can be told"
            yield f"{arm}: {what}, and {asked_pct:g} % is asked: take more rounds, or longer ones"
