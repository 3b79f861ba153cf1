"""A program under ncu, which here is one that replays recorded reports and words."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

import pytest

from gputop_llm.errors import GputopError, UsageError
from gputop_llm.ncu.collect import MOST_REPLAYS, Order, Refused, Round, beforehand, collect
from gputop_llm.ncu.tool import Ncu, NoNcu, find_ncu
from tests.ncu.test_failures import TEXTS
from tests.support.fake_ncu import SECTIONS, install
from tests.support.kernels import ALONE, RAW

DEADLINE_S = 30.0
ORDER = Order(("true",), kernel="nvjet")
LAST = "==PROF== Disconnected from process 77\n==WARNING== No kernels were profiled.\n"
#: Without counters times can still be had.
NO_COUNTERS = {"permission", "vgpu", "confidential-computing", "no-profiler-library", "counters-busy"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One for all tests that change only its plan: what it was asked once it isn't asked again."""
    fake = install(tmp_path_factory.mktemp("bin"), {"report": ALONE})
    return fake, Ncu(fake.folder / "ncu")


def options(call):
    """The options of a call, each with all its values, and the program."""
    end = next(at for at in range(0, len(call), 2) if not call[at].startswith("--"))
    found = {}
    for name, value in zip(call[0:end:2], call[1:end:2], strict=True):
        found.setdefault(name, []).append(value)
    return found, call[end:]


def test_triage_asks_for_four_sections_and_leaves_the_clocks_alone(shared, tmp_path):
    fake, ncu = shared
    fake.plan({"report": ALONE})
    taken = collect(replace(ORDER, argv=("sh", "-c", "echo hello"), skip=2), ncu, tmp_path / "50%/r.ncu-rep")
    given, program = options(fake.calls()[-1])

    assert given.pop("--export")[0].startswith(f"{tmp_path}/50%%/.gputop-llm-")
    assert given.pop("--log-file")
    assert given == {
        "--target-processes": ["all"], "--clock-control": ["none"], "--cache-control": ["all"], "--launch-skip": ["2"],
        "--launch-count": ["5"], "--kernel-name": ["regex:nvjet"],
        "--section": ["SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis"],
    }  # fmt: skip
    assert program == ["sh", "-c", "echo hello"]
    assert (taken.passes, taken.program_code, taken.trouble) == (11, None, None)
    assert taken.profile.kernels[0].duration_ns == 9024
    assert taken.profile.files == (str(taken.report),)
    assert sorted(os.listdir(tmp_path / "50%")) == ["r.log", "r.ncu-rep"]
    assert (tmp_path / "50%/r.log").read_text() == "hello\n"


def test_the_full_set_only_on_request_and_l2_as_it_is_too(shared, tmp_path):
    fake, ncu = shared
    fake.plan({"report": ALONE})
    collect(replace(ORDER, round=Round.FULL, cold=False, kernel=None), ncu, tmp_path / "r.ncu-rep")
    given, _ = options(fake.calls()[-1])

    assert given["--set"] == ["full"]
    assert given["--cache-control"] == ["none"]
    assert not {"--section", "--kernel-name"} & set(given)


def test_options_and_sections_that_this_ncu_lacks_are_left_out(tmp_path):
    fake = install(tmp_path / "bin", {"report": ALONE}, without=("--log-file", "--target-processes"))
    ncu = Ncu(fake.folder / "ncu")
    taken = collect(replace(ORDER, argv=("echo", "hello")), ncu, tmp_path / "r.ncu-rep")

    assert ncu.sections == set(SECTIONS)
    assert not {"--log-file", "--target-processes"} & set(options(fake.calls()[0])[0])
    assert taken.passes == 11


def test_passes_and_time_are_said_beforehand_and_then_those_of_the_last_run(shared, tmp_path):
    fake, ncu = shared
    fake.plan({"report": ALONE, "log": '==PROF== Profiling "gemm" - 0: 0%....100% - 9 passes'})
    first, full = beforehand(ORDER, ncu), beforehand(replace(ORDER, round=Round.FULL), ncu)
    taken = collect(ORDER, ncu, tmp_path / "r.ncu-rep")

    assert "about 11 passes × 5 launches of /nvjet/, about 8 s beside the program's own time" in first
    assert "about 38 passes" in full
    assert f"about 9 passes × 5 launches of /nvjet/, the last time {taken.wall_s:.1f} s" in beforehand(
        ORDER, ncu, taken
    )


def test_more_replays_than_a_run_may_take_are_wrong_usage(shared, tmp_path):
    most = MOST_REPLAYS // Round.FULL.passes
    with pytest.raises(UsageError, match=f"ask for {most} at most"):
        collect(replace(ORDER, round=Round.FULL, launches=most + 1), shared[1], tmp_path / "r.ncu-rep")


