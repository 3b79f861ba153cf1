"""Cases 07–09: PIDs of the host, other users' processes, and a zombie that holds memory."""

from __future__ import annotations

import pytest

from gputop_llm.capture.plan import make_plan
from gputop_llm.capture.process import Ran
from gputop_llm.capture.stacks import looking
from gputop_llm.commands.doctor import remarks_on
from gputop_llm.errors import NothingFound
from gputop_llm.sources.procfs import ProcFs
from tests.support.captures import case_page
from tests.support.fake_proc import FakeProc

GIB = 1 << 30


@pytest.fixture
def container(machine):
    one = machine(7, pid_namespace="pid:[4026533777]")
    one.serve(case_page(15))
    return one.run(12)


async def test_07_the_engine_is_attached_to_by_its_own_pid(container):
    frame = container.json()
    engine = next(t for t in frame["targets"] if t["engine"] == "vllm")
    assert frame["focus"] == engine["key"]
    assert (engine["pids"], engine["gpus"], engine["attachable"]) == ([1, 212], [0], None)
    assert [rank.pid for rank in plan_of(container).ranks] == [212]


async def test_07_the_hosts_pid_is_named_so_and_offers_nothing(container):
    (other,) = [t for t in container.json()["targets"] if t["engine"] == "cuda"]
    assert (other["pids"], other["root_pid"], other["processes"][0]["nvml_pid"]) == ([], None, 56752)
    assert "host PID, not visible in this container (PID (56752), GPU 0, 32.3 GiB" in container.text()
    async with container.shown() as press:
        screen = "\n".join(await press("4"))
        await press("t", "down", "enter")
        after = "\n".join(await press("1"))
    assert "(56752) other" in screen
    assert screen.count("pid (56752): host PID, not visible in this container") == 1
    for word in ("dead", "zombie", "No such process"):
        assert word not in container.text() + screen
    assert "vLLM · org/model-a · pid 1 ·" in after, "what can't be watched was not attached to"
    assert "noisy-neighbour" not in container.raised()
    with pytest.raises(NothingFound, match="its processes can't be seen here"):
        plan_of(container, engine="cuda")


def test_07_what_would_make_it_visible_is_said_once(container):
    assert container.text().count("hostPID: true") == 1
    assert ["--pid=host" in remark for remark in remarks_on(container.frame)] == [True]


@pytest.fixture(params=["procs.json", "procs-denied.json"])
def hidden(request, machine, monkeypatch):
    """Case 08: another user's process isn't there for us, or may not be read."""
    one = machine(8, procs=request.param)
    one.proc.add(8200, "VLLM::Worker_TP0", ppid=8100, uid=1001)
    if "denied" in request.param:
        (one.proc.path / "4471").mkdir()
        real = ProcFs.read

        def read(self, name, limit_bytes=1 << 20):
            if name.startswith("4471/"):
                raise PermissionError(13, "Permission denied", name)
            return real(self, name, limit_bytes)

        monkeypatch.setattr(ProcFs, "read", read)
    one.nvml.set("UtilizationRates", {"gpu": 90, "memory": 40})
    return one.run(15)


async def test_08_the_other_users_process_is_listed_with_its_memory(hidden):
    assert "another user (hidden) (PID (4471), GPU 0, 20.0 GiB of GPU memory)" in hidden.text()
    async with hidden.shown() as press:
        (row,) = [line for line in await press("4") if line.lstrip().startswith("(4471)")]
    assert "20.0 GiB" in row
    assert "another user (hidden)" in row


def test_08_an_engine_whose_parent_is_hidden_is_not_called_an_orphan(hidden):
    (engine,) = [t for t in hidden.json()["targets"] if t["engine"] == "vllm"]
    assert (engine["pids"], engine["orphan"], engine["argv"]) == ([8100, 8200], False, [])
    assert "orphan" not in hidden.text()
    assert "stalled" not in hidden.raised()


