"""Kernels of a program are timed by the client that CUDA loads into it, here with a CUPTI that is none."""

from __future__ import annotations

import os
import re
import sys

import pytest

from gputop_llm.capture import timed
from gputop_llm.errors import GputopError

#: Loads the client as CUDA does, then works for as long as is said: 10 steps every 5 ms.
PROGRAM = """
import ctypes, os, sys, time
cuda, cupti = (ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) if path else None for path in sys.argv[1:3])
assert ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).InitializeInjection() == 1
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    if cupti:
        cupti.fake_steps(0, 10)
    time.sleep(0.005)
print("result 42", flush=True)
sys.exit(int(sys.argv[4]))
"""


@pytest.fixture
def timing(native, tmp_path, monkeypatch):
    """Runs the program for some seconds; with CUPTI in it, or without."""
    monkeypatch.setattr(timed, "library_path", lambda: native.client)
    (tmp_path / "runtime").mkdir(mode=0o700)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}

    def run(seconds, code=0, cupti=True, within_s=60.0):
        program = [sys.executable, "-c", PROGRAM, native.cuda, native.cupti if cupti else "", str(seconds), str(code)]
        return timed.time_kernels([str(word) for word in program], tmp_path / "out.log", within_s, environment)

    return run


def test_kernels_are_timed_and_the_program_runs_as_ever(timing, tmp_path):
    kernels, code = timing(2.0, code=7)

    assert code == 7
    assert (tmp_path / "out.log").read_text() == "result 42\n"
    assert kernels
    for kernel in kernels:
        assert kernel.durations_ns == tuple(sorted(kernel.durations_ns))
        assert kernel.durations_ns[0] > 0
        assert kernel.grid is not None
        assert kernel.block is not None
    totals = [sum(kernel.durations_ns) for kernel in kernels]
    assert totals == sorted(totals, reverse=True)


def test_one_that_takes_too_long_is_ended_and_what_was_timed_is_kept(timing):
    kernels, code = timing(600, within_s=2.5)

    assert code is None
    assert kernels


def test_what_has_no_cupti_says_how_to_bring_it(timing):
    with pytest.raises(GputopError, match=re.escape("LD_PRELOAD=CUDA/extras/CUPTI/lib64/libcupti.so")) as raised:
        timing(1.0, cupti=False)

    assert "CUPTI (libcupti.so) isn't loaded" in raised.value.why


def test_one_that_uses_no_cuda_or_is_over_too_soon_says_so(tmp_path):
    with pytest.raises(GputopError, match="didn't use CUDA, or was over too soon"):
        timed.time_kernels(["true"], tmp_path / "out.log", 60.0)
