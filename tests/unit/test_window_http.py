"""Answers of a server by HTTP status class, per second."""

from __future__ import annotations

from gputop_llm.model import EngineReading, EngineSeries
from gputop_llm.sampling.window import EngineTracker


def tokens(count: float, **fields) -> EngineReading:
    """A page with one series that has generated so many tokens."""
    return EngineReading("vllm", (EngineSeries("m", "0", counters={"generation_tokens": count}),), **fields)


def test_answers_by_status_are_rates_of_the_whole_server_and_a_new_class_had_none_before():
    tracker = EngineTracker()
    windows = [
        tracker.push(tokens(10.0 * i, http=http), 5.0 * i)
        for i, http in enumerate(({"2xx": 100.0}, {"2xx": 110.0}, {"2xx": 120.0, "5xx": 4.0}, {"2xx": 30.0}, {}))
    ]
    assert [window.http_per_s for window in windows] == [{}, {"2xx": 2.0}, {"2xx": 2.0, "5xx": 0.4}, {}, {}]


def test_the_first_answer_ever_gives_no_rate_yet():
    tracker = EngineTracker()
    tracker.push(tokens(0.0), 0.0)
    assert tracker.push(tokens(1.0, http={"5xx": 3.0}), 5.0).http_per_s == {}
