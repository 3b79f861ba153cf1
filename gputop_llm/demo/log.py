"""What the log of a simulated engine says of its start, read as a real one is."""

from __future__ import annotations

from gputop_llm.demo.identity import ACTIVATION_BYTES
from gputop_llm.demo.roofline import LLAMA_8B, LLAMA_70B
from gputop_llm.model import EngineLog, Target
from gputop_llm.sources.engine_log_signals import Signals

_GIB = 1 << 30
_MODELS = {model.name: model for model in (LLAMA_8B, LLAMA_70B)}


class DemoLogSource:
    """The log of one simulated engine; it says nothing new."""

    name = "the engine's log"
    deadline_s = 2.0

    def __init__(self, target: Target) -> None:
        self.target = target
        self._log = _log(target)

    def poll(self) -> EngineLog:
        return self._log

    def abort(self) -> None:
        """A poll never waits."""

    def close(self) -> None:
        """Nothing of its own to let go of."""


def _log(target: Target) -> EngineLog:
    model = _MODELS.get(target.model or "")
    held = [process.mem_bytes for process in target.processes if process.mem_bytes]
    if model is None or not held or target.started_s is None:
        return EngineLog(problem="simulated: a program without a log")
    tp = sum(process.role == "worker" for process in target.processes) or 1
    weights = model.weight_bytes / tp
    pool = held[0] - ACTIVATION_BYTES - weights
    tokens = pool * tp / model.kv_bytes_per_token
    # (seconds after the start, a line): of the same form as those of a real vLLM.
    lines = (
        (21.0, f"Model loading took {weights / _GIB:.2f} GiB memory and 11.482915 seconds"),
        (38.0, f"Available KV cache memory: {pool / _GIB:.2f} GiB"),
        (38.2, f"GPU KV cache size: {tokens:,.0f} tokens"),
        (51.0, "Graph capturing finished in 12 secs, took 0.63 GiB"),
        (52.0, "init engine (profile, create kv cache, warmup model) took 30.71 s"),
    )
    started_s = target.started_s
    signals = Signals()
    signals.feed([text.encode() for _, text in lines], lambda at: (started_s + lines[at][0], "line"))
    return EngineLog(("simulated",), signals=signals.all())
