"""Which engine a metrics page belongs to, and its page as an engine-neutral reading."""

from __future__ import annotations

import re

from gputop_llm.model import EngineReading
from gputop_llm.sources.engines import vllm
from gputop_llm.sources.promtext import Samples

NEEDED = vllm.NEEDED

# In this order: Dynamo passes an engine's own names through.
_PREFIXES = {
    "vllm:": "vllm",
    "sglang:": "sglang",
    "trtllm_": "tensorrt-llm",
    "nv_trt_llm_": "tensorrt-llm",
    "llamacpp:": "llama.cpp",
    "tgi_": "tgi",
    "lmdeploy:": "lmdeploy",
    "dynamo_": "dynamo",
}
_FIRST_WORDS = re.compile(rf"^(?:# (?:HELP|TYPE) )?({'|'.join(_PREFIXES)})", re.MULTILINE)
_PROCESS_ONLY = re.compile(r"^(?:python|process)_", re.MULTILINE)


def recognise(text: str) -> str | None:
    """The engine whose names a metrics page has ("vllm", "sglang", …); None if there are none."""
    found = set(_FIRST_WORDS.findall(text))
    return next((engine for prefix, engine in _PREFIXES.items() if prefix in found), None)


def version_path(engine: str) -> str | None:
    """Where an engine's server tells its version, beside /metrics."""
    return vllm.VERSION_PATH if engine == vllm.NAME else None


def read(samples: Samples, text: str, version: str | None = None) -> EngineReading:
    """A page as a reading; `problem` says so when it holds no metrics of an engine that is known here."""
    if any(name.startswith("vllm:") for name in samples.needed):
        return vllm.read(samples, version)
    engine = recognise(text)
    return EngineReading(
        engine=engine or "unknown",
        version=version,
        problem=_problem(samples, text, engine),
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
    )


def _problem(samples: Samples, text: str, engine: str | None) -> str:
    if not samples.read_lines:
        return "no metrics yet: the page is empty so far"
    if engine == vllm.NAME:
        return (
            "the page has names of vLLM, but no request metrics among them: statistics may be off (--disable-log-stats)"
        )
    if engine is not None:
        return f"this is a page of {engine}, which is not read yet"
    if _PROCESS_ONLY.search(text):
        return (
            "the page has process metrics but none of an engine: statistics are off (look for --disable-log-stats), "
            "this is another process's page, or several API servers lost theirs (PROMETHEUS_MULTIPROC_DIR)"
        )
    return "the page has metrics, but of no engine that is known here"
