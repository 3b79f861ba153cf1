"""A Python program that a script is to run in: `remote_target.py COUNTERS FIFO MODE [LIBRARY...]`.

COUNTERS is a file of two uint64: rounds of the main thread, and the longest time between two of them in ns. With a FIFO
(else "-") it runs scripts that are named there, as Python 3.14 does for sys.remote_exec: on the main thread, between
two bytecodes, with an empty namespace. Modes: "rounds" (one each ms), "spin" (never waits), "stuck" (waits for a line
on standard input before its first round), "without-ctypes" (rounds, and has not loaded it), "nobody" (rounds, as that
user), "other-root" (rounds, with the folder of COUNTERS as its root).
"""

import contextlib
import mmap
import os
import struct
import sys
import time
import traceback


def run(path):
    try:
        with open(path) as script:
            exec(compile(script.read(), path, "exec"), {"__builtins__": __builtins__})
    except BaseException:  # noqa: BLE001 - as Python 3.14 does
        traceback.print_exc()


def main():
    path, fifo, mode, *libraries = sys.argv[1:]
    if mode != "without-ctypes":
        import ctypes

        for library in libraries:
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    with open(path, "r+b") as file:
        counters = mmap.mmap(file.fileno(), 16)
    scripts = -1 if fifo == "-" else os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    if mode == "nobody":
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    if mode == "other-root":
        os.chroot(os.path.dirname(path))
    print("ready", flush=True)
    if mode == "stuck":
        sys.stdin.readline()
    rounds, longest, before = 0, 0, time.monotonic_ns()
    while True:
        if mode != "spin":
            time.sleep(0.001)
        if scripts >= 0:
            with contextlib.suppress(BlockingIOError):
                run(os.read(scripts, 4096).decode())
        now = time.monotonic_ns()
        rounds, longest, before = rounds + 1, max(longest, now - before), now
        struct.pack_into("<QQ", counters, 0, rounds, longest)


main()
