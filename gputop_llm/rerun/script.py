"""Writes the script that runs the operations again: one file, nothing but torch, to be read and edited."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm import __version__
from gputop_llm.errors import GputopError
from gputop_llm.printable import printable
from gputop_llm.rerun.case import Case
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.rerun.snippets import BY_NAME

#: Beside the inputs: the CUDA context with its libraries, workspaces, and what flushes L2.
CONTEXT_BYTES = 2 << 30
#: Of that, what torch's allocator doesn't count.
_UNCOUNTED_BYTES = 1 << 30
_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}

_HEAD = '''#!/usr/bin/env python3
"""Runs again, alone, what launched these kernels of {source}:

{kernels}

Written by gputop-llm {version}; edit it as you like. It needs torch{more} and {mib:,} MiB free on the GPU.

    python {name}                        # each case: which kernels it launches, and how long they take, as JSON
    python {name} --only "{label}" --times 50
    ncu --clock-control none --cache-control all --nvtx --nvtx-include "rerun/" python {name} --bare --only "{label}"

Weights come from DRAM in a decode step, so L2 is flushed before each launch (--warm leaves it as it is).
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time

import torch

DEVICE = "cuda:0"
DTYPE = {dtype}
SEED = 0
NEEDS_BYTES = {needs:_}  # checked before anything is allocated
MOST_BYTES = {most:_}  # of all tensors, also kept ones: a server beside it never finds less than was agreed to

'''

_TENSOR = '''
def tensor(*shape, stride=None, dtype=None):
    """Random values, or zeros where they are whole numbers: those may be indices."""
    dtype = dtype or DTYPE
    stride = stride or torch.empty(shape, device="meta").stride()
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if 0 not in shape else 0
    if dtype.is_floating_point:
        flat = torch.randn(span, device=DEVICE, dtype=DTYPE if DTYPE != torch.float32 else None).to(dtype)
    else:
        flat = torch.zeros(span, device=DEVICE, dtype=dtype)
    return flat.as_strided(shape, stride)

'''

_TAIL = '''

def flush():
    """Leaves nothing of the inputs in L2: reads twice its size of something else."""
    flush.other.sum()


