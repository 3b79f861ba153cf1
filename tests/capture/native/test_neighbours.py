"""Other profilers in the same process: who is refused for, who is not, and who may come while a window is open."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gputop_llm.capture.conflicts import TOOLS
from gputop_llm.timeline.native_format import Chunk, EndReason
from tests.capture.native.hosting import NATIVE, hosting
from tests.capture.native.test_protocol import BUSY, NO_CUPTI, OTHER_TOOL, PROFILING, quiet, works
from tests.support.real_processes import until

KERNELS_AND_COPIES = (1, 2, 10)


@pytest.fixture
def a_library(native, tmp_path):
    """Makes an empty library of some name."""

    def make(name: str):
        path = tmp_path / name
        subprocess.run([shutil.which("cc") or "gcc", "-shared", "-x", "c", "/dev/null", "-o", path], check=True)
        return path

    return make


def test_without_cupti_none_is_loaded(native, a_host, a_line, a_library):
    host = a_host(a_library("libother.so"), env={**os.environ, "LD_LIBRARY_PATH": str(native.folder)})
    reason, _, sentence = a_line(host).record().refusal

    assert reason == NO_CUPTI
    assert "isn't loaded in this process" in sentence
    assert "libcupti" not in Path(f"/proc/{host.pid}/maps").read_text()


def test_without_a_driver_cupti_is_not_even_asked(native, a_line):
    """CUPTI 13.2 ends a process without a driver when it is asked its version."""
    with hosting(native.host, native.client, native.bare_cupti) as host:
        reason, _, sentence = a_line(host).record().refusal

        assert reason == NO_CUPTI
        assert "doesn't use CUDA" in sentence
        assert host.get("fake_asked") == 0


def test_of_two_cuptis_neither_is_guessed(native, a_host, a_line, tmp_path):
    shutil.copy(native.cupti, tmp_path / "libcupti.so.12")
    reason, _, sentence = a_line(a_host(native.cupti, tmp_path / "libcupti.so.12")).record().refusal

    assert reason == NO_CUPTI
    assert "several copies" in sentence


@pytest.mark.parametrize(
    "name",
    [
        "libToolsInjection64.so",
        "libToolsInjectionProxy64.so",
        "libcuda-injection.so",
        "libInterceptorInjectionTarget.so",
        "libTreeLauncherTargetInjection.so",
        "libcudadebugger.so.1",
        "libsanitizer-collection.so",
        "libproton.so",
        "libparcagpucupti.so",
    ],
)
def test_another_profiler_in_the_process_is_named(native, a_host, a_line, a_library, name):
    host = a_host(native.cupti, a_library(name))
    reason, _, sentence = a_line(host).record().refusal

    assert (reason, sentence) == (OTHER_TOOL, f"another profiler is in the process: {name}")
    assert host.get("fake_requests") == 0


def test_both_sides_know_the_same_profilers():
    (table,) = re.findall(r"const tools\[\] = \{(.*?)\};", (NATIVE / "others.c").read_text(), re.DOTALL)
    names = re.findall(r'"(.*?)"', table)

    for name in (*names, *TOOLS):
        assert any(name.startswith(one) for one in names), name
        assert name in TOOLS


def test_what_cuda_was_told_to_load_counts_whatever_its_name(native, a_host, a_line, a_library):
    own = a_library("libhouse_profiler.so")
    host = a_host(native.cupti, own, env={**os.environ, "X": "y" * 9000, "CUDA_INJECTION64_PATH": str(own)})

    assert a_line(host).record().refusal[2] == "another profiler is in the process: libhouse_profiler.so"
    # Set, but not there: nothing that could collect.
    absent = a_host(native.cupti, env={**os.environ, "CUDA_INJECTION64_PATH": "/nowhere/libabsent.so"})
    assert works(absent, a_line)


@pytest.mark.parametrize("name", ["libnvperf_host.so", "libnvToolsExt.so.1", "libcudart.so.13", "libproto.so"])
def test_what_many_programs_load_is_no_profiler(native, a_host, a_line, a_library, name):
    assert works(a_host(native.cupti, a_library(name)), a_line)


@pytest.mark.parametrize("state", [0, 1, 2], ids=["not registered", "never used", "idle"])
def test_an_idle_torch_profiler_is_no_reason_to_refuse(native, a_host, a_line, state):
    host = a_host(native.cupti, native.torch)
    if state:
        host.call("fake_torch_be", state)

    assert works(host, a_line)
    assert until(lambda: quiet(host))


@pytest.mark.parametrize("state", ["another class", "other code"])
def test_a_torch_that_cannot_be_asked_is_not_asked(native, a_host, a_line, state):
    host = a_host(native.cupti, native.torch if state == "another class" else native.unknown_torch)
    host.call("fake_torch_be", -1 if state == "another class" else 1)

    assert works(host, a_line)


def test_a_torch_profiler_at_work_is_not_disturbed(native, a_host, a_line):
    host = a_host(native.cupti, native.torch)
    host.call("fake_torch_start")
    host.call("fake_steps", 0, 5)
    record = a_line(host).record()
    host.call("fake_steps", 0, 5)
    host.call("fake_torch_stop")

    assert record.refusal == (PROFILING, 0, "the torch profiler is at work in this process")
    assert host.get("fake_torch_records") == 10 * 4  # two kernels, a copy and a memset a step
    assert host.get("fake_torch_lost") == host.get("fake_torch_unknown") == 0


def test_one_that_came_between_greeting_and_command_is_seen(native, a_host, a_line):
    host = a_host(native.cupti, native.torch)
    line = a_line(host)
    line.hear(Chunk.HELLO)
    host.call("fake_torch_start")
    line.window()

    assert line.record().refusal[0] == PROFILING
    host.call("fake_torch_stop")
    assert works(host, a_line)


def test_native_native_torch_native_in_one_process(native, a_host, a_line):
    host = a_host(native.cupti, native.torch)
    host.call("fake_torch_be", 1)
    for _ in range(2):
        assert works(host, a_line)
    host.call("fake_torch_start")
    host.call("fake_steps", 0, 100)
    host.call("fake_torch_stop")
    assert works(host, a_line)

    assert host.get("fake_torch_records") == 400
    assert host.get("fake_torch_lost") == host.get("fake_torch_unknown") == 0


@pytest.mark.parametrize("steps_before", [0, 40])
def test_a_torch_profiler_that_starts_during_the_window_goes_on_unharmed(native, a_host, a_line, steps_before):
    host = a_host(native.cupti, native.torch)
    host.call("fake_torch_be", 2)
    line = a_line(host)
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_steps", 0, steps_before)
    host.call("fake_torch_start")
    record = line.record()

    assert record.end["reason"] == EndReason.PROFILER_TOOK_OVER
    # Ours is over, and theirs has all of its kinds.
    assert all(host.call("fake_enabled", kind) for kind in KERNELS_AND_COPIES)
    assert a_line(host).record().refusal[0] == BUSY
    # The buffer of ours that CUPTI still had is out of its way before long.
    until(lambda: host.get("fake_flushes") > 0)
    host.call("fake_steps", 0, 100)
    assert until(lambda: not host.call("fake_left_out", 4) and not host.call("fake_left_out", 5)), "theirs to record"
    assert all(host.call("fake_enabled", kind) for kind in KERNELS_AND_COPIES)
    host.call("fake_torch_stop")
    assert host.get("fake_torch_records") == 400 + 100 * 3  # they share CUPTI's kinds: our calls and peer copies, too
    assert host.get("fake_torch_lost") == 0
    assert host.get("fake_torch_unknown") == (1 if steps_before else 0)
    # What it didn't use was ours to turn off.
    assert until(lambda: quiet(host))
    assert works(host, a_line)


@pytest.mark.parametrize("kind", range(1, 7))
def test_one_that_starts_while_kinds_are_turned_off_keeps_its_own(native, a_host, a_line, kind):
    host = a_host(native.cupti, native.torch)
    host.call("fake_torch_be", 2)
    line = a_line(host)
    line.window()
    line.hear(Chunk.STARTED)
    host.set("fake_torch_at_disable", kind)
    line.stop()

    assert line.record().end["reason"] == EndReason.PROFILER_TOOK_OVER
    assert all(host.call("fake_enabled", activity) for activity in KERNELS_AND_COPIES)
    host.call("fake_steps", 0, 10)
    host.call("fake_torch_stop")
    assert host.get("fake_torch_lost") == host.get("fake_torch_unknown") == 0
    assert host.get("fake_torch_records") >= 40
    assert until(lambda: quiet(host))
    assert works(host, a_line)


def test_an_idle_torch_profilers_stray_buffer_does_not_end_a_window(native, a_host, a_line):
    host = a_host(native.cupti, native.torch)
    host.call("fake_torch_be", 2)
    line = a_line(host)
    line.window()
    line.hear(Chunk.STARTED)
    host.call("fake_foreign")
    host.call("fake_steps", 0, 1)
    line.stop()

    assert line.record().end["reason"] == EndReason.STOPPED


def test_another_copy_of_the_client_at_work_is_respected(native, a_host, a_line, tmp_path):
    """The one that `run` loaded and an injected one, or those of two versions."""
    shutil.copy(native.client, tmp_path / "libgputop_client-older.so")
    host = a_host(native.cupti, tmp_path / "libgputop_client-older.so")
    assert works(host, a_line)
    # The host finds symbols in its first library first; the other copy's flag is set through a library of one line.
    (tmp_path / "poke.c").write_text(
        '#include <dlfcn.h>\n#include <stdlib.h>\nvoid poke(int busy)\n{ void *h = dlopen(getenv("OLDER"), RTLD_NOW);'
        '*(int *)dlsym(h, "gputop_client_busy") = busy; }\n'
    )
    subprocess.run(
        [shutil.which("cc") or "gcc", "-shared", "-fPIC", "-o", tmp_path / "libpoke.so", tmp_path / "poke.c"],
        check=True,
    )
    older = tmp_path / "libgputop_client-older.so"
    host = a_host(native.cupti, older, tmp_path / "libpoke.so", env={**os.environ, "OLDER": str(older)})
    host.call("poke", 1)
    assert a_line(host).record().refusal[:2] == (BUSY, 0)
    host.call("poke", 0)
    assert works(host, a_line)
