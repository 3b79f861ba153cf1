"""Chains of signal frames: system calls and calls that a thread makes without anybody watching (x86-64 Linux).

`rt_sigreturn` takes all registers, the signal mask and the FPU state from the stack. A chain is a row of such frames:
each one sets the registers for one call whose return address is libc's `__restore_rt`, which is the sigreturn into the
next frame. The last frame is the thread as it was found, about to make its interrupted system call again. Once the
first registers are set the thread runs through the chain on its own: it needs no tracer to come back.

Formats: arch/x86/include/uapi/asm/{sigcontext,ucontext}.h of the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gputop_llm.capture.inject.ptrace import Registers

RED_ZONE_BYTES = 128
#: `mov $15,%rax; syscall`: the whole of `__restore_rt`.
RESTORER = bytes.fromhex("48c7c00f0000000f05")
#: As `RESTORER`, one byte later: `mov $15,%eax; syscall`. Its address never stands in a signal frame that isn't ours.
RESTORER_SKIP = 1
#: `syscall; ret`.
GADGET = bytes.fromhex("0f05c3")
SYSCALL = bytes.fromhex("0f05")
#: cs, gs, fs, ss as the kernel leaves them in a frame of a 64-bit program. Ours has another (ignored) gs.
KERNEL_SEGMENTS = struct.pack("<4H", 0x33, 0, 0, 0x2B)

_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
_CALL_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_GENERAL = [
    "r8",
    "r9",
    "r10",
    "r11",
    "r12",
    "r13",
    "r14",
    "r15",
    "rdi",
    "rsi",
    "rbp",
    "rbx",
    "rdx",
    "rax",
    "rcx",
    "rsp",
    "rip",
    "eflags",
]

_UC_FLAGS = 1 | 2 | 4  # UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
# No such mode: the kernel leaves the alternate stack as it is (and ignores the error, as it always has).
_NO_ALTERNATE_STACK = (0, 0x12, 0, 0)
_FRAME = struct.Struct("<Q QQ QiiQ 18Q 4H 4Q Q 64x Q 128x")
_STEP = 448  # sizeof(struct rt_sigframe), rounded up so that all frames are aligned alike
_ALL_SIGNALS = (1 << 64) - 1

_FP_MAGIC1, _FP_MAGIC2 = 0x46505853, 0x46505845
_FP_SOFTWARE = 464  # offset of the words that the hardware leaves to the kernel
_FP_HEADER = 512  # offset of XSTATE_BV
_FP_LEAST_BYTES = 576
_TILE_DATA = 1 << 18
_TILE_DATA_BYTES = 8192
_WITH_TILES_BYTES = 11008


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a chain: `function` with C arguments, or a system call where it is None."""

    number: int
    arguments: Sequence[int]
    function: int | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """What goes onto the stack, where, and the registers that start it."""

    base: int
    image: bytes
    registers: Registers


class UnknownState(ValueError):
    """The FPU state has a form that we could not give back unchanged."""


def build(calls: Sequence[Call], found: Registers, mask: int, xstate: bytes, restorer: int, gadget: int) -> Chain:
    """A chain of calls for a thread that was stopped in a system call.

    Args:
        calls: in order.
        found: its registers; `rip` is behind the `syscall` that it will make again.
        mask: its blocked signals.
        xstate: its FPU state, from ptrace.
        restorer: address of `__restore_rt`.
        gadget: address of `syscall; ret`.

    Raises:
        UnknownState: the FPU state can't be put into a frame.
    """
    fpstate = _signal_fpstate(xstate)
    frames = len(calls) + 1
    fp_address = (found.rsp - RED_ZONE_BYTES - len(fpstate)) & ~63
    # The kernel and the ABI want the stack to be 8 off a multiple of 16 where a function begins: at the return address.
    first = ((fp_address - frames * _STEP) & ~15) - 8
    back = restorer + RESTORER_SKIP
    image = bytearray(fp_address + len(fpstate) - first)
    for i, call in enumerate(calls):
        registers = found.copy()
        names = _ARGUMENTS if call.function is None else _CALL_ARGUMENTS
        for name, value in zip(names, call.arguments, strict=False):
            setattr(registers, name, value)
        registers.rax = call.number
        registers.rip = gadget if call.function is None else call.function
        registers.rsp = first + (i + 1) * _STEP
        image[i * _STEP : i * _STEP + _FRAME.size] = _frame(back, registers, _ALL_SIGNALS, fp_address)
    again = found.copy()
    again.rip -= len(SYSCALL)
    again.rax = found.orig_rax
    i = len(calls)
    image[i * _STEP : i * _STEP + _FRAME.size] = _frame(back, again, mask, fp_address)
    image[fp_address - first :] = fpstate

    start = found.copy()
    start.rip = back
    start.rsp = first + 8  # as if __restore_rt had been returned to
    start.orig_rax = _ALL_SIGNALS  # -1: no system call to make again
    return Chain(first, bytes(image), start)


def _frame(back: int, registers: Registers, mask: int, fpstate: int) -> bytes:
    return _FRAME.pack(
        back,
        _UC_FLAGS, 0,
        *_NO_ALTERNATE_STACK,
        *(registers.value(name) for name in _GENERAL),
        registers.cs & 0xFFFF, 1, 0, registers.value("ss") & 0xFFFF,
        0, 0, 0, 0,
        fpstate,
        mask,
    )  # fmt: skip


def _signal_fpstate(xstate: bytes) -> bytes:
    """The state as a signal frame holds it: with the kernel's words, and the second magic behind it."""
    if len(xstate) < _FP_LEAST_BYTES:
        raise UnknownState(f"an XSAVE area of {len(xstate)} bytes")
    (features,) = struct.unpack_from("<Q", xstate, _FP_SOFTWARE)
    (in_use,) = struct.unpack_from("<Q", xstate, _FP_HEADER)
    size = len(xstate)
    if features & _TILE_DATA and not in_use & _TILE_DATA:
        # A thread that has not asked for AMX has no room for its tiles, which come last.
        if size != _WITH_TILES_BYTES:
            raise UnknownState(f"an XSAVE area of {size} bytes with AMX")
        size -= _TILE_DATA_BYTES
    area = bytearray(xstate[:size])
    software = struct.pack("<IIQI28x", _FP_MAGIC1, size + 4, features, size)
    area[_FP_SOFTWARE:_FP_HEADER] = software
    return bytes(area) + struct.pack("<I", _FP_MAGIC2)
