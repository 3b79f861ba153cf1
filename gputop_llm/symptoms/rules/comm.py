"""comm-bound: GPUs of one engine that wait for each other, or for the links between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gputop_llm import gpus as table
from gputop_llm.model.pcie import link_bytes_per_s, link_name
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms import topology
from gputop_llm.symptoms.advice import FEWER_GPUS_A_COPY
from gputop_llm.symptoms.argv import has_flag
from gputop_llm.symptoms.checks import Check, State, all_in_turn, any_of, at_least, judged, over, under
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import gpu_names, gpu_number, limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import groups, rank_on, requests_run, running_needs
from gputop_llm.symptoms.view import EngineView, GpuView, NodeView
from gputop_llm.units import number, pct, rate


class _Link(NamedTuple):
    """Traffic of one GPU on one kind of link: the busier direction, and its share of what the link carries."""

    kind: str
    bytes_per_s: float
    capacity_bytes_per_s: float
    capacity_source: str

    @property
    def share_pct(self) -> float:
        return 100.0 * self.bytes_per_s / self.capacity_bytes_per_s


@dataclass(frozen=True, slots=True)
class _Group:
    """GPUs that work in step, what they wait for, and how sure that is."""

    gpus: tuple[GpuView, ...]
    waiting: State
    spread: State
    spread_pct: float | None

    @property
    def state(self) -> State:
        return any_of(self.waiting, self.spread)

    @property
    def slowest(self) -> GpuView:
        """The GPU that has least to do: the others wait for its rank inside a kernel, and so read busy."""
        return min(self.gpus, key=lambda gpu: gpu.mean("util_pct") or 0.0)


def comm_bound(view: NodeView, limits: Limits) -> Iterator[Check]:
    """All GPUs of a group busy with few SMs and much traffic, or one of them much less busy than the others."""
    for engine in view.engines:
        found = [_judge(engine, group, limits) for group in groups(engine) if len(group) > 1]
        if not found:
            continue
        worst = max(found, key=lambda group: (group.state is State.RAISED, group.spread_pct or 0.0))
        state = any_of(*(group.state for group in found))
        make = partial(_symptom, view, engine, worst, limits)
        yield judged("comm-bound", engine.subject, state, partial(_needs, engine, worst, limits), make)


def _judge(engine: EngineView, group: tuple[GpuView, ...], limits: Limits) -> _Group:
    utils = [None if gpu.now.mig_enabled else gpu.mean("util_pct") for gpu in group]
    known = [util for util in utils if util is not None]
    spread = max(known) - min(known) if len(known) == len(utils) else None
    waiting = all_in_turn(
        *(partial(at_least, util, limits, "comm-bound.util_pct") for util in utils),
        *(partial(_few_sms, gpu, limits) for gpu in group),
        partial(_traffic, group, limits),
    )
    apart = all_in_turn(
        partial(over, spread, limits, "comm-bound.spread_pct"), partial(_running, engine, group[0], limits)
    )
    return _Group(group, waiting, apart, spread)


def _few_sms(gpu: GpuView, limits: Limits) -> State:
    return under(gpu.mean("gpm.sm_active_pct"), limits, "comm-bound.sm_active_pct")


def _traffic(group: tuple[GpuView, ...], limits: Limits) -> State:
    shares = [link.share_pct for gpu in group if (link := _busiest(gpu)) is not None]
    state = over(max(shares, default=None), limits, "comm-bound.link_pct")
    if state is not State.RAISED and any(gpu.mean("nvlink_tx_bytes_per_s") and not _nvlink(gpu) for gpu in group):
        return State.UNKNOWN
    return state


def _running(engine: EngineView, gpu: GpuView, limits: Limits) -> State:
    return requests_run(engine, limits, "comm-bound", gpu)


def _nvlink(gpu: GpuView) -> tuple[float, str] | None:
    """What the GPU's NVLinks carry in one direction in bytes per second, and where that is from."""
    spec = table.find(gpu.now.name, gpu.now.mem_total_bytes)
    return (spec.nvlink_bytes_per_s, f"GPU table, {spec.name}") if spec and spec.nvlink_bytes_per_s else None


