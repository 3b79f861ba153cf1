"""The simulator as a real process: starts, answers, and never outlives who started it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from gputop_llm.demo.sources import start_demo
from gputop_llm.errors import ExitCode, GputopError, SourceError, UsageError

WITHIN_S = 20.0


@pytest.fixture
def demo():
    node = start_demo("healthy", seed=7)
    yield node
    node.stop()


def get(url, path):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=WITHIN_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read()
    finally:
        connection.close()


def until(condition):
    end = time.monotonic() + WITHIN_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_engines_pages_are_served_like_vllms(demo):
    (url,) = demo.urls
    status, kind, page = get(url, "/metrics")

    assert (status, kind) == (200, "text/plain; version=1.0.0; charset=utf-8")
    assert b'vllm:num_requests_running{engine="0",model_name="demo/llama-8b"}' in page
    assert json.loads(get(url, "/version")[2]) == {"version": "0.32.0"}
    assert get(url, "/health")[::2] == (200, b"")
    assert get(url, "/v1/nothing")[0] == 404


def test_all_three_sources_read_the_same_node(demo):
    gpus, host, found = demo.gpu_source().poll(), demo.host_source().poll(), demo.discovery_source().poll()
    (target,) = found.targets

    assert demo.label == "simulated: healthy, seed 7"
    assert target.urls == demo.urls
    assert gpus.gpus[0].processes[0].pid in target.pids
    assert {load.pid for load in host.processes} == set(target.pids)


def test_the_host_source_only_gives_the_watched_processes(demo):
    core = demo.discovery_source().poll().targets[0].processes[1]

    assert [load.role for load in demo.host_source(lambda: (core,)).poll().processes] == ["engine-core"]
    assert demo.host_source(lambda: ()).poll().processes == ()


def test_time_passes(demo):
    source = demo.gpu_source()
    energy_j = source.poll().gpus[0].energy_j

    until(lambda: source.poll().gpus[0].energy_j > energy_j)


def test_several_engines_have_a_port_each():
    node = start_demo("healthy", seed=7, gpus=4, engines=2)
    try:
        assert len(set(node.urls)) == 2
        assert get(node.urls[0], "/metrics")[2] != get(node.urls[1], "/metrics")[2]
        assert len(node.gpu_source().poll().gpus) == 4
    finally:
        node.stop()


def test_without_engines_there_is_only_the_node():
    node = start_demo("healthy", seed=7, gpus=1, engines=0)
    try:
        assert node.urls == ()
        assert node.discovery_source().poll().targets[0].engine == "cuda"
    finally:
        node.stop()


@pytest.fixture
def simulator_is(tmp_path, monkeypatch):
    """Makes a shell command stand in for the simulator's process."""

    def replace(command):
        stub = tmp_path / "python"
        stub.write_text(f"#!/bin/sh\n{command}\n")
        stub.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(stub))

    return replace


def test_starting_does_not_wait_for_the_simulator(simulator_is):
    simulator_is("exec cat >/dev/null")
    began = time.monotonic()
    node = start_demo("healthy")
    took_s = time.monotonic() - began
    node.stop()

    assert took_s < 5


def test_a_simulator_that_can_not_start_gives_one_sentence(simulator_is):
    simulator_is("exit 3")
    node = start_demo("healthy")

    with pytest.raises(SourceError, match=r"cannot start the simulated node: .* ended with status 3"):
        node.gpu_source().poll()
    node.stop()


def test_a_missing_interpreter_gives_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    with pytest.raises(GputopError, match=r"^cannot start the simulated node: No such file") as failure:
        start_demo("healthy")
    assert failure.value.exit_code == ExitCode.FAILED


def test_a_simulator_that_does_not_end_by_itself_is_killed(simulator_is):
    simulator_is("exec sleep 600")
    node = start_demo("healthy")
    node.stop()

    assert not alive(node.pid)


