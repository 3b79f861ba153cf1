"""What seccomp filters would do about our system calls: one that answers "no" is harmless, one that kills is not.

The filters are classic BPF programs over struct seccomp_data (include/uapi/linux/seccomp.h, filter.h).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_X86_64 = 0xC000003E  # AUDIT_ARCH_X86_64
_INSTRUCTION = struct.Struct("<HBBI")
_WORD = 0xFFFFFFFF
_KILL_PROCESS, _KILL_THREAD, _TRAP = 0x80000000, 0x00000000, 0x00030000
_ACTION = 0xFFFF0000
_READ_EXECUTE, _THREAD_FLAGS = 5, 0x3D0F00
#: What a chain, our thread, the loader, pthread_create and the client call, with old and new C libraries; arguments
#: where filters look at them. What CUPTI itself calls for a window is not known.
CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "read": (0, ()), "write": (1, ()), "close": (3, ()), "fstat": (5, ()), "poll": (7, ()), "lseek": (8, ()),
    "mmap": (9, (0, 8192, 5)), "mprotect": (10, (0, 4096, _READ_EXECUTE)), "munmap": (11, ()), "brk": (12, ()),
    "rt_sigprocmask": (14, ()), "rt_sigreturn": (15, ()), "pread64": (17, ()), "sched_yield": (24, ()),
    "madvise": (28, ()), "nanosleep": (35, ()), "getpid": (39, ()), "clone": (56, (_THREAD_FLAGS,)), "exit": (60, ()),
    "fcntl": (72, ()), "prctl": (157, (15,)), "gettid": (186, ()), "futex": (202, ()), "sched_getaffinity": (204, ()),
    "clock_gettime": (228, ()), "clock_nanosleep": (230, ()), "openat": (257, ()), "newfstatat": (262, ()),
    "restart_syscall": (219, ()), "set_robust_list": (273, ()), "pipe2": (293, ()), "memfd_create": (319, ()),
    "rseq": (334, ()), "clone3": (435, ()),
}  # fmt: skip


def kills(filters: Sequence[bytes]) -> str | None:
    """The first of our system calls that filters answer by a signal or by killing; None where none is.

    Args:
        filters: each as PTRACE_SECCOMP_GET_FILTER gives it.

    Raises:
        ValueError: not such programs.
    """
    for name, (number, arguments) in CALLS.items():
        data = struct.pack("<IIQ6Q", number, _X86_64, 0, *arguments, *(0,) * (6 - len(arguments)))
        actions = {_run(program, data) & _ACTION for program in filters}
        if actions & {_KILL_PROCESS, _KILL_THREAD, _TRAP}:
            return name
    return None


def _run(program: bytes, data: bytes) -> int:
    """What a filter returns. Jumps only go forward: it ends."""
    code = list(_INSTRUCTION.iter_unpack(program))
    memory = [0] * 16
    a = x = at = 0
    while at < len(code):
        operation, on_true, on_false, k = code[at]
        at += 1
        kind, other = operation & 7, x if operation & 8 else k
        if operation == 0x20:  # ld [k]
            if k + 4 > len(data):
                break
            a = int(struct.unpack_from("<I", data, k)[0])
        elif operation in {0x00, 0x60}:  # ld #k, ld M[k]
            a = k if operation == 0 else memory[k & 15]
        elif operation in {0x80, 0x81}:  # ld #len, ldx #len
            a, x = (len(data), x) if operation == 0x80 else (a, len(data))
        elif operation in {0x01, 0x61}:  # ldx #k, ldx M[k]
            x = k if operation == 1 else memory[k & 15]
        elif kind in {2, 3}:  # st, stx
            memory[k & 15] = a if kind == 2 else x
        elif kind == 4:
            a = _arithmetic(operation & 0xF0, a, other) & _WORD
        elif kind == 5:
            at += k if operation & 0xF0 == 0 else on_true if _holds(operation & 0xF0, a, other) else on_false
        elif kind == 6:
            return a if operation & 0x18 == 0x10 else k
        elif kind == 7:
            a, x = (x, x) if operation & 0xF8 == 0x80 else (a, a)
        else:
            break
    raise ValueError("not a seccomp filter")


def _arithmetic(operation: int, a: int, value: int) -> int:
    results = {
        0x00: a + value, 0x10: a - value, 0x20: a * value, 0x40: a | value, 0x50: a & value,
        0x60: a << (value & 31), 0x70: a >> (value & 31), 0x80: -a, 0xA0: a ^ value,
    }  # fmt: skip
    if operation == 0x30:
        return a // value if value else 0
    return results.get(operation, 0)


def _holds(operation: int, a: int, value: int) -> bool:
    return {0x10: a == value, 0x20: a > value, 0x30: a >= value, 0x40: a & value != 0}.get(operation, False)
