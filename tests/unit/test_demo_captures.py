"""Captures of the simulated node keep to the bounds of real ones."""

from __future__ import annotations

import pytest

from gputop_llm.demo.captures import SimulatedRoute
from gputop_llm.errors import UsageError
from tests.support import frames


@pytest.mark.parametrize("seconds", [0.0, 0.01, 61.0, 900.0])
def test_a_window_beyond_the_bounds_is_refused(seconds):
    frame = frames.one_gpu_loaded()
    route = SimulatedRoute()
    with pytest.raises(UsageError, match=r"from 0\.05 to 60 s"):
        route.plan(frame, frame.focused, seconds)
    route.close()


def test_a_route_that_there_is_none_of_is_refused():
    frame = frames.one_gpu_loaded()
    route = SimulatedRoute()
    with pytest.raises(UsageError, match="there is no route nonsense"):
        route.plan(frame, frame.focused, route="nonsense")
    route.close()
