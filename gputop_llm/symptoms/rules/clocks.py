"""power-capped, thermal-throttled and hw-slowdown: clocks that are held down, and by what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from gputop_llm import gpus as table
from gputop_llm.model import Gpu
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.checks import Check, State, all_in_turn, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import gpu_number, limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import unplaced
from gputop_llm.symptoms.view import MEAN_S, GpuView, NodeView, mean_of
from gputop_llm.units import number, pct

# NVML's names in words. "idle" and "app_clocks" are no slowdown, and belong to no rule here.
_WORDS = {
    "sw_power_cap": "power cap",
    "sw_thermal": "software thermal slowdown",
    "hw_thermal": "hardware thermal slowdown",
    "hw_slowdown": "hardware slowdown",
    "hw_power_brake": "power brake",
}

_REASONS = {
    "power-capped": ("sw_power_cap",),
    "thermal-throttled": ("sw_thermal", "hw_thermal"),
    "hw-slowdown": ("hw_slowdown", "hw_power_brake"),
}


@dataclass(frozen=True, slots=True)
class _Slowdown:
    """The share of the window during which reasons of one kind held: any of them, and each one."""

    share_pct: float
    by_reason: Mapping[str, float]
    by_counter: bool


def power_capped(view: NodeView, limits: Limits) -> Iterator[Check]:
    """The power limit holds the clocks of a GPU down; of GPUs that an engine uses."""
    yield from unplaced(view, "power-capped")
    for index in view.users:
        gpu = view.gpus[index]
        missing = next((name for name in ("power_w", "power_limit_w") if gpu.get(name) is None), None)
        if missing is not None:
            needs = _needs(view, f"power and its limit ({gpu.missing(missing)})")
            yield Check("power-capped", gpu.subject, State.UNKNOWN, needs)
        else:
            yield _check(view, gpu, "power-capped", _power_symptom, limits)


def thermal_throttled(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Heat holds the clocks of a GPU down."""
    for gpu in view.gpus.values():
        yield _check(view, gpu, "thermal-throttled", _thermal_symptom, limits)


def hw_slowdown(view: NodeView, limits: Limits) -> Iterator[Check]:
    """The hardware holds the clocks of a GPU down for another reason than heat."""
    for gpu in view.gpus.values():
        yield _check(view, gpu, "hw-slowdown", _hw_symptom, limits)


def _check(
    view: NodeView,
    gpu: GpuView,
    rule: str,
    make: Callable[[NodeView, GpuView, _Slowdown, Limits], Symptom],
    limits: Limits,
) -> Check:
    reasons = _REASONS[rule]
    if not _has_one(gpu, reasons):
        needs = f"the reasons for lowered clocks ({gpu.missing('throttle')})"
        return Check(rule, gpu.subject, State.UNKNOWN, _needs(view, needs))
    state = all_in_turn(
        partial(over, _below_pct(gpu), limits, f"{rule}.clock_below_pct"),
        partial(_held_down, gpu, rule, limits),
    )
    name = "sm_clock_mhz" if gpu.now.sm_clock_mhz is None else "sm_clock_max_mhz"
    return judged(
        rule,
        gpu.subject,
        state,
        lambda: _needs(view, f"the SM clock and its maximum ({gpu.missing(name)})"),
        partial(_make, make, view, gpu, reasons, limits),
    )


def _make(
    make: Callable[[NodeView, GpuView, _Slowdown, Limits], Symptom],
    view: NodeView,
    gpu: GpuView,
    reasons: Sequence[str],
    limits: Limits,
) -> Symptom:
    return make(view, gpu, _slowdown(gpu, reasons), limits)


def _has_one(gpu: GpuView, reasons: Sequence[str]) -> bool:
    """Whether the driver tells of one of these reasons, in force or not."""
    if "clock reasons" not in gpu.memo:
        gpu.memo["clock reasons"] = {reason.name for reason in gpu.now.throttle or ()}
    return not gpu.memo["clock reasons"].isdisjoint(reasons)


def _below_pct(gpu: GpuView) -> float | None:
    """How far the SM clock is below its maximum, in percent."""
    clock, top = gpu.mean("sm_clock_mhz"), gpu.now.sm_clock_max_mhz
    return 100.0 * (1 - clock / top) if clock is not None and top else None


def _held_down(gpu: GpuView, rule: str, limits: Limits) -> State:
    if "held down" not in gpu.memo:
        gpu.memo["held down"] = gpu.each("held down", _most)
    known = [share for most in gpu.memo["held down"] if (share := most[rule]) is not None]
    return over(mean_of(known), limits, f"{rule}.share_pct")


def _most(gpu: Gpu) -> dict[str, float | None]:
    """For each rule how long the longest of its reasons held, in percent of the time since the reading before."""
    found = _all_shares(gpu)
    return {rule: max(_of(found, reasons).values(), default=None) for rule, reasons in _REASONS.items()}


