"""Several who inject into one process at once, as from a node and from a container beside it, that share no lock."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from gputop_llm.capture.inject import InjectionRefused
from gputop_llm.capture.inject.memory import Maps
from gputop_llm.capture.inject.scratch import FIRST, choose
from tests.capture.inject.support import HERE, serve, until

ROOT = HERE.parents[2]
INJECTS_OFTEN = """
import os, sys
from gputop_llm.capture.inject import inject
pid, ticks, library = int(sys.argv[1]), int(sys.argv[2]), open(sys.argv[3], "rb").read()
for _ in range(150):
    channel = inject(pid, ticks, library, 30.0)
    os.close(channel.commands); os.close(channel.records)
"""


def test_they_take_turns_and_the_target_goes_on(start, built):
    target = start("main", "poll", "poll", "keeper", "poll")
    threads, files = target.threads(), target.descriptors()
    at_once = [
        subprocess.Popen(
            [sys.executable, "-c", INJECTS_OFTEN, str(target.pid), str(target.ticks), built / f"{name}.so"], cwd=ROOT
        )
        for name in ("hello", "hello", "other")
    ]
    assert [process.wait(300) for process in at_once] == [0, 0, 0]
    target.assert_goes_on()
    until(lambda: (target.threads(), target.descriptors()) == (threads, files), "the end of our threads")
    assert not target.scratch_left()


def test_one_that_goes_on_is_named(start, library):
    target = start("poll")
    pointer = os.pidfd_open(target.pid)
    fcntl.flock(pointer, fcntl.LOCK_EX)
    with pytest.raises(InjectionRefused, match=f"another injection is under way in it, by process {os.getpid()};"):
        target.inject(library, deadline_s=0.1)
    assert not target.scratch_left()
    os.close(pointer)
    serve(target.inject(library))
    target.assert_goes_on()


def test_pages_that_are_there_are_never_used():
    free = {choose(Maps(b"")).address for _ in range(50)}
    assert len(free) > 40
    there = b"%x-%x r-xp 00000000 00:00 0 \n%x-%x rw-p 00000000 00:00 0 \n"
    taken = b"".join(
        there % (start, start + 0x1000, start + 0x1000, start + 0x2000)
        for start in range(FIRST, FIRST + 255 * 0x10000, 0x10000)
    )
    assert all(not Maps(taken).between(choose(Maps(taken)).address, choose(Maps(taken)).address + 1) for _ in range(50))
    assert choose(Maps(b"%x-%x r-xp 00000000 00:00 0 \n" % (FIRST, FIRST + (1 << 40)))) is None
