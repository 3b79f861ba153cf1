"""What is refused, with the reason and what lifts it; a refused process is as it was before."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback

import pytest

from gputop_llm.capture.inject import InjectionRefused, inject, mapped_clients, openness
from gputop_llm.capture.inject.memory import Maps
from gputop_llm.capture.inject.openness import closed_by_process, running_since
from gputop_llm.capture.inject.runtime import closed_by_libc
from gputop_llm.capture.inject.seccomp import CALLS
from gputop_llm.capture.native import library_bytes
from tests.capture.inject.support import HERE, compile_c, said, serve, until

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def refusal(target, library):
    """How a target refuses; it must be as it was."""
    maps, threads, files = target.named_mappings(), target.threads(), target.descriptors()
    with pytest.raises(InjectionRefused) as caught:
        target.inject(library)
    assert target.process.poll() is None
    # A thread of ours that failed gives us a second to read why.
    until(lambda: (target.named_mappings(), target.descriptors(), target.threads()) == (maps, files, threads))
    assert not mapped_clients(target.pid)
    return caught.value.sentence()


def test_no_thread_that_waits(start, library):
    target = start("futex", "futex", "spin")
    said = refusal(target, library)
    assert "no thread of it waits in poll, epoll, select or nanosleep" in said
    assert "3 in futex, 1 running" in said
    assert "gputop-llm run" in said
    assert "no thread of it waits" in openness(target.pid).sentence()
    assert not target.scratch_left()


def test_a_wait_that_would_become_much_longer_is_not_made_again(start, library):
    target = start("poll-long")
    for sentence in (refusal(target, library), openness(target.pid).sentence()):
        assert "for at most 1 s or without a limit; a longer wait, borrowed, would end too late" in sentence
        assert "1 in futex, 1 in poll for up to 12 s" in sentence
    assert not target.scratch_left()


@pytest.mark.parametrize("where", ["handler", "handler-altstack"])
def test_a_thread_in_a_signal_handler(start, library, where):
    target = start(where)
    assert "it may be inside a signal handler" in refusal(target, library)
    target.assert_goes_on()
    assert not target.scratch_left()


def test_a_stopped_process_is_not_touched(start, library):
    target = start("poll")
    os.kill(target.pid, signal.SIGSTOP)
    until(lambda: "it is stopped" in str(openness(target.pid)))
    assert f"kill -CONT {target.pid}" in refusal(target, library)
    os.kill(target.pid, signal.SIGCONT)
    target.assert_goes_on()


def test_a_process_that_is_traced_already(start, library):
    target = start("poll")
    code = (
        "import sys, time\nfrom gputop_llm.capture.inject.ptrace import Stopped\n"
        "held = Stopped(int(sys.argv[1]), time.monotonic() + 10)\nprint('held', flush=True)\ninput()"
    )
    command = [sys.executable, "-c", code, str(target.pid)]
    tracer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE.parents[2])
    assert tracer.stdout.readline()
    assert f"traced already by process {tracer.pid} (python" in openness(target.pid).sentence()
    assert f"traced already by process {tracer.pid} (python" in refusal(target, library)
    tracer.communicate(b"\n", timeout=20)
    target.assert_goes_on()
    serve(target.inject(library))


def test_another_process_with_the_same_pid(start, library):
    target = start("poll")
    with pytest.raises(InjectionRefused, match="is another one now, or has ended"):
        inject(target.pid, target.ticks - 1, library, 20.0)
    target.assert_goes_on()


def test_one_that_has_ended(start, library):
    target = start("poll")
    ticks = target.ticks
    target.process.kill()
    until(lambda: running_since(target.pid) is None)
    assert "only waits to be reaped" in openness(target.pid).sentence()
    target.process.wait()
    assert f"there is no process {target.pid}" in openness(target.pid).sentence()
    with pytest.raises(InjectionRefused, match=f"there is no process {target.pid}"):
        inject(target.pid, ticks, library, 20.0)


def test_a_static_program(built, start, library):
    compile_c(HERE / "target.c", built / "static", "-O1", "-mavx", "-pthread", "-static", "-Wno-infinite-recursion")
    target = start("poll", program=built / "static")
    assert "is linked statically" in openness(target.pid).sentence()
    assert "is linked statically" in refusal(target, library)
    target.assert_goes_on()


def test_musl_is_named():
    maps = Maps(
        b"5581000-5582000 r-xp 00000000 fe:01 77 /usr/bin/python3.12\n7fa1000-7fa2000 r-xp 00000000 fe:01 78 "
        b"/lib/ld-musl-x86_64.so.1\n"
    )
    assert "musl" in closed_by_libc(maps).sentence()
    assert "not Alpine" in closed_by_libc(maps).sentence()


def test_a_thread_of_the_kernel():
    kernel = [int(p) for p in os.listdir("/proc") if p.isdigit() and parent(int(p)) == 2]
    if not kernel:
        assert closed_by_process(2) is None or "kernel" in closed_by_process(2).sentence()
        return
    assert "thread of the kernel" in openness(kernel[0]).sentence()


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


# -- system calls that a container's filter does not allow ------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([319], "memfd_create failed in it (Operation not permitted)"),
        ([293], "pipe2 failed in it (Operation not permitted)"),
        ([9], "could not map 8 KiB"),
        ([56, 435], "could not start a thread"),
    ],
    ids=["memfd_create", "pipe2", "mmap", "clone"],
)
def test_a_filter_of_system_calls(start, library, numbers, said):
    # A pthread_create that fails sets errno, which a wait that succeeds leaves unspecified: "keeper" would tell.
    others = [] if said == "could not start a thread" else ["keeper"]
    target = start("poll", *others, *(f"deny-{number}" for number in numbers))
    sentence = refusal(target, library)
    assert said in sentence
    assert "seccomp" in sentence
    target.assert_goes_on()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read a filter")
@pytest.mark.parametrize(
    ("number", "name"),
    [(319, "memfd_create"), (293, "pipe2"), (56, "clone"), (9, "mmap"), (186, "gettid"), (219, "restart_syscall")],
)
def test_a_filter_that_kills_is_read_before_anything_is_done(start, library, number, name):
    target = start("poll", "keeper", "epoll_wait", f"kill-{number}", "deny-1000")
    assert f"its seccomp filter would kill it for {name}" in refusal(target, library)
    target.assert_goes_on()


def test_a_filter_that_minds_nothing_of_ours(start, library):
    target = start("poll", "kill-101", "deny-165")
    serve(target.inject(library))
    target.assert_goes_on()


def test_no_system_call_is_made_but_those_that_filters_are_asked_about(start):
    numbers = ",".join(str(number) for number, _ in CALLS.values())
    target = start("poll", f"only-{numbers}")
    for _ in range(3):
        channel = target.inject(library_bytes())
        assert said(channel, 8) == b"GPUTOPW1"
        while said(channel, 1 << 10):  # the client refuses: there is no CUPTI
            pass
        os.close(channel.commands)
        os.close(channel.records)
    target.assert_goes_on()


def test_a_filter_of_one_thread_counts_where_that_is_borrowed(start, library):
    target = start("strict-319")
    assert "its seccomp filter would kill it for memfd_create" in refusal(target, library)
    target.assert_goes_on()


@needs_root
def test_a_filter_that_cannot_be_read_might_kill(start, library):
    target = start("poll", "kill-319", user=NOBODY, group=NOBODY, extra_groups=[])

    def try_it():
        with pytest.raises(InjectionRefused) as caught:
            target.inject(library)
        return caught.value.sentence()

    for sentence in (as_nobody(try_it), as_nobody(lambda: openness(target.pid).sentence())):
        assert "seccomp filter that can't be read from here" in sentence or "ptrace_scope" in sentence
    target.assert_goes_on()


def test_a_library_that_the_loader_does_not_take(start):
    target = start("poll")
    sentence = refusal(target, b"\x7fELF but not really" * 100)
    assert "its loader did not take the library (/proc/self/fd/" in sentence
    target.assert_goes_on()


def test_a_library_without_the_entry(built, start):
    compile_c(
        HERE / "client.c", built / "nothing.so", "-shared", "-fPIC", '-DHELLO="x"', "-Dgputop_client_serve=another"
    )
    target = start("poll")
    with pytest.raises(InjectionRefused, match="undefined symbol: gputop_client_serve"):
        target.inject((built / "nothing.so").read_bytes())
    target.assert_goes_on()


# -- users, rights, namespaces ----------------------------------------------------------------------------------------


def as_nobody(function):
    """What a function gives (as text) in a process of another user without any right; its traceback where it fails."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            text = str(function())
        except BaseException:  # noqa: BLE001 - for the parent to show
            text = traceback.format_exc()
        os.write(write, text.encode()[:60000])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        text = file.read().decode()
    os.waitpid(child, 0)
    return text


