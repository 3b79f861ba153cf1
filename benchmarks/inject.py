"""What an injection costs: its whole duration, and how long a thread of the target stands still.

    python -m benchmarks.inject [--injections 200] [--threads 100] [--mappings 3000]

The target is a Python process with so many threads asleep in poll and so many mappings, as an engine has them; the
library is a small one that greets and leaves, built here with gcc. Measured are the first injection, which loads it, of
several targets, and later ones, which find it there. CPU is what the injecting process used for one injection, the
figure to trust on a machine that does other work. To reach: 20 ms in all, 2 ms of standing still.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from gputop_llm.capture.inject import Channel, inject
from gputop_llm.capture.inject.openness import running_since

CLIENT = Path(__file__).parents[1] / "tests/capture/inject/client.c"
GOAL_MS, GOAL_STOPPED_MS = 20.0, 2.0
FIRST_ONES = 10
TARGET = """
import mmap, select, sys, threading, time
threads, mappings = int(sys.argv[1]), int(sys.argv[2])
# Neighbours with other rights are not merged.
kept = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (mmap.PROT_WRITE if i % 2 else 0)) for i in range(mappings)]
def wait():
    poll = select.poll()
    while True:
        poll.poll(50)
for _ in range(threads):
    threading.Thread(target=wait, daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


class Cost(NamedTuple):
    """Milliseconds."""

    wall: float
    stopped: float
    cpu: float


def one(pid: int, library: bytes) -> tuple[Cost, Channel]:
    """Injects once, and lets the client go again."""
    before = time.process_time()
    channel = inject(pid, running_since(pid) or 0, library, 10.0)
    cpu_ms = (time.process_time() - before) * 1000
    os.close(channel.commands)
    while os.read(channel.records, 64):
        pass
    os.close(channel.records)
    return Cost(channel.took_ms, channel.stopped_ms, cpu_ms), channel


def show(what: str, costs: list[Cost]) -> None:
    for name, values, goal in (
        ("in all", [cost.wall for cost in costs], GOAL_MS),
        ("stopped", [cost.stopped for cost in costs], GOAL_STOPPED_MS),
        ("CPU", [cost.cpu for cost in costs], None),
    ):
        ordered = sorted(values)
        verdict = (
            "" if goal is None else f"   goal {goal:g}: {'met' if ordered[len(ordered) // 2] <= goal else 'MISSED'}"
        )
        median, high = statistics.median(values), ordered[int(len(ordered) * 0.95)]
        print(f"{what:20} {name:8} median {median:7.2f} ms   p95 {high:7.2f}   most {ordered[-1]:7.2f}{verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--injections", type=int, default=200)
    parser.add_argument("--threads", type=int, default=100)
    parser.add_argument("--mappings", type=int, default=3000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "client.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", '-DHELLO="hello"', "-o", path, CLIENT], check=True)
        library = path.read_bytes()
    first, later = [], []
    for i in range(FIRST_ONES):
        command = [sys.executable, "-c", TARGET, str(options.threads), str(options.mappings)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as target:
            assert target.stdout is not None
            target.stdout.readline()
            cost, _ = one(target.pid, library)
            first.append(cost)
            if i == 0:
                for _ in range(options.injections):
                    cost, _ = one(target.pid, library)
                    later.append(cost)
            target.kill()
    print(f"{options.threads} threads, {options.mappings} mappings and more, {os.cpu_count()} CPUs")
    show("the first, loading", first)
    show("a later one", later)


if __name__ == "__main__":
    main()
