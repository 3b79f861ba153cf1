"""Figures of timelines for tests, and a short program to record."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gputop_llm.timeline import intervals
from gputop_llm.timeline.model import CopyKind, Kind, Memory
from tests.support.synth import Simulation


def counts(timeline):
    found = Counter(timeline.ops.kind.tolist())
    return tuple(found[kind] for kind in (Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.GRAPH))


def busy_pct(timeline, device, *kinds):
    ops = timeline.ops
    rows = ops.take((ops.device == device) & np.isin(ops.kind, kinds or tuple(Kind)))
    inside = intervals.clip(rows.start, rows.end, timeline.start, timeline.end)
    return 100 * intervals.length(*intervals.union(*inside)) / timeline.window_ns


def work_ms(timeline, *kinds):
    ops = timeline.ops
    return (ops.end - ops.start)[np.isin(ops.kind, kinds)].sum() / 1e6


def names(timeline, table):
    return Counter(timeline.name(i) for i in getattr(timeline, table).name_id.tolist())


def decode(simulation=None, steps=3):
    """A little of everything: replays, kernels, copies, a sync, an operator, a range, a wait."""
    simulation = simulation or Simulation()
    host = simulation.host(device=0)
    for _ in range(steps):
        with host.range("step"):
            host.copy(7, 2000, 4096, CopyKind.HTOD, Memory.PINNED, Memory.DEVICE)
            host.memset(7, 700, 512)
            with host.op("aten::mm", "[[8, 16], [16, 4]]"):
                host.launch(7, 9000, "gemm<float, 8>")
            host.replay(7, 3, [("rms_norm", 2000), ("gemm", 8000)])
            host.copy(13, 1500, 128, CopyKind.DTOH, Memory.DEVICE, Memory.PAGEABLE)
            host.sync()
        host.sleep(4000)
    return simulation.schedule()