def _needs(view: NodeView, what: str) -> str:
    """In a vGPU guest that is the reason for all that is missing."""
    return f"vGPU guest: {what}" if view.node is not None and view.node.vgpu_guest else what


def _slowdown(gpu: GpuView, reasons: Sequence[str]) -> _Slowdown:
    known = [shares for _, reading in gpu.readings() if (shares := _shares(reading, reasons))]
    return _Slowdown(
        share_pct=fmean(max(shares.values()) for shares in known),
        by_reason={name: fmean(shares.get(name, 0.0) for shares in known) for name in known[-1]},
        by_counter=any(t.name in reasons and t.source == "counter" for t in gpu.now.throttle or ()),
    )


def _shares(gpu: Gpu, reasons: Sequence[str]) -> dict[str, float]:
    """Of these reasons, each that the driver tells of → share of the time since the reading before."""
    return _of(_all_shares(gpu), reasons)


def _all_shares(gpu: Gpu) -> dict[str, float]:
    """Reason → share of the time since the reading before; of a momentary bit all of it, or none."""
    return {t.name: (100.0 if t.active else 0.0) if t.share_pct is None else t.share_pct for t in gpu.throttle or ()}


def _of(found: Mapping[str, float], reasons: Sequence[str]) -> dict[str, float]:
    if found.get("hw_thermal", 0.0) > 0.0 and "hw_slowdown" in found and "hw_thermal" not in reasons:
        # The general bit is set along with the one that says why.
        found = {**found, "hw_slowdown": 0.0}
    return {name: found[name] for name in reasons if name in found}


def _evidence(gpu: GpuView, rule: str, slowdown: _Slowdown, limits: Limits) -> tuple[Evidence, ...]:
    name, top = gpu.subject.label, gpu.now.sm_clock_max_mhz
    source = "NVML counters" if slowdown.by_counter else "NVML, momentary bits"
    return (
        *(
            Evidence(f"{name} {_WORDS[reason]}", share, "%", source, MEAN_S, **limit(limits, f"{rule}.share_pct"))
            for reason, share in slowdown.by_reason.items()
        ),
        gpu_number(
            gpu,
            "sm_clock_mhz",
            "SM clock",
            "MHz",
            f"NVML, at most {number(top)} MHz",
            threshold=_lowest_mhz(gpu, rule, limits),
            threshold_origin=limits.origin(f"{rule}.clock_below_pct"),
        ),
        gpu_number(
            gpu, "power_w", "power", "W", "NVML", threshold=gpu.now.power_limit_w, threshold_origin="the enforced limit"
        ),
        gpu_number(
            gpu,
            "temp_c",
            "temperature",
            "°C",
            "NVML",
            threshold=gpu.now.temp_slowdown_c,
            threshold_origin="the GPU's slowdown threshold",
        ),
        gpu_number(gpu, "temp_mem_c", "memory temperature", "°C", "NVML"),
    )


def _lowest_mhz(gpu: GpuView, rule: str, limits: Limits) -> float | None:
    """The SM clock under which it counts as held down."""
    top = gpu.now.sm_clock_max_mhz
    return top * (1 - limits.value(f"{rule}.clock_below_pct") / 100.0) if top else None


def _clock(gpu: GpuView) -> str:
    return f"{number(gpu.mean('sm_clock_mhz'))} of {number(gpu.now.sm_clock_max_mhz)} MHz"


def _power_symptom(view: NodeView, gpu: GpuView, slowdown: _Slowdown, limits: Limits) -> Symptom:
    rule = "power-capped"
    power, cap, share = gpu.mean("power_w"), gpu.now.power_limit_w, gpu.mean("power_pct")
    spec = table.find(gpu.now.name, gpu.now.mem_total_bytes)
    tdp = spec.tdp_w if spec else None
    text = f"limit {number(cap)} W, the board's is {number(tdp)} W"
    lowered = bool(cap and tdp and cap < tdp * (1 - limits.value(f"{rule}.below_tdp_pct") / 100.0))
    near = share is not None and share >= limits.value(f"{rule}.near_limit_pct")
    drawn = f"{number(power)} W, {pct(share)} of the limit"
    raised = f"nvidia-smi -i {gpu.index} -pl {number(tdp)}" if lowered else f"nvidia-smi -i {gpu.index} -pl WATTS"
    return Symptom(
        id=rule,
        subject=gpu.subject,
        severity=Severity.WARNING,
        headline=f"{gpu.subject.label} is held at {_clock(gpu)} by its power limit ({drawn})",
        evidence=_evidence(gpu, rule, slowdown, limits),
        causes=ranked(
            Cause(
                "the limit was set below the board's",
                when(lowered, text),
                when(bool(cap and tdp) and not lowered, text),
            ),
            Cause(
                "the work draws all the power there is: normal at full load", when(near, drawn), when(not near, drawn)
            ),
            Cause(
                "a limit above this GPU's own: of the module that it shares with a CPU, of the chassis or the rack",
                when(share is not None and not near, f"{drawn} only"),
                when(near, drawn),
            ),
        ),
        advice=(Advice(f"raise the limit, if power and cooling allow: {raised} (as root)"),),
        refuted_by="the same TPOT at the same load with a higher limit",
        agreeing=2 + near,
        signals=3,
        chart=f"gpu.{gpu.index}.power_w",
        chart_threshold=cap,
    )