@needs_root
def test_root_injects_into_another_users_process(start, library):
    target = start("poll", "main", user=NOBODY, group=NOBODY)
    serve(target.inject(library))
    target.assert_goes_on()


@needs_root
def test_a_user_injects_into_his_own_process(start, library):
    target = start("poll", "main", user=NOBODY, group=NOBODY, extra_groups=[])

    def try_it():
        serve(target.inject(library))
        return "served"

    said = as_nobody(try_it)
    # Where yama is on, only a parent may; we are none here.
    assert said == "served" or "ptrace_scope" in said
    target.assert_goes_on()


@needs_root
def test_a_user_is_refused_another_users_process(start, library):
    target = start("poll")
    ticks = target.ticks
    assert "it belongs to another user; run gputop-llm as root (sudo)" in as_nobody(lambda: openness(target.pid))
    assert "it belongs to another user" in as_nobody(lambda: inject(target.pid, ticks, library, 5.0))
    target.assert_goes_on()


@needs_root
def test_a_process_that_may_not_be_dumped(start, library):
    target = start("poll", "undumpable", user=NOBODY, group=NOBODY, extra_groups=[])
    said = as_nobody(lambda: openness(target.pid))
    assert "may not be dumped" in said or "ptrace_scope" in said
    serve(target.inject(library))
    target.assert_goes_on()


