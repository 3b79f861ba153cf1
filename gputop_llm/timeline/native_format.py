"""The record of a native capture window: what our client inside the target sends, and what is stored, byte for byte.

A record is `MAGIC`, then chunks: a header (kind, payload bytes; two little-endian u32), then the payload. Rows of one
kind have a fixed stride, so that a chunk is one NumPy array. All integers are little-endian. The client's C source
(`gputop_llm/capture/native/wire.h`) has the same structures; a test compares the two.

What a target sends is not to be trusted: `MAX_PAYLOAD_BYTES` bounds a chunk, and a reader checks every length and
index.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

MAGIC = b"GPUTOPW1"
VERSION = 1
CHUNK_HEADER = struct.Struct("<II")
MAX_PAYLOAD_BYTES = 16 << 20


class Chunk(IntEnum):
    """What a chunk holds."""

    HELLO = 1
    REFUSED = 2
    STARTED = 3
    NAME = 4
    KERNELS = 5
    COPIES = 6
    MEMSETS = 7
    CALLS = 8
    API_NAME = 9
    END = 10


class Kinds(IntFlag):
    """What a window records."""

    KERNELS = 1
    COPIES = 2
    MEMSETS = 4
    RUNTIME = 8
    DRIVER = 16


class EndReason(IntEnum):
    """Why a window ended."""

    TIME_UP = 0
    STOPPED = 1
    TOO_MANY_BYTES = 2
    PROFILER_TOOK_OVER = 3


#: protocol version, PID and TID as the target sees them, CUPTI's version (cuptiGetVersion); then the library's path
#: (UTF-8).
HELLO = struct.Struct("<IIII")
#: a reason (see wire.h), CUPTI's result code (0: not CUPTI's); then a sentence in UTF-8.
REFUSED = struct.Struct("<II")
#: The same moment on four clocks: CUPTI's timestamp, CLOCK_REALTIME, CLOCK_MONOTONIC (ns) and the time-stamp counter.
CLOCKS = struct.Struct("<QQQQ")
#: CLOCKS as collection began, then: kinds enabled (Kinds), unused, ns that enabling took.
STARTED = struct.Struct("<QQQQIIQ")
#: CLOCKS as collection ended, then: reason (EndReason), buffers that never came back; records that CUPTI dropped,
#: records and bytes that it delivered; ns that disabling took, and ns that flushing took.
END = struct.Struct("<QQQQIIQQQQQ")
#: The id by which rows refer to the name; then the name (UTF-8, as CUPTI has it: mangled).
NAME = struct.Struct("<I")
#: A call's `api`; then its name (UTF-8, with CUPTI's version suffix).
API_NAME = struct.Struct("<I")

#: NumPy descriptions of the rows (`numpy.dtype(KERNEL_ROW)`); times are in ns of CUPTI's clock.
KERNEL_ROW = [
    ("start", "<u8"),
    ("end", "<u8"),
    ("graph_node", "<u8"),
    ("correlation", "<u4"),
    ("name", "<u4"),
    ("device", "<u4"),
    ("context", "<u4"),
    ("stream", "<u4"),
    ("graph", "<u4"),
    ("grid", "<u4", (3,)),
    ("block", "<u4", (3,)),
    ("registers", "<u4"),
    ("shared_static_bytes", "<u4"),
    ("shared_dynamic_bytes", "<u4"),
    ("local_per_thread_bytes", "<u4"),
]  # 88 bytes
COPY_ROW = [
    ("start", "<u8"),
    ("end", "<u8"),
    ("bytes", "<u8"),
    ("graph_node", "<u8"),
    ("correlation", "<u4"),
    ("device", "<u4"),
    ("context", "<u4"),
    ("stream", "<u4"),
    ("graph", "<u4"),
    ("copy_kind", "u1"),
    ("src_memory", "u1"),
    ("dst_memory", "u1"),
    ("flags", "u1"),
]  # 56 bytes
MEMSET_ROW = [
    ("start", "<u8"),
    ("end", "<u8"),
    ("bytes", "<u8"),
    ("graph_node", "<u8"),
    ("correlation", "<u4"),
    ("device", "<u4"),
    ("context", "<u4"),
    ("stream", "<u4"),
    ("graph", "<u4"),
    ("memory", "<u4"),
]  # 56 bytes
#: `api` is the activity kind (4 driver, 5 runtime) in the top byte and the callback id below it; `thread` is the low
#: half of the caller's pthread_self().
CALL_ROW = [
    ("start", "<u8"),
    ("end", "<u8"),
    ("correlation", "<u4"),
    ("thread", "<u4"),
    ("api", "<u4"),
    ("result", "<i4"),
]  # 32 bytes


class Command(IntEnum):
    """What the client can be told."""

    WINDOW = 1
    STOP = 2


COMMAND_MAGIC = b"GPUTOPC1"
#: magic, command, kinds (Kinds), CLOCK_MONOTONIC ns to begin at (0: now), ns to collect, most bytes to send.
COMMAND = struct.Struct("<8sIIQQQ")
MAX_WINDOW_NS = 60_000_000_000
MAX_WINDOW_BYTES = 1 << 30
