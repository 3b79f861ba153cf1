"""Recorded exports of Nsight Systems, to the figures of their indexes."""

from __future__ import annotations

import lzma
import shutil
from collections import Counter

import pytest

from gputop_llm.timeline.model import CopyKind, Kind, Memory
from gputop_llm.timeline.read_nsys import read_nsys
from tests.support.captures import CAPTURES, field_case
from tests.support.nsys_figures import busy_pct, counts, names, work_ms

VLLM = CAPTURES / "h200" / "nsys-2025.3.1_vllm-0.24-graphs.sqlite.xz"
EAGER = CAPTURES / "h200" / "nsys-2023.4.4_torch-eager-decode.sqlite.xz"
H100 = CAPTURES / "public" / "nsysai_h100_2gpu_1s.sqlite.xz"
SMOKE = CAPTURES / "public" / "flameox_graph_2025.5.2.sqlite"
LOST = CAPTURES / "public" / "lt_gemm.sqlite"


@pytest.fixture(scope="module")
def vllm():
    return read_nsys([VLLM])


@pytest.fixture(scope="module")
def eager():
    return read_nsys([EAGER])


@pytest.fixture(scope="module")
def h100():
    return read_nsys([H100])


def test_vllm_with_graphs_has_every_row_of_its_index(vllm):
    assert counts(vllm) == (8220, 1970, 224, 396)
    assert len(vllm.calls) == 28_149
    assert vllm.window_ns == 1_071_941_702
    assert work_ms(vllm, Kind.KERNEL) == pytest.approx(108.8, abs=0.05)
    assert work_ms(vllm, Kind.GRAPH) == pytest.approx(449.7, abs=0.05)
    assert work_ms(vllm, Kind.COPY) == pytest.approx(2.2, abs=0.05)


def test_vllm_with_graphs_is_busy_half_of_the_time_because_replays_count(vllm):
    assert busy_pct(vllm, 0) == pytest.approx(52.2, abs=0.05)
    assert busy_pct(vllm, 0, Kind.KERNEL, Kind.COPY, Kind.MEMSET) == pytest.approx(10.3, abs=0.2)


def test_rows_from_before_the_window_are_kept(vllm):
    assert vllm.start == 0
    assert vllm.ops.start[0] == -757_550
    assert vllm.ops.kind[0] == Kind.GRAPH


def test_vllm_tells_its_gpu_process_version_and_messages(vllm):
    (device,) = vllm.devices
    assert (device.number, device.name, device.sm_count, device.compute_capability) == (0, "NVIDIA H200", 132, "9.0")
    assert device.mem_bandwidth_bytes_per_s == 4_814_304_000_000
    assert [(p.pid, p.name) for p in vllm.processes] == [(1266, "VLLM::EngineCor")]
    assert vllm.origin.tool == "Nsight Systems 2025.3.2.0"
    assert vllm.origin.schema == "3.20.3"
    assert vllm.origin.window_from == "record"
    assert not vllm.origin.node_level
    # Said by three processes, two of which never used CUDA.
    assert ("warning", "No CUDA events collected. Does the process use CUDA?") in vllm.origin.diagnostics
    assert len(set(vllm.origin.diagnostics)) == len(vllm.origin.diagnostics)


def test_api_names_lose_their_version(vllm):
    calls = names(vllm, "calls")

    assert calls["cudaGraphLaunch"] == 391
    assert calls["cudaLaunchKernel"] == 4449
    assert calls["cudaEventSynchronize"] == 379
    assert not any("_v" in name for name in calls)


def test_graph_replays_point_at_their_launch_and_name_their_graph(vllm):
    replays = vllm.ops.take(vllm.ops.kind == Kind.GRAPH)
    launched = replays.launch[replays.launch >= 0]

    assert len(launched) == 390
    assert {vllm.name(i) for i in vllm.calls.name_id[launched].tolist()} == {"cudaGraphLaunch"}
    assert len(set(replays.graph.tolist())) == 19
    assert vllm.name(int(replays.name_id[0])).startswith("CUDA graph ")


def test_copies_know_their_direction_and_memory(vllm):
    copies = vllm.ops.take(vllm.ops.kind == Kind.COPY)
    found = Counter(zip(copies.copy_kind.tolist(), copies.src_memory.tolist(), copies.dst_memory.tolist(), strict=True))

    assert found[CopyKind.HTOD, Memory.PINNED, Memory.DEVICE] == 832
    assert "Memcpy HtoD (Pinned -> Device)" in names(vllm, "ops")


def test_eager_decode_has_every_row_of_its_index(eager):
    assert counts(eager) == (85_945, 0, 144, 0)
    assert len(eager.calls) == 188_197
    assert names(eager, "ranges").keys() == {"prefill", "decode"}
    assert len(eager.ranges) == 392
    assert eager.window_ns == 2_037_271_072
    # 60,000 rows less the mark "profiling started", which has no length.
    assert len(eager.os_waits) == 59_999
    assert (eager.ops.launch >= 0).all()