def test_stop_ends_the_process_and_can_be_repeated():
    node = start_demo("healthy")
    node.gpu_source().poll()
    node.stop()
    node.stop()

    assert not alive(node.pid)
    with pytest.raises(SourceError, match="ended with status 0"):
        until(lambda: node.gpu_source().poll() is None)


def test_stop_before_it_is_up_is_no_trouble():
    node = start_demo("healthy")
    node.stop()

    assert not alive(node.pid)
    with pytest.raises(SourceError):
        node.gpu_source().poll()


def test_a_killed_simulator_gives_one_sentence(demo):
    source = demo.gpu_source()
    source.poll()
    os.kill(demo.pid, signal.SIGKILL)

    until(lambda: not alive(demo.pid))
    for each in (source, demo.host_source(), demo.discovery_source()):
        with pytest.raises(SourceError) as caught:
            until(lambda each=each: each.poll() is None)
        assert caught.value.why == f"the simulator (PID {demo.pid}) was killed by signal 9"
        assert caught.value.todo == "start the demo again"


def test_a_hung_simulator_gives_one_sentence_within_the_deadline(demo):
    source = demo.gpu_source()
    source.poll()
    os.kill(demo.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(SourceError, match=r"did not answer within 1\.5 s"):
            until(lambda: source.poll() is None)
        assert time.monotonic() - began < WITHIN_S
    finally:
        os.kill(demo.pid, signal.SIGCONT)

    until(lambda: source.poll().gpus)


def test_a_poll_can_be_aborted(demo):
    source = demo.gpu_source()
    source.poll()
    os.kill(demo.pid, signal.SIGSTOP)
    failed = []

    def poll_until_it_fails():
        try:
            until(lambda: source.poll() is None)
        except SourceError as error:
            failed.append(error.sentence())

    polling = threading.Thread(target=poll_until_it_fails)
    polling.start()
    try:
        until(lambda: source.abort() or failed)
    finally:
        os.kill(demo.pid, signal.SIGCONT)
    polling.join(WITHIN_S)

    assert failed[0].startswith("cannot read the simulated node: ")


def test_it_ends_when_the_monitor_is_killed(tmp_path):
    monitor = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from gputop_llm.demo.sources import start_demo; import time\n"
            "node = start_demo('healthy'); node.gpu_source().poll(); print(node.pid, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )
    pid = int(monitor.stdout.readline())
    assert alive(pid)
    monitor.kill()
    monitor.wait()
    monitor.stdout.close()

    until(lambda: not alive(pid))


def test_ctrl_c_in_the_terminal_does_not_end_it_before_the_monitor(demo):
    demo.gpu_source().poll()
    os.kill(demo.pid, signal.SIGINT)

    assert get(demo.urls[0], "/health")[0] == 200
    assert alive(demo.pid)


def test_a_module_in_the_working_directory_does_not_get_into_it(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    node = start_demo("healthy")
    try:
        assert node.gpu_source().poll().gpus
    finally:
        node.stop()


def test_simulated_time_can_pass_faster():
    command = [sys.executable, "-m", "gputop_llm.demo.server", "--scenario", "overload", "--rate", "600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        ports = json.loads(server.stdout.readline())
        url = f"http://127.0.0.1:{ports['engines'][0]}"

        def preemptions():
            return [
                float(line.rpartition(b" ")[2])
                for line in get(url, "/metrics")[2].splitlines()
                if line.startswith(b"vllm:num_preemptions_total")
            ]

        until(lambda: preemptions()[0] > 0)
        server.stdin.close()
        assert server.wait(WITHIN_S) == 0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"scenario": "sunny"}, "no demo scenario 'sunny'"),
        ({"scenario": "healthy", "gpus": 1, "engines": 2}, "one for each engine"),
    ],
)
def test_an_impossible_demo_is_refused_before_anything_is_started(asked, told):
    with pytest.raises(UsageError, match=told):
        start_demo(**asked)
