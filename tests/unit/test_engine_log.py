"""The log of a real process is found wherever it writes to, and where it can't be read the reason is said."""

from __future__ import annotations

import contextlib
import os
import pty
import socket
import subprocess
import time
from pathlib import Path

import pytest

from gputop_llm.model import Target, TargetProcess
from gputop_llm.sources import engine_log, engine_log_journal
from gputop_llm.sources.engine_log import EngineLogSource
from gputop_llm.sources.procfs import ProcFs
from tests.support.real_processes import until

ID = "3f2a91c04b7d" + "0" * 52
KV = "GPU KV cache size: 1,000 tokens"


class Proc(ProcFs):
    """The real /proc, of which the processes are in the control group that a test says."""

    def __init__(self, cgroup="0::/user.slice/session-1.scope"):
        super().__init__()
        self.cgroup = cgroup

    def read(self, name, limit_bytes=1 << 20):
        return self.cgroup.encode() if name.endswith("/cgroup") else super().read(name, limit_bytes)


@pytest.fixture
def running():
    """Starts processes that wait, with their output where the test says."""
    with contextlib.ExitStack() as stack:

        def start(stdout, stderr=None, command=("sleep", "600")):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr or stdout)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


def source(*processes, proc=None, host="", started_s=None):
    pids = [process.pid for process in processes]
    found = tuple(TargetProcess(pid, 1, "worker", "x") for pid in pids)
    target = Target("k", "vllm", root_pid=pids[0], processes=found, started_s=started_s)
    return EngineLogSource(target, proc or Proc(), str(host))


def line(text, at_s=None):
    return time.strftime(f"INFO %m-%d %H:%M:%S [core.py:1] {text}\n", time.gmtime(at_s or time.time())).encode()


def test_a_file_is_found_and_followed_past_the_end_of_its_process(running, tmp_path):
    with open(tmp_path / "vllm.log", "ab", buffering=0) as log:
        log.write(line(KV))
        process = running(log)
        its = source(process)
        first = its.poll()
        assert first.places == (f"{tmp_path}/vllm.log",)
        assert [(s.kind, s.text, s.at_from) for s in first.signals] == [("kv-pool", KV, "line")]
        assert first.signals[0].at_s == pytest.approx(time.time(), abs=30)
        assert its.poll() is first
        process.kill()
        process.wait()
        (tmp_path / "vllm.log").unlink()
        log.write(b"Fatal Python error: Aborted\n")
        assert [(s.kind, s.at_from) for s in its.poll().signals] == [("kv-pool", "line"), ("died", "read")]
    its.close()


def test_workers_that_write_elsewhere_are_read_too_and_one_file_only_once(running, tmp_path):
    with open(tmp_path / "out", "wb", buffering=0) as out, open(tmp_path / "err", "wb", buffering=0) as err:
        its = source(running(out), running(out, err))
        out.write(line(KV))
        err.write(b"RuntimeError: CUDA error: unspecified launch failure\n")
        assert [s.kind for s in its.poll().signals] == ["kv-pool", "cuda"]
    assert its.poll().places == (f"{tmp_path}/out", f"{tmp_path}/err")


def test_files_that_nobody_writes_any_more_are_let_go_of_the_oldest_first(running, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_log, "FIND_EVERY_S", 0.0)
    its = None
    for number in range(12):
        with open(tmp_path / f"{number}.log", "wb") as log:
            new = source(running(log))
        its = its or new
        its.target = new.target
        places = its.poll().places
    kept = engine_log.MOST_FILES + engine_log.MOST_LEFT
    assert places == tuple(f"{tmp_path}/{number}.log" for number in range(12 - kept, 12))
    assert sum(name.startswith(str(tmp_path)) for name in ProcFs().open_files(os.getpid())) == kept


def test_a_file_that_fails_takes_no_other_with_it(running, tmp_path, monkeypatch):
    with open(tmp_path / "out", "wb", buffering=0) as out, open(tmp_path / "err", "wb", buffering=0) as err:
        its = source(running(out, err))
        its.poll()
        broken = its._readers[0]._file
        monkeypatch.setattr(broken, "size", lambda: os.fstat(-1))
        err.write(b"RuntimeError: CUDA error: unspecified launch failure\n")
        log = its.poll()
    assert [s.kind for s in log.signals] == ["cuda"]
    assert log.problem == f"{tmp_path}/out can't be read any more: Bad file descriptor"


def test_a_zone_that_was_guessed_is_corrected_by_what_is_written_now(running, tmp_path):
    there = -5 * 3600
    with open(tmp_path / "vllm.log", "ab", buffering=0) as log:
        log.write(line("long before it stood still", time.time() + there - 100))
        its = source(running(log))
        its.poll()
        log.write(line(KV, time.time() + there))
        (signal,) = its.poll().signals
    assert (signal.at_from, signal.at_s) == ("line", pytest.approx(time.time(), abs=30))


