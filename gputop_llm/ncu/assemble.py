"""From profiled launches to a verdict: launches of one kernel with one shape are one, the longest of all leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gputop_llm.model.finding import Fact, Finding, Verdict, Weight
from gputop_llm.ncu.bound import Kind
from gputop_llm.ncu.model import GemmShape, KernelReport
from gputop_llm.ncu.read import Profile
from gputop_llm.ncu.rules import compute, latency, memory, nvidia, profiled, quality, tensor, unjudged
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.printable import printable
from gputop_llm.verdict.facts import listed
from gputop_llm.verdict.kernel_names import short_name

#: What fixing must give of a kernel's time to be worth it.
HEALTHY_BELOW_PCT = 10.0
#: Kernels beyond these are in the table only.
_MOST_KERNELS = 5
_NOT_LIVE = (
    "durations under ncu are not those of the live run: launches are serialised and replayed, clocks and caches may be "
    "set otherwise; read shares and bytes, not latency"
)
_SCOPE = "holds for these shapes, this GPU and these versions only: after a change of any of them, profile again"


@dataclass(frozen=True)
class Group:
    """The launches of one kernel with one grid and block; `seen` is the one with the median duration."""

    seen: Seen
    launches: tuple[KernelReport, ...]

    @property
    def judged(self) -> bool:
        """Whether it has a class."""
        return self.seen.kind not in (Kind.SHORT, Kind.UNKNOWN)

    @property
    def total_ns(self) -> float:
        """Their summed duration; 0 where none is known."""
        return sum(launch.duration_ns or 0.0 for launch in self.launches)


def judge(
    profile: Profile, kernel: str | None = None, shapes: Mapping[tuple[str, int], GemmShape] | None = None
) -> tuple[Verdict, tuple[Group, ...]]:
    """The verdict on a profile, and its groups of launches, the longest in total first.

    `kernel` keeps only kernels with this in their name. `shapes` tells by short name and number of blocks which matrix
    product a kernel computes.
    """
    wanted = [one for one in profile.kernels if kernel is None or kernel in one.full_name or kernel in one.name]
    if not wanted:
        return _another(profile, kernel or ""), ()
    groups = grouped(wanted, profile.options, shapes or {})
    by_group = [_findings(group.seen) for group in groups]
    lead = next((at for at, group in enumerate(groups) if group.judged), 0)
    judged = groups[lead].judged
    total = sum(group.total_ns for group in groups)
    ranked: list[tuple[tuple[int, float], Finding]] = []
    for group, found in list(zip(groups, by_group, strict=True))[:_MOST_KERNELS]:
        subject = _label(group) if len(groups) > 1 else None
        part = group.total_ns / total if total else 1.0
        ranked += [(_rank(finding, part), replace(finding, subject=subject)) for finding in found]
    findings = tuple(finding for _, finding in sorted(ranked, key=lambda one: one[0]))
    tables = {
        "launches": tuple(_row(group) for group in groups),
        "roofline": tuple(_roof(group) for group in groups if group.judged and _on_the_roofline(group.seen)),
    }
    verdict = Verdict(
        judged=judged,
        headline=_headline(groups[lead], by_group[lead]),
        findings=findings,
        tables={name: rows for name, rows in tables.items() if rows},
        facts=_facts(groups[lead]),
        notes=_notes(profile, groups, kernel),
        healthy=not any(map(_worth, findings)) if judged else None,
        capture=_capture(profile),
    )
    return verdict, groups


def grouped(
    kernels: Sequence[KernelReport], options: Mapping[str, str], shapes: Mapping[tuple[str, int], GemmShape]
) -> tuple[Group, ...]:
    """Launches by kernel, grid and block, the longest in total first."""
    by_same: dict[tuple[object, ...], list[KernelReport]] = {}
    for one in kernels:
        by_same.setdefault(one.same, []).append(one)
    groups = []
    for launches in by_same.values():
        known = [launch.duration_ns for launch in launches if launch.duration_ns is not None]
        middle = median(known) if known else 0.0
        typical = min(launches, key=lambda launch: abs((launch.duration_ns or 0.0) - middle))
        shape = shapes.get((short_name(typical.full_name), typical.blocks or 0))
        groups.append(Group(Seen(typical, options, shape), tuple(launches)))
    return tuple(sorted(groups, key=lambda group: -group.total_ns))


def _findings(seen: Seen) -> list[Finding]:
    found: list[Finding] = []
    ours = unjudged.look(seen) or memory.look(seen) or compute.look(seen) or latency.look(seen)
    if ours is not None:
        found.append(replace(ours, facts=(*ours.facts, *_roof_facts(seen), nvidia.fact(seen.kernel))))
    if seen.kind not in (Kind.SHORT, Kind.UNKNOWN):
        found += [finding for finding in (tensor.look(seen),) if finding is not None]
        found += quality.look(seen)
        found += profiled.look(seen)
    if ours is not None and (note := nvidia.disagreement(seen, ours)) is not None:
        found.append(note)
    return found


def _roof_facts(seen: Seen) -> tuple[Fact, ...]:
    point, duration = seen.point, seen.kernel.duration_ns
    if seen.kind in (Kind.SHORT, Kind.UNKNOWN):
        return ()
    floor = None if point.floor_ns is None else point.floor_ns / 1e3
    if seen.floor_elsewhere(point):
        why = "it isn't DRAM that holds it, and what it computes was not counted"
    else:
        why = "the bytes of the live run are not in this profile" if seen.warm else "DRAM traffic was not recorded"
    by = f"the {point.roof} roof" if point.roof else f"not known: {why}"
    return (
        Fact("floor by the roofline", floor, "µs", "the larger of bytes ÷ bandwidth and FLOP ÷ peak", text=by),
        Fact("above the floor", point.headroom_pct(duration), "%", "1 − floor ÷ duration"),
        Fact("intensity", point.intensity, "FLOP/byte", "FLOP ÷ bytes of DRAM", text=point.flop_source or None),
    )


def _headline(lead: Group, findings: Sequence[Finding]) -> str:
    first = findings[0]
    if not lead.judged:
        return f"can't judge: {first.headline[0].lower()}{first.headline[1:]}; {first.advice[0].text}"
    text = f"{printable(lead.seen.name, 90)}: {first.headline}"
    ids = [finding.id for finding in findings]
    if "kernel-warm-l2" in ids:
        text += "; profiled with a warm L2"
    if "kernel-counters-mixed" in ids:
        text += "; other work is in the counters"
    return text


def _worth(finding: Finding) -> bool:
    if finding.weight is Weight.NOTE:
        return False
    return finding.recoverable_pct is None or finding.recoverable_pct >= HEALTHY_BELOW_PCT


def _rank(finding: Finding, part: float) -> tuple[int, float]:
    """By what fixing gives of all profiled time, of which the kernel took this part. Notes last.

    What can't be told stands first: it puts the rest in doubt.
    """
    if finding.weight is Weight.NOTE:
        return 2, -part * (finding.recoverable_pct or 0.0)
    return 0, -part * (100.0 if finding.recoverable_pct is None else finding.recoverable_pct)


def _label(group: Group) -> str:
    name, grid = printable(group.seen.name, 60), group.seen.kernel.grid
    return f"{name} {'×'.join(map(str, grid))}" if grid else name


def _row(group: Group) -> dict[str, object]:
    seen = group.seen
    kernel = seen.kernel
    known = [launch.duration_ns / 1e3 for launch in group.launches if launch.duration_ns is not None]
    named = nvidia.class_of(kernel)
    return {
        "kernel": printable(seen.name),
        "class": seen.kind.value,
        "launches": len(group.launches),
        "median_us": median(known) if known else None,
        "sm_pct": kernel.sm_pct,
        "memory_pct": kernel.memory_pct,
        "dram_pct": kernel.dram_pct,
        "waves": seen.waves.value if seen.waves else None,
        "l2_pct": kernel.l2_pct,
        "grid": list(kernel.grid) if kernel.grid else None,
        "block": list(kernel.block) if kernel.block else None,
        "shortest_us": min(known, default=None),
        "longest_us": max(known, default=None),
        "nvidia_class": printable(named.title) if named is not None and named.title else None,
        "device_name": printable(kernel.device_name) if kernel.device_name else None,
        "full_name": printable(kernel.full_name),
    }


def _on_the_roofline(seen: Seen) -> bool:
    return seen.point.floor_ns is not None or seen.point.flop is not None


def _roof(group: Group) -> dict[str, object]:
    point, duration = group.seen.point, group.seen.kernel.duration_ns
    measured = None if duration is None else duration / 1e9
    return {
        "kernel": printable(group.seen.name),
        "floor_us": None if point.floor_ns is None else point.floor_ns / 1e3,
        "above_floor_pct": point.headroom_pct(duration),
        "roof": point.roof,
        "flop_per_byte": point.intensity,
        "flop_per_s": point.flop / measured if point.flop is not None and measured else None,
        "flop": point.flop,
        "bytes": point.bytes_moved,
        "bytes_needed": point.bytes_needed,
        "peak_bytes_per_s": point.peak_bytes_per_s,
        "peak_flop_per_s": point.peak_flop_per_s,
        "peak_bytes_source": point.peak_bytes_source or None,
        "peak_flop_source": point.peak_flop_source or None,
        "flop_source": point.flop_source or None,
    }


def _facts(lead: Group) -> tuple[Fact, ...]:
    kernel = lead.seen.kernel
    duration = None if kernel.duration_ns is None else kernel.duration_ns / 1e3
    return (
        Fact("duration under ncu", duration, "µs", "gpu__time_duration", _launches(lead)),
        *_roof_facts(lead.seen),
    )


def _launches(group: Group) -> str:
    count = len(group.launches)
    return "1 launch" if count == 1 else f"the median of {count:,} launches"


def _notes(profile: Profile, groups: Sequence[Group], kernel: str | None) -> tuple[str, ...]:
    notes = [_SCOPE, _NOT_LIVE]
    if len(groups) > _MOST_KERNELS:
        notes.append(f"findings are about the {_MOST_KERNELS} kernels with most time; {len(groups)} are in the table")
    whole = sorted({group.seen.kernel.workload for group in groups} - {"kernel"})
    if whole:
        notes.append(f"profiled as a whole {' and '.join(whole)}: its kernels can't be told apart")
    left = len({one.same for one in profile.kernels}) - len(groups)
    if kernel is not None and left:
        notes.append(f"{left} other kernels of the report are left out (--kernel {printable(kernel, 60)})")
    if profile.options.get("clock-control") not in (None, "none"):
        notes.append(f"ncu set the clocks (--clock-control {profile.options['clock-control']})")
    return tuple(printable(note) for note in notes)


def _another(profile: Profile, kernel: str) -> Verdict:
    names = list(dict.fromkeys(printable(Seen(one, {}).name, 60) for one in profile.kernels))
    return Verdict(
        judged=False,
        headline=f"this isn't your hot kernel: the report has {listed(names, 4)}, and not {printable(kernel, 90)}; "
        "profile that one (ncu --kernel-name)",
        capture=_capture(profile),
    )


def _capture(profile: Profile) -> dict[str, object]:
    version = profile.options.get("version")
    return {
        "format": profile.format,
        "files": [printable(name) for name in profile.files],
        "tool": f"Nsight Compute {version}" if version else "Nsight Compute",
        "schema": None,
        "engine": None,
        "engine_name": None,
        "window_from": None,
        "window_ms": None,
        **({"options": dict(profile.options)} if profile.options else {}),
    }
