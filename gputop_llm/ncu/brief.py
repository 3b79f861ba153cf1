"""The verdict on a profile in a few lines of 80 columns, for somebody who looks at it after every change."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gputop_llm.model.finding import Verdict, Weight
from gputop_llm.ncu.assemble import Group
from gputop_llm.ncu.figures import Figures, figures_of
from gputop_llm.printable import printable
from gputop_llm.report.verdict_words import figure
from gputop_llm.units import DASH
from gputop_llm.verdict.facts import share

WIDTH = 80
#: One more names the report: twelve in all.
MOST_LINES = 11
_MOST_HEADLINE = 3
_MOST_OTHERS = 2
_NAME_CELLS = 24


def brief(verdict: Verdict, groups: Sequence[Group]) -> list[str]:
    """The class, the figures, what to do about it, and what else is wrong."""
    lines = _cut(_wrap(verdict.headline, WIDTH), _MOST_HEADLINE)
    lead = next((group for group in groups if group.judged), groups[0] if groups else None)
    if lead is not None:
        lines += [one[:WIDTH] for one in _figures(lead, figures_of(lead))]
    lines += _findings(verdict)
    others = [f"{_name(one)} {share(_part(one, groups))}" for one in groups if one is not lead]
    if others:
        lines.append(_one_line(f"{len(others)} more by profiled time: {', '.join(others)}"))
    return lines[:MOST_LINES]


def micro(ns: float | None) -> str:
    """A kernel's time with three digits: "12.5 µs"."""
    return DASH if ns is None else f"{figure(ns / 1e3)} µs"


def _figures(group: Group, seen: Figures) -> Iterator[str]:
    times, count = seen.durations_ns, len(seen.durations_ns)
    spread = f" ({figure(times[0] / 1e3)} to {micro(times[-1])}, {count} launches)" if count > 1 else ""
    point = group.seen.point
    above = point.headroom_pct(group.seen.kernel.duration_ns) if group.judged else None
    roof = ""
    if above is not None and above < 100:
        roof = f" · floor {micro(point.floor_ns)} ({point.roof} roof): {100 / (100 - above):.1f}× headroom"
    yield f"  {micro(seen.median_ns)}{spread}{roof}"
    yield (
        f"  SM {share(seen.sm_pct)} · memory {share(seen.memory_pct)} · DRAM {share(seen.dram_pct)} · "
        f"L2 {share(seen.l2_pct)} · waves {figure(seen.waves)}"
    )
    yield (
        f"  occupancy {share(seen.occupancy_pct)} of {share(seen.theoretical_pct)} · "
        f"registers {figure(seen.registers)} · spills {figure(seen.spills)}"
    )
    if seen.launch:
        yield f"  {seen.launch}"


def _findings(verdict: Verdict) -> Iterator[str]:
    """What to do about what the headline says, then what else is no note, each in one line."""
    worth = [one for one in verdict.findings if one.weight is not Weight.NOTE]
    told = next((one for one in worth if one.headline in verdict.headline), None)
    if told is not None and told.advice:
        yield from _cut(_wrap(f"do: {told.advice[0].text}", WIDTH, "    "), 2)
    for finding in [one for one in worth if one is not told][:_MOST_OTHERS]:
        gives = f"up to {share(finding.recoverable_pct)}: " if finding.recoverable_pct is not None else ""
        subject = f"{printable(finding.subject, _NAME_CELLS)}: " if finding.subject else ""
        yield _one_line(f"{gives}{subject}{finding.headline}")


def _name(group: Group) -> str:
    return printable(group.seen.name, _NAME_CELLS)


def _part(group: Group, groups: Sequence[Group]) -> float | None:
    total = sum(one.total_ns for one in groups)
    return 100.0 * group.total_ns / total if total else None


def _one_line(text: str) -> str:
    return _cut(_wrap(text, WIDTH), 1)[0]


def _wrap(text: str, width: int, later: str = "") -> list[str]:
    """A number and its per cent sign stay together."""
    tied = printable(text).replace(" %", "\xa0%")
    lines = textwrap.wrap(tied, width, subsequent_indent=later, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def _cut(lines: list[str], most: int) -> list[str]:
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][: WIDTH - 4]} …"]
    return lines or [""]
