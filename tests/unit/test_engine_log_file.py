"""A log file is read from both ends and then as it grows, so much and no more; nothing but a file is opened."""

from __future__ import annotations

import os
import time

import pytest

from gputop_llm.sources.engine_log_begin import beginning
from gputop_llm.sources.engine_log_file import HEAD_BYTES, STEP_BYTES, TAIL_BYTES, LogFile, NotAFile
from gputop_llm.sources.engine_log_stamps import LogClock, stamp_of

NOON_S = 1_795_953_600.0  # 2026-11-29 12:00 UTC


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engine.log"


def opened(path, **how):
    return LogFile(str(path), **how)


def test_a_short_file_is_read_whole_and_then_only_what_is_added(path):
    path.write_bytes(b"one\n")
    file = opened(path)
    assert file.read() == [(b"one\n", False, True)]
    assert file.read() == []
    with open(path, "ab") as log:
        log.write(b"two\n")
    assert file.read() == [(b"two\n", True, False)]


def test_of_a_long_file_the_beginning_and_the_end(path):
    size = 3 * (HEAD_BYTES + TAIL_BYTES)
    path.write_bytes(b"a" * HEAD_BYTES + b"m" * (size - HEAD_BYTES - TAIL_BYTES) + b"z" * TAIL_BYTES)
    file = opened(path)
    head, tail = file.read()
    assert (set(head.data), head.begins, set(tail.data), tail.follows) == (set(b"a"), True, set(b"z"), False)
    assert file.unread_bytes == size - HEAD_BYTES - TAIL_BYTES
    assert file.read() == []


def test_a_flood_is_read_at_its_end_only(path):
    path.write_bytes(b"")
    file = opened(path)
    file.read()
    path.write_bytes(b"x" * STEP_BYTES + b"y" * STEP_BYTES)
    (piece,) = file.read()
    assert (set(piece.data), len(piece.data), piece.follows) == (set(b"y"), STEP_BYTES, False)
    assert file.unread_bytes == STEP_BYTES


def test_a_file_that_is_cut_is_read_from_its_beginning(path):
    path.write_bytes(b"old lines\n")
    file = opened(path)
    file.read()
    path.write_bytes(b"new\n")
    assert file.read() == [(b"new\n", False, True)]


def test_a_file_that_is_renamed_or_removed_is_the_same_file(path):
    path.write_bytes(b"one\n")
    with open(path, "ab") as log:
        file = LogFile(f"/proc/self/fd/{log.fileno()}")
        file.read()
        path.rename(path.with_suffix(".1"))
        os.unlink(path.with_suffix(".1"))
        log.write(b"last words\n")
        log.flush()
        assert file.read() == [(b"last words\n", True, False)]


def test_a_file_that_the_containers_runtime_replaces_is_followed(path):
    path.write_bytes(b"one\n")
    file = opened(path, follow=True)
    file.read()
    path.rename(path.with_suffix(".1"))
    with open(path.with_suffix(".1"), "ab") as old:
        old.write(b"still the old one\n")
    assert file.read() == [(b"still the old one\n", True, False)]
    assert file.read() == []
    path.write_bytes(b"new\n")
    assert file.read() == [(b"new\n", False, True)]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_not_opened(path, make):
    make(path)
    # A pipe without a writer would make an open wait.
    with pytest.raises(NotAFile):
        opened(path)


def test_a_file_that_says_that_it_is_empty_is_not_read():
    # Reading some files of procfs takes from them, or waits.
    assert opened("/proc/self/status").read() == [(b"", False, True)]


def vllm_line(at_s, text):
    return time.strftime(f"INFO %m-%d %H:%M:%S [core.py:1] {text}\n", time.gmtime(at_s)).encode()


def test_a_run_that_was_appended_to_earlier_ones_is_read_from_its_own_beginning(path):
    started_s = NOON_S - 5000
    path.write_bytes(b"".join(vllm_line(NOON_S - 200_000 + at, "x" * 50) for at in range(200_000)))
    os.utime(path, (NOON_S, NOON_S))
    file, clock = opened(path), LogClock()
    at = beginning(file.probe, file.size(), file.written_s, started_s, clock)
    first = file.probe(at).split(b"\n")[1].decode()
    assert 0 <= started_s - clock.at_s(stamp_of(first, NOON_S)) < 300
    assert beginning(file.probe, file.size(), file.written_s, NOON_S - 300_000, LogClock()) == 0


@pytest.mark.parametrize(
    ("line", "at_s"),
    [
        ("INFO 11-29 11:59:00 [core.py:1] x", NOON_S - 60),
        ("(Worker pid=1) WARNING 08-20 10:18:39 scheduler.py:1141] x", NOON_S - 101 * 86400 - 6081),
        ("INFO 12-31 11:59:00 [core.py:1] of the year before", NOON_S - 333 * 86400 - 60),
        ("[2026-11-29 11:59:00 TP0] x", NOON_S - 60),
        ("[11/29/2026-11:59:00] [TRT-LLM] [I] x", NOON_S - 60),
        ("[rank0]:[E1129 11:59:00.408271257 a.cpp:607] x", NOON_S - 59.591729),
        ("2026-11-29T11:59:00.5Z  INFO text_generation_router: x", NOON_S - 59.5),
        ("2026-11-29T12:59:00+01:00 stderr F x", NOON_S - 60),
    ],
)
def test_stamps_of_engines(line, at_s):
    clock = LogClock()
    clock.learn(stamp_of("INFO 11-29 12:00:00 [core.py:1] the last line", NOON_S), NOON_S)
    assert clock.at_s(stamp_of(line, NOON_S)) == pytest.approx(at_s)


@pytest.mark.parametrize("line", ["no stamp", "INFO 13-40 99:00:00 x", "x" * 200 + "2026-11-29 11:59:00"])
def test_no_stamps(line):
    assert stamp_of(line, NOON_S) is None


@pytest.mark.parametrize("zone_h", [0, 2, -5, 5.5])
def test_the_zone_of_stamps_follows_from_when_the_file_was_written(zone_h):
    clock = LogClock()
    last = stamp_of(vllm_line(NOON_S + zone_h * 3600 - 2, "x").decode(), NOON_S)
    assert clock.at_s(last) is None
    clock.learn(last, NOON_S)
    assert clock.at_s(last) == NOON_S - 2


def test_the_zone_of_a_log_that_stood_still_for_long_is_not_guessed_into_the_future():
    clock = LogClock()
    clock.learn(stamp_of(vllm_line(NOON_S - 8000, "x").decode(), NOON_S), NOON_S)
    assert clock.at_s(stamp_of(vllm_line(NOON_S - 9000, "x").decode(), NOON_S)) == NOON_S - 9000
