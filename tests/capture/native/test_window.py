"""A window: all that CUPTI gives comes out, each field in its place, and the target is left as it was."""

from __future__ import annotations

import lzma
import os
import re
import time

import numpy as np
import pytest

from gputop_llm.capture.inject.seccomp import CALLS
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk, EndReason, Kinds
from tests.capture.native.hosting import ALL, MIB, NATIVE, Record
from tests.support.captures import CAPTURES

#: CUDA 12.0 to 12.9, 13.0, 13.1, 13.2, 13.3: each with another length of some record.
VERSIONS = [18, 20, 22, 24, 26, 28, 130000, 130001, 130101, 130202, 130301]
STEP_RECORDS = 7


def taken(host, line, steps=1, threads=1):
    """A window in which that many steps were made."""
    line.window()
    line.hear(Chunk.STARTED)
    for thread in range(threads):
        host.call("fake_steps", thread, steps)
    line.stop()
    return line.record()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_of_every_record_comes_out_whatever_the_version(a_host, a_line, version):
    host = a_host(env={**os.environ, "FAKE_CUPTI_VERSION": str(version)})
    record = taken(host, a_line(host), steps=50)

    hello = form.HELLO.unpack_from(record.one(Chunk.HELLO))
    assert hello == (form.VERSION, host.pid, hello[2], version)
    assert hello[2] != host.pid, "a thread of its own"
    assert record.one(Chunk.HELLO)[form.HELLO.size :].decode().endswith("/libcupti.so.13")
    assert record.kinds[:2] == [Chunk.HELLO, Chunk.STARTED]
    kernels, names = record.rows(Chunk.KERNELS), record.names()
    assert len(kernels) == 100
    assert {names[row["name"]] for row in kernels} == {"_Z6decodePfi", "_Z7prefillPfi"}
    assert len(names) == 2
    for field, value in {
        "device": 3, "context": 1, "stream": 0, "graph": 70, "registers": 96, "shared_static_bytes": 1024,
        "shared_dynamic_bytes": 49152, "local_per_thread_bytes": 16,
    }.items():  # fmt: skip
        assert set(kernels[field].tolist()) == {value}, field
    assert (kernels["grid"] == [132, 2, 1]).all()
    assert (kernels["block"] == [256, 1, 4]).all()
    assert (kernels["end"] - kernels["start"] == 90).all()
    # One launch of a graph has one correlation; its nodes tell its kernels apart.
    by_launch = np.unique(kernels[["correlation", "graph_node"]])
    assert len(by_launch) == 100
    assert set(by_launch["graph_node"].tolist()) == {7001, 7002}
    assert len(np.unique(kernels["correlation"])) == 50
    copies = record.rows(Chunk.COPIES)
    assert {tuple(row.tolist()[2:4]) + tuple(row.tolist()[5:]) for row in copies} == {
        (4096, 7003, 3, 1, 0, 70, 1, 2, 3, 1),
        (8192, 7004, 3, 1, 0, 70, 10, 3, 3, 0),
    }
    assert set(copies["correlation"].tolist()) == set(kernels["correlation"].tolist())
    memsets = record.rows(Chunk.MEMSETS)
    assert {tuple(row.tolist()[2:4]) + tuple(row.tolist()[5:]) for row in memsets} == {(512, 7005, 3, 1, 0, 70, 3)}
    calls, apis = record.rows(Chunk.CALLS), record.names(Chunk.API_NAME)
    assert {(apis[row["api"]], int(row["api"]) >> 24, row["result"]) for row in calls} == {
        ("cudaLaunchKernel_v7000", 5, 0),
        ("cuLaunchKernelEx", 4, 7),
    }
    (thread,) = set(calls["thread"].tolist())
    assert thread != 0
    assert (calls["end"] > calls["start"]).all()
    assert record.end["records"] == record.row_count == 50 * STEP_RECORDS
    assert record.end["dropped"] == record.end["unreturned"] == 0
    assert record.end["reason"] == EndReason.STOPPED