def test_a_cut_capture_does_not_use_the_window_of_the_whole(h100):
    assert h100.origin.window_from == "activity"
    assert h100.window_ns == 969_447_605
    assert any("cut out of a longer capture" in warning for warning in h100.origin.warnings)


def test_two_gpus_of_two_processes_stay_apart(h100):
    assert counts(h100) == (3442, 904, 22, 0)
    assert len(h100.calls) == 5796
    assert [device.number for device in h100.devices] == [0, 1]
    assert [busy_pct(h100, device) for device in (0, 1)] == pytest.approx([99.3, 99.3], abs=0.05)
    assert work_ms(h100, Kind.KERNEL) == pytest.approx(44.8, abs=0.05)


def test_copies_from_the_host_hold_the_bytes_of_the_index(h100):
    ops = h100.ops
    rows = ops.take((ops.copy_kind == CopyKind.HTOD) & (ops.src_memory == Memory.PINNED))

    assert rows.bytes.sum() / 1e9 == pytest.approx(50.95, abs=0.01)
    assert (rows.end - rows.start).sum() / 1e6 == pytest.approx(1841.6, abs=0.1)


def test_kernels_without_an_api_row_are_kept_without_a_launch(h100):
    kernels = h100.ops.take(h100.ops.kind == Kind.KERNEL)

    assert (kernels.launch < 0).sum() == 1810


def test_emitted_operators_are_operators_not_ranges(h100):
    assert len(h100.ranges) == 0
    assert len(h100.cpu_ops) == 16_782
    assert "aten::view" in names(h100, "cpu_ops")
    assert "cpu_ops" not in h100.origin.missing


def test_a_capture_without_a_table_of_gpus_says_so(h100):
    assert [device.name for device in h100.devices] == [None, None]
    assert "device_names" in h100.origin.missing


def test_graph_replays_of_a_smoke_test_count_as_work():
    timeline = read_nsys([SMOKE])

    assert counts(timeline) == (3, 1, 0, 2)
    assert work_ms(timeline, Kind.GRAPH) * 1e6 == 3104
    assert timeline.window_ns == 467_690_947
    # The driver is newer than this nsys, and nothing was lost.
    assert "device_activity" not in timeline.origin.missing
    assert any("13.2" in text for severity, text in timeline.origin.diagnostics if severity == "warning")


def test_a_capture_whose_kernels_were_lost_says_why():
    timeline = read_nsys([LOST])

    assert counts(timeline) == (0, 0, 0, 0)
    assert len(timeline.calls) == 3
    assert timeline.window_ns == 10_005_434_939
    why = timeline.origin.missing["device_activity"]
    assert "13.3" in why
    assert "12.9" in why
    assert "update nsys" in why
    assert [device.name for device in timeline.devices] == ["NVIDIA GeForce RTX 5060 Ti"]


def test_one_stream_number_on_three_gpus_is_three_streams():
    timeline = read_nsys([field_case(22) / "capture.sqlite"])
    streams = set(zip(timeline.ops.device.tolist(), timeline.ops.stream.tolist(), strict=True))

    assert streams == {(0, 7), (0, 20), (1, 17), (2, 17), (3, 17)}
    assert [busy_pct(timeline, device.number) for device in timeline.devices] == pytest.approx([86.1] * 4)
    assert timeline.window_ns == 100_000_000


@pytest.mark.parametrize("name", ["old", "future"])
def test_old_and_future_exports_read_alike(name):
    timeline = read_nsys([field_case(23) / f"{name}.sqlite"])

    assert counts(timeline) == (10, 0, 0, 0)
    assert names(timeline, "ops") == {"gemm_a": 10}
    assert (timeline.window_ns, timeline.origin.window_from) == (94_000_000, "activity")
    assert busy_pct(timeline, 0) == pytest.approx(42.6, abs=0.05)
    assert (timeline.ops.launch >= 0).all()
    assert timeline.devices[0].name is None


def test_the_version_of_an_export_is_told_and_a_newer_one_remarked():
    old, future = (read_nsys([field_case(23) / f"{name}.sqlite"]).origin for name in ("old", "future"))

    assert (old.tool, old.schema, old.warnings) == ("Nsight Systems 2023.1.2.43", "3.1.2", ())
    assert future.schema == "3.40.0"
    assert any("3.40.0 is newer" in warning for warning in future.warnings)


def test_compressed_and_plain_files_read_alike(tmp_path, vllm):
    plain = tmp_path / "capture.sqlite"
    with lzma.open(VLLM) as source, plain.open("wb") as target:
        shutil.copyfileobj(source, target)

    timeline = read_nsys([plain])

    assert (timeline.ops.start == vllm.ops.start).all()
    assert timeline.strings == vllm.strings
    assert timeline.origin.files == (str(plain),)


def test_progress_of_a_compressed_file_grows_to_one():
    told: list[float] = []
    read_nsys([EAGER], told.append)

    assert told == sorted(told)
    assert len(told) > 20
    assert told[-1] == 1.0
