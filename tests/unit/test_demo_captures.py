"""Captures of the simulated node keep to the bounds of real ones."""

from __future__ import annotations

import pytest

from gputop_llm.demo.captures import SimulatedRoute
from gputop_llm.demo.record import Shape, record
from gputop_llm.errors import UsageError
from gputop_llm.timeline.read_native import read_native
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


@pytest.mark.parametrize("calls", [True, False])
def test_a_window_of_the_gpu_alone_holds_no_api_calls(tmp_path, calls):
    path = tmp_path / "rank0_pid1.gtw"
    with path.open("wb") as file:
        file.writelines(record(Shape(0.01, 0.9, 8), 0.3, 1, calls=calls))
    timeline = read_native([path])

    assert len(timeline.ops.start) > 0
    assert (len(timeline.calls.start) > 0) is calls