def launched(step, times, cold):
    """The kernels that one call launches, by torch.profiler: name, grid, block, median duration and calls."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as recorded:
        for _ in range(times):
            cold()
            with torch.profiler.record_function("rerun"):
                step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        recorded.export_chrome_trace(path)
        with open(path) as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    inside = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "rerun" and e["cat"] == "user_annotation"]
    calls = {e["args"].get("correlation"): e["ts"] for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")}
    found = {}
    for event in events:
        at = calls.get(event["args"].get("correlation")) if event["cat"] == "kernel" else None
        if at is not None and any(low <= at <= high for low, high in inside):
            args = event["args"]
            key = event["name"], tuple(args["grid"]), tuple(args["block"])
            found.setdefault(key, []).append(event["dur"])
    return [
        {"name": name, "grid": grid, "block": block, "duration_us": statistics.median(took), "calls": len(took)}
        for (name, grid, block), took in found.items()
    ]


def bare(step, times, cold):
    """Only launches, within an NVTX range: for ncu and nsys."""
    step()
    torch.cuda.synchronize()
    for _ in range(times):
        cold()
        torch.cuda.nvtx.range_push("rerun")
        step()
        torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    return []


def dry(step, times, cold):
    """Only calls it."""
    step()
    return []


def main():
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(CASES), metavar="CASE", help="this case; repeatable")
    parser.add_argument("--times", type=int, default=5, help="calls of each case; default: 5")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--warm", action="store_true", help="don't flush L2 between calls")
    parser.add_argument("--bare", action="store_true", help="only launch, don't record: for ncu")
    parser.add_argument("--within", type=int, default=0, metavar="S", help="it is ended after so long, hung or not")
    parser.add_argument("--dry", action="store_true", help="on the CPU, once each: are the cases sound?")
    asked = parser.parse_args()
    signal.alarm(asked.within)
    began = time.monotonic()
    torch.manual_seed(asked.seed)
    told = {"torch": torch.__version__, "device": "cpu", "cases": []}
    if asked.dry:
        DEVICE = "cpu"
    else:
        try:
            free, total = torch.cuda.mem_get_info(DEVICE)
        except (RuntimeError, AssertionError) as failure:  # torch says why first, and then how to debug itself
            sys.exit(f"cannot use {DEVICE}: {str(failure).strip().partition(chr(10))[0]}")
        if free < NEEDS_BYTES:
            sys.exit(f"not enough memory on {DEVICE}: {free >> 20} MiB free, {NEEDS_BYTES >> 20} MiB needed")
        torch.cuda.set_per_process_memory_fraction(min(1.0, MOST_BYTES / total), DEVICE)
        gpu = torch.cuda.get_device_properties(DEVICE)
        flush.other = torch.zeros(2 * getattr(gpu, "L2_cache_size", 64 << 20) // 4, device=DEVICE)
        told |= {"device": gpu.name, "free_bytes": free}
    look = dry if asked.dry else bare if asked.bare else launched
    for label in asked.only or CASES:
        kernels, error = [], None
        try:
            if asked.within and time.monotonic() - began > 0.7 * asked.within:
                raise TimeoutError("no time was left for it")
            with torch.no_grad():
                kernels = look(CASES[label](), asked.times, (lambda: None) if asked.warm else flush)
        except Exception as failure:  # the other cases go on
            error = f"{type(failure).__name__}: {failure}"
        told["cases"].append({"case": label, "kernels": kernels, "error": error})
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
'''


def script(hot: Sequence[HotLaunch], cases: Sequence[Case], source: str, name: str, dtype: str = "bf16") -> str:
    """The text of the script.

    Args:
        hot: the kernels that it is about.
        source: the capture's name.
        name: the script's own.
        dtype: of what isn't told otherwise.

    Raises:
        GputopError: there is nothing to run.
    """
    if not cases:
        raise GputopError("there is nothing to run again", "no operation is known that could launch these kernels")
    labels = [case.label for case in cases]
    assert len(set(labels)) == len(labels), labels
    used = [text for helper, text in BY_NAME.items() if any(helper in case.needs for case in cases)]
    head = _HEAD.format(
        source=_safe(source),
        kernels="\n".join(f"    {_kernel_line(one)}" for one in hot),
        version=__version__,
        more=" and, for some cases, vLLM" if any("vllm" in text for text in used) else "",
        mib=needs_bytes(cases) >> 20,
        name=_safe(name),
        label=cases[0].label,
        dtype=_DTYPES[dtype],
        needs=needs_bytes(cases),
        most=needs_bytes(cases) - _UNCOUNTED_BYTES,
    )
    return f"{head}{_TENSOR}{''.join(f'{text}{chr(10)}' for text in used)}\n{_cases(cases)}{_TAIL}"


def needs_bytes(cases: Sequence[Case]) -> int:
    """What the largest case takes on the GPU, with what stands beside it."""
    return CONTEXT_BYTES + 3 * max(case.bytes for case in cases)


def _cases(cases: Sequence[Case]) -> str:
    lines = ["# Each makes its inputs only when it is run.", "CASES = {"]
    origin = None
    for case in cases:
        if case.origin != origin:
            origin = case.origin
            lines.append(f"    # {_safe(origin)}")
        lines.append(f"    {case.label!r}: lambda: {case.call},")
    return "\n".join([*lines, "}\n"])


def _kernel_line(hot: HotLaunch) -> str:
    grid, block = ("×".join(map(str, extents)) if extents else "?" for extents in (hot.grid, hot.block))
    return (
        f"{_safe(hot.short)}  grid {grid}, block {block}: {hot.median_ns / 1e3:.1f} µs, {hot.busy_pct:.1f} % of the GPU"
    )


def _safe(text: str) -> str:
    """A name of a file that is not to be trusted, as it may stand in a docstring or behind a "#"."""
    return printable(text, 200).replace("\\", "/").replace('"', "'").replace("\n", " ")
