"""What a monitor can ask, what is refused, and every way in which either side can go away."""

from __future__ import annotations

import os
import time

import pytest

from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk, Command, EndReason
from tests.capture.native.hosting import ALL, MIB
from tests.support.real_processes import until

# wire.h
BUSY, NO_CUPTI, VERSION, OTHER_TOOL, PROFILING, COMMAND, MEMORY, CUPTI, STOPPED = range(1, 10)


def quiet(host):
    """Nothing of the client is at work in the program: no kind on, no thread, no descriptor."""
    return not any(host.call("fake_enabled", kind) for kind in range(64)) and host.ask("count")[2] == 1


def works(host, a_line):
    """A window as any other."""
    line = a_line(host)
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_steps", 0, 3)
    line.stop()
    record = line.record()
    return record.end["reason"] == EndReason.STOPPED and record.row_count == record.end["records"] == 21


BEYOND = {
    "no kind": {"kinds": 0},
    "an unknown kind": {"kinds": 32},
    "no time": {"window_ns": 0},
    "more than a minute": {"window_ns": form.MAX_WINDOW_NS + 1},
    "no bytes": {"most": 0},
    "more than a GiB": {"most": form.MAX_WINDOW_BYTES + 1},
    "a start far off": {"start_at": time.monotonic_ns() + 3600 * 10**9},
    "a start at the end of time": {"start_at": (1 << 64) - 1},
    "an unknown command": {"command": 77},
}


@pytest.mark.parametrize("what", BEYOND)
def test_what_is_beyond_the_bounds_is_refused_and_turns_nothing_on(a_host, a_line, what):
    host = a_host()
    line = a_line(host)
    line.command(
        **{"command": Command.WINDOW, "kinds": ALL, "window_ns": 10**9, "most": MIB, "start_at": 0, **BEYOND[what]}
    )
    record = line.record()

    assert record.refusal == (COMMAND, 0, "the command asks for what is beyond this client's bounds")
    assert host.get("fake_ever_enabled", 10) == 0
    assert until(lambda: quiet(host))
    assert works(host, a_line)


