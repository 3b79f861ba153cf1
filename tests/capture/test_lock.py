"""One capture per node: who holds the lock is told, and nobody can make us wait, write or follow."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from gputop_llm.capture.lock import Lock, LockTaken, held_by
from tests.support.pty_app import ROOT
from tests.support.real_processes import until

HOLD = """
import os, sys, time
from gputop_llm.capture.lock import Lock
if len(sys.argv) > 3:
    os.setuid(int(sys.argv[3]))
lock = Lock(sys.argv[2], sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""
HOSTILE = """
import socket, sys, time
holder = socket.socket(socket.AF_UNIX)
holder.bind("\\0" + sys.argv[1])
how = sys.argv[2]
if how != "bound":
    holder.listen(1)
print("held", flush=True)
while how != "bound":
    asker, _ = holder.accept()
    if how == "garbage":
        asker.sendall(b"\\x1b[2J{{{" * 500)
    elif how == "lies":
        asker.sendall(b'{"since_s": 1e300, "target": {"a": []}}')
    elif how == "deep":
        asker.sendall(b"[" * 2000)
    elif how == "drip":
        try:
            while True:
                asker.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            pass
    asker.close()
time.sleep(600)
"""


@pytest.fixture
def name(tmp_path):
    return f"gputop-llm/test{tmp_path}"


@pytest.fixture
def holding(name):
    """Another process that holds the lock in some way."""
    started = []

    def start(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, name, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_it_is_held_once_and_free_again(name):
    first = Lock("one", name)
    with pytest.raises(LockTaken, match="a capture of one by you"):
        Lock("two", name)
    first.release()
    first.release()
    assert until(lambda: held_by(name) is None)
    Lock("three", name).release()


def test_the_holder_is_named(name, holding):
    process = holding(HOLD, "vllm llama-8b (pid 4711)")

    holder = held_by(name)
    assert (holder.pid, holder.user, holder.target) == (process.pid, "you", "vllm llama-8b (pid 4711)")
    assert time.time() - holder.since_s < 60


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_dead_process_is_free(number, name, holding):
    process = holding(HOLD, "one")
    process.send_signal(number)
    process.wait()

    Lock("two", name).release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_users_lock_holds_and_names_them(name, holding):
    process = holding(HOLD, "theirs", "65534")

    with pytest.raises(LockTaken) as taken:
        Lock("ours", name)
    assert f"a capture of theirs by nobody (pid {process.pid}) has been running" in taken.value.sentence()


@pytest.mark.parametrize("how", ["bound", "silent", "garbage", "lies", "deep", "drip"])
def test_whoever_holds_the_name_can_only_refuse_us(how, name, holding):
    holding(HOSTILE, how)

    began = time.monotonic()
    with pytest.raises(LockTaken) as taken:
        Lock("ours", name)
    assert time.monotonic() - began < 5
    assert taken.value.sentence().isprintable()
    assert "try again when it has ended" in taken.value.sentence()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can end another user's process")
@pytest.mark.parametrize("how", ["bound", "silent", "lies"])
def test_root_is_told_what_ends_a_user_who_keeps_the_name(how, name, holding):
    process = holding(f"import os, socket; os.setuid(65534){HOSTILE}", how)

    with pytest.raises(LockTaken) as taken:
        Lock("ours", name)
    assert taken.value.todo == f"try again when it has ended; if it is no capture: kill {process.pid}"


def test_askers_that_never_read_hold_nobody_up(name):
    lock = Lock("one", name)
    silent = []
    for _ in range(40):
        asking = socket.socket(socket.AF_UNIX)
        asking.setblocking(False)
        asking.connect_ex(f"\0{name}")
        silent.append(asking)

    assert until(lambda: (holder := held_by(name)) and holder.target == "one")
    for asking in silent:
        asking.close()
    lock.release()


def test_what_was_let_go_of_can_be_taken_at_once():
    name = f"gputop-llm-test/again-{os.getpid()}"
    for _ in range(500):
        Lock("llama", name).release()
