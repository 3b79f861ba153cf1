"""The code and the data of our own thread in a target: the bytes of stub.S, and the block that it works on."""

from __future__ import annotations

import struct
from enum import IntEnum

#: stub.S, assembled.
CODE = bytes.fromhex(
    "534889fbc7436001000000e8e7010000ff53204889c7ff532848837b4800753d488dbbf0000000be0b000000b83f0100000f0548"
    "83f8ea7513488dbbf0000000be03000000b83f0100000f05b9810000004885c00f884501000089430c488d7b70be00000800b825"
    "0100000f05b9820000004885c00f8824010000488b437089430448c1e820894364488d7b70be00000800b8250100000f05b98200"
    "00004885c00f88f8000000488b437089436848c1e820894308c74360020000008b4304894378c7437c01000000488d7b78be0100"
    "0000ba10270000b8070000000f054883f8010f85ce0000008b7b04488db380000000ba01000000b8000000000f054883f8010f85"
    "ae00000080bb80000000470f85a1000000c7436003000000488d7364e8e6000000488d7368e8dd00000048837b48007543c78337"
    "0100006c6f6164e8b3000000488dbb90000000be02000000ff5330b9830000004885c0743b4889c7488db3d0000000ff5338b984"
    "0000004885c0742448894348c78337010000776f726be870000000c7436004000000488b43484889df5bffe05151ff5340595948"
    "894358894b6031ff31f6bae8030000b8070000000f05488d7304e84c000000488d7308e843000000488d730ce83a000000488d73"
    "64e831000000488d7368e828000000488b7b10488b7318488b53505bb80b000000ffe2bf0f000000488db330010000b89d000000"
    "0f05c38b3ec706ffffffff85ff7807b8030000000f05c3"
)

ENTRY_SYMBOL = b"gputop_client_serve"
#: Of our thread: at first, and while it is in the loader. Then it is "gputop-work".
THREAD_NAME, LOADING_NAME = b"gputop-wait", b"gputop-load"
GO, LEAVE = b"G", b"L"
#: The functions of the target that the stub calls, in the block's order.
FUNCTIONS = (b"pthread_self", b"pthread_detach", b"dlopen", b"dlsym", b"dlerror")

_NO_FD = -1
#: struct gputop_call: size, commands, records, library, scratch address and bytes.
_CALL = struct.Struct("<IiiiQQ")
_BLOCK = struct.Struct("<IiiiQQ5QQQQiiii8x8x16x64s32s64s16s")
BLOCK_BYTES = _BLOCK.size
#: Where pthread_create may put its pthread_t.
CREATED_OFFSET = 136
_PATH_OFFSET = 144
_PATH_BYTES = 64
_PROGRESS = struct.Struct("<qiii")  # error, state, other ends
_PROGRESS_OFFSET = 88


class State(IntEnum):
    """How far the thread has come; the high bit says that it failed there."""

    NOT_STARTED = 0
    STARTED = 1
    READY = 2
    LOADING = 3
    SERVING = 4
    NO_MEMFD = 0x81
    NO_PIPE = 0x82
    NOT_LOADED = 0x83
    NO_ENTRY = 0x84


class Progress:
    """What the block says now. Written by the target: any value may stand there.

    Attributes:
        state: a `State`, or another number.
        error: -errno, or the address of dlerror's text.
        library: the memfd in the target; negative: none.
        commands, records: the ends of the pipes that the monitor is to open (to write, to read).
    """

    def __init__(self, block: bytes) -> None:
        self.library: int = _CALL.unpack_from(block)[3]
        self.error, self.state, self.commands, self.records = _PROGRESS.unpack_from(block, _PROGRESS_OFFSET)


def new_block(
    scratch: tuple[int, int], functions: tuple[int, ...], gadget: int, entry: int, memfd_name: bytes
) -> bytes:
    """The block as the thread finds it.

    Args:
        scratch: address and bytes of what the client unmaps: the page of the code, and the data.
        functions: addresses of `FUNCTIONS`.
        gadget: address of `syscall; ret`.
        entry: address of the client's entry where it is loaded already; 0: load it.
        memfd_name: what the library's mapping will be called.
    """
    return _BLOCK.pack(
        _CALL.size, _NO_FD, _NO_FD, _NO_FD, *scratch, *functions, entry, gadget,
        0, State.NOT_STARTED, _NO_FD, _NO_FD, 0,
        b"", ENTRY_SYMBOL, memfd_name, THREAD_NAME,
    )  # fmt: skip


def library_path(fd: int, loaded_before: int) -> tuple[int, bytes]:
    """Where in the block the path of the library goes, and that path.

    The loader takes a path that it has seen for the same library: one more slash for each client that is there already.
    """
    path = b"/proc/self/fd" + b"/" * (1 + loaded_before) + b"%d" % fd
    if len(path) >= _PATH_BYTES:
        raise ValueError("too many clients are mapped")
    return _PATH_OFFSET, path.ljust(_PATH_BYTES, b"\0")
