"""Whether an operation launched the very kernel that the record has: the same name, grid and block.

Names are rewritten only where two recorders write one and the same thing differently; what can't be told to be the same
does not match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.timeline.launch_shape import Extents, extents_of, packed_of

#: Names are compared up to here; longer ones never match.
_LONGEST = 1 << 16
#: nsys writes the type of a number in front of it, c++filt as a suffix: (long)3 and 3l.
_SUFFIXES = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul"}
_CAST = re.compile(r"\((unsigned int|unsigned long|int|long|bool)\)(-?\d+)(?![\w.])")
_PLACEHOLDER = re.compile(r"\bT(\d+)\b")
_SPACES = re.compile(r"\s+")
_GAPS = re.compile(r"\s*([<>(),&*:\[\]{}])\s*")


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel that a case launched; `duration_us` is the median of `calls`."""

    case: str
    name: str
    grid: Extents | None
    block: Extents | None
    duration_us: float
    calls: int


@dataclass(frozen=True, slots=True)
class Match:
    """A kernel of the record and what launched it again.

    Args:
        same: the same name, grid and block, the nearest in duration first.
        near: the same name with another grid or block, the nearest in blocks first.
    """

    hot: HotLaunch
    same: tuple[Launched, ...]
    near: tuple[Launched, ...]

    @property
    def best(self) -> Launched | None:
        """What counts as the kernel run again; None if nothing does."""
        return self.same[0] if self.same else None


def matches(hot: Sequence[HotLaunch], launched: Sequence[Launched]) -> tuple[Match, ...]:
    """For each kernel of the record what launched it again."""
    found = []
    for one in hot:
        name = normal(one.name)
        named = [other for other in launched if name is not None and normal(other.name) == name]
        known = one.grid is not None and one.block is not None
        same = [other for other in named if known and (other.grid, other.block) == (one.grid, one.block)]
        near = [other for other in named if other not in same]
        live_us = one.median_ns / 1e3
        found.append(
            Match(
                one,
                tuple(sorted(same, key=lambda other: abs(other.duration_us - live_us))),
                tuple(sorted(near, key=lambda other: abs(_blocks(other.grid) - _blocks(one.grid)))),
            )
        )
    return tuple(found)


def reproduced_pct(found: Sequence[Match]) -> float:
    """The share of the device's busy time whose kernels were launched again, of the kernels looked at.

    Kernels that overlap count each, the busy time counts once: their sum may be a little above the whole.
    """
    return min(100.0, sum(match.hot.busy_pct for match in found if match.same))


def launched_of(told: Mapping[str, Any]) -> tuple[tuple[Launched, ...], dict[str, str]]:
    """What a script's JSON says: the kernels, and by case why it failed.

    Raises:
        GputopError: it has another form.
    """
    found: list[Launched] = []
    errors: dict[str, str] = {}
    try:
        for case in told["cases"]:
            if case["error"] is not None:
                errors[str(case["case"])] = str(case["error"])
            for kernel in case["kernels"]:
                grid, block = (extents_of(packed_of(kernel[key])) for key in ("grid", "block"))
                duration_us, calls = float(kernel["duration_us"]), int(kernel["calls"])
                found.append(Launched(str(case["case"]), str(kernel["name"]), grid, block, duration_us, calls))
    except (KeyError, TypeError, ValueError) as error:
        raise GputopError("cannot read what the script printed", f"it has another form ({error!r})") from None
    return tuple(found), errors


@lru_cache(maxsize=4096)
def normal(name: str) -> str | None:
    """The name as it is compared; None for one that is not compared.

    Spaces, the anonymous namespace, numbers among template arguments, and the "T1" that nsys leaves where c++filt
    writes the argument itself are written alike.
    """
    if not name.strip() or len(name) > _LONGEST:
        return None
    plain = name.replace("<unnamed>", "(anonymous namespace)").replace("{unnamed}", "(anonymous namespace)")
    plain = _CAST.sub(_number, plain)
    plain = _GAPS.sub(r"\1", _SPACES.sub(" ", plain.strip()))
    arguments = _template_arguments(plain)
    if arguments is None or not _PLACEHOLDER.search(plain):
        return plain
    head, inner, rest = arguments
    if _PLACEHOLDER.search(inner):
        return None
    parts = _split(inner)
    unknown = [int(n) for n in _PLACEHOLDER.findall(rest) if not 1 <= int(n) <= len(parts)]
    return None if unknown else f"{head}<{inner}>{_PLACEHOLDER.sub(lambda m: parts[int(m[1]) - 1], rest)}"


def _number(match: re.Match[str]) -> str:
    kind, digits = match.groups()
    if kind == "bool":
        return {"0": "false", "1": "true"}.get(digits, match[0])
    return digits + _SUFFIXES[kind]


def _template_arguments(name: str) -> tuple[str, str, str] | None:
    """What stands before, within and behind the template arguments of the function itself; None without any."""
    end = name.find(">(")
    depth, begin = 0, None
    for position, char in enumerate(name):
        if char == "<":
            begin = position if depth == 0 else begin
            depth += 1
        elif char == ">" and depth:
            depth -= 1
            if depth == 0 and begin is not None and end >= 0 and name[position + 1 : position + 2] == "(":
                return name[:begin], name[begin + 1 : position], name[position + 1 :]
    return None


def _split(text: str) -> list[str]:
    """Template arguments, at the commas between them."""
    parts, depth, begin = [], 0, 0
    for position, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]]


def _blocks(extents: Extents | None) -> int:
    return extents[0] * extents[1] * extents[2] if extents else 0