def test_the_age_of_what_stands_before_a_long_end_without_stamps(running, tmp_path):
    with open(tmp_path / "vllm.log", "ab", buffering=0) as log:
        log.write(line(KV, time.time() - 120) + line("last") + b"Capturing CUDA graphs\r" * 1000)
        (signal,) = source(running(log)).poll().signals
    assert signal.at_s == pytest.approx(time.time() - 120, abs=30)


def test_an_exception_behind_what_was_not_read_has_no_place_of_an_earlier_one(running, tmp_path):
    with open(tmp_path / "vllm.log", "ab", buffering=0) as log:
        log.write(b'Traceback (most recent call last):\n  File "/x/early.py", line 3, in f\nKeyError: ')
        log.write(b"x" * (1 << 20) + b"\nRuntimeError: CUDA error: late\n")
        (signal,) = source(running(log)).poll().signals
    assert (signal.text, signal.where) == ("RuntimeError: CUDA error: late", None)


def test_stamps_of_a_file_that_had_none_at_first(running, tmp_path):
    with open(tmp_path / "vllm.log", "ab", buffering=0) as log:
        its = source(running(log))
        its.poll()
        log.write(line(KV, time.time() - 20))
        (signal,) = its.poll().signals
    assert (signal.at_from, signal.at_s) == ("line", pytest.approx(time.time() - 20, abs=3))


def test_lines_of_an_earlier_run_are_not_of_this_one(running, tmp_path):
    now = time.time()
    with open(tmp_path / "vllm.log", "ab", buffering=0) as log:
        log.write(line(KV, now - 9000) + line("x" * 80, now - 8000) * 4000)
        log.write(line("GPU KV cache size: 2,000 tokens", now - 1))
        its = source(running(log), started_s=now - 60)
        assert [s.text for s in its.poll().signals] == ["GPU KV cache size: 2,000 tokens"]


@pytest.mark.parametrize("several", [False, True])
def test_the_file_behind_a_tee(running, tmp_path, several):
    process = running(subprocess.PIPE)
    files = [tmp_path / "vllm.log", tmp_path / "copy"][: 1 + several]
    tee = subprocess.Popen(["tee", *files], stdin=process.stdout, stdout=subprocess.DEVNULL)
    try:
        process.stdout.close()
        until(files[-1].exists)
        with open(files[0], "ab") as log:
            log.write(line(KV))
        found = source(process).poll()
        if several:
            # Which one is the log can't be told.
            assert found.problem == f"stdout is a pipe to PID {tee.pid} (tee)"
        else:
            assert found.places == (f"{tmp_path}/vllm.log, written by tee",)
            assert [s.text for s in found.signals] == [KV]
    finally:
        tee.kill()
        tee.wait()


def test_a_pipe_says_who_reads_it(running):
    process = running(subprocess.PIPE)
    log = source(process).poll()
    assert log.problem.startswith(f"stdout is a pipe to PID {os.getpid()} (")
    assert log.places == log.signals == ()


def test_output_that_goes_nowhere_readable(running, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    master, terminal = pty.openpty()
    ours, theirs = socket.socketpair()
    with open(tmp_path / "f", "wb") as file, ours, theirs:
        with open(tmp_path / "f", "rb") as only_read:
            wrong_way = running(only_read)
        pointed_at = os.open(file.name, os.O_PATH)
        point = running(pointed_at)
        os.close(pointed_at)
        why = [
            source(process).poll().problem
            for process in (running(subprocess.DEVNULL), running(terminal), running(theirs), wrong_way, point)
        ]
    os.close(master)
    os.close(terminal)
    assert why[0] == "stdout goes to /dev/null"
    assert why[1].startswith("stdout is a terminal (/dev/pts/")
    assert why[2] == "stdout is a socket that is not the journal's"
    # What it can't write it may not even be allowed to read.
    assert why[3] == why[4] == "stdout is a file that is not open for writing"


def test_a_process_that_is_gone():
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert source(gone).poll().problem == "its processes are gone, or have closed stdout and stderr"


@pytest.mark.parametrize(
    ("cgroup", "path", "text"),
    [
        (
            f"0::/system.slice/docker-{ID}.scope",
            f"var/lib/docker/containers/{ID}/{ID}-json.log",
            '{{"log":"{line}\\n","stream":"stderr","time":"2026-11-29T22:24:48.5Z"}}\n',
        ),
        (
            f"0::/kubepods/pod12345678-1234-1234-1234-123456789abc/cri-containerd-{ID}.scope",
            f"var/log/containers/vllm-0_llm_server-{ID}.log",
            "2026-11-29T22:24:48.5Z stderr F {line}\n",
        ),
    ],
    ids=["docker", "kubernetes"],
)
def test_the_log_that_a_containers_runtime_keeps(running, tmp_path, monkeypatch, cgroup, path, text):
    # Also where places are looked for in between.
    monkeypatch.setattr(engine_log, "FIND_EVERY_S", 0.0)
    file: Path = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text.format(line=KV))
    its = source(running(subprocess.PIPE), proc=Proc(cgroup), host=tmp_path)
    (signal,) = its.poll().signals
    assert (signal.text, signal.at_s) == (KV, 1795991088.5)
    # Full files are renamed.
    file.rename(file.with_suffix(".1"))
    file.write_text(text.format(line="EngineCore failed to start."))
    assert [s.kind for s in its.poll().signals] == ["kv-pool", "engine-dead"]
    log = its.poll()
    assert log.places == (str(file),)
    assert [(s.kind, s.count) for s in log.signals] == [("kv-pool", 1), ("engine-dead", 1)]


