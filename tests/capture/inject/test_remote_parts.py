"""What is refused before a target's Python is asked, and what it is asked to run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop_llm.capture import clients
from gputop_llm.capture.inject import Channel, InjectionRefused, NotBorrowed, remote_exec
from gputop_llm.capture.inject.memory import Maps
from gputop_llm.capture.inject.remote_script import FUNCTIONS, PREFIX, ScriptFolder, remove_left, script
from gputop_llm.capture.plan import PlannedRank
from tests.capture.inject.support import until


def maps_of(*names):
    return Maps("".join(f"{0x1000 * (i + 1):x}-{0x1000 * (i + 2):x} r-xp 00000000 fe:00 7    {name}\n"
                        for i, name in enumerate(names)).encode())  # fmt: skip


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("/usr/bin/python3.14", (3, 14, "")),
        ("/opt/conda/envs/x/bin/python3.12", (3, 12, "")),
        ("/usr/local/lib/libpython3.14.so.1.0", (3, 14, "")),
        ("/usr/local/bin/python3.14t", (3, 14, "t")),
        ("/usr/lib/libpython3.15t.so.1.0 (deleted)", (3, 15, "t")),
        ("/usr/lib/python3.14/lib-dynload/_ctypes.cpython-314-x86_64-linux-gnu.so", None),
        ("/usr/bin/sleep", None),
    ],
)
def test_the_version_of_a_targets_python_is_read_from_its_mappings(name, version):
    assert remote_exec.python_of(maps_of("/usr/bin/env", name)) == version


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ((3, 14), "python3.13", "it runs Python 3.13, and sys.remote_exec came with 3.14"),
        (
            (3, 11),
            "python3.14",
            "it runs Python 3.14, and gputop-llm runs in 3.11; run gputop-llm with the server's own",
        ),
        ((3, 14), "python3.15", "it runs Python 3.15, and gputop-llm runs in 3.14"),
        ((3, 14), "python3.14t", "it runs Python 3.14t, and gputop-llm runs in 3.14"),
        ((3, 14), "nginx", "it is no Python program"),
    ],
)
def test_other_versions_are_refused(ours, theirs, said, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (*ours, 0, "final", 0))
    monkeypatch.setattr(sys, "abiflags", "")
    assert said in remote_exec._closed_by_python(os.getpid(), maps_of(f"/usr/bin/{theirs}")).sentence()


def test_a_monitor_with_remote_debugging_off_says_so(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 14, 0, "final", 0))
    monkeypatch.setattr(sys, "abiflags", "")
    monkeypatch.setattr(sys, "remote_exec", None, raising=False)
    monkeypatch.setattr(sys, "is_remote_debug_enabled", lambda: False, raising=False)
    refusal = remote_exec._closed_by_python(os.getpid(), maps_of("/usr/bin/python3.14"))
    assert "gputop-llm's own Python has remote debugging off" in refusal.sentence()


def test_a_process_that_is_not_there_or_no_python_is_refused():
    assert "there is no process" in remote_exec.openness(4194303).sentence()
    with subprocess.Popen(["sleep", "60"]) as process:
        until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        assert "it is no Python program" in remote_exec.openness(process.pid).sentence()
        process.kill()


def test_the_script_is_python_and_does_nothing_in_a_child_or_late():
    def text(pid, ends_ns, folder):
        return script(pid, ends_ns, folder, (0, False), b"code", b"block", 8, dict.fromkeys(FUNCTIONS, 0))

    with ScriptFolder((os.geteuid(), os.getegid())) as folder:
        folder.fill(text(os.getpid() + 1, 1 << 62, folder.path))
        exec(compile(Path(folder.script).read_text(), folder.script, "exec"), {})
        assert (folder.begun(), folder.answer()) == (False, "")
    assert not os.path.exists(folder.path)
    with ScriptFolder((os.geteuid(), os.getegid())) as folder:
        assert os.stat(folder.path).st_mode & 0o777 == 0o700
        folder.fill(text(os.getpid(), 1, folder.path))
        assert os.stat(folder.script).st_mode & 0o777 == 0o600
        namespace = {}
        exec(compile(Path(folder.script).read_text(), folder.script, "exec"), namespace)
        assert (folder.begun(), folder.answer()) == (True, "late")
        assert set(namespace) == {"__builtins__"}
        assert not os.path.exists(folder.path)


def test_only_folders_of_ours_that_are_old_are_removed(tmp_path):
    old, young, others, link = (tmp_path / f"{PREFIX}{name}" for name in ("aaaa", "bbbb", "cccc", "dddd"))
    for path in (old, young, others):
        path.mkdir(mode=0o700)
        (path / "run.py").touch()
    (others / "more").touch()
    link.symlink_to(old)
    for path in (old, others):
        os.utime(path, (0, 0))

    assert remove_left(60.0, time.time(), str(tmp_path)) == [str(old)]
    assert young.exists()
    assert (others / "more").exists()
    assert link.is_symlink()


def test_a_process_without_a_thread_to_borrow_is_asked_by_its_python(monkeypatch):
    rank = PlannedRank(0, os.getpid(), 1, "worker")
    closed = NotBorrowed("no thread", "try again")

    def refuse(*_):
        raise closed

    monkeypatch.setattr(clients.native, "library_bytes", lambda: b"")
    monkeypatch.setattr(clients.injection, "inject", refuse)
    monkeypatch.setattr(clients.injection, "openness", lambda pid: closed)
    monkeypatch.setattr(remote_exec, "openness", lambda pid: InjectionRefused("another Python", ""))
    assert clients.closed(rank.pid) is closed
    with pytest.raises(NotBorrowed):
        clients.inject(rank, 1.0)

    monkeypatch.setattr(remote_exec, "openness", lambda pid: None)
    monkeypatch.setattr(remote_exec, "inject", lambda *_: Channel(1, 2, 3.0, 0.5, False, (7, "Python")))
    assert clients.closed(rank.pid) is None
    reached = clients.inject(rank, 1.0)
    assert (reached.how, reached.details) == ("remote-exec", {"took_ms": 3.0, "stopped_ms": 0.5, "reused": False})
