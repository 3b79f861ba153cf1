"""gpu-fault: Xid events, uncorrected memory errors, row remapping, and GPUs that are lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gputop_llm.model import XidEvent
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.checks import Check, State, judged
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import GpuView, NodeView
from gputop_llm.symptoms.xids import Xid, lookup
from gputop_llm.units import number, uptime

_SHOWN = 5
_APPLICATION = frozenset(("CHECK_APP", "WORKFLOW_XID_13", "WORKFLOW_XID_31", "WORKFLOW_XID_45", "XID_137_FLOW"))


def gpu_fault(view: NodeView, limits: Limits) -> Iterator[Check]:
    """An Xid of late, an uncorrected error, a remapping that waits or failed, or a GPU that doesn't answer."""
    for gpu in view.gpus.values():
        recent = _recent(gpu, view.now.at_s, limits)
        now = gpu.now
        faulty = bool(recent or now.lost or now.ecc_uncorrected or now.remap_pending or now.remap_failed)
        needs = _needs(view, gpu)
        state = State.RAISED if faulty else State.UNKNOWN if needs else State.CLEAR
        yield judged("gpu-fault", gpu.subject, state, needs, partial(_symptom, view, gpu, recent))


def _needs(view: NodeView, gpu: GpuView) -> str:
    """What can't be told. ECC and remapping alone are missed by nobody: their errors come as Xids too."""
    vgpu = view.node is not None and view.node.vgpu_guest
    if vgpu and gpu.now.remap_pending is None:
        return f"vGPU guest: row remapping and ECC ({gpu.missing('remap_pending')})"
    if "xids" in gpu.now.missing:
        return f"Xid events ({gpu.missing('xids')})"
    return ""


def _recent(gpu: GpuView, at_s: float, limits: Limits) -> list[tuple[XidEvent, Xid]]:
    """The Xids that still count, newest first, each number once."""
    found: dict[int, tuple[XidEvent, Xid]] = {}
    for event in gpu.now.xids:
        xid = lookup(event.xid)
        name = "gpu-fault.hard_xid_s" if xid.severity is Severity.CRITICAL else "gpu-fault.xid_s"
        if at_s - event.at_s <= limits.value(name):
            found[event.xid] = (event, xid)
    return sorted(found.values(), key=lambda pair: pair[0].at_s, reverse=True)


def _symptom(view: NodeView, gpu: GpuView, recent: Sequence[tuple[XidEvent, Xid]]) -> Symptom:
    now, label = gpu.now, gpu.subject.label
    ecc = now.ecc_uncorrected or 0
    before = [value for _, value in gpu.values("ecc_uncorrected", float("inf")) if value is not None]
    rising = bool(before) and ecc > before[0]
    # (how bad, what to say), the most telling first among equals.
    parts: list[tuple[Severity, str]] = []
    if now.lost:
        parts.append((Severity.CRITICAL, f"{label} is lost: it doesn't answer the driver any more"))
    for _, xid in sorted(recent, key=lambda pair: -pair[1].severity):
        parts.append((xid.severity, f"{label}: Xid {xid.number}, {xid.meaning}"))
    if now.remap_failed:
        parts.append((Severity.CRITICAL, f"{label}: a faulty memory row could not be remapped"))
    if ecc:
        text = f"{label}: {ecc} uncorrected memory errors since the driver was loaded"
        parts.append((Severity.CRITICAL if rising else Severity.WARNING, text))
    if now.remap_pending:
        parts.append((Severity.WARNING, f"{label}: a faulty memory row waits for a GPU reset to be remapped"))
    severity, headline = max(parts, key=lambda part: part[0], default=(Severity.WARNING, f"{label}: a fault"))
    return Symptom(
        id="gpu-fault",
        subject=gpu.subject,
        severity=severity,
        headline=headline,
        evidence=_evidence(view, gpu, recent, rising),
        causes=_causes(gpu, recent, rising),
        advice=_advice(gpu, recent),
        refuted_by="no new Xid and counters that stand still after the GPU was reset",
        agreeing=len({part for _, part in parts}),
        signals=max(len(parts), 1),
    )


