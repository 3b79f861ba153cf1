"""Lines of the submitting thread in idle gaps: counted, with their sampling error, and only where times allow it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from gputop_llm.timeline.model import StackSamples
from gputop_llm.verdict import host, host_lines, idle_left
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.launches import analyse as launches_of
from tests.support.synth import Simulation
from tests.support.synth_timeline import timeline_of

MS = 1_000_000


def gaps(count: int = 60, gap_ns: int = 8 * MS):
    """Bursts of launches with a gap after each, in which the thread does what the record can't tell."""
    simulation = Simulation()
    worker = simulation.host(simulation.process(name="python3"))
    for _ in range(count):
        for _ in range(10):
            worker.launch(7, 20_000, "gemm")
        worker.run(gap_ns)
    return timeline_of(simulation.schedule())


def sampled(timeline, where, *, rate_hz: float = 400.0, error_ns: int = 100_000, hidden: float = 0.0, seed: int = 1):
    """Samples at random moments; `where(offset)` says the stack (position) at a moment of the window."""
    rng = random.Random(seed)
    at, moments = timeline.start, []
    while (at := at + int(rng.expovariate(rate_hz) * 1e9)) < timeline.end:
        moments.append(at)
    stacks = np.asarray([[where(moment - timeline.start)] for moment in moments], dtype=np.int32)
    samples = StackSamples(
        process=0,
        time=np.asarray(moments, dtype=np.int64),
        threads=np.zeros(1, dtype=np.int32),
        at=stacks,
        stacks=((0, 2), (1, 2), (3, 2)),
        calls=("schedule (vllm/s.py:10)", "detokenize (vllm/d.py:20)", "run (vllm/c.py:1)", "launch (vllm/l.py:5)"),
        rate_hz=rate_hz,
        taken=len(moments) + hidden,
        error_ns=error_ns,
        errors=0,
    )
    return Context(replace(timeline, samples=(samples,)))


def half_and_half(timeline):
    """In the gaps the thread is at one line for their first three quarters, then at another; else it launches."""
    context = Context(timeline)
    found = context.idle[0].gaps
    long = found.length > MS

    def where(offset):
        at = timeline.start + offset
        inside = long & (found.start <= at) & (at < found.end)
        if not inside.any():
            return 2
        row = int(np.flatnonzero(inside)[0])
        return 0 if at - found.start[row] < 0.75 * found.length[row] else 1

    return where


def test_lines_have_their_shares_of_the_gaps_within_the_error_that_is_told():
    timeline = gaps()
    lines = host_lines.lines_of(sampled(timeline, half_and_half(timeline)), 0)

    assert lines is not None
    assert lines.in_gaps
    shares = {line.call: lines.pct(line) for line in lines.lines}
    errors = {line.call: lines.error_pct(line) for line in lines.lines}
    assert set(shares) <= {"schedule (vllm/s.py:10)", "detokenize (vllm/d.py:20)"}
    for call, true in (("schedule (vllm/s.py:10)", 75.0), ("detokenize (vllm/d.py:20)", 25.0)):
        assert shares[call] == pytest.approx(true, abs=1.5 * errors[call])
        assert 3.0 < errors[call] < 12.0
    assert lines.top.caller == "run (vllm/c.py:1)"


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    timeline = gaps()
    where = half_and_half(timeline)
    inside = 0
    for seed in range(60):
        lines = host_lines.lines_of(sampled(timeline, where, seed=seed), 0)
        assert lines is not None
        inside += abs(lines.pct(lines.top) - 75.0) <= lines.error_pct(lines.top)
    assert inside >= 51


def test_more_samples_make_the_error_smaller():
    timeline = gaps()
    few, many = (host_lines.lines_of(sampled(timeline, lambda _: 0, rate_hz=rate), 0) for rate in (100.0, 1000.0))

    assert few is not None
    assert many is not None
    assert many.error_pct(many.top) < few.error_pct(few.top)


def test_gaps_that_are_too_short_for_the_clock_are_not_joined_and_that_is_said():
    timeline = gaps(count=600, gap_ns=300_000)
    lines = host_lines.lines_of(sampled(timeline, lambda _: 0, error_ns=2 * MS), 0)

    assert lines is not None
    assert not lines.in_gaps
    assert "the gaps are too short" in host_lines.cause(lines)


def test_samples_that_saw_nothing_move_count_where_the_thread_stood():
    timeline = gaps(count=20, gap_ns=40 * MS)
    seen = host_lines.lines_of(sampled(timeline, lambda _: 0, rate_hz=50.0), 0)
    more = host_lines.lines_of(sampled(timeline, lambda _: 0, rate_hz=50.0, hidden=200.0), 0)

    assert seen is not None
    assert more is not None
    assert more.samples > seen.samples + 100
    assert more.pct(more.top) == pytest.approx(100.0)


def test_too_few_samples_or_none_name_no_line():
    timeline = gaps(count=20)
    assert host_lines.lines_of(Context(timeline), 0) is None
    assert host_lines.lines_of(sampled(timeline, lambda _: 0, rate_hz=20.0), 0) is None
    assert host_lines.facts(None, Context(timeline)) == ()
    assert host_lines.cause(None) == ""


def test_a_finding_says_the_line_with_its_error():
    timeline = gaps()
    context = sampled(timeline, half_and_half(timeline))
    launches = launches_of(context)
    found = host.findings(host.analyse(context, launches), context)
    found += idle_left.findings(context, launches, found)

    finding = found[0]
    told = next(fact for fact in finding.facts if fact.name == "at schedule (vllm/s.py:10)")
    assert told.plus_minus is not None
    assert told.text == "called by run (vllm/c.py:1)"
    assert "in these gaps it was at schedule (vllm/s.py:10) in " in finding.cause
    assert finding.next_capture is None or "py-spy" not in finding.next_capture
