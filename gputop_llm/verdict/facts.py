"""Numbers of findings in words, and the facts that several findings share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gputop_llm.model.finding import Fact
from gputop_llm.units import DASH
from gputop_llm.verdict.causes import CAUSE_LABELS, Cause


def span(ns: float | None) -> str:
    """A duration with enough digits for kernels: "0.20 µs", "2.1 µs", "531 µs", "8.2 ms", "1.07 s"."""
    if ns is None:
        return DASH
    size = abs(ns)
    if size < 999.5e3:
        value, unit = ns / 1e3, "µs"
    elif size < 999.5e6:
        value, unit = ns / 1e6, "ms"
    else:
        return f"{ns / 1e9:.2f} s"
    if ns == 0:
        return "0 µs"
    digits = 2 if abs(value) < 0.995 else 1 if abs(value) < 9.95 else 0
    return f"{value:.{digits}f} {unit}"


def share(pct: float | None) -> str:
    """A share with a decimal where it is small: "52 %", "9.4 %", "0.7 %"."""
    if pct is None:
        return DASH
    return f"{pct:.0f} %" if abs(pct) >= 9.95 else f"{pct:.1f} %"


def us(name: str, ns: float | None, formula: str, rows: str = "", text: str | None = None) -> Fact:
    """A fact in microseconds."""
    return Fact(name, None if ns is None else ns / 1e3, "µs", formula, rows, text)


def ms(name: str, ns: float | None, formula: str, rows: str = "", text: str | None = None) -> Fact:
    """A fact in milliseconds."""
    return Fact(name, None if ns is None else ns / 1e6, "ms", formula, rows, text)


def by_cause(
    causes: Mapping[Cause, int], window_ns: int, what: str, rows: str, error_pct: float | None
) -> tuple[Fact, ...]:
    """The parts of some idle time by what the host was doing, the largest first, as shares of the window.

    `error_pct` is by how many points all idle time may read too high (`Context.idle_error_pct`).
    """
    total = sum(causes.values())
    return tuple(
        Fact(
            CAUSE_LABELS[cause],
            100.0 * ns / window_ns,
            "%",
            f"time of {what} with the submitting thread so ÷ window",
            rows,
            f"{100 * ns / total:.0f} % of it",
            no_more_than(100.0 * ns / window_ns, error_pct),
        )
        for cause, ns in sorted(causes.items(), key=lambda item: -item[1])
        if ns > 0.01 * total
    )


def no_more_than(share_pct: float, error_pct: float | None) -> float | None:
    """The error of a part of the idle time: that of all of it, but no more than the part itself."""
    return None if error_pct is None else min(share_pct, error_pct)


def over_devices(name: str, values: Mapping[str, float], unit: str, formula: str) -> tuple[Fact, ...]:
    """The same figure of all devices, as a range; nothing for a single one. The value is their mean, and says so."""
    if len(values) < 2:
        return ()
    low, high = min(values, key=lambda k: values[k]), max(values, key=lambda k: values[k])
    least, most = (f"{values[one]:.1f} {unit}" for one in (low, high))
    text = f"{least} on each" if least == most else f"{least} ({low}) to {most} ({high})"
    mean = sum(values.values()) / len(values)
    return (Fact(f"{name}, mean of {len(values)} devices", mean, unit, formula, "", text),)


def listed(items: Iterable[str], most: int = 3) -> str:
    """A short enumeration: "a, b, c and 2 more"."""
    names = list(items)
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