@pytest.mark.parametrize(
    "lines",
    [
        # Kubernetes cuts a long line with a prompt in it, and what follows begins as the sender of the prompt likes.
        [
            "{t} stdout P INFO: prompt: aaa",
            "{t} stderr F EngineCore failed to start.",
            "{t} stdout F CUDA error: forged",
        ],
        [
            '{{"log":"INFO: prompt: aaa","stream":"stdout","time":"{t}"}}',
            '{{"log":"EngineCore failed to start.\\n","stream":"stderr","time":"{t}"}}',
            '{{"log":"CUDA error: forged\\n","stream":"stdout","time":"{t}"}}',
        ],
        [
            '{{"log":"EngineCore failed to start.\\n","stream":"stderr","time":"{t}"}}',
            '{{"log":"INFO: prompt: ' + "a" * 16384 + '","stream":"stdout","time":"{t}"}}',
            '{{"log":"CUDA error: forged\\n","stream":"stdout","time":"{t}"}}',
        ],
    ],
    ids=["cri", "docker", "docker-long"],
)
def test_what_a_containers_runtime_cut_goes_on_and_begins_no_line(running, tmp_path, lines):
    path = f"var/lib/docker/containers/{ID}/{ID}-json.log"
    file: Path = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{text.format(t='2026-11-29T22:24:48.5Z')}\n" for text in lines))
    its = source(running(subprocess.PIPE), proc=Proc(f"0::/system.slice/docker-{ID}.scope"), host=tmp_path)
    assert [s.text for s in its.poll().signals] == ["EngineCore failed to start."]


JOURNALCTL = """#!/bin/sh
echo "$@" >> {asked}
case "$*" in
*after-cursor=c2*) ;;
*) echo '{{"__CURSOR":"c1","__REALTIME_TIMESTAMP":"1795991088500000","MESSAGE":"{line}"}}'
   echo '{{"__CURSOR":"c2","__REALTIME_TIMESTAMP":"1795991089000000","MESSAGE":[255,65]}}' ;;
esac
"""


def test_the_journal_of_a_service(running, tmp_path, monkeypatch):
    tool, asked = tmp_path / "bin/journalctl", tmp_path / "asked"
    tool.parent.mkdir()
    tool.write_text(JOURNALCTL.format(asked=asked, line=KV))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("gputop_llm.sources.engine_log.EVERY_S", 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        its = source(running(theirs), proc=Proc("0::/system.slice/vllm.service"), started_s=1795991000.0)
        logs = [its.poll(), its.poll()]
    assert logs[0].places == ("the journal of vllm.service",)
    assert [(s.text, s.at_s, s.count) for s in logs[1].signals] == [(KV, 1795991088.5, 1)]
    questions = asked.read_text().splitlines()
    assert "--since=@1795990995 _SYSTEMD_CGROUP=/system.slice/vllm.service" in questions[0]
    assert "--lines=400 --after-cursor=c2 _SYSTEMD_CGROUP=/system.slice/vllm.service" in questions[1]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exec sleep 600", "journalctl did not answer within 0.2 s"),
        ("exit 1", "its lines in the journal can't be read (root, or the group systemd-journal, may)"),
    ],
)
def test_a_journal_that_does_not_answer(running, tmp_path, monkeypatch, script, why):
    tool = tmp_path / "journalctl"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(engine_log_journal, "_WITHIN_S", 0.2 if "sleep" in script else 10.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert source(running(theirs), proc=Proc("0::/system.slice/vllm.service")).poll().problem == why
