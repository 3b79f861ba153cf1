"""History cut into stretches: right means, stable cells, few reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.sampling.history import History
from gputop_llm.tui.trails import Trails
from tests.support import frames

NAME = "gpu.0.util_pct"


def frame_at(second, util):
    gpu = replace(frames.h200(), util_pct=util)
    return replace(frames.one_gpu_loaded(), mono_s=float(second), gpus=frames.part(frames.node([gpu])))


def played(seconds, values):
    history = History()
    trails = Trails(history)
    frame = None
    for second, value in zip(seconds, values, strict=True):
        frame = frame_at(second, value)
        history.append(frame)
        trails.at(frame, frame)
        yield trails
    assert frame is not None


def test_a_stretch_is_the_mean_of_its_known_seconds():
    *_, trails = played(range(100, 106), [10.0, 20.0, 30.0, 40.0, None, 60.0])
    assert trails.values(NAME, 3, 2) == [15.0, 35.0, 60.0]


def test_what_was_never_seen_is_unknown():
    *_, trails = played(range(100, 102), [10.0, 20.0])
    assert trails.values(NAME, 3, 2) == [None, None, 15.0]
    assert trails.values("no such series", 3, 2) == [None, None, None]


@pytest.mark.parametrize("slots", [1, 2, 3, 7])
def test_reading_each_second_gives_the_same_as_reading_once(slots):
    seconds, values = range(1000, 1100), [float(n % 13) for n in range(100)]
    for trails in played(seconds, values):
        stepwise = trails.values(NAME, 20, slots)
    *_, fresh = played(seconds, values)
    assert stepwise == fresh.values(NAME, 20, slots)


def test_old_stretches_never_change():
    seen: dict[int, float] = {}
    for second, trails in enumerate(played(range(1000, 1080), [float(n * 7 % 101) for n in range(80)]), 1000):
        newest = second // 4
        for back, value in enumerate(reversed(trails.values(NAME, 10, 4))):
            if back and value is not None and newest - back > 1000 // 4:
                assert seen.setdefault(newest - back, value) == value
    assert len(seen) > 15


def test_pairs_keep_two_stretches_in_the_same_cell():
    lengths = {len(trails.pairs(NAME, 5, 3)) for trails in played(range(1000, 1040), [1.0] * 40)}
    assert lengths == {9, 10}


def test_missed_frames_leave_a_gap_not_an_old_value():
    *_, trails = played([100, 101, 180, 181], [10.0, 10.0, 50.0, 50.0])
    values = trails.values(NAME, 42, 2)
    assert values[-1] == 50.0
    assert values[1] is None or values[1] == 10.0
    assert None in values


def test_a_paused_view_sees_history_up_to_its_own_frame():
    history = History()
    trails = Trails(history)
    shown = [frame_at(s, 10.0) for s in range(100, 120)]
    for frame in shown:
        history.append(frame)
    later = [frame_at(s, 90.0) for s in range(120, 140)]
    for frame in later:
        history.append(frame)
    trails.at(shown[-1], later[-1])
    assert trails.values(NAME, 20, 1) == [10.0] * 20


def test_going_back_in_time_starts_over():
    history = History()
    trails = Trails(history)
    for frame in [frame_at(s, float(s)) for s in range(100, 120)]:
        history.append(frame)
    newest = frame_at(119, 119.0)
    trails.at(newest, newest)
    assert trails.values(NAME, 2, 1) == [118.0, 119.0]
    trails.at(frame_at(110, 110.0), newest)
    assert trails.values(NAME, 2, 1) == [109.0, 110.0]


def test_the_scale_of_time_grows_with_what_is_known_up_to_five_minutes():
    lengths = [trails.stretch(50) for trails in played(range(1000, 1400), [1.0] * 400)]
    assert lengths[0] == 1
    assert lengths[60] == 2
    assert lengths[-1] == 6
    assert lengths == sorted(lengths)


def test_a_history_that_is_there_already_counts_as_known():
    history = History()
    for second in range(1000, 1400):
        history.append(frame_at(second, 1.0))
    trails = Trails(history)
    frame = frame_at(1400, 1.0)
    history.append(frame)
    trails.at(frame, frame)
    assert trails.stretch(50) == 6


def test_the_usual_is_the_median_and_is_looked_up_seldom():
    looked = []

    class Counting(History):
        def median(self, name, points):
            looked.append(name)
            return super().median(name, points)

    history = Counting()
    trails = Trails(history)
    for second in range(1000, 1060):
        frame = frame_at(second, float(second % 3))
        history.append(frame)
        trails.at(frame, frame)
        usual = trails.usual(NAME)
    assert usual == 1.0
    assert len(looked) <= 9


def test_charts_of_the_first_minutes_are_not_kept_for_ever():
    for trails in played(range(1000, 1400), [50.0] * 400):
        trails.values(NAME, 14, trails.stretch(14))
    *_, fresh = played(range(1000, 1400), [50.0] * 400)
    # One stretch after the other from 1 to 22 s was drawn; those of the last minute may still be there.
    assert len(trails._rings) <= 6
    assert trails.values(NAME, 14, trails.stretch(14)) == fresh.values(NAME, 14, trails.stretch(14))
