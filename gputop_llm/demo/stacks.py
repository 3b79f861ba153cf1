"""Made-up Python stacks of the simulated node: all ranks in step, or, while it is stalled, one that isn't."""

from __future__ import annotations

from dataclasses import replace

from gputop_llm.capture.stacks.compare import compared, headline
from gputop_llm.follow import describe
from gputop_llm.model import Frame, Target
from gputop_llm.model.stacks import Call, Flame, FlameRow, FlameThread, ProcessStacks, StackReport, ThreadStack

_LOOP = (
    Call("WorkerProc.worker_busy_loop", "demo/executor.py", 210),
    Call("run", "demo/worker.py", 40),
    Call("<module>", "demo/serve.py", 7),
)
_ALL_REDUCE = (Call("all_reduce", "demo/distributed.py", 88), Call("Model.forward", "demo/model.py", 301), *_LOOP)
_LOST = (Call("read", "demo/loader.py", 55), Call("load_adapter", "demo/lora.py", 120), *_LOOP)
_SAMPLE = (Call("sample", "demo/sampler.py", 157), Call("Model.step", "demo/model.py", 260), *_LOOP)
_FEEDER = (Call("Poller.poll", "demo/zmq.py", 106), Call("process_input_sockets", "demo/core.py", 155))


def simulated_stacks(frame: Frame, target: Target) -> StackReport:
    """What a look at the ranks of a simulated target would tell."""
    report = frame.symptoms
    stalled = report is not None and any(one.id == "stalled" for one in report.active)
    ranks = [one for one in target.processes if one.pid is not None and one.gpus]
    processes = tuple(
        ProcessStacks(
            one.pid or 0,
            one.title,
            one.rank,
            (
                ThreadStack(1, one.pid, "MainThread", True, True, _where(at, len(ranks), stalled), not stalled),
                ThreadStack(2, (one.pid or 0) + 1, "Thread-1 (process_input_sockets)", False, False, _FEEDER, False),
            ),
            took_s=0.015,
            looks=2,
        )
        for at, one in enumerate(ranks)
    )
    kinds = compared(processes, {one.pid: "worker" for one in processes})
    return StackReport(describe(target), frame.at_s, processes, kinds, headline(processes, kinds))


def _where(at: int, count: int, stalled: bool) -> tuple[Call, ...]:
    if not stalled:
        return _SAMPLE
    return _LOST if count > 1 and at == count - 1 else _ALL_REDUCE


def simulated_flames(target: Target, seconds: float) -> tuple[Flame, ...]:
    """What a recording of the ranks of a simulated target would tell."""
    rows = (
        ("sample", "demo/sampler.py", 31, 31),
        ("Model.step", "demo/model.py", 12, 43),
        ("run", "demo/worker.py", 7, 50),
    )
    thread = FlameThread(
        "MainThread",
        50,
        tuple(FlameRow(name, file, own, all_, 2.0 * own, 2.0 * all_) for name, file, own, all_ in rows),
    )
    empty = Flame(0, "", None, seconds, 50, samples=50, threads=(thread,), cpu_s=0.02)
    return tuple(
        replace(empty, pid=one.pid or 0, title=one.title, rank=one.rank)
        for one in target.processes
        if one.pid is not None and one.gpus
    )
