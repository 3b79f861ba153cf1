"""The monitor's side of an injection by the target's Python, in a Python of its own.

`python -m tests.capture.inject.remote_monitor inject PID TICKS LIBRARY DEADLINE FIFO SOCKET` tells what came of it as a
line of JSON, and hands the two descriptors over SOCKET. `... kill PID TICKS LIBRARY DEADLINE FIFO COUNT` forks as many
children that inject, and kills each a little later than the one before; tells how many came through.
With a FIFO (else "-") the script's path goes there and not to sys.remote_exec, and any version of Python will do.
GPUTOP_TEST_PLACE is where the script goes; with GPUTOP_TEST_NOBODY all of it is done as that user.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from gputop_llm.capture.inject import remote_exec, remote_script
from gputop_llm.capture.inject.refused import InjectionRefused


def stand_in(fifo):
    def ask(pid, path):
        handle = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, path.encode())
        os.close(handle)

    remote_exec._remote_exec = lambda: ask
    remote_exec._closed_by_python = lambda pid, maps: None


def main():
    what, pid, ticks, path, deadline, fifo, last = sys.argv[1:]
    if fifo != "-":
        stand_in(fifo)
    remote_script.PLACE = os.environ["GPUTOP_TEST_PLACE"]
    call = (int(pid), int(ticks), Path(path).read_bytes(), float(deadline))
    if "GPUTOP_TEST_NOBODY" in os.environ:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    (inject if what == "inject" else kill)(call, int(last))


def inject(call, number):
    began = time.monotonic()
    try:
        channel = remote_exec.inject(*call)
    except InjectionRefused as refusal:
        print(json.dumps({"refused": refusal.sentence(), "after_s": time.monotonic() - began}))
        return
    with socket.socket(fileno=number) as handed:
        socket.send_fds(handed, [b"x"], [channel.commands, channel.records])
    print(json.dumps({name: getattr(channel, name) for name in ("took_ms", "stopped_ms", "reused", "thread")}))


def kill(call, count):
    def timed():
        began = time.perf_counter()
        channel = remote_exec.inject(*call)
        os.close(channel.commands)
        os.close(channel.records)
        return time.perf_counter() - began

    timed()
    longest_s = sorted(timed() for _ in range(9))[4] * 1.2
    through = 0
    for i in range(count):
        begin, begun = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(begun, b"b")
            try:
                remote_exec.inject(*call)
            finally:
                os._exit(1)
        os.read(begin, 1)
        end = time.perf_counter() + longest_s * i / count
        while time.perf_counter() < end:
            pass
        os.kill(child, signal.SIGKILL)
        through += not os.WIFSIGNALED(os.waitpid(child, 0)[1])
        os.close(begin)
        os.close(begun)
    print(through)


main()
