"""Whoever injects may be killed at any instant, and so may the target: the one that is left goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gputop_llm.capture.inject import InjectionRefused, inject
from gputop_llm.capture.inject.openness import running_since
from tests.capture.inject.support import serve, until

KILLS = 240
GIVES_UP_WITHIN_S = 40.0
# Forks a child that injects once, kills it so many microseconds after it began, and goes on to the next.
KILLER = """
import os, signal, sys, time
from gputop_llm.capture.inject import inject, InjectionRefused
pid, ticks, path, kills = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
library = open(path, "rb").read()
def timed():
    began = time.perf_counter()
    channel = inject(pid, ticks, library, 20.0)
    os.close(channel.commands); os.close(channel.records)
    return time.perf_counter() - began
timed()
longest_s = sorted(timed() for _ in range(9))[4] * 1.2
through = refused = 0
for i in range(kills):
    begin, begun = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begun, b"b")
        try:
            inject(pid, ticks, library, 20.0)
        except InjectionRefused:
            os._exit(2)
        os._exit(1)
    os.read(begin, 1)
    end = time.perf_counter() + longest_s * i / kills
    while time.perf_counter() < end:
        pass
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    through += os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1
    refused += os.WIFEXITED(status) and os.WEXITSTATUS(status) == 2
    os.close(begin); os.close(begun)
print(through, refused)
"""


def test_kill_9_of_the_injecting_process_at_every_stage(start, built, library, other_library):
    target = start("main", "keeper", "keeper", "poll", "poll", "futex")
    threads, files = target.threads(), target.descriptors()

    command = [sys.executable, "-c", KILLER, str(target.pid), str(target.ticks), built / "hello.so", str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[3])

    assert done.returncode == 0, done.stderr
    through, refused = map(int, done.stdout.split())
    assert through + refused < KILLS / 2, "most were not killed in the middle"
    target.assert_goes_on()
    # What was left waiting for the one that died puts itself away.
    until(lambda: target.threads() == threads, "the end of our threads", GIVES_UP_WITHIN_S)
    until(lambda: target.descriptors() == files, "the end of our descriptors")
    target.assert_goes_on()
    serve(target.inject(library))
    serve(target.inject(other_library), b"other")


def test_the_target_dies_in_the_middle(start, library):
    for i in range(60):
        target = start("poll", "main")
        ticks = target.ticks
        killer = threading.Timer(i * 0.0002, target.process.kill)
        killer.start()
        # Killed before, within or after an injection; and then there is nothing left to inject into.
        with pytest.raises(InjectionRefused):
            inject_for_ever(target.pid, ticks, library)
        killer.join()
        assert target.process.wait(10) == -signal.SIGKILL


def inject_for_ever(pid, ticks, library):
    while True:
        channel = inject(pid, ticks, library, 20.0)
        os.close(channel.commands)
        os.close(channel.records)


def test_a_target_that_becomes_another_program_keeps_pid_and_start_time(start_python, library):
    process = start_python(
        "import os, signal, sys, time\n"
        "def replace(*_): os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "signal.signal(signal.SIGUSR1, replace)\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)"
    )
    ticks, loaded = running_since(process.pid), 0

    def loaded_in_both():
        nonlocal loaded
        with contextlib.suppress(InjectionRefused):
            channel = inject(process.pid, ticks, library, 5.0)
            loaded += not channel.reused
            os.close(channel.commands)
            os.close(channel.records)
            if loaded == 1 and not channel.reused:
                os.kill(process.pid, signal.SIGUSR1)
        return loaded == 2

    until(loaded_in_both)
    assert process.poll() is None