@pytest.mark.parametrize("version", [17, 29, 120900, 129999, 130400, 140000])
def test_a_version_whose_records_are_not_known_is_refused_by_name(a_host, a_line, version):
    host = a_host(env={**os.environ, "FAKE_CUPTI_VERSION": str(version)})
    _, _, sentence = a_line(host).record().refusal

    assert f"API version {version} isn't known" in sentence
    assert host.get("fake_requests") == 0


def test_clocks_are_read_at_both_ends_of_what_was_collected(a_host, a_line):
    host, before = a_host(), time.monotonic_ns()
    line = a_line(host)
    line.window(ms=30)
    record = line.record()
    began = form.STARTED.unpack(record.one(Chunk.STARTED))
    end = record.end

    assert before < began[2] < end["monotonic"] < time.monotonic_ns()
    assert end["monotonic"] - began[2] >= 30e6
    assert end["reason"] == EndReason.TIME_UP
    assert end["tsc"] > began[3]
    for cupti, realtime in (began[:2], (end["cupti"], end["realtime"])):
        assert abs(cupti - realtime) < 5e6  # the stand-in's clock is CLOCK_REALTIME
    assert began[4] == ALL


@pytest.mark.parametrize("kind", ["deny", "only"])
def test_names_that_lead_nowhere_end_nothing_whatever_is_allowed(a_host, a_line, kind):
    host = a_host()
    line = a_line(host)
    line.hear(Chunk.HELLO)
    # process_vm_readv, by which a debugger reads; or all that this client may not call, but for the end of the program.
    numbers = [310] if kind == "deny" else [*(number for number, _ in CALLS.values()), 231]
    host.ask(f"filter {kind} {' '.join(map(str, numbers))}")
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_steps", 0, 3)
    host.set("fake_bad_names", 1)
    host.call("fake_steps", 0, 2)
    line.stop()
    record = line.record()

    assert record.end["reason"] == EndReason.STOPPED
    names = record.names() | {0: None}
    counts = {name: sum(names[row["name"]] == name for row in record.rows(Chunk.KERNELS)) for name in names.values()}
    assert counts == {"_Z6decodePfi": 4, "_Z7prefillPfi": 2, None: 4}


def test_a_window_begins_at_the_moment_that_it_was_given(a_host, a_line):
    line, start = a_line(a_host()), time.monotonic_ns() + 200_000_000
    line.window(ms=5, start_at=start)

    assert form.STARTED.unpack(line.record().one(Chunk.STARTED))[2] >= start


@pytest.mark.parametrize("kind", list(Kinds))
def test_only_what_was_asked_for_is_ever_turned_on(a_host, a_line, kind):
    host = a_host()
    line = a_line(host)
    line.window(kinds=kind)
    line.hear(Chunk.STARTED)
    host.call("fake_steps", 0, 3)
    line.stop()
    record = line.record()

    activities = {Kinds.KERNELS: {10}, Kinds.COPIES: {1, 22}, Kinds.MEMSETS: {2}, Kinds.RUNTIME: {5}, Kinds.DRIVER: {4}}
    assert {number for number in range(64) if host.get("fake_ever_enabled", number)} == activities[kind]
    assert not any(host.call("fake_enabled", number) for number in range(64))
    assert record.row_count == record.end["records"] > 0


@pytest.mark.parametrize("age", ["old", "new"])
def test_calls_that_only_look_something_up_are_not_recorded_where_cupti_can_leave_them_out(native, a_host, a_line, age):
    host = a_host(native.cupti if age == "new" else native.old_cupti)
    for kinds in (ALL, ALL, Kinds.RUNTIME):
        line = a_line(host)
        line.window(kinds=kinds)
        line.hear(Chunk.STARTED)
        host.call("fake_steps", 0, 10)
        host.call("fake_lookups", 0, 100)
        assert (host.call("fake_left_out", 5) > 0) == (age == "new")
        line.stop()
        calls = line.record().rows(Chunk.CALLS)
        assert len(calls) == (20 if kinds == ALL else 10) + (0 if age == "new" else 800 if kinds == ALL else 400)
    assert host.get("fake_stray_calls") == 0


