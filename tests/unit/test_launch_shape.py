"""Grids and blocks in one number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.timeline.launch_shape import extents_of, pack, packed_of, product

extents = st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 65_536), st.integers(1, 65_536))


@given(extents, extents)
def test_every_launch_comes_back_and_no_two_are_one(one, other):
    assert extents_of(packed_of(one)) == one
    assert (packed_of(one) == packed_of(other)) is (one == other)
    assert pack(*np.array([one, other]).T).tolist() == [packed_of(one), packed_of(other)]
    blocks = one[0] * one[1] * one[2]
    assert product(np.array([packed_of(one)])).tolist() == [blocks if blocks < 2**62 else 0]


@pytest.mark.parametrize("other", [None, [], [0, 1, 1], [1, -1, 1], [2**31, 1, 1], [1, 1, 1, 1], ["8", 1, 1], [True]])
def test_what_is_no_launch_is_unknown(other):
    assert packed_of(other) == 0
    assert extents_of(0) is None
    assert product(np.array([0])).tolist() == [0]