def _evidence(
    view: NodeView, gpu: GpuView, recent: Sequence[tuple[XidEvent, Xid]], rising: bool
) -> tuple[Evidence, ...]:
    now, label = gpu.now, gpu.subject.label
    found = [
        Evidence(
            f"{label} Xid {xid.number}",
            None,
            "",
            "driver event, NVIDIA's Xid catalogue",
            text=f"{xid.meaning}, {uptime(max(0.0, view.now.at_s - event.at_s))} ago; NVIDIA: {xid.advice}",
        )
        for event, xid in recent[:_SHOWN]
    ]
    if now.lost:
        found.append(Evidence(f"{label} state", None, "", "NVML", text=gpu.missing("util_pct")))
    elif not recent:
        missing = gpu.missing("xids") if "xids" in now.missing else None
        found.append(Evidence(f"{label} Xids", None if missing else 0.0, "", "driver event", missing=missing))
    ecc = "rising" if rising else "since the driver was loaded"
    found.append(
        Evidence(
            f"{label} uncorrected ECC errors",
            now.ecc_uncorrected,
            "",
            f"NVML, {ecc}",
            threshold=0.0,
            threshold_origin="default",
            missing=gpu.missing("ecc_uncorrected") if now.ecc_uncorrected is None else None,
        )
    )
    for name, words in (("remap_pending", "row remapping waits"), ("remap_failed", "row remapping failed")):
        value: bool | None = getattr(now, name)
        text = None if value is None else f"{'yes' if value else 'no'}, {number(now.remapped_rows)} rows remapped"
        missing = gpu.missing(name) if value is None else None
        found.append(Evidence(f"{label} {words}", None, "", "NVML", text=text, missing=missing))
    return tuple(found)


def _causes(gpu: GpuView, recent: Sequence[tuple[XidEvent, Xid]], rising: bool) -> tuple[Cause, ...]:
    by_app = [f"Xid {xid.number}: {xid.meaning}" for _, xid in recent if xid.then in _APPLICATION]
    by_driver = [f"Xid {xid.number}: {xid.meaning}" for _, xid in recent if xid.then == "INVESTIGATE_SW"]
    hard = [f"Xid {xid.number}: {xid.meaning}" for _, xid in recent if xid.severity is Severity.CRITICAL]
    healthy = gpu.now.ecc_uncorrected == 0 and not gpu.now.remap_pending and not gpu.now.remap_failed
    return ranked(
        Cause(
            "hardware: memory, the board, its power or its link",
            (
                *hard,
                *when(rising, "uncorrected errors are rising"),
                *when(gpu.now.remap_failed, "a row could not be remapped"),
                *when(gpu.now.remap_pending, "a row is faulty"),
                *when(gpu.now.lost, "the GPU doesn't answer"),
            ),
            when(healthy and not hard and not gpu.now.lost, "no memory error, no row to remap"),
        ),
        Cause("the driver, or the firmware on the GPU", tuple(by_driver)),
        Cause(
            "an application that used the GPU wrongly", tuple(by_app), when(bool(hard), "Xids of the hardware came too")
        ),
    )


def _advice(gpu: GpuView, recent: Sequence[tuple[XidEvent, Xid]]) -> tuple[Advice, ...]:
    now = gpu.now
    found = [Advice(f"Xid {xid.number}, NVIDIA: {xid.advice}") for _, xid in recent[:_SHOWN]]
    if now.lost and not any(xid.number == 79 for _, xid in recent):
        found.append(Advice("read the kernel log (dmesg | grep -i xid), then reboot the machine"))
    if now.remap_failed:
        found.append(Advice("run NVIDIA's field diagnostics: a failed remapping may qualify for replacement (RMA)"))
    if now.remap_pending:
        found.append(Advice("reset the GPU at the next opportunity; NVIDIA: what runs may go on until then"))
    if now.ecc_uncorrected:
        found.append(Advice(f"see which memory it was: nvidia-smi -i {gpu.index} -q -d ECC,ROW_REMAPPER"))
    return tuple(found)


RULES = (Rule("gpu-fault", "the GPU or its driver reports an error", gpu_fault),)