def test_the_numbers_of_lookups_are_those_of_calls_that_are_known():
    """By recordings of real engines, where those calls are nine of ten."""
    source = (NATIVE / "kinds.c").read_text()
    told = {}
    for domain, array in ((5, "runtime"), (4, "driver")):
        (table,) = re.findall(rf"{array}_lookups\[\] = \{{(.*?)\}};", source, re.DOTALL)
        told |= {domain << 24 | int(number): name for number, name in re.findall(r"(\d+), +/\* (\w+) \*/", table)}
    record = Record(lzma.decompress((CAPTURES / "h200/native_vllm-0.24_named_0.5s.gtw.xz").read_bytes()))
    names, calls = record.names(Chunk.API_NAME), record.rows(Chunk.CALLS)

    assert {name.partition("_v")[0] for api, name in names.items() if api in told} <= set(told.values())
    assert all(names[api].partition("_v")[0] == told[api] for api in names.keys() & told.keys())
    assert np.isin(calls["api"], list(told)).mean() > 0.9


def test_of_many_threads_all_comes_out_that_cupti_had_room_for(a_host, a_line):
    host = a_host()
    line = a_line(host)
    host.set("fake_work_us", 100)
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_work", 24)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        line.read_some(until + 10)
    host.ask("call fake_rest")
    line.stop()
    record = line.record()

    emitted = sum(host.get("fake_emitted", kind) for kind in range(64))
    dropped = host.get("fake_dropped")  # on a busy machine the reader may be too slow
    assert record.end["dropped"] == dropped < emitted / 2
    assert record.row_count == record.end["records"] == emitted - dropped
    assert set(record.rows(Chunk.KERNELS)["stream"].tolist()) == set(range(24))


def test_when_the_pool_is_empty_cupti_drops_and_the_end_says_how_many(a_host, a_line):
    host = a_host()
    record = taken(host, a_line(host), threads=40)

    lost = host.get("fake_dropped")
    assert lost == (40 - 32) * STEP_RECORDS
    assert record.end["dropped"] == lost
    assert record.row_count == 32 * STEP_RECORDS


def test_a_bound_on_bytes_ends_the_window_and_holds(a_host, a_line):
    host = a_host()
    line = a_line(host)
    line.window(most=2 * MIB)
    line.hear(Chunk.STARTED)
    host.call("fake_work", 2)
    record = line.record()
    host.ask("call fake_rest")

    assert record.end["reason"] == EndReason.TOO_MANY_BYTES
    assert MIB < len(record.data) <= 2 * MIB + form.CHUNK_HEADER.size + form.END.size
    assert record.row_count < record.end["records"]


def test_names_of_unloaded_modules_do_not_end_the_target(a_host, a_line):
    host = a_host()
    host.set("fake_bad_names", 1)
    record = taken(host, a_line(host), steps=4)

    assert set(record.rows(Chunk.KERNELS)["name"].tolist()) == {0}
    assert record.names() == {}


def test_more_names_than_the_table_holds_leave_kernels_unnamed_not_misnamed(a_host, a_line):
    host = a_host()
    host.set("fake_many_names", 1)
    record = taken(host, a_line(host), steps=20_000)
    kernels, names = record.rows(Chunk.KERNELS), record.names()

    assert len(kernels) == 40_000
    assert len(names) == 1 << 14
    assert sorted(names) == list(range(1, (1 << 14) + 1))
    assert set(kernels["name"].tolist()) == {0, *names}
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize(("length", "kept"), [(4095, 4095), (4096, 4096), (5000, 5000), (40_000, 16 << 10)])
def test_long_names_are_whole_up_to_their_bound(a_host, a_line, length, kept):
    host = a_host()
    host.set("fake_long_name", length)

    assert taken(host, a_line(host)).names() == {1: "k" * kept}


def test_a_walk_that_leaves_the_buffer_is_not_followed(a_host, a_line):
    host = a_host()
    host.set("fake_garbage", 1)

    assert taken(host, a_line(host), steps=10).end["records"] == 1
