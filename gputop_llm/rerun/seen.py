"""Which batch sizes a capture has seen: what tells, in the order in which it is to be believed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gputop_llm.timeline.launch_shape import extents_of
from gputop_llm.timeline.model import Kind
from gputop_llm.verdict.context import Context

#: Kernels of vLLM with one block for each token of the step, padding left out.
_BY_TOKEN = re.compile(r"^void vllm::reshape_and_cache_flash_kernel<|^void vllm::reshape_and_cache_kernel<")
#: vLLM: requests in prefill (their tokens), requests in decode (their tokens). SGLang: phase, batch, tokens.
_VLLM_STEP = re.compile(r"execute_context_(\d+)\((\d+)[^)]*\)_generation_(\d+)\((\d+)")
_SGLANG_STEP = re.compile(r"step\[(\w+) bs=(\d+)(?: toks=(\d+))?")
#: Where nothing tells: what graphs are captured for.
_USUAL = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST = 4
#: Larger steps hold prefill.
_MOST_SEQUENCES = 512
_BLOCK, _KV_TOKENS = 16, 1024


@dataclass(frozen=True, slots=True)
class Seen:
    """Batch sizes, the likeliest first.

    Args:
        tokens: of a step, padded as graphs are and not.
        sequences: those of them that are a step's requests, one token each.
        kv_tokens: context of a request; a guess where `kv_known` is false.
        block_size: tokens of a KV block.
        source: where the batch sizes come from, as a clause.
    """

    tokens: tuple[int, ...]
    sequences: tuple[int, ...]
    source: str
    kv_tokens: int = _KV_TOKENS
    kv_known: bool = False
    block_size: int = _BLOCK


def batches(context: Context, frames: Iterable[Mapping[str, Any]] = ()) -> Seen:
    """What a capture tells of batch sizes, and the frames taken around it (`watch --json`) of lengths.

    Args:
        frames: of the captured engine's node.
    """
    running, kv_tokens, block = _of_frames(frames)
    told = (
        (_from_kernels(context), "the blocks of vLLM's KV writes"),
        (_from_ranges(context), "the names of the engine's steps"),
        (running, "the requests that ran in the frames beside the capture"),
        (Counter(_USUAL), "nothing in the record: the usual sizes of graphs"),
    )
    counted, source = next(one for one in told if one[0])
    sizes = [size for size, _ in counted.most_common(_MOST)] if counted is not told[-1][0] else list(_USUAL)
    tokens = tuple(dict.fromkeys(each for size in sizes for each in (padded(size), size)))
    return Seen(
        tokens,
        tuple(size for size in tokens if size <= _MOST_SEQUENCES),
        source,
        kv_tokens or _KV_TOKENS,
        kv_tokens is not None,
        block or _BLOCK,
    )


def padded(tokens: int) -> int:
    """The size of the graph that a batch runs in: 1, 2, 4, then multiples of 8, above 256 of 16."""
    for small in (1, 2, 4):
        if tokens <= small:
            return small
    step = 8 if tokens <= 256 else 16
    return -(-tokens // step) * step if tokens <= _MOST_SEQUENCES else tokens


def _from_kernels(context: Context) -> Counter[int]:
    timeline = context.timeline
    ops = timeline.ops
    ids = [
        int(i)
        for i in np.unique(ops.name_id[ops.kind == Kind.KERNEL])
        if i >= 0 and _BY_TOKEN.match(timeline.name(int(i)))
    ]
    grids, counts = np.unique(ops.grid[np.isin(ops.name_id, ids)], return_counts=True)
    found: Counter[int] = Counter()
    for grid, count in zip(grids.tolist(), counts.tolist(), strict=True):
        if (extents := extents_of(grid)) is not None:
            found[extents[0]] += count
    return found


def _from_ranges(context: Context) -> Counter[int]:
    timeline = context.timeline
    found: Counter[int] = Counter()
    names, counts = np.unique(timeline.ranges.name_id, return_counts=True)
    for name_id, count in zip(names.tolist(), counts.tolist(), strict=True):
        name = timeline.name(name_id)
        if match := _VLLM_STEP.search(name):
            _, prompt, _, decoded = map(int, match.groups())
            found[prompt + decoded] += count
        elif match := _SGLANG_STEP.search(name):
            found[int(match[3] or match[2])] += count
    return Counter({size: count for size, count in found.items() if 0 < size < 1 << 20})


def _of_frames(frames: Iterable[Mapping[str, Any]]) -> tuple[Counter[int], int | None, int | None]:
    """Requests that ran, tokens of context of one of them, and tokens of a KV block."""
    running: Counter[int] = Counter()
    lengths: list[float] = []
    block = None
    for frame in frames:
        for engine in _list(frame.get("engines")):
            total, reading = _dict(engine).get("total"), _dict(_dict(engine).get("reading"))
            ran = _dict(total).get("running")
            if isinstance(ran, (int, float)) and 1 <= ran < 1 << 20:
                running[int(ran)] += 1
            prompt, output = (_dict(total).get(f"mean_{part}_tokens") for part in ("prompt", "generation"))
            if isinstance(prompt, (int, float)) and isinstance(output, (int, float)):
                lengths.append(prompt + output / 2)
            said = str(_dict(reading.get("cache_config")).get("block_size"))
            block = int(said) if said.isascii() and said.isdigit() and 0 < int(said) <= 1024 else block
    middle = sorted(lengths)[len(lengths) // 2] if lengths else 0
    return running, (int(middle) if 1 <= middle < 1 << 20 else None), block


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