def test_what_is_no_command_ends_it(a_host, a_line):
    host = a_host()
    line = a_line(host)
    line.hear(Chunk.HELLO)
    os.write(line.commands, b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")

    assert line.record().kinds == [Chunk.HELLO]
    assert until(lambda: quiet(host))


def test_a_command_may_come_in_pieces(a_host, a_line):
    host = a_host()
    line = a_line(host)
    for byte in form.COMMAND.pack(form.COMMAND_MAGIC, Command.WINDOW, ALL, 0, 1_000_000, MIB):
        os.write(line.commands, bytes([byte]))

    assert line.record().end["reason"] == EndReason.TIME_UP


def test_two_windows_at_once_are_refused_and_the_first_goes_on(a_host, a_line):
    host = a_host()
    first, second = a_line(host), a_line(host)
    end = time.monotonic() + 10
    for line in (first, second):
        while len(line.data) < len(form.MAGIC) + form.CHUNK_HEADER.size:
            line.read_some(end)
    # Either may have been first.
    kind, _ = form.CHUNK_HEADER.unpack_from(first.data, len(form.MAGIC))
    open_one, refused = (first, second) if kind == Chunk.HELLO else (second, first)
    reason, _, sentence = refused.record().refusal
    open_one.window()
    open_one.hear(Chunk.STARTED)
    third = a_line(host).record()
    host.call("fake_steps", 0, 1)
    open_one.stop()

    assert (reason, third.refusal[0]) == (BUSY, BUSY)
    assert "a window is open in this process" in sentence
    assert open_one.record().row_count == 7


def test_a_stop_before_the_window_takes_none(a_host, a_line):
    host = a_host()
    line = a_line(host)
    line.stop()

    assert line.record().refusal[0] == STOPPED
    waiting = a_line(host)
    waiting.window(start_at=time.monotonic_ns() + 20 * 10**9)
    waiting.stop()
    assert waiting.record().refusal[0] == STOPPED
    assert host.get("fake_requests") == host.get("fake_ever_enabled", 10) == 0


@pytest.mark.parametrize("stage", ["greeted", "before its start", "collecting", "ending"])
@pytest.mark.parametrize("which", ["both", "records", "commands"])
def test_a_monitor_that_dies_leaves_nothing_on(a_host, a_line, stage, which):
    host = a_host()
    line = a_line(host)
    line.hear(Chunk.HELLO)
    if stage != "greeted":
        line.window(start_at=time.monotonic_ns() + 20 * 10**9 if stage == "before its start" else 0)
    if stage in ("collecting", "ending"):
        line.hear(Chunk.STARTED)
        host.call("fake_work", 2)
    if stage == "ending":
        host.set("fake_hang", 1)
        line.stop()
        until(lambda: host.get("fake_flushes") > 0)
    gone = [line.commands, line.records] if which == "both" else [getattr(line, which)]
    for descriptor in gone:
        os.close(descriptor)
    if which == "records" and stage in ("greeted", "before its start"):
        line.stop()  # nothing was to be sent, so that it can't know
    host.set("fake_hang", 0)

    assert until(lambda: not any(host.call("fake_enabled", kind) for kind in range(64)))
    host.ask("call fake_rest")
    assert until(lambda: quiet(host))
    for descriptor in {line.commands, line.records} - set(gone):
        os.close(descriptor)
    line.commands = line.records = -1
    assert works(host, a_line)


def test_a_reader_that_stalls_ends_the_window(a_host, a_line):
    host = a_host()
    line = a_line(host)
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_work", 4)

    # The pipe is full at once; the client waits some seconds for this end, and no longer.
    assert until(lambda: not any(host.call("fake_enabled", kind) for kind in range(64)))
    host.ask("call fake_rest")
    assert until(lambda: quiet(host))
    assert works(host, a_line)


def test_a_window_ends_in_time_while_the_reader_stalls(a_host, a_line):
    host = a_host()
    line = a_line(host)
    line.window(ms=300)
    line.hear(Chunk.STARTED)
    host.call("fake_work", 4)
    until(lambda: not any(host.call("fake_enabled", kind) for kind in range(64)))
    host.ask("call fake_rest")
    record = line.record()

    assert record.end["reason"] == EndReason.TIME_UP
    assert record.end["monotonic"] - form.STARTED.unpack(record.one(Chunk.STARTED))[2] < 1.5e9


def test_a_flush_that_never_returns_is_left_behind_and_said(a_host, a_line):
    host = a_host()
    line = a_line(host)
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_steps", 0, 3)
    host.set("fake_hang", 1)
    line.stop()
    record = line.record()

    assert record.end["unreturned"] == 1
    assert record.row_count == 0
    assert a_line(host).record().refusal[0] == BUSY
    host.set("fake_hang", 0)
    assert until(lambda: quiet(host))
    assert works(host, a_line)


def test_buffers_that_never_come_back_are_counted_and_never_used_again(a_host, a_line):
    host = a_host()
    for lost in range(1, 4):
        line = a_line(host)
        line.window()
        line.hear(Chunk.STARTED)
        for thread in range(4):
            host.call("fake_steps", thread, 1)
        host.set("fake_keep", 1)
        line.stop()
        record = line.record()
        assert record.end["unreturned"] == 1, lost
        assert record.row_count == 21
    assert works(host, a_line)


def test_when_too_many_never_came_back_it_is_refused(a_host, a_line):
    host = a_host()
    for _ in range(2):
        line = a_line(host)
        line.window()
        line.hear(Chunk.STARTED)
        for thread in range(30):
            host.call("fake_steps", thread, 1)
        host.set("fake_keep", 30)
        line.stop()
        assert line.record().end["unreturned"] == 30
    line = a_line(host)
    line.window()

    assert line.record().refusal[0] == MEMORY


def test_late_buffers_are_no_part_of_the_next_window(a_host, a_line):
    host = a_host()
    assert works(host, a_line)
    line = a_line(host)
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_steps", 0, 3)
    host.set("fake_late", 1)
    line.stop()
    assert line.record().end["unreturned"] == 1
    following = a_line(host)
    following.window()
    following.hear(Chunk.STARTED)
    host.call("fake_return_late")
    host.call("fake_steps", 1, 2)
    following.stop()
    record = following.record()

    assert record.row_count == record.end["records"] == 14
    assert set(record.rows(Chunk.KERNELS)["stream"].tolist()) == {1}
    assert record.end["unreturned"] == 0


def test_a_buffer_of_somebody_else_is_not_touched(a_host, a_line):
    host = a_host()
    line = a_line(host)
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_foreign")
    record = line.record()

    # Somebody was at work before us, and can't be asked: no more is taken from them.
    assert record.end["reason"] == EndReason.PROFILER_TOOK_OVER
    assert record.end["records"] == 0
    assert until(lambda: quiet(host))


def test_what_cupti_says_no_to_is_told_with_its_code(a_host, a_line):
    host = a_host()
    host.set("fake_enable_fails", 35)
    line = a_line(host)
    line.window()
    assert line.record().refusal == (
        CUPTI,
        35,
        "CUPTI refused to record: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)",
    )
    host.set("fake_enable_fails", 0)
    host.set("fake_register_fails", 999)
    line = a_line(host)
    line.window()
    assert line.record().refusal[:2] == (CUPTI, 999)
    host.set("fake_register_fails", 0)
    host.set("fake_version_fails", 15)
    assert a_line(host).record().refusal[:2] == (CUPTI, 15)
    host.set("fake_version_fails", 0)
    assert works(host, a_line)


def test_a_hundred_windows_leave_no_trace(a_host, a_line):
    host = a_host()
    counts = []
    for number in range(100):
        line = a_line(host)
        line.window()
        line.hear(Chunk.STARTED)
        for thread in range(8):
            host.call("fake_steps", thread, 200)
        line.stop()
        record = line.record()
        assert record.row_count == 8 * 200 * 7
        line.close()
        line.commands = line.records = -1
        until(lambda: quiet(host))
        if number >= 10:
            counts.append(host.ask("count"))

    resident, descriptors, threads, mappings = map(list, zip(*counts, strict=True))
    assert set(descriptors) == {descriptors[0]}
    assert set(threads) == {1}
    assert max(mappings) - min(mappings) <= 2
    assert max(resident) - min(resident) < 1024  # KiB
