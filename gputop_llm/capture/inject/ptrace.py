"""ptrace(2) of one thread, as far as a hand-over of registers needs it (x86-64)."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from typing import Any

_GETREGS = 12
_SETREGS = 13
_POKEDATA = 5
_DETACH = 17
_GETREGSET = 0x4204
_SEIZE = 0x4206
_INTERRUPT = 0x4207
_GETSIGMASK = 0x420A
_SECCOMP_GET_FILTER = 0x420C
_NT_X86_XSTATE = 0x202
_EVENT_STOP = 128
_WALL = 0x40000000
_XSTATE_MOST_BYTES = 1 << 16
_SPINS = 200
_NAP_S = 50e-6


class Registers(ctypes.Structure):
    """struct user_regs_struct."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in [
            "r15",
            "r14",
            "r13",
            "r12",
            "rbp",
            "rbx",
            "r11",
            "r10",
            "r9",
            "r8",
            "rax",
            "rcx",
            "rdx",
            "rsi",
            "rdi",
            "orig_rax",
            "rip",
            "cs",
            "eflags",
            "rsp",
            "ss",
            "fs_base",
            "gs_base",
            "ds",
            "es",
            "fs",
            "gs",
        ]
    ]
    rsp: int
    rip: int
    rax: int
    orig_rax: int
    cs: int
    fs_base: int

    def copy(self) -> Registers:
        """The same values, to change."""
        return Registers.from_buffer_copy(self)

    def value(self, name: str) -> int:
        """The register of this name."""
        return int(getattr(self, name))


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class NotStopped(Exception):
    """The thread was not where a thread that only waits is to be found; it goes on as it would have.

    Args:
        why: a clause.
        lasting: whether it is not worth trying this thread again.
    """

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def _call(request: int, tid: int, address: Any, data: Any) -> None:
    if _libc.ptrace(request, tid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Stopped:
    """One thread, seized and stopped for as short as possible.

    Everything happens on the calling OS thread; when that thread ends, for whatever reason, the kernel detaches.

    Args:
        tid: the thread.
        deadline: `time.monotonic` by which it has to stand.

    Raises:
        OSError: it can't be seized (EPERM: see openness), or is gone (ESRCH).
        NotStopped: it did not come to the plain stop of a thread that waits: a signal is just being delivered, the
            process is being stopped, the thread ended. It is detached again where that is possible.
    """

    def __init__(self, tid: int, deadline: float) -> None:
        self.tid = tid
        _call(_SEIZE, tid, None, None)
        self.since = time.perf_counter()
        _call(_INTERRUPT, tid, None, None)
        status = self._wait(deadline)
        if os.WIFSTOPPED(status):
            number, event = os.WSTOPSIG(status), status >> 16
            if event == _EVENT_STOP and number == signal.SIGTRAP:
                return
            # A signal on its way is handed on; a group stop stays one.
            self.detach(number if event == 0 else 0)
            raise NotStopped("a signal was just arriving")
        raise NotStopped("the thread just ended")

    def _wait(self, deadline: float) -> int:
        tries = 0
        while True:
            pid, status = os.waitpid(self.tid, os.WNOHANG | _WALL)
            if pid:
                return status
            if time.monotonic() > deadline:
                raise NotStopped("the thread did not stop in time")
            tries += 1
            time.sleep(0 if tries < _SPINS else _NAP_S)

    def registers(self) -> Registers:
        """The general registers."""
        registers = Registers()
        _call(_GETREGS, self.tid, None, ctypes.byref(registers))
        return registers

    def set_registers(self, registers: Registers) -> None:
        """Sets all general registers, at once."""
        _call(_SETREGS, self.tid, None, ctypes.byref(registers))

    def signal_mask(self) -> int:
        """The blocked signals that the thread will have when its system call is over."""
        mask = ctypes.c_uint64()
        _call(_GETSIGMASK, self.tid, 8, ctypes.byref(mask))
        return mask.value

    def xstate(self) -> bytes:
        """The x87, SSE, AVX... state in XSAVE's standard form."""
        buffer = ctypes.create_string_buffer(_XSTATE_MOST_BYTES)
        vector = _Iovec(ctypes.addressof(buffer), _XSTATE_MOST_BYTES)
        _call(_GETREGSET, self.tid, _NT_X86_XSTATE, ctypes.byref(vector))
        return buffer.raw[: vector.length]

    def seccomp_filters(self) -> list[bytes] | None:
        """The programs of its seccomp filters; None where we may not read them (without CAP_SYS_ADMIN, or filtered)."""
        filters: list[bytes] = []
        while True:
            count = _libc.ptrace(_SECCOMP_GET_FILTER, self.tid, len(filters), None)
            if count < 0:
                return filters if ctypes.get_errno() == errno.ENOENT else None
            buffer = ctypes.create_string_buffer(count * 8)
            _call(_SECCOMP_GET_FILTER, self.tid, len(filters), buffer)
            filters.append(buffer.raw)

    def poke(self, address: int, data: bytes) -> None:
        """Writes to memory that may be read-only; a whole number of words."""
        for offset in range(0, len(data), 8):
            _call(_POKEDATA, self.tid, address + offset, int.from_bytes(data[offset : offset + 8], "little"))

    def detach(self, number: int = 0) -> None:
        """Lets the thread go on, with this signal where it was stopped by one."""
        _call(_DETACH, self.tid, None, number)
