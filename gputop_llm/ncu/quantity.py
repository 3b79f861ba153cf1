"""Numbers as ncu prints them: "23,023", "2.74 Tbyte/s", "n/a", "(!) nan"."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"^[-+]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?([eE][-+]?\d+)?$")
_SCALE = {"K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_TIMES_NS = {
    "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9,
    "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9,
}  # fmt: skip
#: As a divisor, in seconds.
_PER = {"nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_SCALED = re.compile(r"^([KkMGTP])(byte|hz|bit|cycle|inst|sector)$")


def number(text: str) -> float | None:
    """The number that a cell holds; None for "n/a", "nan", an empty one, and what ncu marks as invalid ("(!)")."""
    plain = text.strip()
    if not plain or not _NUMBER.match(plain):
        return None
    try:
        value = float(plain.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def base(unit: str) -> tuple[float, str]:
    """The factor to base units and their name: "Gbyte/s" → (1e9, "byte/s"), "us" → (1e3, "ns"), "Ghz" → (1e9, "hz")."""
    plain = unit.strip()
    if plain in _TIMES_NS:
        return _TIMES_NS[plain], "ns"
    upper, slash, lower = plain.partition("/")
    factor = 1.0
    if match := _SCALED.match(upper):
        factor, upper = _SCALE[match[1]], match[2]
    if not slash:
        return factor, upper
    if lower in _PER:
        # "cycle/nsecond" is how old versions write GHz.
        factor, lower = factor / _PER[lower], "s"
        return (factor, "hz") if upper == "cycle" else (factor, f"{upper}/s")
    if match := _SCALED.match(lower):
        factor, lower = factor / _SCALE[match[1]], match[2]
    return factor, f"{upper}/{lower}"
