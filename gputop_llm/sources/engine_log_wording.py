"""What engines and their libraries write into their logs, by its exact wording.

A line counts only where the wording stands at its beginning, behind the prefix of a logger: prompts are logged too,
and whoever sends one must not be able to raise an alarm.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gputop_llm.model.symptom import Severity

_NOTE, _WARNING, _CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
TRACEBACK = "Traceback (most recent call last):"

_SOURCE = re.compile(r"\([A-Za-z][\w.-]{0,40}(?: rank=\d+)? pid=\d+(?:, ip=[\w.:]+)?\) ?|\[rank\d+\]: ?")
# One space at most is taken behind a prefix: how far a line is indented says whether a traceback goes on.
_PREFIX = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[?[\w./-]{1,80}:\d+\] ?"  # vLLM
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?: [A-Z]+\d+)*\] ?"  # SGLang
    r"|\d{4}-\d\d-\d\dT[\d:.]+Z +[A-Z]+ [\w:]+: (?:[\w/.-]+\.rs:\d+: )?"  # TGI
    r"|\[\d\d/\d\d/\d{4}-[\d:]+\] |\[TRT-LLM\] |\[RANK \d+\] |\[[IWEFV]\] |\[TensorRT-LLM\]\[[A-Z]+\] "
    r"|\[?[IWEF]\d{0,4} (?:[\d:.]+ )?(?:\d+ )?[\w.]+:\d+\] ?"  # glog
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ - [\w.]+ - [A-Z]+ - "
    r"|\d+\.\d\d\.\d{3}\.\d{3} [A-Z] |(?:srv|slot|main|cmn) +\w+: (?:id +\d+ \| task -?\d+ \| )?"  # llama.cpp
)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Wording(NamedTuple):
    """`hint` is in every such line; `pattern` matches at the beginning of its body."""

    kind: str
    severity: Severity
    hint: str
    pattern: re.Pattern[str]


def _row(kind: str, severity: Severity, hint: str, pattern: str | None = None) -> Wording:
    return Wording(kind, severity, hint, re.compile(pattern or re.escape(hint)))


WORDINGS: tuple[Wording, ...] = (
    # vLLM
    _row("kv-pool", _NOTE, "KV cache size: ", r"(?:\w+(?: \+ host)? )?KV cache size: [\d,]+ tokens"),
    _row("kv-pool", _NOTE, " blocks: ", r"# \w+ blocks: \d+"),
    _row("kv-pool", _NOTE, "Maximum concurrency for "),
    _row("memory", _NOTE, "Available KV cache memory: "),
    _row("memory", _NOTE, "Memory profiling takes "),
    _row("memory", _NOTE, "model weights take "),
    _row("memory", _NOTE, " GiB for KV cache", r"Explicitly set \S+ GiB for KV cache"),
    _row("loading", _NOTE, "Model loading took "),
    _row("loading", _NOTE, "Loading model weights took "),
    _row("graphs", _NOTE, "Graph capturing finished in "),
    _row("graphs", _NOTE, "torch.compile t", r"torch\.compile t(?:akes|ook) "),
    _row("start", _NOTE, "init engine (profile, create kv cache, warmup model) took "),
    _row(
        "died", _CRITICAL, "died unexpectedly", r"(?:Worker proc|RayWorkerProc|Engine core proc) ?.*died unexpectedly"
    ),
    _row(
        "out-of-memory", _CRITICAL, "No available memory for the cache blocks", r"(?:ValueError: )?No available memory"
    ),
    _row("out-of-memory", _CRITICAL, "Failed to load model - not enough GPU memory"),
    _row("engine-dead", _CRITICAL, "EngineCore encountered a fatal error"),
    _row("engine-dead", _CRITICAL, "EngineCore failed to start"),
    _row("engine-dead", _CRITICAL, "EngineDeadError: ", r"[\w.]*EngineDeadError: "),
    _row("preemption", _WARNING, " is preempted by ", r"Sequence group \S+ is preempted by "),
    _row("preemption", _WARNING, "Preempting request "),
    _row("slow", _WARNING, "No available shared memory broadcast block found"),
    _row("slow", _WARNING, "Engine iteration timed out"),
    _row("slow", _WARNING, "RPC call to ", r"(?:\w+: )?RPC call to \w+ timed out"),
    # SGLang
    _row("loading", _NOTE, "Load weight end."),
    _row("kv-pool", _NOTE, "KV Cache is allocated. "),
    _row("kv-pool", _NOTE, "max_total_num_tokens=", r"max_total_num_tokens=\d+"),
    _row("memory", _NOTE, "Memory pool end."),
    _row("graphs", _NOTE, " graph end.", r"Capture (?:\w+ )?(?:cuda|CUDA) graph end\."),
    _row("died", _CRITICAL, "Received sigquit from a child process"),
    _row("preemption", _WARNING, "KV cache pool is full. Retract requests."),
    _row("slow", _CRITICAL, "atchdog timeout (self.", r"(?:\w+ )?[Ww]atchdog timeout \(self\."),
    _row("slow", _WARNING, "Health check failed."),
    # TGI
    _row("kv-pool", _NOTE, "Setting max batch total tokens to "),
    _row("died", _CRITICAL, "Shard process was signaled"),
    # TensorRT-LLM
    _row("kv-pool", _NOTE, " for max tokens in paged KV cache", r"\[MemUsageChange\] Allocated \S+ GiB for max tokens"),
    _row("kv-pool", _NOTE, " tokens in paged KV cache", r"Using \d+ tokens in paged KV cache"),
    # llama.cpp
    _row("kv-pool", _NOTE, " KV buffer size = ", r"\w+: +\w+ KV buffer size = "),
    _row("loading", _NOTE, " model buffer size = ", r"\w+: +\w+ model buffer size = "),
    _row("out-of-memory", _CRITICAL, "cudaMalloc failed: out of memory", r"\w+: .*cudaMalloc failed: out of memory"),
    _row(
        "preemption",
        _WARNING,
        "failed to find free space in the KV cache",
        r"(?:\w+ ?: )?failed to find free space in the KV cache",
    ),
    # torch, CUDA, NCCL, Python
    _row(
        "out-of-memory",
        _CRITICAL,
        "out of memory",
        r"(?:[\w.]*(?:OutOfMemoryError|RuntimeError|AcceleratorError): )?(?:CUDA|HIP) (?:error: )?out of memory",
    ),
    _row(
        "nccl",
        _CRITICAL,
        "Watchdog caught collective operation timeout",
        r"(?:\[[^\]]{1,60}\] )?Watchdog caught collective operation timeout",
    ),
    _row("nccl", _CRITICAL, "NCCL error", r"(?:[\w.]*Error: )?NCCL error"),
    _row("nccl", _CRITICAL, "DistBackendError: ", r"[\w.]*DistBackendError: "),
    _row("nccl", _WARNING, "NCCL WARN ", r"(?:\[[\d: .-]+\] )?[\w.-]+:\d+:\d+ \[\d+\] (?:[\w/.]+:\d+ )?NCCL WARN "),
    _row("cuda", _CRITICAL, "CUDA error: ", r"(?:[\w.]*Error: )?CUDA error: "),
    _row("died", _CRITICAL, "Fatal Python error: "),
    _row("died", _CRITICAL, "terminate called after throwing an instance of "),
)

_HINTS = (*dict.fromkeys(w.hint.encode() for w in WORDINGS), TRACEBACK.encode())


def hinted(text: bytes) -> bool:
    """Whether a line, or any of several, can be a signal, or the beginning of one."""
    # Three times as fast as one pattern of them all.
    return any(hint in text for hint in _HINTS)


def body_of(line: str) -> tuple[str, bool, str]:
    """Which process a line says that it is from ("" without that), whether a logger wrote it, and the line's body."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    source, logged, at = "", False, 0
    for _ in range(8):
        if (found := _SOURCE.match(line, at)) is not None:
            source += found[0]
        elif (found := _PREFIX.match(line, at)) is not None:
            logged = True
        else:
            break
        at = found.end()
    return source, logged, line[at:]


def wording_of(body: str) -> tuple[str, Severity] | None:
    """Kind and severity of a line's body; None for a line that says nothing known."""
    return next(((w.kind, w.severity) for w in WORDINGS if w.hint in body and w.pattern.match(body)), None)
