"""What is healthy is learnt from healthy time only, and known for the loads that were seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_llm.model import Frame
from gputop_llm.symptoms.baseline import DISTURBING, QUARANTINE_S, STEP_S, LearningBaseline, PastKey
from gputop_llm.symptoms.engine import SymptomEngine
from gputop_llm.symptoms.past import LEAST, MOST_BUCKETS, POINTS, Bucket, Past, bucket_key
from gputop_llm.symptoms.rules import tpot
from gputop_llm.symptoms.view import NodeView
from tests.support.symptom_frames import MODEL, SUBJECT, busy, changing, healthy_live, limits

H200 = PastKey("vllm", MODEL, "1x NVIDIA H200")
ITL = "itl_p95_s"


def learnt(frames: list[Frame], suspect=lambda second: (), learner: LearningBaseline | None = None) -> LearningBaseline:
    """What is known after these frames; `suspect` gives the rules whose condition holds in a second."""
    learner = learner or LearningBaseline()
    for second, frame in enumerate(frames):
        view = NodeView([frame], learner)
        learner.follow(view)
        learner.learn(view, {SUBJECT: suspect(second)})
    return learner


def usual(learner: LearningBaseline, frame: Frame, metric: str = ITL) -> float | None:
    """The baseline at the load of a frame."""
    view = NodeView([frame], learner)
    learner.follow(view)
    return learner(view.engines[0], view.engines[0].models[0], metric)


def samples(learner: LearningBaseline, metric: str = ITL) -> list[float]:
    """All values that were learnt of a metric."""
    return [v for past in learner._pasts.values() for b in past.buckets.values() for v in b.values[metric]]


# -- learning -----------------------------------------------------------------


def test_the_median_of_healthy_windows_is_known_after_two_minutes_and_a_quarantine():
    frames = busy(200)
    enough = int(LEAST * STEP_S + QUARANTINE_S)
    assert usual(learnt(frames[: enough - 5]), frames[enough - 5]) is None
    known = learnt(frames[: enough + 15])
    assert usual(known, frames[enough + 15]) == pytest.approx(0.028)
    assert usual(known, frames[-1], "generation_tokens_per_s") == pytest.approx(3200)
    assert usual(known, frames[-1], "ttft_mean_s") == pytest.approx(1.05 * 0.7 * 0.18)
    assert usual(known, frames[-1], "prefix_hit_pct") == pytest.approx(45)


def test_a_figure_that_is_not_on_the_page_stays_unknown():
    frames = busy(200, lat={"itl": None})
    known = learnt(frames)
    assert usual(known, frames[-1]) is None
    assert usual(known, frames[-1], "ttft_p95_s") is not None


def test_one_sample_a_window_is_taken_however_fast_frames_come():
    slow, fast = busy(300), [f for f in busy(300) for _ in range(4)]
    for i, frame in enumerate(fast):
        fast[i] = replace(frame, mono_s=frame.mono_s + 0.25 * (i % 4), at_s=frame.at_s + 0.25 * (i % 4))
    assert len(samples(learnt(slow))) == len(samples(learnt(fast))) == 26


@pytest.mark.parametrize("rule", sorted(DISTURBING))
def test_nothing_is_learnt_while_a_condition_that_disturbs_holds_raised_or_not(rule):
    assert samples(learnt(busy(300), lambda s: {rule})) == []


@pytest.mark.parametrize("rule", ["bandwidth-bound", "compute-bound", "underloaded", "host-bound", "gpu-starved"])
def test_how_an_engine_always_works_is_no_disturbance(rule):
    assert samples(learnt(busy(300), lambda s: {rule}))


def test_neither_the_moments_before_an_incident_nor_the_window_after_it_are_learnt():
    # The latency rises 8 s before any rule notices, and falls a window after the last one is quiet.
    frames = busy(400, lat={"itl": lambda s: 0.2 if 192 <= s < 260 else 0.028})
    known = learnt(frames, lambda s: {"tpot-high"} if 200 <= s < 250 else ())
    assert max(samples(known)) == pytest.approx(0.2)
    known = learnt(frames, lambda s: {"tpot-high"} if 200 <= s < 260 else ())
    assert max(samples(known)) == pytest.approx(0.028)


def test_longer_windows_are_kept_in_quarantine_for_longer():
    # A window of 60 s shows an incident of 20 s for 80 s; the rules notice when it is half over.
    frames = busy(900, live={"window_s": 60.0, "tokens_per_step": float})
    taken = samples(learnt(frames, lambda s: {"tpot-high"} if 500 <= s < 580 else ()), "tokens_per_step")
    assert not [second for second in taken if 420 <= second < 639]
    assert [second for second in taken if second >= 639]


def test_a_page_that_can_not_be_read_and_a_restart_disturb():
    failing = busy(300, scrape={"error": "connection refused"})
    restarted = busy(300, live={"restarted": True})
    assert samples(learnt(failing)) == samples(learnt(restarted)) == []


def test_an_idle_engine_teaches_nothing():
    assert samples(learnt(busy(300, live={"running": 0.0}))) == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), min_size=1, max_size=12))
def test_no_sample_is_learnt_from_within_or_near_a_disturbance(segments):
    disturbed = [bad for bad, seconds in segments for _ in range(seconds)]
    # The figure tells when a sample was taken.
    frames = busy(len(disturbed), live={"tokens_per_step": float})
    learner = learnt(frames, lambda s: {"stalled"} if disturbed[s] else ())
    for taken in map(int, samples(learner, "tokens_per_step")):
        assert not any(disturbed[max(0, taken - int(STEP_S) + 1) : taken + int(QUARANTINE_S) + 1])
        assert taken + QUARANTINE_S < len(disturbed)


# -- an incident, through the rules ---------------------------------------------


def judged(frames: list[Frame], learner: LearningBaseline, **overrides: float) -> dict[int, str]:
    """Second → headline, while tpot-high is raised."""
    engine = SymptomEngine(tpot.RULES, limits(overrides), learner=learner)
    found = {}
    for i in range(len(frames)):
        for symptom in engine.update(frames[max(0, i - 20) : i + 1]).active:
            found[i] = symptom.headline
    return found


def test_three_times_the_usual_is_raised_without_any_slo_and_is_never_learnt():
    # 28 ms is usual. 84 ms is under the 100 ms that hold where nothing is known.
    incident = range(300, 900)
    frames = busy(1200, lat={"itl": lambda s: 0.084 if s in incident else 0.028})
    learner = LearningBaseline()
    before: list[float | None] = []
    found = judged(frames[:300], learner)
    before.append(usual(learner, frames[299]))
    assert found == {}
    learner = LearningBaseline()
    found = judged(frames, learner)
    assert 300 < min(found) <= 311
    assert 900 <= max(found) <= 911
    assert set(range(min(found), max(found))) <= set(found), "raised all the time, as long as it lasts"
    assert "3.0× the usual 28 ms" in found[400]
    assert usual(learner, frames[-1]) == pytest.approx(before[0])
    assert max(samples(learner)) == pytest.approx(0.028)


def test_an_slo_wins_over_what_is_usual():
    frames = busy(500, lat={"itl": lambda s: 0.084 if s >= 300 else 0.028})
    assert judged(frames, LearningBaseline(), **{"tpot-high.p95_s": 0.09}) == {}
    found = judged(frames, LearningBaseline(), **{"tpot-high.p95_s": 0.05})
    assert min(found) <= 311
    assert "SLO 50 ms" in found[400]


def test_more_running_requests_that_get_no_more_done_are_compared_with_the_lighter_load():
    # Open-loop clients: at three times the latency three times as many requests are running.
    frames = busy(
        700,
        live={"running": lambda s: 190.0 if s >= 310 else 64.0},
        lat={"itl": lambda s: 0.084 if s >= 300 else 0.028},
    )
    learner = LearningBaseline()
    found = judged(frames, learner)
    assert min(found) <= 312
    assert max(found) == 699
    assert max(samples(learner)) == pytest.approx(0.028)


def test_a_heavier_load_that_gets_more_done_is_a_load_of_its_own():
    frames = busy(
        800,
        live={
            "running": lambda s: 190.0 if s >= 300 else 64.0,
            "generation_tokens_per_s": lambda s: 6000.0 if s >= 300 else 3200.0,
        },
        lat={"itl": lambda s: 0.05 if s >= 300 else 0.028},
    )
    learner = LearningBaseline()
    assert judged(frames, learner) == {}
    assert usual(learner, frames[-1]) == pytest.approx(0.05)


# -- loads ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [{"running": 130.0}, {"mean_prompt_tokens": 4500.0}, {"mean_generation_tokens": 2100.0}]
)
def test_loads_that_differ_by_a_factor_of_two_are_learnt_apart(other):
    # Load and lengths are smoothed, so each phase lasts; only its end is looked at.
    frames = busy(
        1300,
        live={name: changing((0, getattr(healthy_live(), name)), (500, value)) for name, value in other.items()},
        lat={"itl": lambda s: 0.06 if s >= 500 else 0.028},
    )
    learner = learnt(frames, lambda s: {"tpot-high"} if 500 <= s < 900 else ())
    assert usual(learner, frames[-1]) == pytest.approx(0.06)
    assert len({key for past in learner._pasts.values() for key in past.buckets}) == 2
    assert sorted({round(v, 3) for v in samples(learner)}) == [0.028, 0.06]


def filled(**medians: float) -> Past:
    """A past whose buckets, by load ("at_6"), have these latencies; 1000 tok/s are generated at each."""
    past = Past()
    for name, value in medians.items():
        for i in range(LEAST):
            sample = {ITL: value, "generation_tokens_per_s": 1000.0, "prefix_hit_pct": 40.0}
            past.add(bucket_key(2.0 ** int(name[3:]), 1000.0, 300.0), 1e9 + i, sample)
    return past


@pytest.mark.parametrize(
    ("known", "tokens", "expected"),
    [
        ({"at_6": 0.03}, 1000.0, 0.03),
        ({"at_7": 0.05}, 1000.0, 0.05),
        ({"at_8": 0.07}, 9999.0, 0.07),
        ({"at_9": 0.09}, 1000.0, None),
        ({"at_5": 0.02}, 1200.0, 0.02),
        ({"at_5": 0.02}, 1300.0, None),
        ({"at_5": 0.02}, None, None),
        ({"at_3": 0.01}, 1000.0, 0.01),
        ({"at_2": 0.01}, 1000.0, None),
        ({"at_5": 0.02, "at_7": 0.05}, 1000.0, 0.05),
        ({}, 1000.0, None),
    ],
)
def test_a_load_not_seen_yet_borrows_only_where_that_is_sound(known, tokens, expected):
    found = filled(**known).median(bucket_key(64, 1000.0, 300.0), ITL, tokens)
    assert found == (None if expected is None else pytest.approx(expected))


def test_rates_and_shares_are_never_borrowed():
    past = filled(at_7=0.05, at_5=0.02)
    for metric in ("generation_tokens_per_s", "prefix_hit_pct"):
        assert past.median(bucket_key(64, 1000.0, 300.0), metric, 1000.0) is None
        assert past.median(bucket_key(32, 1000.0, 300.0), metric, 1000.0) is not None


def test_lengths_that_are_not_known_are_a_bucket_of_their_own():
    assert bucket_key(64, None, None) not in filled(at_6=0.03).buckets
    frames = busy(200, live={"mean_prompt_tokens": None, "mean_generation_tokens": None})
    assert usual(learnt(frames), frames[-1]) == pytest.approx(0.028)


def test_lengths_are_remembered_while_no_request_ends():
    frames = busy(400, live={"mean_prompt_tokens": lambda s: 1600.0 if s < 300 else None})
    known = learnt(frames)
    assert len({key for past in known._pasts.values() for key in past.buckets}) == 1


def test_a_rank_of_several_has_no_baseline_since_its_load_is_another():
    frames = busy(250, ranks=[{"running": 32.0}, {"running": 32.0}])
    learner = learnt(frames)
    view = NodeView([frames[-1]], learner)
    engine = view.engines[0]
    assert learner(engine, engine.models[0], ITL) is not None
    assert learner(engine, engine.ranks[1], ITL) is None


def test_each_model_of_a_page_has_its_own():
    frames = busy(250, models={"a": {"lat": {"itl": 0.02}}, "b": {"lat": {"itl": 0.04}}})
    learner = learnt(frames)
    view = NodeView([frames[-1]], learner)
    assert [learner(view.engines[0], live, ITL) for live in view.engines[0].models] == pytest.approx([0.02, 0.04])


# -- bounds, restart --------------------------------------------------------------


def test_memory_is_bounded_by_points_buckets_and_pasts():
    bucket = Bucket()
    for i in range(3 * POINTS):
        bucket.add(1e9 + i, {ITL: 0.001 * i})
    assert {len(column) for column in (bucket.at_s, *bucket.values.values())} == {POINTS}
    assert bucket.median(ITL) == pytest.approx(0.001 * (2.5 * POINTS - 0.5))
    past = Past()
    for load in range(3 * MOST_BUCKETS):
        past.add(bucket_key(2.0**load, None, None), 1e9 + load, {ITL: 1.0})
    assert len(past.buckets) == MOST_BUCKETS
    assert min(key.load for key in past.buckets) == 2 * MOST_BUCKETS, "the one used longest ago went first"
    learner = LearningBaseline()
    for i in range(60):
        learnt(busy(3, target={"model": f"m{i}"}, models={f"m{i}": {}, f"n{i}": {}}), learner=learner)
    assert len(learner._pasts) <= 18
    learnt(busy(3, models={f"model-{i}": {} for i in range(500)}), learner=learner)
    assert len(learner._streams) <= 500, "as many as the page names now"
    assert len(learner._pasts) <= 18


def test_samples_older_than_a_week_are_forgotten():
    past = filled(at_6=0.03)
    key = bucket_key(64, 1000.0, 300.0)
    past.add(key, 1e9 + 8 * 86_400, {ITL: 0.09})
    assert past.median(key, ITL, None) is None
    assert Past.from_plain(past.plain(), now_s=1e9 + 30 * 86_400).buckets == {}


def test_what_was_learnt_survives_a_restart_of_the_monitor_and_of_the_engine():
    frames = busy(300)
    first = learnt(frames)
    assert first.wanted() == [H200]
    stored = first.changed()
    assert list(stored) == [H200]
    assert first.changed() == {}, "nothing new"
    second = LearningBaseline()
    learnt(frames[:1], learner=second)
    second.adopt(H200, stored[H200], now_s=frames[-1].at_s)
    assert usual(second, frames[-1]) == pytest.approx(0.028, rel=1e-3)
    assert second.changed() == {}, "what was only read is not written again"
    reborn = [
        replace(
            f,
            engines=tuple(replace(e, target_key="new") for e in f.engines),
            targets=replace(
                f.targets,
                value=replace(f.targets.value, targets=tuple(replace(t, key="new") for t in f.targets.value.targets)),
            ),
        )
        for f in busy(5)
    ]
    learnt(reborn, learner=first)
    assert usual(first, reborn[-1]) == pytest.approx(0.028)


def test_another_model_or_other_gpus_have_another_past():
    learner = learnt(busy(300))
    assert usual(learner, busy(1, gpus=2)[0]) is None
    assert usual(learner, busy(1, gpu={"name": "NVIDIA L40S"})[0]) is None
    assert usual(learner, busy(1, live={"model": "other"})[0]) is None
    assert usual(learner, busy(1)[0]) is not None


def test_what_was_learnt_meanwhile_is_not_replaced_by_what_is_read_late():
    frames = busy(300)
    learner = learnt(frames)
    before = usual(learner, frames[-1])
    learner.adopt(H200, filled(at_6=9.0).plain(), now_s=1e9)
    assert usual(learner, frames[-1]) == before


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["load", "prompt", "output", "at_s", "values", ITL, "x"]), inner, max_size=6
            )
        ),
        max_leaves=30,
    )
)
def test_anything_stored_is_either_a_past_or_refused(plain):
    try:
        past = Past.from_plain(plain, now_s=1e9)
    except ValueError:
        return
    for bucket in past.buckets.values():
        assert len(bucket.at_s) == len(bucket.values[ITL])


@pytest.mark.parametrize(
    "changed",
    [
        {"load": "6"},
        {"load": 1e9},
        {"load": True},
        {"at_s": [1.0]},
        {"values": {ITL: [float("nan")] * LEAST}},
        {"values": {ITL: [-1.0] * LEAST}},
        {"values": {ITL: ["x"] * LEAST}},
        {"values": None},
    ],
)
def test_a_stored_past_that_was_tampered_with_is_refused(changed):
    (plain,) = filled(at_6=0.03).plain()
    assert Past.from_plain([plain], now_s=1e9).buckets
    with pytest.raises(ValueError, match="not a baseline"):
        Past.from_plain([{**plain, **changed}], now_s=1e9)


def test_the_stream_of_an_engine_that_went_is_forgotten():
    learner = learnt(busy(5))
    learnt([replace(busy(1)[0], engines=())], learner=learner)
    assert learner._streams == {}
