"""A target doesn't notice: a thousand injections, into threads in every kind of wait, leave one library and no more."""

from __future__ import annotations

import os

import pytest

from gputop_llm.capture.inject import inject, mapped_clients, openness
from gputop_llm.capture.inject.memory import Maps
from gputop_llm.capture.inject.openness import running_since
from tests.capture.inject.support import HANDLED, said, serve, until

KINDS = {
    "poll": "poll",
    "ppoll": "ppoll",
    "select": None,  # glibc makes pselect6 of it
    "pselect6": "pselect6",
    "epoll_wait": "epoll_wait",
    "epoll_pwait": "epoll_pwait",
    "nanosleep": "nanosleep",
    "clock_nanosleep": "clock_nanosleep",
    "until": "clock_nanosleep",
    "poll-forever": "poll",
    "keeper": "poll",
}


def new_names(target, named):
    return [name for name, count in target.named_mappings().items() if named.get(name) != count]


def unnamed(target):
    return len([mapping for mapping in Maps.of(target.pid).between(0, 1 << 64) if not mapping.name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_injections_leave_one_library_and_every_thread_goes_on(start, library, kind):
    target = start("main", kind, "futex")
    assert openness(target.pid) is None
    files, threads, named = target.descriptors(), target.threads(), target.named_mappings()
    waits, anonymous = set(), 0
    for i in range(100):
        channel = target.inject(library)
        serve(channel)
        waits.add(channel.thread[1])
        assert channel.reused == (i > 0)
        if i == 10:
            until(lambda: target.threads() == threads)
            anonymous = max(unnamed(target) for _ in range(20))

    target.assert_goes_on()
    until(lambda: target.threads() == threads, "the end of the client's thread")
    until(lambda: target.descriptors() == files, f"the files {files}")
    assert not target.scratch_left()
    (client,) = mapped_clients(target.pid)
    # The main thread loads and allocates all the while; the C library keeps the stacks and arenas of threads that have
    # ended for the next ones, as many as there were at a time.
    until(lambda: new_names(target, named) == [f"/memfd:{client} (deleted)"], "no other name")
    until(lambda: unnamed(target) <= anonymous + 8, f"no more than {anonymous} mappings without a name")
    if KINDS[kind]:
        assert waits == {KINDS[kind]}


def test_many_threads_of_all_kinds_with_signals_all_the_time(start, library):
    target = start("main", "keeper", "keeper", "poll", "epoll_wait", "select", "nanosleep", "deep", "alarms")
    before = target.slot(HANDLED)
    for _ in range(100):
        serve(target.inject(library))
    target.assert_goes_on()
    until(lambda: target.slot(HANDLED) > before + 100)


def test_children_that_end_meanwhile(start, library):
    target = start("keeper", "poll", "children")
    for _ in range(100):
        serve(target.inject(library))
    target.assert_goes_on()
    assert target.slot(HANDLED) > 5


def test_a_deep_stack(start, library):
    target = start("main", "deep")
    for _ in range(20):
        serve(target.inject(library))
    target.assert_goes_on()


@pytest.mark.parametrize(
    "code",
    [
        "while True: time.sleep(0.01); n += 1; tell()",
        "while True: select.select([], [], [], 0.01); n += 1; tell()",
        "async def go():\n    global n\n    while True: await asyncio.sleep(0.01); n += 1; tell()\nasyncio.run(go())",
        "def spin():\n"
        "    while True: sum(range(1000))\n"
        "threading.Thread(target=spin).start()\n"
        "while True: time.sleep(0.001); n += 1; tell()",
    ],
    ids=["sleep", "select", "asyncio", "busy GIL"],
)
def test_python_in_its_own_waits(start_python, start, library, code):
    head = "import asyncio, os, select, sys, threading, time\nn = 0\ndef tell(): os.write(1, b'%d\\n' % n)\n"
    process = start_python(head + code)
    for _ in range(20):
        serve(inject(process.pid, running_since(process.pid), library, 20.0))
        process.stdout.readline()
    assert process.poll() is None
    assert len(mapped_clients(process.pid)) == 1
    last = int(process.stdout.readline())
    assert int(process.stdout.readline()) == last + 1


def test_another_version_is_loaded_beside_the_first(start, library, other_library):
    target = start("main", "poll")
    serve(target.inject(library))
    channel = target.inject(other_library)
    assert not channel.reused
    serve(channel, b"other")
    channel = target.inject(library)
    assert channel.reused
    serve(channel)
    assert len(mapped_clients(target.pid)) == 2
    target.assert_goes_on()


def test_two_windows_at_once_have_pipes_of_their_own(start, library):
    target = start("main", "poll")
    first, second = target.inject(library), target.inject(library)
    os.write(first.commands, b"1")
    os.write(second.commands, b"2")
    assert (said(first, 6), said(second, 6)) == (b"hello1", b"hello2")
    for channel in (first, second):
        os.close(channel.commands)
        assert said(channel, 1) == b""
        os.close(channel.records)
    target.assert_goes_on()
