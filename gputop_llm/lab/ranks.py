"""Tensor-parallel cases: two processes, a rank and a GPU each, that meet in collectives. NCCL on GPUs, gloo on a CPU.

The first rank is the case's own process and serves; the other one (`lab.other_rank`) makes the same steps. It needs no
word from the first: it waits for it in the next collective.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gputop_llm.lab.case import Workload

RANKS = 2

#: Makes one step's function from device, whether it is the twin, and the rank; a step returns a tensor [batch].
StepOf = Callable[[str, bool, int], Callable[[], Any]]


def join(device: str, rank: int, port: int) -> None:
    """Makes this process that rank; returns once both are there."""
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=RANKS,
    )


def workload(step_of: StepOf, device: str, fixed: bool, batch: int, output: int) -> Workload:
    """Starts the other rank, which ends with this process; the workload of this one.

    Args:
        step_of: the case's function of that name, by which the other rank finds it.
        device: "cuda" or "cpu".
        fixed: whether it is the twin.
        batch: as in `Workload`.
        output: as in `Workload`.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = [step_of.__module__, device, "fixed" if fixed else "cause", str(port), str(os.getpid())]
    other = subprocess.Popen([sys.executable, "-m", "gputop_llm.lab.other_rank", *words], stdin=subprocess.DEVNULL)
    # Before it can complain that this one is gone.
    atexit.register(other.kill)
    join(device, 0, port)
    step = step_of(device, fixed, 0)
    # One kind of step: the other rank doesn't know which one it is.
    return Workload(batch, 1, output, decode=lambda _: step(), prefill=lambda _: step())
