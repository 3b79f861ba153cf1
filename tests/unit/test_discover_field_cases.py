"""Process tables met in the field, each with the behaviour that its expected.md asks for."""

import json
from pathlib import Path

import pytest

from gputop_llm.model import Gpu, GpuNode, GpuProcess
from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.procfs import ProcFs
from tests.support.fake_proc import FakeClock, FakeProc

CASES = Path(__file__).parents[2] / "captures/field-cases"
CONTAINER_PIDS = "pid:[4026533777]"
GIB = 1 << 30


def nvml(case):
    device = json.loads((CASES / case / "nvml.json").read_text())["device"]
    processes = tuple(
        GpuProcess(entry["pid"], "compute", entry["usedGpuMemory"], None, None)
        for entry in device["ComputeRunningProcesses"]
    )
    return GpuNode((Gpu(index=0, name=device["Name"], processes=processes),))


def poll(proc, node=None):
    return DiscoverySource(lambda: node, lambda url: False, proc.root, FakeClock()).poll()


@pytest.fixture
def case_07(tmp_path):
    proc = FakeProc(tmp_path / "proc", pid_namespace=CONTAINER_PIDS)
    proc.add_case(CASES / "07-host-pids-inside-a-container/procs.json")
    return poll(proc, nvml("07-host-pids-inside-a-container"))


def test_07_the_engine_is_found_by_its_own_pid_and_can_be_attached_to(case_07):
    engine = case_07.targets[0]

    assert (engine.engine, engine.attachable) == ("vllm", None)
    assert 212 in engine.pids
    core = next(p for p in engine.processes if p.pid == 212)
    assert (core.gpus, core.gpus_from) == ((0,), "inferred")


def test_07_the_host_pid_is_called_so_and_offers_nothing(case_07):
    other = case_07.targets[1]
    (process,) = other.processes

    assert process.title == "host PID, not visible in this container"
    assert other.attachable == "host PID, not visible in this container"
    assert (process.pid, process.nvml_pid, other.root_pid, other.pids) == (None, 56752, None, ())
    assert process.unseen == "pid-namespace"
    assert process.mem_bytes == 34724810588
    assert "dead" not in repr(other)
    assert "No such process" not in repr(other)


def test_07_the_doctor_is_told_once_what_would_help(case_07):
    (note,) = case_07.notes

    assert "--pid=host" in note
    assert "hostPID" in note


@pytest.fixture(params=["procs.json", "procs-denied.json"])
def case_08(request, tmp_path, monkeypatch):
    folder = CASES / "08-other-users-hidden"
    proc = FakeProc(tmp_path / "proc", mountinfo=(folder / "mountinfo.txt").read_text())
    proc.add_case(folder / request.param)
    proc.add(8200, "VLLM::Worker_TP0", ppid=8100)
    if "denied" in request.param:
        # Tests may run as root, whom no permission stops.
        (proc.path / "4471").mkdir()
        real = ProcFs.read

        def read(self, name, limit_bytes=1 << 20):
            if name.startswith("4471/"):
                raise PermissionError(13, "Permission denied", name)
            return real(self, name, limit_bytes)

        monkeypatch.setattr(ProcFs, "read", read)
    return poll(proc, nvml("08-other-users-hidden"))


def test_08_the_other_user_s_process_is_listed_with_its_memory(case_08):
    (hidden,) = [t for t in case_08.targets if t.engine == "cuda"]
    (process,) = hidden.processes

    assert process.title == "another user (hidden)"
    assert process.mem_bytes == 20 * GIB
    assert (process.nvml_pid, process.unseen, process.state, process.pid) == (4471, "other-user", None, None)
    assert hidden.attachable is not None
    assert "zombie" not in repr(hidden)


def test_08_the_walk_for_the_target_s_children_works_all_the_same(case_08):
    engine = case_08.targets[0]

    assert engine.engine == "vllm"
    assert {8100, 8200} <= set(engine.pids)
    assert next(p for p in engine.processes if p.pid == 8100).mem_bytes == 26628797235


def test_08_the_doctor_names_hidepid_and_what_it_hides(case_08):
    (note,) = case_08.notes

    assert "hidepid=invisible" in note
    assert "other users" in note


@pytest.fixture
def case_09(tmp_path):
    folder = CASES / "09-zombie-that-holds-memory"
    proc = FakeProc(tmp_path / "proc")
    proc.add_case(folder / "procs.json")
    proc.write("7302/stat", (folder / "proc_7302_stat.txt").read_text())
    return proc


def test_09_the_zombie_is_a_process_of_its_engine_with_the_memory_it_holds(case_09):
    (engine,) = poll(case_09, nvml("09-zombie-that-holds-memory")).targets
    zombie = next(p for p in engine.processes if p.pid == 7302)

    assert (zombie.state, zombie.role, zombie.mem_bytes) == ("Z", "worker", 38 * GIB)
    assert "zombie" in zombie.note
    assert "7300" in zombie.note
    assert "still held" in zombie.note
    assert engine.root_pid == 7300
    assert engine.attachable is None


def test_09_a_zombie_of_no_engine_is_refused_with_that_reason(case_09):
    case_09.add(7300, ["python3", "launcher.py"], pgrp=1)
    targets = poll(case_09, nvml("09-zombie-that-holds-memory")).targets
    holder = next(t for t in targets if 7302 in t.pids)

    assert holder.attachable is not None
    assert "zombie" in holder.attachable
    assert "7300" in holder.attachable


def test_09_a_zombie_that_holds_nothing_is_no_target(case_09):
    case_09.remove(7300)
    case_09.write("7302/stat", (case_09.path / "7302/stat").read_text().replace("Z 7300", "Z 1"))

    assert poll(case_09, GpuNode((Gpu(index=0, processes=()),))).targets == ()


def test_13_the_engine_is_known_by_its_command_line(tmp_path):
    proc = FakeProc(tmp_path / "proc")
    proc.add_case(CASES / "13-process-metrics-only/procs.json")
    (engine,) = poll(proc).targets

    assert (engine.engine, engine.model) == ("vllm", "org/model-a")
    assert "--disable-log-stats" in engine.argv
    assert engine.urls == ("http://127.0.0.1:8000",)


def test_14_names_that_look_like_markup_are_taken_literally(tmp_path):
    proc = FakeProc(tmp_path / "proc")
    proc.add_case(CASES / "14-markup-in-names/procs.json")
    (engine,) = poll(proc).targets

    assert engine.model == "org/m[/]"
    assert engine.argv == ("vllm", "serve", "[/mnt/models/llama-3]", "--served-model-name", "org/m[/]")
    assert engine.processes[0].title == "vllm serve [/mnt/models/llama-3] --served-model-name org/m[/]"


def test_14_any_such_name_stays_itself(tmp_path):
    names = json.loads((CASES / "14-markup-in-names/names.json").read_text())
    proc = FakeProc(tmp_path / "proc")
    for number, name in enumerate(names):
        proc.add(510 + number, ["vllm", "serve", name])

    assert [t.model for t in poll(proc).targets] == names
