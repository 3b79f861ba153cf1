"""The kernels of some cases, in Triton. Imported only where a GPU is used."""

from typing import Any

import torch
import triton
import triton.language as tl

#: Columns of what `context_sum` adds up.
COLUMNS = 128
_ROWS_AT_ONCE = 64
_GEMV_ROWS, _GEMV_COLUMNS = 8, 1024


@triton.jit
def _gemv(row, weight, scale, out, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, WIDTH, COLS):
        cols = start + tl.arange(0, COLS)
        x = tl.load(row + cols).to(tl.float32)
        w = tl.load(weight + rows[:, None] * WIDTH + cols[None, :]).to(tl.float32)
        total += tl.sum(w * x[None, :], axis=1)
    tl.store(out + rows, total * tl.load(scale + rows).to(tl.float32))


def gemv(row: Any, weight: Any, scale: Any) -> Any:
    """[1, width] times [rows, width] transposed, each row of it scaled: [1, rows]. The weights may be bf16 or int8."""
    rows, width = weight.shape
    out = torch.empty(1, rows, device=row.device, dtype=row.dtype)
    _gemv[(rows // _GEMV_ROWS,)](row, weight, scale, out, WIDTH=width, ROWS=_GEMV_ROWS, COLS=_GEMV_COLUMNS)
    return out


@triton.jit
def _context_sum(cache, out, LENGTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):  # type: ignore[no-untyped-def]
    piece = tl.program_id(0)
    cols = tl.arange(0, COLS)
    total = tl.zeros((COLS,), dtype=tl.float32)
    # Pieces begin beyond what 32 bits address.
    start = cache + piece.to(tl.int64) * LENGTH * COLS
    for first in range(0, LENGTH, ROWS):
        rows = first + tl.arange(0, ROWS)
        total += tl.sum(tl.load(start + rows[:, None] * COLS + cols[None, :]).to(tl.float32), axis=0)
    tl.store(out + piece * COLS + cols, total)


def context_sum(cache: Any) -> Any:
    """Adds up the rows of each piece, by one block a piece: [pieces, length, COLUMNS] → [pieces, COLUMNS]."""
    pieces, length, _ = cache.shape
    out = torch.empty(pieces, COLUMNS, device=cache.device, dtype=torch.float32)
    _context_sum[(pieces,)](cache, out, LENGTH=length, ROWS=_ROWS_AT_ONCE, COLS=COLUMNS)
    return out


@triton.jit
def _chase(table, out, turns):  # type: ignore[no-untyped-def]
    at = tl.program_id(0)
    for _ in range(turns):
        at = tl.load(table + at)
    tl.store(out + tl.program_id(0), at)


def chase(table: Any, out: Any, turns: int) -> None:
    """Follows a table of positions (int32) from 0, 1, 2, … for so many turns, by a block of 1,024 threads for each
    element of `out`: one load waits for the other, whoever else is on the SM.
    """
    _chase[(len(out),)](table, out, turns, num_warps=32)


@triton.jit
def _residual_norm_quant(hidden, residual, weight, out, epsilon, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, WIDTH)
    added = tl.load(hidden + row * WIDTH + cols).to(tl.float32) + tl.load(residual + row * WIDTH + cols).to(tl.float32)
    normed = added / tl.sqrt(tl.sum(added * added, axis=0) / WIDTH + epsilon) * tl.load(weight + cols).to(tl.float32)
    size = tl.max(tl.abs(normed), axis=0) / 127.0
    tl.store(out + row * WIDTH + cols, tl.floor(normed / size + 0.5).to(tl.int8))


def residual_norm_quant(hidden: Any, residual: Any, weight: Any, epsilon: float) -> Any:
    """The sum of two [tokens, width] (width a power of two), normed and in 8 bits with a scale for each row."""
    tokens, width = hidden.shape
    out = torch.empty(tokens, width, device=hidden.device, dtype=torch.int8)
    _residual_norm_quant[(tokens,)](hidden, residual, weight, out, epsilon, WIDTH=width, num_warps=16)
    return out
