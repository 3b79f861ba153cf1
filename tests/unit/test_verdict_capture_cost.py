"""What a capture cost: token rate against its own swing, inter-token tail, longest step, slow recovery."""

from __future__ import annotations

import pytest

from gputop_llm.demo.record import Shape, record
from gputop_llm.model.finding import Weight
from gputop_llm.timeline.read_native import read_native
from gputop_llm.verdict import capture_cost
from gputop_llm.verdict.assemble import judge
from gputop_llm.verdict.context import Context
from tests.support.bundles import pace, steps_schedule
from tests.support.synth import Simulation
from tests.support.synth_timeline import timeline_of
from tests.support.timelines import fact

TIMELINE = timeline_of(steps_schedule())


def cost(engine=None):
    (note, *rest) = capture_cost.findings(Context(TIMELINE), engine)
    return note, rest


def swinging(at):
    """An engine whose rate swings by a tenth within tens of seconds."""
    return 1000.0 if at // 10 % 2 else 900.0


def test_a_loss_is_given_with_the_swing_that_the_engine_has_by_itself():
    note, rest = cost(pace(lambda at: 500.0 if 0 <= at < 5 else swinging(at), recovered=True))

    before, lost = fact(note, "token rate before"), fact(note, "token rate missing around the window")
    assert before.value == pytest.approx(950, rel=0.01)
    assert 0 < before.plus_minus < 60
    assert lost.value == pytest.approx(47, abs=1)
    assert lost.plus_minus == pytest.approx(100 * before.plus_minus / before.value)
    assert note.weight is Weight.NOTE
    assert "-47" in note.headline
    assert rest == []


def test_a_rate_that_rose_is_no_loss():
    note, _ = cost(pace(lambda at: 1100.0 if at >= 0 else 1000.0))

    assert fact(note, "token rate missing around the window").value == pytest.approx(-10, abs=0.5)
    assert "+10.0 %" in note.headline


def test_the_tail_of_inter_token_times_shows_a_stall_that_the_rate_hides():
    note, _ = cost(pace(lambda at: 1000.0, itl=lambda at: 0.4 if 0 <= at < 0.5 else 0.008))

    longest = {
        when: fact(note, f"inter-token time {when}, longest at most")
        for when in ("before", "around the window", "after")
    }
    assert [longest[when].value for when in longest] == [10.0, 500.0, 10.0]
    assert "250 ms to 500 ms" in longest["around the window"].text


def test_the_longest_step_of_the_record_is_told_beside_the_usual_one():
    simulation = Simulation()
    host = simulation.host()
    for step in range(30):
        host.launch(7, 400_000, "gemm")
        host.launch(7, 100_000, "topk_topp_sampling_kernel")
        host.run(40_000_000 if step == 20 else 900_000)
        host.sync(7)
    (note,) = capture_cost.findings(Context(timeline_of(simulation.schedule())), None)

    assert fact(note, "longest step in the record").value == pytest.approx(40, abs=1)
    assert fact(note, "usual step in the record").value == pytest.approx(0.9, abs=0.2)


def test_an_engine_that_was_not_watched_is_not_measured_and_nothing_is_zero():
    note, rest = cost()

    assert note.headline.startswith("What the capture cost the engine is not measured")
    assert {f.value for f in note.facts if "step" not in f.name} == {None}
    assert rest == []


def test_a_counter_that_began_anew_gives_no_rate():
    engine = pace(lambda at: 1000.0 if at != 0.5 else -2_000_000.0)
    note, _ = cost(engine)

    assert fact(note, "token rate missing around the window").value is None
    assert note.headline.startswith("What the capture cost the engine is not measured")


def test_an_engine_that_is_not_back_within_ten_seconds_is_a_finding_of_its_own():
    engine = pace(lambda at: 1000.0 if at < 0 else 300.0, recovered=False)
    verdict = judge(TIMELINE, pace=engine)

    first = verdict.findings[0]
    assert (first.id, first.weight) == ("not-recovered", Weight.SEVERE)
    assert verdict.headline == first.headline
    assert "300 tokens/s instead of 1,000 (30 %)" in first.headline
    assert verdict.healthy is False


def test_an_engine_that_stays_slow_after_its_api_calls_were_recorded_is_told_that_this_stays():
    slow = pace(lambda at: 1000.0 if at < 0 else 700.0, recovered=False)
    finding = judge(timeline_of(steps_schedule(), "native"), pace=slow).findings[0]

    assert "leaves CUDA calls slower until the process ends" in finding.cause
    assert [("restart" in one.text, "--with gpu" in one.text) for one in finding.advice] == [
        (True, False),
        (False, True),
    ]


def test_one_that_stays_slow_after_the_gpu_alone_was_recorded_is_told_so_too(tmp_path):
    path = tmp_path / "rank0_pid1.gtw"
    path.write_bytes(b"".join(record(Shape(0.01, 0.9, 8), 0.3, 1, calls=False)))
    slow = pace(lambda at: 1000.0 if at < 0 else 700.0, recovered=False)
    (_, finding) = capture_cost.findings(Context(read_native([path])), slow)

    assert "leaves CUDA calls slower" in finding.cause
    assert ["restart" in one.text for one in finding.advice] == [True]


def test_watching_that_was_given_up_too_soon_says_nothing_of_recovery():
    _, rest = cost(pace(lambda at: 1000.0 if at < 0 else 300.0, recovered=False, seconds=(-40.0, 4.0)))

    assert rest == []


def test_a_capture_that_cannot_be_judged_still_says_that_the_engine_stays_slow():
    simulation = Simulation()
    simulation.host().launch(7, 1000, "gemm")
    verdict = judge(
        timeline_of(simulation.schedule()), pace=pace(lambda at: 100.0 if at > 0 else 900.0, recovered=False)
    )

    assert verdict.judged is False
    assert [finding.id for finding in verdict.findings] == ["not-recovered"]


@pytest.mark.parametrize("recorder", ["nsys", "kineto"])
def test_captures_of_other_tools_are_not_told_what_nobody_asked(recorder):
    timeline = timeline_of(steps_schedule(), recorder)

    assert capture_cost.findings(Context(timeline), None) == []
