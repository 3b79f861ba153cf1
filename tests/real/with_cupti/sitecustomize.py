"""Puts a CUPTI that is none into the process that computes, as torch puts the real one into it on a GPU.

For PYTHONPATH; FAKE_CUPTI names the library (tests/capture/native/fake_cupti.c). vLLM's API server spawns the engine,
which forks or spawns its worker.
"""

import ctypes
import os
import sys
from pathlib import Path


def load():
    path = Path(os.environ["FAKE_CUPTI"])
    ctypes.CDLL(str(path.with_name("libcuda.so.1")))
    cupti = ctypes.CDLL(str(path))
    ctypes.c_int.in_dll(cupti, "fake_work_us").value = 2000
    cupti.fake_work(2)  # two threads that call CUDA


if any("spawn_main" in word for word in sys.orig_argv):
    load()
os.register_at_fork(after_in_child=load)
