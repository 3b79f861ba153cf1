"""What the tests of injections share: a target that can be looked at, and the life of a client."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import time
from pathlib import Path

from gputop_llm.capture.inject import Channel, inject
from gputop_llm.capture.inject.memory import Maps
from gputop_llm.capture.inject.openness import running_since
from gputop_llm.capture.inject.scratch import END, FIRST

HERE = Path(__file__).parent
WITHIN_S = 40.0
READY, HANDLED, LAST, WRONG = 60, 61, 62, 63


def until(condition, what="it", within_s=WITHIN_S):
    """Waits for a condition to become true; gives what it gave."""
    end = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)
    return found


class Target:
    """A running target.c."""

    def __init__(self, process, counters, words, pid=None):
        self.process, self.words, self.pid = process, words, pid or process.pid
        self._counters = counters

    @property
    def ticks(self):
        return running_since(self.pid)

    def slot(self, index):
        return struct.unpack_from("<Q", self._counters, index * 8)[0]

    def counts(self):
        """What each thread has done, by its word."""
        still = {"futex", "spin", "alarms", "children", "undumpable", "poll-long"}
        setup = ("deny-", "kill-", "only-")
        return {w: self.slot(i) for i, w in enumerate(self.words) if w not in still and not w.startswith(setup)}

    def assert_goes_on(self):
        """All its threads make progress, and none has seen anything wrong."""
        assert self.process.poll() is None, f"the target ended: {self.process.returncode}"
        before = self.counts()
        until(lambda: all(self.counts()[w] > n + 2 for w, n in before.items()), f"progress of all in {before}")
        assert (self.slot(WRONG), hex(self.slot(LAST))) == (0, "0x0"), (self.slot(WRONG), hex(self.slot(LAST)))

    def inject(self, library, deadline_s=20.0):
        return inject(self.pid, self.ticks, library, deadline_s)

    def descriptors(self):
        """Its open files, but for the one that its main thread loads again and again."""
        found = {}
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(OSError):
                found[name] = os.readlink(f"/proc/{self.pid}/fd/{name}")
        return {name: link for name, link in found.items() if "/libutil" not in link}

    def threads(self):
        return set(os.listdir(f"/proc/{self.pid}/task"))

    def named_mappings(self):
        """How often each file is mapped, and where something is mapped that has no name."""
        names = [m.name for m in Maps.of(self.pid).between(0, 1 << 64)]
        return {name: names.count(name) for name in names if name and not name.startswith("[")}

    def scratch_left(self):
        return Maps.of(self.pid).between(FIRST, END)


def compile_c(source, target, *flags):
    """Compiles one C file."""
    subprocess.run(["gcc", *flags, "-o", target, source, "-ldl"], check=True, capture_output=True, timeout=120)


def said(channel: Channel, count: int) -> bytes:
    """So many bytes of the record; fewer at its end."""
    data = b""
    while len(data) < count:
        ready, _, _ = select.select([channel.records], [], [], WITHIN_S)
        assert ready, f"the client says nothing more than {data!r}"
        more = os.read(channel.records, count - len(data))
        if not more:
            break
        data += more
    return data


def serve(channel: Channel, hello=b"hello") -> None:
    """A short life of a client: it greets, answers and ends."""
    assert said(channel, 5) == hello
    os.write(channel.commands, b"are you there?")
    assert said(channel, 14) == b"are you there?"
    os.close(channel.commands)
    assert said(channel, 1) == b""
    os.close(channel.records)
