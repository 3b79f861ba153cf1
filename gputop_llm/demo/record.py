"""What a native window of a simulated engine holds: steps of a decoding Llama, as long and as busy as the demo says.

The record goes the way of every other: it is read, analysed and judged like one from a GPU. Its kernels are
fixed shares of a step; only the step's length, the busy share and the batch come from the scenario.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from gputop_llm.timeline.native_format import (
    API_NAME,
    CHUNK_HEADER,
    END,
    HELLO,
    MAGIC,
    NAME,
    STARTED,
    VERSION,
    Chunk,
    EndReason,
    Kinds,
)

#: CUPTI of CUDA 13.0, as `cuptiGetVersion` says it.
_CUPTI = 130001
_LAYERS = 16
_DEVICE, _CONTEXT, _STREAM, _THREAD = 0, 1, 7, 0x1F00_0740
_DRIVER, _RUNTIME = 4 << 24, 5 << 24
#: Callback ids are CUPTI's own numbers; here they only have to differ.
_GRAPH_LAUNCH, _COPY, _SYNC, _LAUNCH = _RUNTIME | 311, _RUNTIME | 41, _RUNTIME | 131, _DRIVER | 307
_API_NAMES = {
    _GRAPH_LAUNCH: "cudaGraphLaunch_v10000",
    _COPY: "cudaMemcpyAsync_v3020",
    _SYNC: "cudaStreamSynchronize_v3020",
    _LAUNCH: "cuLaunchKernel",
}
#: Kernels of one layer, with their parts of its time.
_LAYER = (
    ("void vllm::rms_norm_kernel<c10::BFloat16>", 2),
    ("nvjet_tst_128x64_64x8_qkv", 14),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", 2),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>", 2),
    ("flash::FlashAttnFwdSm90", 18),
    ("nvjet_tst_128x64_64x8_o_proj", 10),
    ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16>", 2),
    ("nvjet_tst_128x128_64x6_gate_up", 30),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, vllm::silu_kernel>", 3),
    ("nvjet_tst_128x64_64x8_down", 17),
)
_TAIL = (
    ("nvjet_tst_256x128_64x4_lm_head", 40),
    ("void at::native::softmax_warp_forward", 6),
    ("_topk_topp_sample", 12),
)
_KERNELS = tuple((name, part / 100 * 0.92 / _LAYERS, True) for _ in range(_LAYERS) for name, part in _LAYER) + tuple(
    (name, part / 58 * 0.08, False) for name, part in _TAIL
)
_NAMES = tuple(dict.fromkeys(name for name, _, _ in _KERNELS))
_KERNEL_ROW = struct.Struct("<QQQIIIIII3I3IIIII")
_COPY_ROW = struct.Struct("<QQQQIIIIIBBBB")
_CALL_ROW = struct.Struct("<QQIIIi")


@dataclass(frozen=True, slots=True)
class Shape:
    """What the window shows: seconds of one engine step, the share of it in which the GPU works, and the batch."""

    step_s: float
    busy: float
    batch: int


def record(shape: Shape, window_s: float, pid: int, seed: int = 0, calls: bool = True) -> Iterator[bytes]:
    """The record of a window that ends now, in pieces; with the API calls or without."""
    draw = random.Random(seed)
    end = time.time_ns()
    start = end - int(window_s * 1e9)
    yield MAGIC
    yield _chunk(Chunk.HELLO, HELLO.pack(VERSION, pid, pid, _CUPTI), b"libcupti.so.13 (simulated)")
    kinds = Kinds.KERNELS | Kinds.COPIES | Kinds.MEMSETS
    if calls:
        kinds |= Kinds.RUNTIME | Kinds.DRIVER
    yield _chunk(Chunk.STARTED, STARTED.pack(start, start, start, start, kinds, 0, 900_000))
    for number, name in enumerate(_NAMES):
        yield _chunk(Chunk.NAME, NAME.pack(number), name.encode())
    for api, name in _API_NAMES.items() if calls else ():
        yield _chunk(Chunk.API_NAME, API_NAME.pack(api), name.encode())
    records = size = 0
    at, correlation = start, 1
    while at < end:
        step_ns = int(shape.step_s * 1e9 * draw.uniform(0.94, 1.08))
        pieces = _step(at, step_ns, shape, correlation, draw)
        for kind, rows in pieces:
            if kind is Chunk.CALLS and not calls:
                continue
            records += len(rows)
            payload = b"".join(rows)
            size += len(payload)
            yield _chunk(kind, payload)
        at += step_ns
        correlation += 8
    yield _chunk(Chunk.END, END.pack(end, end, end, end, EndReason.TIME_UP, 0, 0, records, size, 400_000, 9_000_000))


def _step(
    at: int, step_ns: int, shape: Shape, correlation: int, draw: random.Random
) -> list[tuple[Chunk, list[bytes]]]:
    """One step: the host prepares, launches a graph and the sampler, waits for the token ids, copies them back."""
    work_ns = int(step_ns * shape.busy)
    launch = at + 5_000
    calls = [_CALL_ROW.pack(launch, launch + 9_000, correlation, _THREAD, _GRAPH_LAUNCH, 0)]
    for number in range(len(_TAIL)):
        begun = launch + 10_000 + 3_000 * number
        calls.append(_CALL_ROW.pack(begun, begun + 2_000, correlation + 1 + number, _THREAD, _LAUNCH, 0))
    clock = launch + 6_000
    kernels = []
    eager = 0
    for node, (name, part, in_graph) in enumerate(_KERNELS):
        length = max(900, int(work_ns * part * draw.uniform(0.97, 1.03)))
        if in_graph:
            graph, graph_node, caused_by = 1, (1 << 32) + node, correlation
        else:
            eager += 1
            graph, graph_node, caused_by = 0, 0, correlation + eager
        kernels.append(_KERNEL_ROW.pack(
            clock, clock + length, graph_node, caused_by, _NAMES.index(name), _DEVICE, _CONTEXT, _STREAM, graph,
            max(1, shape.batch), 8, 1, 128, 1, 1, 128, 0, 49_152, 0,
        ))  # fmt: skip
        clock += length
    copy = correlation + 5
    calls.append(_CALL_ROW.pack(launch + 24_000, launch + 27_000, copy, _THREAD, _COPY, 0))
    copied = _COPY_ROW.pack(clock, clock + 1_600, 8 * shape.batch, 0, copy, _DEVICE, _CONTEXT, _STREAM, 0, 2, 3, 1, 0)
    clock += 1_600
    calls.append(
        _CALL_ROW.pack(launch + 28_000, max(clock, launch + 28_000) + 2_000, correlation + 6, _THREAD, _SYNC, 0)
    )
    return [(Chunk.CALLS, calls), (Chunk.KERNELS, kernels), (Chunk.COPIES, [copied])]


def _chunk(kind: Chunk, *parts: bytes) -> bytes:
    payload = b"".join(parts)
    return CHUNK_HEADER.pack(kind, len(payload)) + payload