@needs_root
def test_root_without_the_capability_as_in_a_container(start):
    target = start("poll", user=NOBODY, group=NOBODY)
    code = "import sys; from gputop_llm.capture.inject import openness; print(openness(int(sys.argv[1])))"
    drop = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-all", sys.executable, "-c", code]
    done = subprocess.run([*drop, str(target.pid)], capture_output=True, text=True, timeout=60, cwd=HERE.parents[2])
    assert "--cap-add=SYS_PTRACE" in done.stdout, done


@needs_root
def test_a_target_in_its_own_namespaces(start, library):
    def inner(pid):
        return until(lambda: grandchild(pid))

    before = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--ipc", "--net"]
    target = start("main", "poll", "keeper", before=before, pid_of=inner)
    assert os.readlink(f"/proc/{target.pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    assert openness(target.pid) is None
    for _ in range(10):
        serve(target.inject(library))
    target.assert_goes_on()
    assert "run gputop-llm as root" in as_nobody(lambda: openness(target.pid))
    os.kill(target.pid, signal.SIGKILL)


def grandchild(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])
    return None


# -- deadlines --------------------------------------------------------------------------------------------------------


def test_a_loader_that_is_busy_hangs_our_thread_and_none_of_the_targets(tmp_path, start, library):
    source, release = tmp_path / "slow.c", tmp_path / "release"
    source.write_text(
        "#include <unistd.h>\n"
        f'__attribute__((constructor)) static void wait(void) {{ while (access("{release}", F_OK)) usleep(2000); }}'
    )
    compile_c(source, tmp_path / "slow.so", "-shared", "-fPIC")
    target = start("poll", "keeper", "loading", cwd=tmp_path)
    until(lambda: any("slow.so" in name for name in target.named_mappings()))

    began = time.monotonic()
    with pytest.raises(InjectionRefused, match="loading the library in the target took too long"):
        target.inject(library, deadline_s=1.0)
    assert time.monotonic() - began < 10
    with pytest.raises(InjectionRefused, match="an earlier injection is still loading its library"):
        target.inject(library)
    assert "an earlier injection is still loading" in openness(target.pid).sentence()

    release.touch()
    # What hung finds nobody there any more, and ends.
    until(lambda: len(target.threads()) == 4)
    target.assert_goes_on()
    serve(target.inject(library))
