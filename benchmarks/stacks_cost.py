"""What reading Python stacks costs a busy process: its own pace with and without, and the processor time beside it.

python benchmarks/stacks_cost.py [THREADS] [ROUNDS]

The process runs one busy Python thread beside THREADS that wait. Its pace is counted by itself, as loops per second of
wall time and per second of its own processor time; rounds with and without alternate, and medians are compared.
Run it at high priority (nice -n -15) on a node with a free core: py-spy works on another one.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gputop_llm.capture.stacks import pyspy
from gputop_llm.capture.stacks.sampler import Sampler

ROUND_S = 2.0
BUSY = """
import sys, threading, time
for _ in range(int(sys.argv[1])):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
out = open(sys.argv[2], "wb", buffering=0)
count = 0
def spin():
    total = 0
    for number in range(2000):
        total += number * number
print("ready", flush=True)
while True:
    spin()
    count += 1
    if count % 20 == 0:
        out.seek(0)
        out.write(f"{count} {time.perf_counter()} {time.process_time()}".ljust(80).encode())
"""


def read(path: Path) -> tuple[float, float, float]:
    count, wall, cpu = path.read_text().split()
    return float(count), float(wall), float(cpu)


def pace(path: Path) -> tuple[float, float]:
    """Loops per second of wall time, and of the process's own time, over one round."""
    first = read(path)
    time.sleep(ROUND_S)
    last = read(path)
    done = last[0] - first[0]
    return done / (last[1] - first[1]), done / (last[2] - first[2])


def beside() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "pace"
        target = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", BUSY, str(threads), str(path)], stdout=subprocess.PIPE)
        )
        stack.callback(target.kill)
        assert target.stdout is not None
        target.stdout.readline()
        time.sleep(1.0)
        alone, sampled, dump_wall, dump_cpu, cost, taken, errors = [], [], [], [], 0.0, 0.0, 0
        for _ in range(rounds):
            alone.append(pace(path))
            sampler = Sampler(target.pid, ROUND_S)
            before = beside()
            sampler.start()
            sampled.append(pace(path))
            samples = sampler.stop()
            sampler.close()
            cost += beside() - before
            taken += samples["samples_per_thread"]
            errors += samples["errors"]
            began, before = time.perf_counter(), beside()
            assert pyspy.dump(target.pid).code == 0
            dump_wall.append(time.perf_counter() - began)
            dump_cpu.append(beside() - before)
    for name, at in (("per second", 0), ("per second of its own processor time", 1)):
        free, read_ = (statistics.median(one[at] for one in many) for many in (alone, sampled))
        print(f"pace {name}: {free:,.0f} alone, {read_:,.0f} sampled ({100 * (read_ / free - 1):+.1f} %)")
    spread = statistics.quantiles([one[1] for one in alone], n=4)
    print(f"own noise of the pace alone (quartiles ÷ median): {100 * (spread[2] - spread[0]) / spread[1]:.1f} %")
    print(f"record at {samples['rate_hz']} Hz: {1000 * cost / taken:.2f} ms of processor time a sample, start included")
    print(f"  {taken / rounds:.0f} samples in a round of {ROUND_S:g} s, {errors} unreadable in all")
    wall_ms, cpu_ms = (1000 * statistics.median(one) for one in (dump_wall, dump_cpu))
    print(f"dump: {wall_ms:.0f} ms, {cpu_ms:.0f} ms of processor time")


if __name__ == "__main__":
    main()