def _links(gpu: GpuView) -> list[_Link]:
    found = []
    nvlink = _nvlink(gpu)
    pcie = link_bytes_per_s(gpu.now.pcie_gen, gpu.now.pcie_width)
    for kind, capacity, source, fields in (
        ("NVLink", *(nvlink or (None, "")), ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")),
        ("PCIe", pcie, link_name(gpu.now.pcie_gen, gpu.now.pcie_width), ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")),
    ):
        rates = [gpu.mean(field) for field in fields]
        known = [value for value in rates if value is not None]
        if known and capacity:
            found.append(_Link(kind, max(known), capacity, source))
    return found


def _busiest(gpu: GpuView) -> _Link | None:
    if "busiest link" not in gpu.memo:
        gpu.memo["busiest link"] = max(_links(gpu), key=lambda link: link.share_pct, default=None)
    found: _Link | None = gpu.memo["busiest link"]
    return found


def _needs(engine: EngineView, group: _Group, limits: Limits) -> str:
    for gpu in group.gpus:
        if gpu.now.mig_enabled:
            return "MIG: utilisation isn't defined for the parent GPU"
        for name, label in (("util_pct", "utilisation"), ("gpm.sm_active_pct", "GPM counters")):
            if gpu.mean(name) is None:
                return f"{label} of {gpu.subject.label} ({gpu.missing(name)})"
        if gpu.mean("nvlink_tx_bytes_per_s") and not _nvlink(gpu):
            return f"what NVLink carries on {gpu.now.name} (not in the GPU table)"
        if _busiest(gpu) is None:
            return f"NVLink or PCIe traffic of {gpu.subject.label} ({gpu.missing('pcie_tx_bytes_per_s')})"
    return running_needs(engine, limits)


def _symptom(view: NodeView, engine: EngineView, group: _Group, limits: Limits) -> Symptom:
    joints = topology.joints(view, [gpu.index for gpu in group.gpus])
    slow, names = group.slowest, gpu_names(group.gpus)
    rank = rank_on(engine, slow)
    slow_name = f"{slow.subject.label}{f' ({rank})' if rank else ''}"
    by_spread = group.spread is State.RAISED or group.waiting is not State.RAISED
    links = {gpu.index: _busiest(gpu) for gpu in group.gpus}
    busiest = max((link for link in links.values() if link), key=lambda link: link.share_pct, default=None)
    if by_spread:
        others = max((gpu.mean("util_pct") or 0.0 for gpu in group.gpus), default=0.0)
        headline = f"{slow_name} is {pct(slow.mean('util_pct'))} busy, the ranks that wait for it up to {pct(others)}"
    else:
        sm = max((gpu.mean("gpm.sm_active_pct") or 0.0 for gpu in group.gpus), default=0.0)
        traffic = f"{busiest.kind} at {pct(busiest.share_pct)}" if busiest else "links busy"
        headline = f"{names} read busy with SM active at most {pct(sm)}, {traffic}: they wait for each other"
    evidence = [
        Evidence(
            "spread of utilisation",
            group.spread_pct,
            "%",
            "NVML, busiest less least busy",
            10.0,
            **limit(limits, "comm-bound.spread_pct"),
        )
    ]
    for gpu in group.gpus:
        evidence += _of_gpu(gpu, limits)
    evidence.append(topology.evidence(joints))
    return Symptom(
        id="comm-bound",
        subject=engine.subject,
        severity=Severity.WARNING,
        headline=headline,
        evidence=tuple(evidence),
        causes=_causes(engine, group, joints, busiest, slow_name, limits),
        advice=(
            FEWER_GPUS_A_COPY,
            Advice(
                "use the engine's own all-reduce instead of NCCL's for short messages",
                {
                    "vllm": "no --disable-custom-all-reduce",
                    "sglang": "no --disable-custom-all-reduce",
                    "trtllm": "allreduce_strategy: AUTO",
                },
            ),
            Advice(
                "without NVLink: pipeline instead of tensor parallelism sends far less",
                {
                    "vllm": "--pipeline-parallel-size (up), --tensor-parallel-size (down)",
                    "sglang": "--pp-size (up), --tp-size (down)",
                    "trtllm": "pipeline_parallel_size (up), tensor_parallel_size (down)",
                },
            ),
        ),
        refuted_by="a trace of all ranks in which the collectives take little time and begin together",
        next_capture="kineto",
        agreeing=sum((group.waiting is State.RAISED, group.spread is State.RAISED, _link_high(busiest, limits))),
        signals=3,
        chart=f"gpu.{slow.index}.util_pct",
        chart_threshold=limits.value("comm-bound.util_pct"),
    )


def _link_high(link: _Link | None, limits: Limits) -> bool:
    return link is not None and link.share_pct > limits.value("comm-bound.link_pct")


def _of_gpu(gpu: GpuView, limits: Limits) -> list[Evidence]:
    found = [
        gpu_number(gpu, "util_pct", "utilisation", "%", "NVML", **limit(limits, "comm-bound.util_pct")),
        gpu_number(gpu, "gpm.sm_active_pct", "SM active", "%", "GPM", **limit(limits, "comm-bound.sm_active_pct")),
    ]
    for kind, field in (("NVLink", "nvlink"), ("PCIe", "pcie")):
        link = next((link for link in _links(gpu) if link.kind == kind), None)
        value = gpu.mean(f"{field}_tx_bytes_per_s")
        found.append(
            Evidence(
                f"{gpu.subject.label} {kind}, busier direction",
                link.bytes_per_s if link else value,
                "B/s",
                f"of {rate(link.capacity_bytes_per_s)} ({link.capacity_source})" if link else "NVML",
                10.0,
                threshold=link.capacity_bytes_per_s * limits.value("comm-bound.link_pct") / 100.0 if link else None,
                threshold_origin=limits.origin("comm-bound.link_pct") if link else None,
                missing=None if link or value is not None else gpu.missing(f"{field}_tx_bytes_per_s"),
            )
        )
    return found


def _causes(
    engine: EngineView,
    group: _Group,
    joints: topology.Joints,
    busiest: _Link | None,
    slow_name: str,
    limits: Limits,
) -> tuple[Cause, ...]:
    traffic = f"{busiest.kind} at {pct(busiest.share_pct)} of {rate(busiest.capacity_bytes_per_s)}" if busiest else ""
    no_nvlink = all(gpu.get("nvlink_tx_bytes_per_s") is None for gpu in group.gpus)
    by_pcie = busiest is not None and busiest.kind == "PCIe" and _link_high(busiest, limits)
    clocks = [gpu.mean("sm_clock_mhz") for gpu in group.gpus]
    slow_clock = group.slowest.mean("sm_clock_mhz")
    known = [clock for clock in clocks if clock is not None]
    slower = slow_clock is not None and slow_clock < max(known) * (1 - limits.value("comm-bound.clock_pct") / 100.0)
    spread = f"utilisation differs by {pct(group.spread_pct)[:-2]} points, {slow_name} has least"
    return ranked(
        Cause(
            "tensor parallelism over PCIe",
            when(by_pcie, traffic)
            + when(by_pcie and no_nvlink and joints.nvlink is None, "no NVLink traffic is known")
            + when(joints.nvlink is False, joints.text),
            when(busiest is not None and not by_pcie, traffic) + when(bool(joints.nvlink), joints.text),
        ),
        Cause(
            "all-reduces that nothing overlaps",
            when(group.waiting is State.RAISED, "all GPUs read busy while few SMs work")
            + when(has_flag(engine, "--disable-custom-all-reduce"), "started with --disable-custom-all-reduce"),
            when(group.waiting is State.CLEAR, "not all GPUs are busy, or their SMs are at work"),
        ),
        Cause(
            f"a straggler: the rank on {slow_name} comes late to each collective",
            when(group.spread is State.RAISED, spread)
            + when(
                slower, f"its SM clock is {number(slow_clock)} MHz, the fastest {number(max(known, default=None))} MHz"
            ),
            when(group.spread is State.CLEAR, spread),
        ),
    )


RULES = (Rule("comm-bound", "GPUs wait for each other", comm_bound),)
