"""Injection by the target's own Python: with sys.remote_exec where a Python 3.14 is found, and everywhere with a
stand-in that hands the same script to a target of this Python.

GPUTOP_TEST_PYTHON314 names a Python 3.14; otherwise python3.14 is looked for.
"""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from gputop_llm.capture.inject import mapped_clients
from gputop_llm.capture.inject.remote_script import remove_left
from gputop_llm.timeline.native_format import Chunk
from tests.capture.inject import remote_support
from tests.capture.inject.remote_support import PYTHON314, REAL, STAND_IN, running, served
from tests.capture.inject.support import until
from tests.capture.native.hosting import Line
from tests.capture.native.hosting import built as built_native

KILLS = 60
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start programs of other users")
needs_314 = pytest.mark.skipif(not PYTHON314, reason="no python3.14 is here (GPUTOP_TEST_PYTHON314, or on the PATH)")
WAYS = [STAND_IN, pytest.param(REAL, marks=needs_314)]


@pytest.fixture
def python_target(built):
    """Starts Python programs that can be asked to run a script."""
    with contextlib.ExitStack() as stack:
        yield lambda way, mode="rounds", *libraries, **popen: stack.enter_context(
            running(built, way, mode, libraries, popen)
        )


@pytest.fixture
def hello(built):
    return built / "hello.so"


@pytest.mark.parametrize("way", WAYS)
def test_the_target_starts_our_thread_and_only_the_mapping_stays(way, python_target, hello):
    target = python_target(way)
    before, mask = target.state(), target.blocked_signals()

    first, second = served(target, hello), served(target, hello)

    assert (first.reused, second.reused) == (False, True)
    assert first.thread == [target.pid, "Python"]
    assert 0 < first.stopped_ms < first.took_ms
    until(lambda: target.state() == before, "all but the mapping put away")
    assert target.blocked_signals() == mask
    assert len(mapped_clients(target.pid)) == 1
    assert not list(target.place.iterdir())
    target.assert_as_before()


@pytest.mark.parametrize("way", WAYS)
def test_a_window_is_recorded_and_a_process_without_cupti_is_refused_by_the_client(way, python_target, tmp_path):
    native = built_native(tmp_path)
    target = python_target(way, "rounds", native.cuda, native.cupti)
    channel = target.inject(native.client)
    line = Line(channel.commands, channel.records)
    line.hear(Chunk.HELLO)
    line.window(50)
    record = line.record()
    line.close()
    assert record.kinds[0] == Chunk.HELLO
    assert record.end["reason"] == 0
    target.assert_as_before()

    bare = python_target(way)
    channel = bare.inject(native.client)
    line = Line(channel.commands, channel.records)
    assert "CUPTI" in line.record().refusal[2]
    line.close()
    bare.assert_as_before()


@pytest.mark.parametrize("way", WAYS)
def test_kill_9_of_the_monitor_at_every_stage(way, python_target, hello):
    target = python_target(way)
    before = target.state()

    through = target.monitor("kill", hello, 20.0, KILLS)

    assert through < KILLS / 2, "most were not killed in the middle"
    target.assert_as_before()
    until(lambda: target.state()[:2] == before[:2], "the end of what was left waiting")
    # Killed before the target was asked, a folder is left: that is what `doctor --leftovers` removes.
    remove_left(0.0, time.time(), str(target.place))
    assert not list(target.place.iterdir())
    served(target, hello)
    target.assert_as_before()


@pytest.mark.parametrize("way", WAYS)
def test_a_target_that_never_comes_to_a_safe_point_is_left_alone(way, python_target, hello):
    target = python_target(way, "stuck")
    told = target.inject(hello, deadline_s=0.5)

    assert "waiting for the target's Python to come to a safe point" in told["refused"]
    assert told["after_s"] < 5
    assert not list(target.place.iterdir())
    if way == STAND_IN:
        return  # what it is asked for can't be withdrawn from a pipe
    target.process.stdin.write(b"\n")
    target.process.stdin.flush()
    target.assert_as_before()
    assert not mapped_clients(target.pid)
    served(target, hello)


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_has_not_loaded_ctypes_is_refused(way, python_target, hello):
    target = python_target(way, "without-ctypes")
    before = target.state()
    told = target.inject(hello)
    assert "its Python has not loaded ctypes" in told["refused"]
    assert (target.state(), mapped_clients(target.pid)) == (before, ())
    assert not list(target.place.iterdir())
    target.assert_as_before()


@pytest.mark.parametrize("way", WAYS)
@needs_root
def test_root_reaches_another_users_program_and_that_user_reads_the_script(way, python_target, hello):
    target = python_target(way, "nobody")
    served(target, hello)
    assert not list(target.place.iterdir())
    target.assert_as_before()


@pytest.mark.parametrize("way", WAYS)
@needs_root
def test_a_user_is_refused_another_users_program(way, python_target, hello, monkeypatch):
    target = python_target(way)
    monkeypatch.setenv("GPUTOP_TEST_NOBODY", "1")
    told = target.inject(hello)
    assert "it belongs to another user; run gputop-llm as root" in told["refused"]
    target.assert_as_before()


@needs_root
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("mode", "before"), [("rounds", ["unshare", "--mount"]), ("other-root", [])])
def test_a_target_with_other_mounts_or_another_root_is_refused(way, mode, before, python_target, hello):
    target = python_target(way, mode)
    told = target.inject(hello, before=before)
    assert "it runs in another container, or with another root" in told["refused"]
    assert "inside that container" in told["refused"]
    target.assert_as_before()


@needs_314
def test_a_target_with_remote_debugging_off_is_refused_for_that(python_target, hello):
    environment = {**os.environ, "PYTHON_DISABLE_REMOTE_DEBUG": "1"}
    target = python_target(REAL, "without-ctypes", env=environment)
    told = target.inject(hello)
    assert "remote debugging off (PYTHON_DISABLE_REMOTE_DEBUG)" in told["refused"]
    target.assert_as_before()


@needs_314
def test_off_by_an_option_shows_when_it_is_asked(built, hello, python_target, monkeypatch, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {PYTHON314} -X disable-remote-debug "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(remote_support, "PYTHON314", str(wrapper))
    target = python_target(REAL)
    target.python = PYTHON314
    assert "its Python was started with remote debugging off;" in target.inject(hello)["refused"]
    assert not list(target.place.iterdir())
    target.assert_as_before()


@needs_314
def test_a_program_that_never_waits_is_reached(python_target, hello):
    target = python_target(REAL, "spin")
    served(target, hello)
    target.assert_as_before()