def test_08_hidepid_is_named_with_what_it_hides(hidden):
    text = hidden.text()
    assert ["hidepid=invisible" in remark for remark in remarks_on(hidden.frame)] == [True]
    assert text.count("/proc is mounted with hidepid=invisible: other users' processes are hidden") == 1
    assert not {"zombie", "dead"} & set(text.split())


def test_08_a_server_that_was_really_killed_is_still_told_under_hidepid(machine):
    one = machine(8, procs=None)
    one.proc.add(8100, "VLLM::EngineCore", ppid=1, uid=1001)
    assert one.run(15).raised()["stalled"].headline.startswith("the API server is gone: 1 orphaned process")


def test_08_schedulers_of_a_hidden_server_of_another_engine_are_no_orphans_either(machine):
    one = machine(8, procs=None)
    one.proc.add(8100, "sglang::scheduler_TP0", ppid=8090, uid=1001)
    (engine, _) = one.run(2).json()["targets"]
    assert (engine["engine"], engine["orphan"]) == ("sglang", False)


@pytest.fixture
def dead(machine):
    """Case 09: a worker has ended and is not collected."""
    one = machine(9)
    one.proc.write("7302/stat", (one.case / "proc_7302_stat.txt").read_text())
    one.proc.write("7302/cmdline", b"")
    one.proc.write("7302/environ", b"")
    one.serve(case_page(15))
    return one


async def test_09_the_zombie_is_shown_with_the_memory_that_it_holds(dead):
    dead.run(12)
    note = "zombie: it has ended, but its parent 7300 has not collected it; its GPU memory is still held"
    assert note in dead.text()
    async with dead.shown() as press:
        overview, screen = "\n".join(await press("1")), await press("4")
    assert "▲ zombie: it has ended" in overview
    (row,) = [line for line in screen if line.lstrip().startswith("7302")]
    assert row.split()[3] == "Z"
    assert "38.0 GiB" in row
    assert any(note in line for line in screen)


def test_09_its_idle_thread_is_no_evidence_of_a_living_engine(dead):
    starved = dead.run(12).raised()["gpu-starved"]
    (thread,) = [e for e in starved.evidence if e.name.startswith("busiest thread")]
    assert (thread.value, thread.name) == (None, "busiest thread")


def test_09_nothing_is_tried_on_a_zombie(dead, monkeypatch):
    dead.run(2)
    with pytest.raises(NothingFound, match=r"what used the GPU has ended, a zombie now \(PID 7302\)"):
        plan_of(dead)
    monkeypatch.setattr("gputop_llm.capture.stacks.refused.ProcFs", lambda: ProcFs(dead.proc.root))
    tried: set[int] = set()
    found = looking.report(
        "", looking.processes_of(dead.frame.focused), look=lambda pid: tried.add(pid) or Ran(1, b"", b"no", 0.0)
    )
    assert tried == {7300}
    (zombie,) = [one for one in found.processes if one.pid == 7302]
    assert zombie.unreadable.why == "the process has ended, a zombie that its parent 7300 has not collected"


def test_09_a_process_that_vanishes_between_two_reads_is_gone_on_the_next_tick(machine, monkeypatch):
    one = machine(9)
    one.proc.add(7303, "VLLM::Worker_TP1", ppid=7300, pgrp=7300)
    one.serve(case_page(15))
    one.run(2)
    assert 7303 in one.json()["targets"][0]["pids"]
    real = FakeProc.remove
    read = ProcFs.stat

    def vanishing(self, pid):
        if pid == 7303:
            real(one.proc, 7303)
        return read(self, pid)

    monkeypatch.setattr(ProcFs, "stat", vanishing)
    frame = one.run(2).json()
    assert [t["pids"] for t in frame["targets"]] == [[7300, 7302]]
    assert one.frame.targets.error is one.frame.host.error is None


def plan_of(machine, engine: str = "vllm"):
    target = next(t for t in machine.frame.targets.value.targets if t.engine == engine)
    return make_plan(target, machine.cgroups, proc=ProcFs(machine.proc.root))