def _thermal_symptom(view: NodeView, gpu: GpuView, slowdown: _Slowdown, limits: Limits) -> Symptom:
    rule = "thermal-throttled"
    temp, threshold = gpu.mean("temp_c"), gpu.now.temp_slowdown_c
    others = [t for other in view.gpus.values() if other is not gpu and (t := other.mean("temp_c")) is not None]
    coolest = min(others, default=None)
    hotter = temp is not None and coolest is not None and temp - coolest >= limits.value(f"{rule}.hotter_c")
    near = _near_slowdown(gpu, limits)
    compared = f"{number(temp)} °C here, {number(coolest)} °C on the coolest GPU"
    return Symptom(
        id=rule,
        subject=gpu.subject,
        severity=Severity.WARNING,
        headline=f"{gpu.subject.label} is too hot: {number(temp)} °C, held at {_clock(gpu)}",
        evidence=_evidence(gpu, rule, slowdown, limits),
        causes=ranked(
            Cause(
                "cooling of this GPU: fan, heat sink, blocked air",
                when(hotter, compared),
                when(bool(others) and not hotter, compared),
            ),
            Cause(
                "the whole chassis or the room is too warm",
                when(bool(others) and not hotter, compared),
                when(hotter, compared),
            ),
            Cause(
                "the memory is hotter than the chip",
                when(near is False, f"{number(temp)} °C of {number(threshold)} °C: not the chip")
                + when(bool(gpu.mean("temp_mem_c")), f"memory at {number(gpu.mean('temp_mem_c'))} °C"),
                when(bool(near), f"{number(temp)} °C of {number(threshold)} °C: the chip itself"),
            ),
        ),
        advice=(
            Advice(f"compare with the thresholds: nvidia-smi -i {gpu.index} -q -d TEMPERATURE; check fans and airflow"),
        ),
        refuted_by="clocks still low after the GPU has cooled down",
        agreeing=2 + bool(near),
        signals=3,
        chart=f"gpu.{gpu.index}.temp_c",
        chart_threshold=threshold,
    )


def _near_slowdown(gpu: GpuView, limits: Limits) -> bool | None:
    temp, threshold = gpu.mean("temp_c"), gpu.now.temp_slowdown_c
    if temp is None or threshold is None:
        return None
    return temp >= threshold - limits.value("thermal-throttled.near_slowdown_c")


def _hw_symptom(view: NodeView, gpu: GpuView, slowdown: _Slowdown, limits: Limits) -> Symptom:
    rule = "hw-slowdown"
    brake = slowdown.by_reason.get("hw_power_brake")
    near, temp = _near_slowdown(gpu, limits), number(gpu.mean("temp_c"))
    # The general bit may be set along with the brake, which says more.
    reason = "hw_power_brake" if brake else "hw_slowdown"
    held = f"{_WORDS[reason]} for {pct(slowdown.by_reason.get(reason))} of the time"
    at = f"{temp} °C, slowdown threshold {number(gpu.now.temp_slowdown_c)} °C"
    return Symptom(
        id=rule,
        subject=gpu.subject,
        severity=Severity.CRITICAL,
        headline=f"{gpu.subject.label}: {held}, {_clock(gpu)}",
        evidence=_evidence(gpu, rule, slowdown, limits),
        causes=ranked(
            Cause(
                "the power supply or the chassis asks the GPU to brake (external power brake)",
                when(bool(brake), f"power brake for {pct(brake)} of the time"),
                when(brake == 0.0, "the power-brake reason is not set"),
            ),
            Cause("temperature too high", when(bool(near), at), when(near is False, at)),
            Cause("power drawn too fast: the fast protection of the board", when(brake == 0.0 and near is False, at)),
        ),
        advice=(
            Advice("check power supplies, cables and the BMC's event log (ipmitool sel list)"),
            Advice(f"drain the GPU until it is clear: nvidia-smi -i {gpu.index} -q -d PERFORMANCE shows the reasons"),
        ),
        refuted_by="the reasons gone and clocks back while power supplies and cooling are as before",
        agreeing=2 + bool(brake),
        signals=3,
        chart=f"gpu.{gpu.index}.sm_clock_mhz",
        chart_threshold=_lowest_mhz(gpu, rule, limits),
    )


RULES = (
    Rule("power-capped", "the power limit holds the clocks down", power_capped),
    Rule("thermal-throttled", "heat holds the clocks down", thermal_throttled),
    Rule("hw-slowdown", "the hardware holds the clocks down", hw_slowdown),
)
