"""One thread, borrowed for a chain of calls: stopped, looked at, handed the chain, let go.

Between the stop and letting go nothing of the target is changed but dead stack below the thread's red zone and, last,
its registers. Killed at any instant before, we leave a thread that goes on with its wait; after it, one that runs the
chain by itself and then goes on with its wait.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gputop_llm.capture.inject.frames import KERNEL_SEGMENTS, SYSCALL, Call, UnknownState, build
from gputop_llm.capture.inject.memory import Mapping, Maps, Memory
from gputop_llm.capture.inject.ptrace import NotStopped, Registers, Stopped
from gputop_llm.capture.inject.refused import unread_filter
from gputop_llm.capture.inject.runtime import Runtime
from gputop_llm.capture.inject.seccomp import kills
from gputop_llm.capture.inject.waits import Wait

_CODE_SEGMENT = 0x33
_RESTARTS = frozenset(-code & 0xFFFF_FFFF_FFFF_FFFF for code in (512, 513, 514, 516))  # ERESTARTSYS...
_EINTR = -4 & 0xFFFF_FFFF_FFFF_FFFF
#: What pthread_create and a signal's frame may want below a chain.
_ROOM_BYTES = 20 << 10
_STACK_MOST_BYTES = 16 << 20
_THREAD_BYTES = 0x1000
_DESCRIPTOR_MOST_BYTES = 0x3000
_PAGE = 4096
_MASK_SAVED_SINCE = (5, 1)
_STOP_WITHIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Borrowed:
    """How long a thread stood still for it."""

    stopped_ms: float


def lend(
    pid: int,
    wait: Wait,
    calls: Sequence[Call],
    memory: Memory,
    maps: Maps,
    runtime: Runtime,
    *,
    kernel: tuple[int, int],
    before: Callable[[Stopped], None] | None = None,
) -> Borrowed:
    """Has a waiting thread make these calls, then its wait again.

    Returns when the thread has been let go; it may not have made them yet.

    Args:
        before: what to do just before the registers are set.

    Raises:
        NotStopped: this thread can't be borrowed now, for the reason that is said. Nothing was changed.
        OSError: it can't be seized, or memory can't be written.
    """
    if wait.has_own_mask and kernel < _MASK_SAVED_SINCE:
        raise NotStopped(
            "this kernel does not tell the signals that a wait with a mask of its own gives back", lasting=True
        )
    stack = maps.at(wait.sp)
    if stack is None or not stack.rights.startswith("rw"):
        raise NotStopped("its stack is not a mapping that was there before", lasting=True)
    thread = Stopped(wait.tid, time.monotonic() + _STOP_WITHIN_S)
    registers: Registers | None = None
    try:
        registers = thread.registers()
        _check_place(wait, registers, memory)
        _check_stack(registers, memory, stack, runtime, wait.tid == pid)
        found = registers.copy()
        found.orig_rax = wait.number  # the wait itself is made again, not the kernel's going on with it
        chain = build(calls, found, thread.signal_mask(), thread.xstate(), runtime.restorers[0], runtime.gadget)
        low = _lowest(registers, memory, stack, wait.tid == pid)
        if chain.base < low:
            raise NotStopped("too little of its stack is left", lasting=True)
        memory.write(chain.base, chain.image)
        if before is not None:
            before(thread)
        if _signal_pending(pid, wait.tid):
            raise NotStopped("a signal was just arriving")
        thread.set_registers(chain.registers)
        registers = None
    except UnknownState as error:
        raise NotStopped(f"the state of its registers is not known here ({error})", lasting=True) from error
    finally:
        if registers is not None:
            _as_found(thread, wait, registers, pid)
        thread.detach()
    return Borrowed((time.perf_counter() - thread.since) * 1000)


def killed_for(pid: int, wait: Wait) -> str | None:
    """The system call of ours for which a thread's seccomp filters would kill it; None: none.

    Raises:
        NotStopped, OSError: as `lend`.
        InjectionRefused: they can't be read.
    """
    thread = Stopped(wait.tid, time.monotonic() + _STOP_WITHIN_S)
    registers = thread.registers()
    harmless = False
    try:
        filters = thread.seccomp_filters()
        if filters is None:
            raise unread_filter()
        deadly = kills(filters)
        harmless = deadly is None
        return deadly
    except ValueError:
        raise unread_filter() from None
    finally:
        _as_found(thread, wait, registers, pid, restarts=harmless)
        thread.detach()


def _as_found(thread: Stopped, wait: Wait, registers: Registers, pid: int, *, restarts: bool = True) -> None:
    """An epoll_wait would return EINTR for our stop: it is made again instead, unless a signal is the reason.

    With others the kernel goes on by itself, with some by another system call (restart_syscall). Where a filter might
    kill for that, `restarts` is false, and these are made again, too.
    """
    ended = registers.rax == _EINTR if wait.is_epoll else not restarts and registers.rax in _RESTARTS
    if ended and _at(wait, registers) and not _signal_pending(pid, wait.tid):
        again = registers.copy()
        again.rip -= len(SYSCALL)
        again.rax = registers.orig_rax
        again.orig_rax = 0xFFFF_FFFF_FFFF_FFFF
        thread.set_registers(again)


def _at(wait: Wait, registers: Registers) -> bool:
    return (registers.orig_rax, registers.rsp, registers.rip) == (wait.entered, wait.sp, wait.pc)


def _check_place(wait: Wait, registers: Registers, memory: Memory) -> None:
    """The thread must still be in the wait that it was seen in, and be about to make it again."""
    if not _at(wait, registers) or registers.cs & 0xFFFF != _CODE_SEGMENT:
        raise NotStopped("it had just gone on")
    if registers.rax not in _RESTARTS and not (wait.is_epoll and registers.rax == _EINTR):
        raise NotStopped("its wait had just ended")
    if memory.read(wait.pc - len(SYSCALL), len(SYSCALL)) != SYSCALL:
        raise NotStopped("it did not enter the kernel by the syscall instruction", lasting=True)


def _check_stack(registers: Registers, memory: Memory, stack: Mapping, runtime: Runtime, is_main: bool) -> None:
    """No frame of a signal may be on the used stack: its handler may have interrupted malloc or the loader."""
    end = stack.end if is_main or not registers.rsp < registers.fs_base < stack.end else registers.fs_base
    count = end - registers.rsp
    if count > _STACK_MOST_BYTES:
        raise NotStopped("its stack is too deep to look through", lasting=True)
    used = memory.read(registers.rsp, count)
    if len(used) != count:
        raise NotStopped("its stack can't be read", lasting=True)
    patterns = [struct.pack("<Q", restorer) for restorer in runtime.restorers]
    if any(pattern in used for pattern in (*patterns, KERNEL_SEGMENTS)):
        raise NotStopped("it may be inside a signal handler", lasting=True)


def _lowest(registers: Registers, memory: Memory, stack: Mapping, is_main: bool) -> int:
    """The lowest address that a chain may have on this thread's stack.

    Raises:
        NotStopped: it is on another stack than the C library gave it (a coroutine's): nobody knows where that one ends.
    """
    if is_main:
        if stack.name != "[stack]":
            raise NotStopped("it runs on a stack of its own", lasting=True)
        return stack.start  # which grows when more is used
    descriptor = memory.read(registers.fs_base, _THREAD_BYTES)
    words: tuple[int, ...] = struct.unpack(f"<{len(descriptor) // 8}Q", descriptor[: len(descriptor) // 8 * 8])
    # struct pthread has, at an offset that differs by version, the block that the stack is in, its size, its guard's.
    for address, size, guard in zip(words, words[1:], words[2:], strict=False):
        if (
            0 < address <= registers.rsp
            and 0 < address + size - registers.fs_base <= _DESCRIPTOR_MOST_BYTES
            and (address | size | guard) % _PAGE == 0
            and guard < size
        ):
            return max(address + guard, stack.start) + _ROOM_BYTES
    raise NotStopped("it runs on a stack of its own", lasting=True)


def _signal_pending(pid: int, tid: int) -> bool:
    """Whether a signal waits that the thread does not block: it is to end the wait, as it would have without us."""
    with open(f"/proc/{pid}/task/{tid}/status", "rb") as file:
        fields = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
    pending = int(fields[b"SigPnd"], 16) | int(fields[b"ShdPnd"], 16)
    return bool(pending & ~int(fields[b"SigBlk"], 16))
