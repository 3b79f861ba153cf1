"""Numbers as people read them. Unknown is "–", and never 0."""

from __future__ import annotations

import math

DASH = "–"

_KIB = 1024.0


def pct(value: float | None, digits: int = 0) -> str:
    """A percentage (0–100): "98 %"."""
    return DASH if _unknown(value) else f"{value:.{digits}f} %"


def number(value: float | None) -> str:
    """A count or rate in at most six characters (up to a million million): "7", "0.42", "237", "9.7k", "1.2M"."""
    if value is None or _unknown(value):
        return DASH
    size = abs(value)
    if size >= 999_950_000:
        return f"{value / 1e9:.1f}G"
    if size >= 999_950:
        return f"{value / 1e6:.1f}M"
    if size >= 9_999.5:
        return f"{value / 1e3:.0f}k" if size >= 99_950 else f"{value / 1e3:.1f}k"
    if size >= 99.5 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.95 else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """A duration in the unit that reads best: "850 µs", "2.7 ms", "75 ms", "1.34 s", "2 m 05 s"."""
    if value is None or _unknown(value):
        return DASH
    size = abs(value)
    if size == 0:
        return "0 s"
    if size < 0.9995e-3:
        return f"{value * 1e6:.0f} µs"
    if size < 0.9995:
        return f"{value * 1e3:.1f} ms" if size < 9.95e-3 else f"{value * 1e3:.0f} ms"
    if size < 99.95:
        return f"{value:.2f} s" if size < 9.995 else f"{value:.1f} s"
    return uptime(value)


def uptime(value: float | None) -> str:
    """A long duration by its two largest units: "42 s", "2 m 05 s", "3 h 12 m", "4 d 03 h"."""
    if value is None or _unknown(value):
        return DASH
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def size(value: float | None) -> str:
    """Bytes in binary units: "512 B", "61 MiB", "89.3 GiB"."""
    if value is None or _unknown(value):
        return DASH
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < _KIB or unit == "TiB":
            digits = 0 if unit == "B" or abs(value) >= 99.95 else 1
            return f"{value:.{digits}f} {unit}"
        value /= _KIB
    raise AssertionError("unreachable")


def rate(value: float | None) -> str:
    """Bytes per second: "42.3 MiB/s"."""
    return DASH if _unknown(value) else f"{size(value)}/s"


def _unknown(value: float | None) -> bool:
    return value is None or not math.isfinite(value)
