"""A launch's grid (blocks) or block (threads) in one number: x, y and z of each are told apart, 0 is unknown.

CUDA's limits are 2³¹−1 by 65,535 by 65,535, so x takes the lowest 31 bits, y−1 and z−1 16 each above it: a launch in
one dimension is the plain number of its blocks or threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gputop_llm.timeline.model import I64

Extents = tuple[int, int, int]

_X, _Y = 31, 16


def pack(x: I64, y: I64, z: I64) -> I64:
    """Columns of extents as one column; 0 where an extent can't be one."""
    fits = (x > 0) & (x < 1 << _X) & (y > 0) & (y <= 1 << _Y) & (z > 0) & (z <= 1 << _Y)
    packed: I64 = np.where(fits, x | (y - 1) << _X | (z - 1) << (_X + _Y), 0)
    return packed


def packed_of(extents: Any) -> int:
    """[x, y, z] of a file that is not to be trusted as one number; 0 where it is no such list. What lacks is 1."""
    if not isinstance(extents, (list, tuple)) or not 1 <= len(extents) <= 3:
        return 0
    x, y, z = (*extents, 1, 1)[:3]
    if not all(type(extent) is int for extent in (x, y, z)):
        return 0
    if not (0 < x < 1 << _X and 0 < y <= 1 << _Y and 0 < z <= 1 << _Y):
        return 0
    return int(x | (y - 1) << _X | (z - 1) << (_X + _Y))


def extents_of(packed: int) -> Extents | None:
    """(x, y, z); None if unknown."""
    if packed <= 0:
        return None
    return packed & (1 << _X) - 1, (packed >> _X & (1 << _Y) - 1) + 1, (packed >> (_X + _Y)) + 1


def product(packed: I64) -> I64:
    """x·y·z of each; 0 where unknown, or beyond 62 bits."""
    parts = packed & (1 << _X) - 1, (packed >> _X & (1 << _Y) - 1) + 1, (packed >> (_X + _Y)) + 1
    counted: I64 = np.where(np.multiply.reduce(parts, dtype=np.float64) < 1 << 62, np.multiply.reduce(parts), 0)
    return counted