#: Some come by standard error whatever it is told; there they have the mark of ncu.
PLACES = [(id, "log") for id in TEXTS] + [(id, "says") for id, text in TEXTS.items() if text.startswith("==")]


@pytest.mark.parametrize(("id", "where"), PLACES)
def test_each_failure_of_ncu_is_one_sentence_with_its_way_out(shared, tmp_path, id, where):
    fake, ncu = shared
    fake.plan({"runs": False, "code": 1, "log": LAST, where: f"{TEXTS[id]}\n{LAST}"})
    with pytest.raises(GputopError) as raised:
        collect(ORDER, ncu, tmp_path / "r.ncu-rep")

    assert isinstance(raised.value, Refused) == (id in NO_COUNTERS)
    assert raised.value.why
    assert raised.value.todo
    assert os.listdir(tmp_path) == ["r.log"]


def test_what_the_program_says_is_no_failure_of_ncu(shared, tmp_path):
    fake, ncu = shared
    fake.plan({"log": LAST})
    program = ("sh", "-c", "echo Failed to save memory: CUDA out of memory; echo make: no rule >&2; exit 2")
    with pytest.raises(GputopError, match=r"the program failed before .*; the program's last words: make: no rule"):
        collect(replace(ORDER, argv=program), ncu, tmp_path / "r.ncu-rep")


def test_a_mere_warning_is_no_trouble_and_an_error_beside_kernels_is_told(shared, tmp_path):
    fake, ncu = shared
    fake.plan({"report": ALONE, "log": f"{TEXTS['memory-in-the-way']}\n"})
    assert collect(ORDER, ncu, tmp_path / "r.ncu-rep").trouble is None
    fake.plan({"report": ALONE, "log": f"{TEXTS['stream-capture']}\n"})
    assert collect(ORDER, ncu, tmp_path / "r.ncu-rep").trouble.id == "stream-capture"


def test_a_program_that_fails_after_its_kernels_has_a_verdict_all_the_same(shared, tmp_path):
    fake, ncu = shared
    fake.plan({"report": ALONE})
    taken = collect(replace(ORDER, argv=("sh", "-c", "exit 3")), ncu, tmp_path / "r.ncu-rep")

    assert (taken.program_code, taken.trouble, len(taken.profile.kernels)) == (3, None, 1)


@pytest.mark.parametrize("how", ["time is up", "cancelled"])
def test_nothing_of_it_is_left_when_it_is_ended(tmp_path, how):
    fake = install(tmp_path / "bin", {"hangs": True})
    ncu = Ncu(fake.folder / "ncu")
    mark = f"GPUTOP_TEST_MARK={tmp_path}"
    order = replace(ORDER, within_s=1.0 if how == "time is up" else 600.0, environment={**os.environ, "MARK": mark})
    began = time.monotonic()
    if how == "time is up":
        with pytest.raises(GputopError, match=r"never ends under ncu.*it began was ncclDevKernel_AllReduce"):
            collect(order, ncu, tmp_path / "out/r.ncu-rep")
    else:
        with pytest.raises(KeyboardInterrupt):
            collect(order, ncu, tmp_path / "out/r.ncu-rep", cancelled=lambda: len(marked(mark)) >= 2)

    assert marked(mark) == []
    assert not (tmp_path / "out/r.ncu-rep").exists()
    assert time.monotonic() - began < DEADLINE_S


def marked(mark):
    """The processes with this in their environment, those that have ended left out."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                found += [pid] if mark.encode() in file.read() else []
        except OSError:
            continue
    return found


def test_without_nvidias_reader_ncu_itself_reads_the_report(shared, tmp_path, monkeypatch):
    fake, ncu = shared
    fake.plan({"report": ALONE, "csv": RAW})
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    taken = collect(ORDER, ncu, tmp_path / "r.ncu-rep")

    assert len(taken.profile.kernels) == 3
    assert taken.profile.options["clock-control"] == "none"


def test_it_is_found_on_the_path_and_below_cuda_home(tmp_path, monkeypatch):
    monkeypatch.setattr("gputop_llm.ncu.tool._PLACES", (f"{tmp_path}/cuda-*/bin/ncu",))
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(NoNcu, match="neither on the PATH"):
        find_ncu({"PATH": nowhere})
    for version in ("12.9", "13.10", "13.9"):
        install(tmp_path / f"cuda-{version}/bin")
    on_path, home = install(tmp_path / "bin"), install(tmp_path / "home/bin")

    assert find_ncu({"PATH": nowhere}).path.parts[-3] == "cuda-13.10"
    assert find_ncu({"PATH": nowhere, "CUDA_HOME": str(tmp_path / "home")}).path.parent == home.folder
    assert find_ncu({"PATH": str(on_path.folder), "CUDA_HOME": str(tmp_path / "home")}).path.parent == on_path.folder
    assert find_ncu({"PATH": str(on_path.folder)}).version == "2025.3.1.0"
