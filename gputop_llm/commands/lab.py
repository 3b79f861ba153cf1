"""`gputop-llm lab list|run CASE`: workloads with a known cause, and their twins without it."""

from __future__ import annotations

import importlib.util
import json
import signal
import threading
from argparse import Namespace

from gputop_llm.commands import output
from gputop_llm.errors import ExitCode, GputopError, UsageError
from gputop_llm.lab import CASES, case_of
from gputop_llm.lab.case import Case


def run(arguments: Namespace) -> int:
    """Lists the cases, or serves one until its time is over or a signal ends it; returns the exit code.

    Raises:
        UsageError: there is no such case, or it doesn't run on that device.
        GputopError: PyTorch or the GPU is missing, or the port can't be had.
    """
    if arguments.what == "list":
        output.write_text(_listing())
        return ExitCode.OK
    case = case_of(arguments.case)
    device = _device(case, arguments.device)
    from gputop_llm.lab.page import Page
    from gputop_llm.lab.serving import serve

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    page = Page(f"lab:{case.name}")
    workload = case.build(device, arguments.fixed)
    server = page.serve(arguments.port)
    output.complain(
        [
            f"{case.name} on {device}: {case.remedy if arguments.fixed else case.cause}",
            f"watch it: gputop-llm --url http://127.0.0.1:{arguments.port}   end it: Ctrl-C",
        ]
    )
    try:
        served = serve(workload, device, page, arguments.seconds, ended.is_set)
    finally:
        server.shutdown()
    gaps = sorted(served.gaps_ms)
    output.write_text(
        json.dumps(
            {
                "case": case.name,
                "fixed": arguments.fixed,
                "device": device,
                "seconds": round(served.seconds, 3),
                "steps": served.steps,
                "tokens": served.tokens,
                "tokens_per_s": round(served.tokens / served.seconds, 3),
                "gap_p50_ms": round(gaps[len(gaps) // 2], 4) if gaps else None,
                "gap_p99_ms": round(gaps[len(gaps) * 99 // 100], 4) if gaps else None,
            }
        )
        + "\n"
    )
    return ExitCode.OK


def _listing() -> str:
    width = max(map(len, CASES))
    lines = []
    for case in CASES.values():
        lines += [f"{case.name:{width}}  {case.cause}", f"{'':{width}}  --fixed: {case.remedy}"]
        if case.gpus > 1:
            lines.append(f"{'':{width}}  on GPUs it needs {case.gpus}")
        if case.not_on_cpu:
            lines.append(f"{'':{width}}  needs a GPU: {case.not_on_cpu}")
    return "\n".join(lines) + "\n"


def _device(case: Case, asked: str | None) -> str:
    if asked == "cpu" and case.not_on_cpu:
        raise UsageError(f"{case.name} can't run on a CPU", case.not_on_cpu)
    if importlib.util.find_spec("torch") is None:
        raise GputopError("cannot run a case of the lab", "this Python has no PyTorch", "pip install 'gputop-llm[lab]'")
    from gputop_llm.lab.serving import gpu_count

    count = gpu_count()
    device = asked or ("cuda" if count else "cpu")
    if device == "cuda" and count < case.gpus:
        raise UsageError(
            f"{case.name} can't run on a GPU here", f"it needs {case.gpus}, and PyTorch finds {count or 'none'}"
        )
    if device == "cpu" and case.not_on_cpu:
        raise UsageError(f"{case.name} needs a GPU, and PyTorch finds none", case.not_on_cpu)
    return device
