"""The socket of a client that CUDA loaded: where it is, who may use it, and windows through it, again and again."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gputop_llm.capture.native import connect_prepared, is_prepared
from gputop_llm.errors import GputopError
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk, EndReason
from tests.capture.native.hosting import Host, Line, hosting
from tests.support.real_processes import until

NOBODY = 65534
#: One for each worker of a test run: the folder below /tmp has the user's number in its name.
SOMEBODY = 100_000 + os.getpid()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

HOST = ("host", "libgputop_client.so", "libcuda.so.1", "libcupti.so.13")

#: As another user: connects, and prints how many bytes it is greeted with.
KNOCK = """
import os, socket, sys
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
knocking = socket.socket(socket.AF_UNIX); knocking.settimeout(20); knocking.connect(sys.argv[2])
print(len(knocking.recv(8)))
"""


def start_ticks(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
def runtime():
    """A runtime directory; a socket's path is short."""
    folder = Path(tempfile.mkdtemp(prefix="gl", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def public(native):
    """The built files where every user can read them."""
    folder = Path(tempfile.mkdtemp(prefix="gl", dir="/tmp"))
    for path in (native.client, native.cuda, native.cupti, native.host):
        shutil.copy(path, folder)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def connected(host: Host) -> Line:
    channel = connect_prepared(host.pid, start_ticks(host.pid))
    assert channel is not None
    return Line(channel.commands, channel.records)


def test_windows_through_the_socket_again_and_again(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    assert host.ask("listen") == [1]
    descriptors = None
    for _ in range(5):
        line = connected(host)
        line.window()
        line.hear(Chunk.STARTED)
        host.call("fake_steps", 0, 3)
        line.stop()
        record = line.record()
        line.close()
        assert record.end["reason"] == EndReason.STOPPED
        assert record.row_count == 21
        assert form.HELLO.unpack_from(record.one(Chunk.HELLO))[1] == host.pid
        descriptors = descriptors or host.ask("count")[1:3]
        assert until(lambda: host.ask("count")[1:3] == descriptors)  # noqa: B023


def test_the_socket_and_its_folder_are_the_users_alone(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, umask=0)
    host.ask("listen")
    folder = runtime / "gputop-llm"
    path = folder / f"{host.pid}-{start_ticks(host.pid)}.sock"

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_monitor_waits_for_the_first(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    host.ask("listen")
    first = connected(host)
    first.hear(Chunk.HELLO)
    second = connected(host)
    first.window(ms=50)
    assert first.record().end["reason"] == EndReason.TIME_UP
    first.close()
    second.window(ms=1)

    assert second.record().end["reason"] == EndReason.TIME_UP
    second.close()


def test_a_monitor_that_dies_frees_the_socket(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    host.ask("listen")
    dying = connected(host)
    dying.window()
    dying.hear(Chunk.STARTED)
    host.call("fake_work", 2)
    dying.close()
    assert until(lambda: not host.call("fake_enabled", 10))
    host.ask("call fake_rest")
    line = connected(host)
    line.window(ms=1)

    assert line.record().end["reason"] == EndReason.TIME_UP
    line.close()


def knock(uid, path):
    return int(subprocess.run([sys.executable, "-c", KNOCK, str(uid), path], capture_output=True, check=True).stdout)


@needs_root
@pytest.mark.parametrize(
    ("own", "knocking", "bytes_heard"),
    [
        ("somebody", "somebody", 8),
        ("somebody", "root", 8),
        ("somebody", "another", 0),
        ("root", "somebody", 0),
        ("nobody", "nobody", 0),
    ],
)
def test_who_is_spoken_to(public, runtime, own, knocking, bytes_heard):
    """Even where the file's mode would let anybody in."""
    numbers = {"root": 0, "somebody": SOMEBODY, "another": SOMEBODY + 1, "nobody": NOBODY}
    own, knocking = numbers[own], numbers[knocking]
    os.chown(runtime, own, own)
    command = tuple(public / name for name in HOST)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    with hosting(*command, user=own, group=own, extra_groups=[], env=environment) as host:
        host.ask("listen")
        path = runtime / "gputop-llm" / f"{host.pid}-{start_ticks(host.pid)}.sock"
        assert path.stat().st_uid == own
        for part, mode in ((runtime, 0o755), (path.parent, 0o755), (path, 0o666)):
            part.chmod(mode)

        assert knock(knocking, str(path)) == bytes_heard


@needs_root
def test_without_a_runtime_directory_it_is_below_tmp(public):
    folder = Path(f"/tmp/gputop-llm-{SOMEBODY}")
    command = tuple(public / name for name in HOST)
    environment = {**os.environ, "XDG_RUNTIME_DIR": "/nowhere"}
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with hosting(*command, user=SOMEBODY, group=SOMEBODY, extra_groups=[], env=environment) as host:
            host.ask("listen")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            line = connected(host)
            line.window(ms=1)
            assert line.record().end["reason"] == EndReason.TIME_UP
            line.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@needs_root
@pytest.mark.parametrize("plant", ["open folder", "link", "file"])
def test_a_folder_that_is_not_the_users_alone_is_not_used(public, runtime, plant):
    os.chown(runtime, SOMEBODY, SOMEBODY)
    folder, elsewhere = runtime / "gputop-llm", runtime / "elsewhere"
    below_tmp = Path(f"/tmp/gputop-llm-{SOMEBODY}")
    elsewhere.mkdir()
    for planted in (folder, below_tmp):
        if plant == "open folder":
            planted.mkdir()
            planted.chmod(0o777)
        elif plant == "link":
            planted.symlink_to(elsewhere)
        else:
            planted.touch()
    try:
        command = tuple(public / name for name in HOST)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
        with hosting(*command, user=SOMEBODY, group=SOMEBODY, extra_groups=[], env=environment) as host:
            assert host.ask("listen") == [1]
            assert connect_prepared(host.pid, start_ticks(host.pid)) is None
            assert list(elsewhere.iterdir()) == []
            assert host.ask("count")[2] == 1
    finally:
        below_tmp.rmdir() if plant == "open folder" else below_tmp.unlink()


def test_a_process_that_was_started_otherwise_has_none(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})

    assert connect_prepared(host.pid, start_ticks(host.pid)) is None
    host.ask("listen")
    assert connect_prepared(host.pid, start_ticks(host.pid) + 1) is None
    assert connect_prepared(1 << 22, 1) is None


def test_to_look_for_it_is_not_to_speak_to_it(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    assert not is_prepared(host.pid, start_ticks(host.pid))
    host.ask("listen")
    first = connected(host)
    first.hear(Chunk.HELLO)
    for _ in range(20):  # more than may wait for an answer
        assert is_prepared(host.pid, start_ticks(host.pid))
    first.close()
    line = connected(host)
    line.hear(Chunk.HELLO)
    line.close()


AS_NOBODY = """
import os, sys
from gputop_llm.capture.native import connect_prepared
from gputop_llm.errors import GputopError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print(connect_prepared(int(sys.argv[1]), int(sys.argv[2])))
except GputopError as failure:
    print(failure.sentence())
"""


@needs_root
def test_what_another_user_may_not_see_is_not_said_to_be_absent(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    host.ask("listen")
    command = [sys.executable, "-c", AS_NOBODY, str(host.pid), str(start_ticks(host.pid))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3])

    assert f"can't look for a client in process {host.pid}: its files can't be read" in done.stdout, done
    assert "use the user of that process, or root" in done.stdout


def test_a_filter_that_came_after_the_start_is_a_reason_to_refuse(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    host.ask("listen")
    connected(host).close()
    host.ask("filter kill 101")  # ptrace, as any sandbox does
    line = connected(host)
    reason, _, sentence = line.record().refusal

    assert reason == 10
    assert "added a seccomp filter since it started" in sentence
    line.close()


def test_a_filter_that_was_there_at_the_start_is_none(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    host.ask("filter kill 101")
    host.ask("listen")
    line = connected(host)
    line.window(ms=1)
    assert line.record().end["reason"] == EndReason.TIME_UP
    line.close()


def test_sockets_of_servers_that_are_gone_are_removed_by_the_next_one(a_host, runtime):
    folder = runtime / "gputop-llm"
    folder.mkdir(mode=0o700)
    unused = 1 << 22
    reused = f"{os.getpid()}-{start_ticks(os.getpid()) - 1}.sock"
    starting = f"{os.getpid()}-{start_ticks(os.getpid())}.sock"
    elsewhere = f"{unused}-77.sock"  # of another PID namespace
    bound = {
        name: socket.socket(socket.AF_UNIX) for name in (f"{unused}-1.sock", reused, starting, elsewhere, "7.sock")
    }
    for name, one in bound.items():
        one.bind(str(folder / name))
    bound[elsewhere].listen(1)
    (folder / "notes-1.txt").touch()
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    host.ask("listen")

    left = {path.name for path in folder.iterdir()}
    assert left == {f"{host.pid}-{start_ticks(host.pid)}.sock", starting, elsewhere, "7.sock", "notes-1.txt"}
    for one in bound.values():
        one.close()


def test_a_socket_of_another_process_is_not_spoken_to(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    folder = runtime / "gputop-llm"
    folder.mkdir()
    path = folder / f"{host.pid}-{start_ticks(host.pid)}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(GputopError, match="is served by another process"):
            connect_prepared(host.pid, start_ticks(host.pid))
    with pytest.raises(GputopError, match="connection refused"):
        connect_prepared(host.pid, start_ticks(host.pid))


PROGRAM = """
import ctypes, sys, threading, time
cuda, cupti = (ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[2:])
client = ctypes.CDLL(sys.argv[1])
assert client.InitializeInjection() == 1
print("ready", flush=True)
for _ in sys.stdin:
    cupti.fake_steps(0, 10)
    print(sum(range(10000)), flush=True)
"""


def test_a_python_program_runs_on_beside_it(native, runtime):
    command = (sys.executable, "-c", PROGRAM, native.client, native.cuda, native.cupti)
    with hosting(*command, env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}) as host:
        for _ in range(3):
            line = connected(host)
            line.window()
            line.hear(Chunk.STARTED)
            assert host.ask("work") == [49995000]
            line.stop()
            assert line.record().row_count == 70
            line.close()


def test_two_calls_listen_once(a_host, runtime):
    host = a_host(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    host.ask("listen")
    before = host.ask("count")[1:3]
    host.ask("listen")

    assert host.ask("count")[1:3] == before
    assert len(list((runtime / "gputop-llm").iterdir())) == 1
