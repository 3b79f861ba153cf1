"""A real PyTorch process with a busy interpreter lock, for `test_routes.py`.

With "profiled" as its argument, torch.profiler is at work in it. Writes "ready", then, four times a second, how many
steps its threads have made and the longest pause of the first, in seconds, since the last line.
"""

from __future__ import annotations

import sys
import threading
import time

import torch

torch.set_num_threads(1)
steps, longest = [0], [0.0]


def work() -> None:
    value = torch.randn(32, 32)
    last = time.perf_counter()
    while True:
        with torch.no_grad():
            value = (value @ value).tanh()
        for _ in range(2000):
            pass
        steps[0] += 1
        now = time.perf_counter()
        longest[0] = max(longest[0], now - last)
        last = now


for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
if sys.argv[1:] == ["profiled"]:
    torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]).start()
print("ready", flush=True)
while True:
    time.sleep(0.25)
    print(steps[0], longest[0], flush=True)
    longest[0] = 0.0
