"""Which inference engine was captured, by the names of its processes, threads and ranges."""

from __future__ import annotations

import re

from gputop_llm.timeline.model import Timeline

ENGINE_LABELS = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}

_BY_PROCESS = (
    ("vllm", re.compile(r"\bvllm", re.IGNORECASE)),
    ("sglang", re.compile(r"\bsglang", re.IGNORECASE)),
    ("trtllm", re.compile(r"trtllm|tensorrt_llm", re.IGNORECASE)),
)
_BY_RANGE = (
    ("vllm", re.compile(r"^execute_(model|(\d+_)?context)(_|:|$)|^vllm[.:]|gpu_model_runner: ")),
    ("sglang", re.compile(r"^step\[(DECODE|EXTEND|MIXED|TARGET_VERIFY)\b|^sglang[.:]")),
    ("trtllm", re.compile(r"^(tensorrt_llm|trtllm)|\[Executor\] _forward_step")),
)


def engine_of(timeline: Timeline) -> str | None:
    """ "vllm", "sglang" or "trtllm"; None if nothing names one."""
    owners = [p.name for p in timeline.processes] + [t.name for t in timeline.threads]
    for engine, pattern in _BY_PROCESS:
        if any(name and pattern.search(name) for name in owners):
            return engine
    names = [timeline.name(int(i)) for i in sorted({*timeline.ranges.name_id.tolist()})]
    for engine, pattern in _BY_RANGE:
        if any(pattern.search(name) for name in names):
            return engine
    return None
