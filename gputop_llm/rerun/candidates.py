"""What a model must compute, as operations: for kernels that hang on no recorded operator (graph replays).

Nothing here claims that the engine runs it so: an operation counts only once it has launched the recorded kernel. GEMMs
are those of each kind of layer, split over tensor-parallel GPUs as engines split them: attention and the first MLP
matrices by columns, the others by rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gputop_llm.modelmath import ModelShape, Parallel
from gputop_llm.ncu.model import GemmShape
from gputop_llm.rerun.case import Case
from gputop_llm.rerun.seen import Seen
from gputop_llm.verdict.kernel_names import Family

#: Engines pad the vocabulary to a multiple of it.
_VOCAB_PADS_TO = 64
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
#: The most operations of one script: each takes up to a second.
MOST = 64


@dataclass(frozen=True, slots=True)
class Gemm:
    """One linear layer on one GPU: `k` inputs, `n` outputs."""

    name: str
    k: int
    n: int
    bias: bool = False


def of_families(
    families: Sequence[Family], shape: ModelShape, parallel: Parallel, seen: Seen, qkv_bias: bool = False
) -> tuple[Case, ...]:
    """The operations that may launch kernels of these families, the likeliest batch first.

    Args:
        seen: batch sizes and lengths.
        qkv_bias: whether the query, key and value projections add a bias.
    """
    found: list[Case] = []
    for family in dict.fromkeys(families):
        made = _MAKERS.get(family)
        if made is not None:
            found += made(shape, parallel, seen, qkv_bias)
    return tuple({case.call: case for case in found}.values())[:MOST]


def gemms(shape: ModelShape, parallel: Parallel, qkv_bias: bool = False) -> tuple[Gemm, ...]:
    """The linear layers of each kind on one GPU. Those of experts are left out: they are one grouped GEMM."""
    tp, hidden = parallel.tp, shape.hidden
    heads, kv_heads = max(1, shape.heads // tp), max(1, shape.kv_heads // tp)
    found: list[Gemm] = []
    if (mla := shape.mla) is None:
        found.append(Gemm("qkv projection", hidden, (heads + 2 * kv_heads) * shape.head_dim, qkv_bias))
        found.append(Gemm("attention output projection", heads * shape.head_dim, hidden))
    else:
        query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        if mla.q_lora_rank is None:
            found.append(Gemm("q projection", hidden, heads * query))
            found.append(Gemm("kv compression", hidden, mla.kv_lora_rank + mla.qk_rope_head_dim))
        else:
            down = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim
            found.append(Gemm("q and kv compression", hidden, down))
            found.append(Gemm("q decompression", mla.q_lora_rank, heads * query))
        found.append(Gemm("kv decompression", mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim)))
        found.append(Gemm("attention output projection", heads * mla.v_head_dim, hidden))
    if shape.intermediate:
        inner = shape.intermediate // tp
        first = "gate_up projection" if shape.gated else "up projection"
        found.append(Gemm(first, hidden, (2 if shape.gated else 1) * inner))
        found.append(Gemm("down projection", inner, hidden))
    if shape.experts is not None:
        found.append(Gemm("router", hidden, shape.experts.total))
    padded = -(-shape.vocab // _VOCAB_PADS_TO) * _VOCAB_PADS_TO
    found.append(Gemm("LM head", hidden, padded // tp))
    return tuple(found)


def _gemms(shape: ModelShape, parallel: Parallel, seen: Seen, qkv_bias: bool) -> Iterator[Case]:
    size = _BYTES[shape.dtype]
    for tokens in seen.tokens:
        for gemm in gemms(shape, parallel, qkv_bias):
            if gemm.name == "LM head" and tokens not in seen.sequences:
                continue
            yield Case(
                f"{gemm.name}, {tokens} tokens",
                f"linear({tokens}, {gemm.k}, {gemm.n}{', bias=True' if gemm.bias else ''})",
                ("linear",),
                size * (tokens * gemm.k + gemm.k * gemm.n + tokens * gemm.n),
                _ORIGIN,
                GemmShape(tokens, gemm.n, gemm.k, size),
            )


def _attention(shape: ModelShape, parallel: Parallel, seen: Seen, _: bool) -> Iterator[Case]:
    if shape.mla is not None:
        return
    heads, kv_heads = max(1, shape.heads // parallel.tp), max(1, shape.kv_heads // parallel.tp)
    size = _BYTES[shape.dtype]
    batches = [(sequences, 1) for sequences in seen.sequences]
    batches += [(1, tokens) for tokens in seen.tokens if tokens not in seen.sequences]
    for window, _layers in shape.windows:
        said = f", window {window}" if window else ""
        for sequences, each in batches:
            length = max(each, seen.kv_tokens if each == 1 else each)
            sizes = f"{sequences}, {each}, {length}, {heads}, {kv_heads}, {shape.head_dim}"
            cached = 2 * size * sequences * (length + seen.block_size) * kv_heads * shape.head_dim
            what = f"{sequences} × {each} query tokens on {length}{said}"
            behind = f", window={window}" if window else ""
            # Where a graph was captured, vLLM bounds the splits; otherwise the kernel chooses them.
            for splits in (32, 0) if each == 1 else (0, 1):
                yield Case(
                    f"vLLM flash attention, {what}, {splits} splits",
                    f"paged_attention({sizes}, block={seen.block_size}, splits={splits}{behind})",
                    ("paged_attention",),
                    cached,
                    _ORIGIN,
                )
            if not window:
                yield Case(f"SDPA, {what}", f"sdpa({sizes})", ("sdpa",), cached, _ORIGIN)


def _kv_write(shape: ModelShape, parallel: Parallel, seen: Seen, _: bool) -> Iterator[Case]:
    if shape.mla is not None:
        return
    kv_heads, size = max(1, shape.kv_heads // parallel.tp), _BYTES[shape.dtype]
    for tokens in seen.tokens:
        blocks = tokens // seen.block_size + 1
        yield Case(
            f"vLLM KV write, {tokens} tokens",
            f"kv_write({tokens}, {kv_heads}, {shape.head_dim}, block={seen.block_size})",
            ("kv_write",),
            2 * size * (tokens + blocks * seen.block_size) * kv_heads * shape.head_dim,
            _ORIGIN,
        )


def _norm(shape: ModelShape, _: Parallel, seen: Seen, __: bool) -> Iterator[Case]:
    for tokens in seen.tokens:
        for fused in (True, False):
            yield Case(
                f"{'fused add and ' if fused else ''}RMS norm, {tokens} tokens",
                f"rms_norm({tokens}, {shape.hidden}, fused={fused})",
                ("rms_norm",),
                3 * _BYTES[shape.dtype] * tokens * shape.hidden,
                _ORIGIN,
            )


def _activation(shape: ModelShape, parallel: Parallel, seen: Seen, _: bool) -> Iterator[Case]:
    if not shape.intermediate or not shape.gated:
        return
    inner = shape.intermediate // parallel.tp
    for tokens in seen.tokens:
        size = 3 * _BYTES[shape.dtype] * tokens * inner
        yield Case(
            f"silu and mul, {tokens} tokens", f"silu_and_mul({tokens}, {inner})", ("silu_and_mul",), size, _ORIGIN
        )


def _rope(shape: ModelShape, parallel: Parallel, seen: Seen, _: bool) -> Iterator[Case]:
    heads, kv_heads = max(1, shape.heads // parallel.tp), max(1, shape.kv_heads // parallel.tp)
    for tokens in seen.tokens:
        yield Case(
            f"rotary embedding, {tokens} tokens",
            f"rotary({tokens}, {heads}, {kv_heads}, {shape.head_dim})",
            ("rotary",),
            _BYTES[shape.dtype] * tokens * (heads + kv_heads) * shape.head_dim,
            _ORIGIN,
        )


def _sampling(shape: ModelShape, _: Parallel, seen: Seen, __: bool) -> Iterator[Case]:
    for rows in seen.sequences:
        for op in ("softmax", "topk", "argmax", "sort"):
            yield Case(
                f"{op} of {rows} rows of logits",
                f'sampling("{op}", {rows}, {shape.vocab})',
                ("sampling",),
                16 * rows * shape.vocab,
                _ORIGIN,
            )


_ORIGIN = "the model's config, its split and the batch sizes seen"
_MAKERS = {
    Family.GEMM: _gemms,
    Family.ATTENTION: _attention,
    Family.KV_WRITE: _kv_write,
    Family.NORM: _norm,
    Family.ACTIVATION: _activation,
    Family.ROPE: _rope,
    Family.SAMPLING: _sampling,
    Family.REDUCTION: _sampling,
}
