"""Kineto traces as they are met: kernels without a time, and ranks that were merged into one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputop_llm.timeline.read_kineto import read_kineto

_EPOCH_US = 1_615_207_264_505_000


def _rank(label: str, pid: int, device: int, start: int) -> list[dict[str, object]]:
    """Ten launches, each with a kernel 20 µs later; numbered as every other rank numbers its own."""
    events: list[dict[str, object]] = []
    for i in range(10):
        at, args = start + 1000 * i, {"correlation": 100 + i, "device": device, "stream": 7}
        events.append(_span("cuda_runtime", "cudaLaunchKernel", f"{label}{pid}", at, 5, correlation=100 + i))
        events.append(_span("kernel", "nvjet_sm90", f"{label}{device}", at + 20, 600, **args))
    return events


def _span(category: str, name: str, pid: object, start: float, length: float, **args: object) -> dict[str, object]:
    number = int(pid) if isinstance(pid, str) and pid.isdigit() else pid
    return {"ph": "X", "cat": category, "name": name, "pid": number, "tid": 7, "ts": start, "dur": length, "args": args}


def _file(folder: Path, events: list[dict[str, object]], **header: object) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}))
    return path


@pytest.mark.parametrize(("base", "never"), [(0, 0), (1_790_000_000_000_000_000, -1_790_000_000_000_000)])
def test_a_kernel_that_never_got_a_time_does_not_make_the_window_fifty_years(tmp_path, base, never):
    lost = _span("kernel", "volta_sgemm", 0, never, 0, device=0, stream=7, correlation=5)
    path = _file(tmp_path, [lost, *_rank("", 9, 0, _EPOCH_US)], baseTimeNanoseconds=base)
    timeline = read_kineto([path])

    assert (len(timeline.ops), timeline.window_ns) == (10, 9_600_000)
    assert any("1 events of trace.json" in warning for warning in timeline.origin.warnings)


def test_the_first_kernel_of_a_trace_that_counts_from_its_beginning_is_kept(tmp_path):
    path = _file(tmp_path, [_span("kernel", "nvjet", 0, 0, 600, device=0, stream=7, correlation=5)])

    assert len(read_kineto([path]).ops) == 1


@pytest.mark.parametrize(("runtime", "told"), [("hip_runtime_version", True), ("cuda_runtime_version", False)])
def test_a_kernel_of_rocm_that_lies_over_the_next_ones_is_told(tmp_path, runtime, told):
    events = _rank("", 9, 0, _EPOCH_US)
    events[7]["dur"] = 3_000
    timeline = read_kineto([_file(tmp_path, events, **{runtime: 70051831})])

    assert any("1 kernels last 1 ms or more beyond" in warning for warning in timeline.origin.warnings) is told


def test_a_trace_of_another_tool_is_called_that(tmp_path):
    path = _file(
        tmp_path,
        [{"ph": "X", "name": "loop_fusion", "pid": 1, "tid": 13, "ts": 100.0 * i, "dur": 50.0} for i in range(40)],
    )

    why = read_kineto([path]).origin.missing["device_activity"]
    assert why.startswith("none of its 40 events is a kernel, an operator or a CUDA call")
    assert "JAX" in why


def test_ranks_that_sglang_merged_into_one_file_launch_their_own_work(tmp_path):
    spans = [_span("Trace", "PyTorch Profiler (0)", f"[TP0{n}] Spans", _EPOCH_US + 100 * n, 10_000) for n in range(2)]
    # Both see one GPU each, which each calls 0.
    events = [*_rank("[TP00] ", 100, 0, _EPOCH_US), *_rank("[TP01] ", 200, 0, _EPOCH_US + 300), *spans]
    timeline = read_kineto([_file(tmp_path, events)])

    assert [(p.pid, p.rank) for p in timeline.processes] == [(100, 0), (200, 1)]
    assert [d.number for d in timeline.devices] == [0, 1]
    issued = timeline.calls.start[timeline.ops.launch]
    assert ((timeline.ops.start - issued) == 20_000).all()
    assert [timeline.threads[t].process for t in timeline.calls.thread[timeline.ops.launch]] == list(
        timeline.ops.process
    )
    # All were recording from the last one's beginning to the first one's end.
    assert (timeline.start, timeline.window_ns) == ((_EPOCH_US + 100) * 1000, 9_900_000)


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("TP{:02d}", [None, "device 0 of rank 1", "device 0 of rank 2"]),
        # Such a rank does not count all there are.
        ("TP{:02d}-PP01", [None, "device 0 of TP01-PP01", "device 0 of TP02-PP01"]),
    ],
)
def test_each_gpu_of_a_merged_file_is_called_by_its_own_rank(tmp_path, label, names):
    events = [e for n in range(3) for e in _rank(f"[{label.format(n)}] ", 100 * (n + 1), 0, _EPOCH_US + 300 * n)]
    timeline = read_kineto([_file(tmp_path, events, distributedInfo={"rank": 2})])

    assert [d.name for d in timeline.devices] == names
