"""Random schedules for hypothesis: programs that launch, copy, allocate, wait and sleep in any order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from gputop_llm.timeline.model import CopyKind, Memory
from tests.support.synth import Host, Schedule, Simulation

_NAMES = ("gemm_bf16", "flash_fwd_kernel<128, true>", "ncclDevKernel_AllReduce_Sum", "rms_norm", "[bold]é\x1b[31m")
_COPIES = (
    (CopyKind.HTOD, Memory.PINNED, Memory.DEVICE),
    (CopyKind.HTOD, Memory.PAGEABLE, Memory.DEVICE),
    (CopyKind.DTOH, Memory.DEVICE, Memory.PINNED),
    (CopyKind.DTOH, Memory.DEVICE, Memory.PAGEABLE),
    (CopyKind.DTOD, Memory.DEVICE, Memory.DEVICE),
    (CopyKind.HTOH, Memory.PINNED, Memory.PAGEABLE),
)


@st.composite
def schedules(
    draw: st.DrawFn,
    *,
    node_mode: bool | None = None,
    step_ns: int = 1,
    max_actions: int = 25,
    hosts: int | None = None,
) -> Schedule:
    """A schedule of one or two processes, each with one host thread and one GPU.

    `node_mode` None draws it; `step_ns` makes all times multiples of it (1000 for whole microseconds).
    """
    start = draw(st.integers(-2_000, 50_000)) * step_ns
    nodes = draw(st.booleans()) if node_mode is None else node_mode
    pause = draw(st.integers(0, 5)) * step_ns
    simulation = Simulation(start=start, node_mode=nodes, node_gap_ns=pause, tick_ns=step_ns)
    for device in range(hosts or draw(st.integers(1, 2))):
        host = simulation.host(device=device)
        for _ in range(draw(st.integers(0, max_actions))):
            _act(draw, host, step_ns)
    schedule = simulation.schedule(idle_after_ns=draw(st.integers(0, 3000)) * step_ns)
    if draw(st.integers(0, 4)) == 0:
        # A window that opens and closes while work is under way.
        span = (schedule.end - schedule.start) // step_ns
        opens = schedule.start + draw(st.integers(0, span // 4)) * step_ns
        closes = schedule.end - draw(st.integers(0, span // 4)) * step_ns
        # A window without work is taken for damage, and the end 0 for "never ended".
        inside = any(op.start < closes and op.end > opens for op in schedule.ops)
        if inside and not any(op.end == opens for op in schedule.ops):
            schedule = replace(schedule, start=opens, end=closes)
    return schedule


def _act(draw: st.DrawFn, host: Host, step: int) -> None:
    def ns(low: int, high: int) -> int:
        return draw(st.integers(low, high)) * step

    stream = draw(st.sampled_from((7, 13)))
    action = draw(
        st.sampled_from(
            ("launch",) * 4 + ("replay", "copy", "blocking", "memset", "sync", "alloc", "sleep", "run", "op")
        )
    )
    timing = {"call_ns": ns(1, 60), "after_ns": ns(1, 90)}
    if action == "launch":
        seen = draw(st.integers(0, 9)) > 0
        host.launch(stream, ns(1, 200), draw(st.sampled_from(_NAMES)), seen=seen, **timing)
    elif action == "replay":
        nodes = [(draw(st.sampled_from(_NAMES)), ns(1, 50)) for _ in range(draw(st.integers(1, 4)))]
        host.replay(stream, draw(st.integers(1, 3)), nodes, **timing)
    elif action in ("copy", "blocking"):
        kind, source, target = draw(st.sampled_from(_COPIES))
        size = draw(st.integers(1, 10**9))
        host.copy(stream, ns(1, 300), size, kind, source, target, blocking=action == "blocking", **timing)
    elif action == "memset":
        host.memset(stream, ns(1, 20), draw(st.integers(1, 10**6)), **timing)
    elif action == "sync":
        host.sync(draw(st.sampled_from((None, 7, 13))), overhead_ns=ns(1, 30))
    elif action == "alloc":
        host.alloc(ns(1, 500), draw(st.sampled_from(("cudaMalloc", "cudaFree", "cudaHostAlloc"))))
    elif action == "sleep":
        host.sleep(ns(1, 500), draw(st.sampled_from(("poll", "futex", "pthread_cond_wait"))))
    elif action == "run":
        host.run(ns(1, 300))
    else:
        with host.op(
            draw(st.sampled_from(("aten::mm", "aten::add_"))), draw(st.sampled_from((None, "[[8, 16], [16, 4]]")))
        ):
            host.run(ns(1, 50))
            host.launch(stream, ns(1, 100), "inside", **timing)
            host.run(ns(0, 50))
