"""A profile beside a capture: is it of the hot kernel, and what could that give at best.

What a kernel could give = the part of its time above its roofline floor × its share of the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gputop_llm.model.finding import Fact, Finding, Verdict, Weight
from gputop_llm.ncu.assemble import Group
from gputop_llm.ncu.shares import Part, Shares, plain
from gputop_llm.printable import printable
from gputop_llm.verdict.facts import listed, share

#: Below this share of the window a kernel is not worth a look with ncu.
_HOT_PCT = 5.0
_NOT_KERNELS = {"copy", "memset", "NCCL", "opaque graph replay"}
_OPAQUE = "opaque graph replay"
#: One profile is not valid for another shape.
_OTHER_SHAPE = {
    True: "",
    False: "; and low: the capture has this kernel with other grids only, so another shape was profiled",
    None: "; the capture has no grids: the profiled shape need not be the live one",
}


@dataclass(frozen=True, slots=True)
class _Match:
    """A group of the profile, and its part of the capture (None: it isn't there).

    `same_grid` is true where that is the share of launches with the same grid, false where the capture has the kernel
    with other grids only, None where grids can't be compared.
    """

    group: Group
    part: Part | None
    same_grid: bool | None

    @property
    def window_pct(self) -> float | None:
        return None if self.part is None else self.part.window_pct

    @property
    def above_pct(self) -> float | None:
        seen = self.group.seen
        return seen.point.headroom_pct(seen.kernel.duration_ns)

    @property
    def gives_pct(self) -> float | None:
        """Of the window."""
        window, above = self.window_pct, self.above_pct
        return None if window is None or above is None else window * above / 100

    @property
    def step_gives_pct(self) -> float | None:
        """Of a step of the phase that it runs in."""
        step, above = None if self.part is None else self.part.step_pct, self.above_pct
        return None if step is None or above is None else step * above / 100

    @property
    def headroom(self) -> float | None:
        """How many times as fast its roof is."""
        above = self.above_pct
        return None if above is None or above >= 100 else 100 / (100 - above)


def beside(capture: Verdict, shares: Shares, profiled: Verdict, groups: Sequence[Group]) -> Verdict:
    """The capture's verdict with what the profile says of its kernels, whose shares of the window are `shares`.

    Findings about a kernel keep their share of that kernel's time; a finding for each profiled kernel of the capture
    says what that is of the window.
    """
    rows = [row for row in capture.tables.get("kernels", ()) if row.get("family") not in _NOT_KERNELS]
    matches = _matches(groups, shares)
    found = [match for match in matches if match.window_pct is not None]
    added = [_gives(match) for match in found]
    hot = max(rows, key=lambda row: _number(row.get("window_pct")) or 0.0, default=None)
    hottest = hot.get("kernel") if hot is not None else None
    if not any(_name(match) == hottest or (match.window_pct or 0.0) >= _HOT_PCT for match in found):
        added.append(_another(matches, hot, capture))
    notes = [f"not in the capture: {_label(m)}" for m in matches if m.window_pct is None and found]
    # Of a single kernel the profile's own verdict needs no subject; among the capture's findings it does.
    only = printable(groups[0].seen.name, 60) if len(groups) == 1 else None
    kept = [replace(finding, subject=finding.subject or only) for finding in profiled.findings]
    tables = {**capture.tables, **profiled.tables}
    if found:
        tables["what_if"] = tuple(_row(match) for match in found)
    return replace(
        capture,
        findings=tuple(sorted((*capture.findings, *added, *kept), key=_rank)),
        tables=tables,
        notes=(*capture.notes, *(n for n in profiled.notes if n not in capture.notes), *notes),
        capture={
            **capture.capture,
            "files": [*_files(capture), *_files(profiled)],
            "profile": profiled.capture,
            "profile_headline": profiled.headline,
        },
    )


def _matches(groups: Sequence[Group], shares: Shares) -> list[_Match]:
    keys = [(plain(group.seen.kernel.full_name), group.seen.kernel.blocks) for group in groups]
    with_grids = {name for name, blocks in shares if blocks is not None}
    exact = {name for name, blocks in keys if blocks is not None and (name, blocks) in shares}
    found = []
    for group, (name, blocks) in zip(groups, keys, strict=True):
        whole = shares.get((name, None))
        if whole is None or blocks is None or name not in with_grids:
            found.append(_Match(group, whole, None))
        elif name in exact:
            found.append(_Match(group, shares.get((name, blocks)), True))
        else:
            found.append(_Match(group, whole, False))
    return found


def _name(match: _Match) -> str:
    return plain(match.group.seen.kernel.full_name)


def _label(match: _Match) -> str:
    kernel = match.group.seen.kernel
    name = printable(match.group.seen.name, 60)
    if match.same_grid is None or kernel.blocks is None:
        return name
    return f"{name} with {kernel.blocks:,} blocks"


def _gives(match: _Match) -> Finding:
    seen = match.group.seen
    window, above, gives = match.window_pct, match.above_pct, match.gives_pct
    name = _label(match)
    part = match.part
    step = f"a {part.phase} step" if part is not None and part.phase not in (None, "step") else "a step"
    if gives is None or match.headroom is None:
        said = f"{name} is {share(window)} of the window; what lies above its floor is not known"
    else:
        said = (
            f"What if {name} ran at its roof: {match.headroom:.1f}× headroom on {share(window)} of the window = "
            f"{share(gives)} at best"
        )
        if part is not None and part.step_pct is not None:
            said += f"; on {share(part.step_pct)} of {step}, {share(match.step_gives_pct)}"
    return Finding(
        id="what-if",
        weight=Weight.NOTE if gives is not None and gives < 1.0 else Weight.FINDING,
        headline=said,
        facts=(
            Fact("share of the window", window, "%", "|∪ its rows| ÷ window", "the capture"),
            Fact(
                f"share of {step}",
                None if part is None else part.step_pct,
                "%",
                "|∪ its rows in such steps| ÷ Σ their time, begin to next begin",
                "the capture",
            ),
            Fact("above its floor", above, "%", "1 − floor by the roofline ÷ duration", "the profile"),
            Fact(
                "duration under ncu",
                None if seen.kernel.duration_ns is None else seen.kernel.duration_ns / 1e3,
                "µs",
                "gpu__time_duration",
            ),
            Fact("blocks", seen.kernel.blocks, "", "grid x × y × z"),
        ),
        cause=f"{seen.kind.value} by the profile; the roof is that of what it moves and computes now",
        advice=(),
        recoverable_pct=gives,
        recoverable_formula="its share of the window × the part of its time above the floor",
        confidence=f"an upper bound: no kernel reaches its roof{_OTHER_SHAPE[match.same_grid]}",
        refuted_by="the kernel runs beside others, so that less of the window hangs on it",
        next_capture=None,
        subject=None,
    )


def _another(matches: Sequence[_Match], hot: Mapping[str, object] | None, capture: Verdict) -> Finding:
    names = listed(dict.fromkeys(map(_label, matches)), 3)
    if hot is None:
        opaque = any(row.get("family") == _OPAQUE for row in capture.tables.get("kernels", ()))
        what = "its graph replays were recorded whole" if opaque else "it has no kernel"
        headline = f"Whether {names} is the hot kernel can't be told: {what}"
    else:
        shares = [m.window_pct for m in matches if m.window_pct is not None]
        is_there = f"is {share(max(shares))} of the window" if shares else "is not in the capture"
        headline = (
            f"This isn't your hot kernel: {names} {is_there}; the hottest is {printable(str(hot.get('kernel')), 90)} "
            f"with {share(_number(hot.get('window_pct')))}"
        )
    return Finding(
        id="not-the-hot-kernel",
        weight=Weight.FINDING,
        headline=headline,
        facts=tuple(Fact(_label(m), m.window_pct, "%", "|∪ its rows| ÷ window") for m in matches),
        cause="kernels are compared by name without template arguments",
        advice=(),
        recoverable_pct=0.0,
        recoverable_formula="what is gained there is little of the window" if hot is not None else "not known",
        confidence="high where the capture names its kernels",
        refuted_by="the hot kernel has another name in the profile",
        next_capture=f"ncu on {printable(str(hot.get('kernel')), 90)}" if hot is not None else None,
    )


def _row(match: _Match) -> dict[str, object]:
    return {
        "kernel": printable(match.group.seen.name),
        "at_best_pct": match.gives_pct,
        "window_pct": match.window_pct,
        "headroom": match.headroom,
        "phase": match.part.phase if match.part is not None else None,
        "step_pct": match.part.step_pct if match.part is not None else None,
        "step_at_best_pct": match.step_gives_pct,
        "above_floor_pct": match.above_pct,
        "class": match.group.seen.kind.value,
        "blocks": match.group.seen.kernel.blocks,
    }


def _rank(finding: Finding) -> tuple[int, float]:
    """As a capture ranks: what could give most of the window first, then parts of kernels, notes last."""
    if finding.weight is Weight.NOTE:
        return 2, -(finding.recoverable_pct or 0.0)
    if finding.of != "window":
        return 1, -(100.0 if finding.recoverable_pct is None else finding.recoverable_pct)
    largest = 100.0 if finding.concerns_pct is None else finding.concerns_pct
    return 0, -(largest if finding.recoverable_pct is None else finding.recoverable_pct)


def _files(verdict: Verdict) -> list[object]:
    files = verdict.capture.get("files")
    return list(files) if isinstance(files, (list, tuple)) else []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
