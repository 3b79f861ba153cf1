"""Discovery on this machine's own /proc, with real processes of the right names."""

import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.dist_info import installed_version
from gputop_llm.sources.listen import listening
from gputop_llm.sources.procfs import ProcFs
from tests.support.real_processes import running_engine, until


def discovery(probe=lambda url: False):
    return DiscoverySource(lambda: None, probe)


def target_of(source, pid):
    return next((t for t in source.poll().targets if pid in t.pids), None)


def test_a_real_tree_is_found_with_roles_and_ranks(tmp_path):
    with running_engine(tmp_path, "--model", "org/tiny", "--port", "0", "--api-key", "sesame") as engine:
        target = target_of(discovery(), engine.root.pid)

    assert (target.engine, target.root_pid, target.model, target.orphan) == ("vllm", engine.root.pid, "org/tiny", False)
    assert sorted(target.pids) == sorted(engine.pids)
    assert [(p.role, p.rank) for p in target.processes] == [
        ("api-server", None),
        ("engine-core", None),
        ("worker", "TP0"),
        ("worker", "TP1"),
    ]
    assert "sesame" not in repr(target)
    assert abs(target.started_s - time.time()) < 30
    assert target.user is not None


def test_a_real_data_parallel_tree_gives_workers_their_replica(tmp_path):
    titles = "VLLM::EngineCore_DP0,VLLM::Worker;VLLM::EngineCore_DP1,VLLM::Worker;VLLM::APIServer_0;VLLM::APIServer_1"
    with running_engine(tmp_path, "--model", "m", "--port", "0", titles=titles) as engine:
        target = target_of(discovery(), engine.root.pid)

    assert [p.rank for p in target.processes if p.role == "worker"] == ["DP0", "DP1"]
    assert target.api_servers == 2


def test_sigkill_of_the_root_leaves_an_orphan_and_a_restart_is_another_target(tmp_path):
    source = discovery()
    with running_engine(tmp_path, "--model", "m", "--port", "0") as engine:
        before = target_of(source, engine.root.pid)
        survivors = set(engine.pids) - {engine.root.pid}
        engine.kill_root()
        orphan = target_of(source, min(survivors))
        with running_engine(tmp_path, "--model", "m", "--port", "0") as second:
            after = target_of(source, second.root.pid)

    assert orphan.orphan
    assert set(orphan.pids) == survivors
    assert "PID 1" in orphan.notes[0]
    assert (after.orphan, after.root_pid) == (False, second.root.pid)
    assert len({before.key, orphan.key, after.key}) == 3


def test_a_target_is_gone_when_its_processes_are(tmp_path):
    source = discovery()
    with running_engine(tmp_path, "--model", "m", "--port", "0") as engine:
        assert target_of(source, engine.root.pid)
    until(lambda: not any(target_of(source, pid) for pid in engine.pids))


def test_the_version_of_an_environment_is_read_without_starting_anything(tmp_path):
    (tmp_path / "site-packages/vllm-9.9.9.dist-info").mkdir(parents=True)
    mapped = tmp_path / "site-packages/mapped.bin"
    mapped.write_bytes(b"x" * 8192)
    code = (
        "import mmap, sys, signal\n"
        f"f = open({str(mapped)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "print('ready', flush=True); signal.pause()"
    )
    with subprocess.Popen(["vllm", "-c", code], executable=sys.executable, stdout=subprocess.PIPE, text=True) as child:
        child.stdout.readline()

        version = installed_version(ProcFs(), child.pid, ("vllm",), ("vllm",), same_files=True)
        child.kill()

    assert version == "9.9.9"


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_a_real_listening_socket_is_found_by_its_inode():

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        assert ("127.0.0.1", server.server_port) in listening(ProcFs(), os.getpid())
    assert ("127.0.0.1", server.server_port) not in listening(ProcFs(), os.getpid())


def test_an_own_program_s_port_is_found_when_it_answers(tmp_path):
    asked = []

    def probe(url):
        asked.append(url)
        return True

    # --port 0 leaves the port to the kernel, as a config file leaves it to itself.
    with running_engine(tmp_path, "--model", "m", "--port", "0") as engine:
        target = target_of(discovery(probe), engine.root.pid)

    assert target.urls_from == "socket"
    assert target.urls[0] in asked
    assert target.urls[0].startswith("http://127.0.0.1:")


def test_processes_that_come_and_go_during_the_look_harm_nothing():
    source, stop = discovery(), threading.Event()

    def churn():
        while not stop.is_set():
            subprocess.run(["true"], check=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(100):
            source.poll()
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_finds_the_engine_all_the_same(tmp_path):
    code = (
        "import os, sys; from gputop_llm.sources.discover import DiscoverySource\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "found = DiscoverySource(lambda: None, lambda url: False).poll().targets\n"
        "(t,) = [t for t in found if t.root_pid == int(sys.argv[1])]\n"
        "print(t.user, t.model, len(t.processes))"
    )
    with running_engine(tmp_path, "--model", "m", "--port", "0") as engine:
        done = subprocess.run(
            [sys.executable, "-c", code, str(engine.root.pid)], capture_output=True, text=True, check=False
        )

    assert done.stdout.split() == ["root", "m", "4"], done.stderr
