"""Which thread may be borrowed: one that is blocked in a wait which can be made again without anybody noticing."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from gputop_llm.capture.inject.memory import Memory

_EPOLL = frozenset({232, 281, 441})
_NAMES = {
    7: "poll",
    271: "ppoll",
    23: "select",
    270: "pselect6",
    232: "epoll_wait",
    281: "epoll_pwait",
    441: "epoll_pwait2",
    35: "nanosleep",
    230: "clock_nanosleep",
}
#: What other threads are seen in, for a refusal that says what they do.
_OTHERS = {0: "read", 1: "write", 9: "mmap", 11: "munmap", 12: "brk", 45: "recvfrom", 47: "recvmsg", 34: "pause",
           61: "wait4", 128: "rt_sigtimedwait", 202: "futex", 219: "restart_syscall", 247: "waitid",
           288: "accept4", 16: "ioctl", 208: "io_getevents", 426: "io_uring_enter", 43: "accept"}  # fmt: skip
#: Where the pointer to a signal mask is, that holds for the wait only.
_MASK_ARGUMENT = {271: 3, 270: 5, 281: 4, 441: 4}
_RESTART_SYSCALL = 219
_TIMER_ABSTIME = 1
#: A wait is made again with its whole limit: whoever waits may be late by that, each time that it is borrowed.
LONGEST_LIMIT_S = 1.0
_MOV_EAX = 0xB8


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread that waits.

    Attributes:
        tid: the thread.
        number: its system call; where the kernel is finishing one that was interrupted before, that one.
        entered: the number that the kernel knows it by.
        arguments, sp, pc: as /proc/PID/task/TID/syscall has them.
        limit_s: by how much the wait may become longer when it is made again; 0: not at all.
    """

    tid: int
    number: int
    entered: int
    arguments: tuple[int, ...]
    sp: int
    pc: int
    limit_s: float

    @property
    def name(self) -> str:
        """The name of the system call."""
        return _NAMES[self.number]

    @property
    def is_epoll(self) -> bool:
        """Whether a mere stop would make it return EINTR."""
        return self.number in _EPOLL

    @property
    def has_own_mask(self) -> bool:
        """Whether it waits with other signals blocked than the thread has."""
        index = _MASK_ARGUMENT.get(self.number)
        return index is not None and self.arguments[index] != 0


def thread_ids(pid: int) -> list[int]:
    """All threads of a process; empty when it is gone."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def raw(pid: int, tid: int) -> bytes:
    """What the kernel says the thread is in: one line; empty when it can't be read."""
    try:
        handle = os.open(f"/proc/{pid}/task/{tid}/syscall", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, 512)
    except OSError:
        return b""
    finally:
        os.close(handle)


def waiting_threads(pid: int, memory: Memory, first: int | None = None) -> Iterator[Wait]:
    """The threads that may be borrowed, the best one first: each is seen in the same wait when it comes as before.

    Args:
        first: the thread to try before all others are looked at.
    """
    tids = thread_ids(pid)
    if first in tids:
        yield from _confirmed(pid, [first], memory)
    yield from _confirmed(pid, [tid for tid in tids if tid != first], memory)


def _confirmed(pid: int, tids: list[int], memory: Memory) -> Iterator[Wait]:
    lines = {tid: line for tid in tids if (line := raw(pid, tid))[:1].isdigit()}
    waits = [wait for tid, line in lines.items() if (wait := _parse(tid, line, memory)) is not None]
    # A main thread is what the kernel gives the signals of the whole process to.
    waits.sort(key=lambda wait: (wait.is_epoll, wait.limit_s, wait.tid == pid))
    for wait in waits:
        if wait.limit_s <= LONGEST_LIMIT_S and raw(pid, wait.tid) == lines[wait.tid]:
            yield wait


def what_they_do(pid: int, memory: Memory) -> str:
    """The threads of a process by what they are in, the most frequent first: "12 in futex, 2 in poll for up to 5 s"."""
    counts: dict[str, int] = {}
    for tid in thread_ids(pid):
        line = raw(pid, tid)
        number = line.decode("ascii", "replace").split(" ")[0].strip()
        name = "running" if number in {"running", "-1", ""} else f"in {_name(number)}"
        wait = _parse(tid, line, memory) if number.isdigit() else None
        if wait is not None and LONGEST_LIMIT_S < wait.limit_s < float("inf"):
            name = f"in {wait.name} for up to {wait.limit_s:.3g} s"
        counts[name] = counts.get(name, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {name}" for name, count in ordered[:5])


def _name(number: str) -> str:
    known = {**_OTHERS, **_NAMES}
    return known.get(int(number), f"system call {number}") if number.isdigit() else number


def _parse(tid: int, line: bytes, memory: Memory) -> Wait | None:
    fields = line.split()
    if len(fields) != 9:
        return None
    entered = int(fields[0])
    arguments = tuple(int(field, 16) for field in fields[1:7])
    sp, pc = int(fields[7], 16), int(fields[8], 16)
    number = _before_restart(pc, memory) if entered == _RESTART_SYSCALL else entered
    if number not in _NAMES:
        return None
    limit_s = float("inf")
    with suppress(OSError, struct.error):
        limit_s = _limit_s(number, arguments, memory)
    return Wait(tid, number, entered, arguments, sp, pc, limit_s)


def _before_restart(pc: int, memory: Memory) -> int:
    """The call that was interrupted: where the code has its number right before `syscall` (`mov $7,%eax`); else -1.

    The kernel goes on with an interrupted poll or sleep under the number 219, its arguments still in the registers.
    """
    try:
        code = memory.read(pc - 7, 5)
    except OSError:
        return -1
    return int.from_bytes(code[1:], "little") if len(code) == 5 and code[0] == _MOV_EAX else -1


def _limit_s(number: int, arguments: tuple[int, ...], memory: Memory) -> float:
    """How much longer the wait can get when it is made again from its start."""
    if number in {7, 232, 281}:  # poll(…, ms), epoll_wait(…, ms), epoll_pwait(…, ms, …)
        ms = arguments[2 if number == 7 else 3] & 0xFFFFFFFF
        return 0.0 if ms >> 31 else ms / 1000
    if number in {23, 270, 271}:  # the kernel writes back what is left
        return 0.0
    if number == 230 and arguments[1] & _TIMER_ABSTIME:
        return 0.0
    address = arguments[{35: 0, 230: 2, 441: 3}[number]]
    if address == 0:
        return 0.0
    seconds, nanoseconds = struct.unpack("<qq", memory.read(address, 16))
    return float(max(seconds, 0) + nanoseconds / 1e9)
