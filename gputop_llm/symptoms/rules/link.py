"""link-degraded: a PCIe link that is slower than it could be, or links that make errors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gputop_llm.model.pcie import link_bytes_per_s, link_name
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.checks import Check, State, any_of, is_true, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import MEAN_S, GpuView, NodeView
from gputop_llm.units import number, rate

_KEPT_S = 120.0


def link_degraded(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Under load, generation or width below the maximum; replays or NVLink errors that come in."""
    rule = "link-degraded"
    for gpu in view.gpus.values():
        if gpu.now.integrated:
            continue
        replays, errors = _grown(gpu, "pcie_replays"), _grown(gpu, "nvlink_errors")
        parts = [
            _slow(gpu, "pcie_gen", limits),
            _slow(gpu, "pcie_width", limits),
            over(replays, limits, f"{rule}.replays"),
        ]
        if gpu.now.nvlink_errors is not None:
            # Most GPUs have no NVLink, and lack nothing.
            parts.append(over(errors, limits, f"{rule}.nvlink_errors"))
        make = partial(_symptom, gpu, replays, errors, limits)
        yield judged(rule, gpu.subject, any_of(*parts), partial(_needs, view, gpu), make)


def _needs(view: NodeView, gpu: GpuView) -> str:
    names = ("pcie_gen", "pcie_gen_max", "pcie_width", "pcie_width_max", "pcie_replays", "util_pct")
    missing = gpu.missing(next((name for name in names if gpu.get(name) is None), names[0]))
    needs = f"the PCIe link's generation, width and replays, and the load ({missing})"
    return f"vGPU guest: {needs}" if view.node is not None and view.node.vgpu_guest else needs


def _best(gpu: GpuView, name: str, limits: Limits) -> float | None:
    """The highest value of a field while the GPU was under load in the window; None without load."""
    least = limits.value("link-degraded.util_pct")
    loaded = [g for _, g in gpu.readings(MEAN_S) if g.util_pct is not None and g.util_pct >= least]
    values = [value for g in loaded if (value := getattr(g, name)) is not None]
    return max(values, default=None)


def _slow(gpu: GpuView, name: str, limits: Limits) -> State:
    now, top = gpu.get(name), gpu.get(f"{name}_max")
    if now is None or top is None or gpu.now.util_pct is None:
        return State.UNKNOWN
    if now >= top:
        return State.CLEAR
    best = _best(gpu, name, limits)
    return is_true(best is not None and best < top)


def _grown(gpu: GpuView, name: str) -> float | None:
    """How much a counter grew within the kept time; None while it is unknown. One that fell has begun anew."""
    now = gpu.get(name)
    if now is None:
        return None
    first = next((value for _, value in gpu.values(name, _KEPT_S) if value is not None), now)
    return now - first if now >= first else now


def _symptom(gpu: GpuView, replays: float | None, errors: float | None, limits: Limits) -> Symptom:
    now = gpu.now
    gen, width = _best(gpu, "pcie_gen", limits), _best(gpu, "pcie_width", limits)
    slow_gen = _slow(gpu, "pcie_gen", limits) is State.RAISED
    slow_width = _slow(gpu, "pcie_width", limits) is State.RAISED
    replaying = over(replays, limits, "link-degraded.replays") is State.RAISED
    failing = bool(errors)
    name = gpu.subject.label
    seen, best = (
        link_name(gen or now.pcie_gen, width or now.pcie_width),
        link_name(now.pcie_gen_max, now.pcie_width_max),
    )
    carries = rate(link_bytes_per_s(gen or now.pcie_gen, width or now.pcie_width))
    could = rate(link_bytes_per_s(now.pcie_gen_max, now.pcie_width_max))
    if slow_gen or slow_width:
        headline = f"{name}: PCIe link at {seen} under load, {best} is possible ({carries} of {could})"
    elif failing:
        headline = f"{name}: {number(errors)} NVLink errors in two minutes"
    else:
        headline = f"{name}: {number(replays)} PCIe replays in two minutes"
    return Symptom(
        id="link-degraded",
        subject=gpu.subject,
        severity=Severity.WARNING,
        headline=headline,
        evidence=(
            Evidence(f"{name} PCIe link under load", None, "", "NVML", MEAN_S, text=f"{seen} ({carries})"),
            Evidence(f"{name} PCIe link at most", None, "", "NVML, GPU and slot", text=f"{best} ({could})"),
            _counter(gpu, "pcie_replays", "PCIe replays", replays, limits, "link-degraded.replays"),
            _counter(gpu, "nvlink_errors", "NVLink errors", errors, limits, "link-degraded.nvlink_errors"),
        ),
        causes=ranked(
            Cause(
                "seating: the card, or its cable, doesn't sit well",
                when(slow_width, f"width {number(width)} of {number(now.pcie_width_max)}")
                + when(replaying, f"{number(replays)} replays")
                + when(failing, f"{number(errors)} NVLink errors"),
            ),
            Cause(
                "a riser or a slot with fewer lanes or a lower generation",
                when(slow_width, f"width {number(width)} of {number(now.pcie_width_max)}")
                + when(slow_gen, f"generation {number(gen)} of {number(now.pcie_gen_max)}"),
                when(not slow_gen and not slow_width, "generation and width are at their maximum"),
            ),
            Cause(
                "BIOS: link speed, bifurcation or power management (ASPM)",
                when(slow_gen, f"generation {number(gen)} of {number(now.pcie_gen_max)}"),
                when(not slow_gen and not slow_width, "generation and width are at their maximum"),
            ),
        ),
        advice=(
            Advice(
                f"look at the link as the kernel sees it: lspci -vv -s {now.pci_bus_id or 'BUS_ID'} (LnkSta, LnkCap)"
            ),
            Advice(f"errors by NVLink: nvidia-smi nvlink -i {gpu.index} -e"),
        ),
        refuted_by="full generation and width under load, and counters that stand still",
        agreeing=slow_gen + slow_width + replaying + failing,
        signals=4,
        chart=f"gpu.{gpu.index}.pcie_rx_bytes_per_s",
    )


def _counter(gpu: GpuView, field: str, label: str, grown: float | None, limits: Limits, threshold: str) -> Evidence:
    return Evidence(
        f"{gpu.subject.label} {label}, growth",
        grown,
        "",
        f"NVML, {number(gpu.get(field))} since the driver was loaded",
        _KEPT_S,
        missing=None if grown is not None else gpu.missing(field),
        **limit(limits, threshold),
    )


RULES = (Rule("link-degraded", "a link is slower than it could be", link_degraded),)
