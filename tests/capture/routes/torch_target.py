"""A busy Python process with a torch that is none: what of it the agent calls, with a record of every call.

Run as `python torch_target.py LOG COUNTER LIBRARY BEHAVIOUR`; writes a line when it is ready. LIBRARY (a
libtorch_cpu.so) is loaded. Calls go to LOG, a line each; its busy thread counts in COUNTER (8 bytes).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import struct
import sys
import threading
import time
import types

BEHAVIOURS = {
    "good": "records as asked",
    "old": "a torch before 2.7, which records the calling thread's operators only",
    "active": "its profiler collects already",
    "bare": "has no torch",
    "angry": "its profiler can't be started",
    "nowhere": "can't save",
    "big": "has much to save",
    "held": "a thread keeps the interpreter's lock for seconds",
    "slow": "takes seconds to sort its events",
}
LOG, COUNTER, LIBRARY, BEHAVIOUR = sys.argv[1:]


def note(*words):
    with open(LOG, "a") as file:
        file.write(json.dumps([time.monotonic_ns(), *words]) + "\n")


class Config:
    def __init__(self, *arguments):
        if BEHAVIOUR == "old" and len(arguments) > 7:
            raise TypeError("too many")
        note("config", [bool(one) for one in arguments[1:4]], getattr(arguments[6], "all_threads", None))


class Experimental:
    def __init__(self, profile_all_threads=False):
        if BEHAVIOUR == "old" and profile_all_threads:
            raise TypeError("profile_all_threads")
        self.all_threads = profile_all_threads


class Result:
    def save(self, path):
        note("save", path, oct(os.stat(os.path.dirname(path)).st_mode)[-3:])
        if BEHAVIOUR == "nowhere":
            raise RuntimeError("Error opening trace file")
        count = 400_000 if BEHAVIOUR == "big" else 500
        event = '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": %d, "dur": 5, "args": {}}'
        with open(path, "w") as file:
            file.write('{"schemaVersion": 1, "traceEvents": [')
            file.write(",".join(event % (10 * at) for at in range(count)))
            file.write("]}")


def enable(config, activities):
    note("enable", sorted(activities))
    if BEHAVIOUR == "angry":
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")


def disable():
    note("disable")
    if BEHAVIOUR == "slow":
        time.sleep(2.0)
    return Result()


def pretend():
    kinds = types.SimpleNamespace(
        ProfilerState=types.SimpleNamespace(KINETO=4),
        ProfilerActivity=types.SimpleNamespace(CPU="CPU", CUDA="CUDA"),
        ProfilerConfig=Config,
        _ExperimentalConfig=Experimental,
    )
    calls = types.SimpleNamespace(
        kineto_available=lambda: True,
        _supported_activities=lambda: {"CPU", "CUDA"},
        _profiler_enabled=lambda: BEHAVIOUR == "active",
        _prepare_profiler=lambda config, activities: note("prepare"),
        _enable_profiler=enable,
        _disable_profiler=disable,
    )
    torch = types.ModuleType("torch")
    torch.__version__ = "2.6.0" if BEHAVIOUR == "old" else "2.11.0"
    torch._C = types.SimpleNamespace(_autograd=calls, _profiler=kinds)
    sys.modules["torch"] = torch


def busy(counter):
    while True:
        for _ in range(1000):
            pass
        struct.pack_into("<Q", counter, 0, struct.unpack_from("<Q", counter)[0] + 1)


def main():
    assert BEHAVIOUR in BEHAVIOURS
    ctypes.CDLL(LIBRARY)
    if BEHAVIOUR != "bare":
        pretend()
    with open(COUNTER, "r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    threading.Thread(target=busy, args=(counter,), daemon=True).start()
    if BEHAVIOUR == "held":
        # PyDLL keeps the lock; another thread waits in the kernel, where it may be borrowed.
        libc = ctypes.CDLL(None)
        poller = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int)(("poll", libc))
        # In short waits: one with a longer limit is not borrowed.
        threading.Thread(target=lambda: [poller(None, 0, 500) for _ in iter(int, 1)], daemon=True).start()
        print("ready", flush=True)
        ctypes.PyDLL(None).usleep(4_000_000)
        note("let go")
    else:
        print("ready", flush=True)
    while True:
        select.poll().poll(500)


if __name__ == "__main__":
    main()
