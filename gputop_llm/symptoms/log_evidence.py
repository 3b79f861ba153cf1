"""What an engine's own log says of a symptom, as one more line of its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gputop_llm.model import Frame, LogSignal
from gputop_llm.model.log import FAILURES, root_error
from gputop_llm.model.symptom import Evidence, Symptom
from gputop_llm.units import uptime

# What was written longer ago belongs to another story.
_WITHIN_S = 900.0
# Rule → kinds of signals that have to do with it.
QUOTED: Mapping[str, frozenset[str]] = {
    "stalled": frozenset((*FAILURES, "slow")),
    "metrics-stale": frozenset((*FAILURES, "slow")),
    "errors-rising": frozenset(FAILURES),
    "gpu-fault": frozenset(("cuda", "nccl")),
    "comm-bound": frozenset(("nccl", "slow")),
    "kv-pressure": frozenset(("preemption",)),
    "memory-spike": frozenset(("out-of-memory",)),
}


def with_log(symptom: Symptom, frame: Frame, engines: Iterable[str]) -> Symptom:
    """The symptom with the most telling line of its engine's log that has to do with it.

    Args:
        engines: subjects of the engines that it is of ("engine:<key of the target>").
    """
    kinds = QUOTED.get(symptom.id)
    if kinds is None or not frame.logs:
        return symptom
    keys = {engine.partition(":")[2] for engine in engines}
    values = [one.log.value for one in frame.logs if one.target_key in keys]
    said = [signal for log in values if log for signal in log.signals if signal.kind in kinds and _fresh(signal, frame)]
    if not said:
        return symptom
    telling = root_error(said) or max(said, key=lambda signal: signal.at_s or 0.0)
    return replace(symptom, evidence=(*symptom.evidence, _evidence(telling, frame.at_s)))


def _evidence(signal: LogSignal, now_s: float) -> Evidence:
    ago = "" if signal.at_s is None else f", {uptime(now_s - signal.at_s)} ago"
    times = f" ×{signal.count}" if signal.count > 1 else ""
    where = f" ({signal.where})" if signal.where else ""
    return Evidence("its log says", None, "", "the engine's log", text=f"{signal.text}{where}{times}{ago}")


def _fresh(signal: LogSignal, frame: Frame) -> bool:
    return signal.at_s is not None and frame.at_s - signal.at_s <= _WITHIN_S
