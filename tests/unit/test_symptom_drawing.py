"""How symptoms are drawn and worded: pure functions, without a screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model.symptom import Held, Severity, Subject
from gputop_llm.tui.charts import chart
from gputop_llm.tui.draw import plain, width_of
from gputop_llm.tui.panels.symptom_chart import with_threshold
from gputop_llm.tui.panels.symptom_words import TAG, brief, figure, how_many, series_name, series_unit, tag
from gputop_llm.tui.panels.timeline_strip import SPANS_S, Axis, axis_of, span_for, strip
from gputop_llm.tui.plan import plan_overview
from gputop_llm.tui.seen import KEPT_S, MOST, Seen
from tests.support import symptom_screens as frames
from tests.support.frame_parts import AT_S

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
TEN = Axis(cells=10, cell_s=60.0, first_s=0.0, begun_s=0.0)


def held(since_s, until_s=None, severity=WARNING):
    return Held("kv-pressure", Subject("gpu:0", "GPU 0"), severity, "full", since_s, until_s)


def drawn(*times, axis=TEN):
    return plain([strip(times, axis)])


# -- the strip -----------------------------------------------------------------------------------


def test_a_strip_shows_each_stretch_in_which_the_symptom_held():
    assert drawn(held(130, 190)) == "──▅▅──────"


def test_a_symptom_that_still_holds_reaches_to_now():
    assert drawn(held(480)) == "────────▅▅"


def test_a_moment_is_not_lost():
    assert drawn(held(61, 61)) == "─▅────────"


def test_the_higher_the_worse_and_the_worst_of_a_stretch_wins():
    assert drawn(held(0, 599, NOTE), held(60, 400, CRITICAL), held(120, 500)) == "▂██████▅▅▂"


def test_time_before_the_watch_began_is_blank_not_quiet():
    assert drawn(held(500, 510), axis=Axis(10, 60.0, 0.0, 185.0)) == "   ─────▅─"


def test_what_is_off_the_axis_is_not_drawn():
    assert drawn(held(-300, -200), held(5000, 6000)) == "─" * 10


@given(
    cells=st.integers(1, 300),
    now_s=st.floats(1.7e9, 1.9e9),
    known_s=st.floats(0, 1e6),
    times=st.lists(st.tuples(st.floats(-1e4, 0), st.none() | st.floats(-1e4, 0)), max_size=5),
)
def test_a_strip_is_as_wide_as_its_axis_and_ends_with_now(cells, now_s, known_s, times):
    axis = axis_of(now_s, known_s, cells)
    # A quotient of floats may fall on either side of a boundary.
    assert axis.at(now_s) in (cells - 2, cells - 1)
    assert axis.span_s in [pytest.approx(span) for span in SPANS_S]
    spans = [held(now_s + begun, None if ended is None else now_s + max(begun, ended)) for begun, ended in times]
    line = strip(spans, axis)
    assert width_of(line) == cells
    if any(one.until_s is None for one in spans):
        assert line[-1][0][-1] == "▅"


@pytest.mark.parametrize(("known_s", "span_s"), [(1, 300), (300, 300), (301, 600), (1900, 3600), (90_000, 3600)])
def test_a_strip_shows_as_much_as_is_known_up_to_an_hour(known_s, span_s):
    assert span_for(known_s) == span_s


# -- the chart -----------------------------------------------------------------------------------


def rows_of(values, threshold, height=4, top=100.0):
    return plain(with_threshold(chart(values, height, top), threshold, top)).split("\n")


def test_the_threshold_is_a_dashed_line_at_its_height():
    assert rows_of([0.0] * 12, 50.0) == ["", "⣀ ⣀ ⣀", "", "⣀⣀⣀⣀⣀⣀"]
    assert rows_of([0.0] * 12, 40.0) == ["", "", "⠒ ⠒ ⠒", "⣀⣀⣀⣀⣀⣀"]


@pytest.mark.parametrize("threshold", [0.0, 10.0, 37.5, 50.0, 99.0, 100.0])
def test_a_flat_line_at_the_threshold_covers_it_wholly(threshold):
    assert rows_of([threshold] * 12, threshold) == [row.rstrip() for row in chart([threshold] * 12, 4, 100.0)]


def test_the_figures_own_line_stays_whole_where_it_crosses_the_threshold():
    values = [0.0, 25.0, 50.0, 75.0, 100.0, 75.0, 50.0, 25.0]
    for plain_row, row in zip(chart(values, 4, 100.0), rows_of(values, 50.0), strict=True):
        padded = row.ljust(len(plain_row))
        assert all(new == old for old, new in zip(plain_row, padded, strict=True) if old != " ")


@pytest.mark.parametrize("threshold", [None, -1.0, 100.1])
def test_a_threshold_off_the_scale_is_not_drawn(threshold):
    assert rows_of([0.0] * 8, threshold)[:-1] == ["", "", ""]


# -- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "%", "–"), (float("nan"), "s", "–"), (98.52, "%", "98.5 %"), (95.0, "%", "95 %"),
        (0.0099, "%", "0.01 %"), (0.0, "%", "0 %"), (19.5, "s", "19.5 s"), (1.2, "/s", "1.20/s"),
        (45e9, "B/s", "41.9 GiB/s"),
        (2.0**30, "B", "1.0 GiB"), (9702, "tok/s", "9702 tok/s"), (300.0, "W", "300 W"), (87.0, "", "87"),
        (1544.0, "MHz", "1544 MHz"), (3.0, "\x1b[m", "3 \\x1b[m"),
    ],
)  # fmt: skip
def test_a_figure_has_its_unit(value, unit, text):
    assert figure(value, unit) == text


@pytest.mark.parametrize(
    ("series", "name", "unit"),
    [
        ("gpu.3.sm_active_pct", "GPU 3 SM active", "%"),
        ("gpu.0.pcie_rx_bytes_per_s", "GPU 0 PCIe in", "B/s"),
        ("gpu.0.temp_c", "GPU 0 temperature", "°C"),
        ("engine.600@1795967802.ttft_p95_s", "TTFT p95", "s"),
        ("engine.url:http://10.0.0.1:8000.itl_p95_s", "ITL p95", "s"),
        ("engine.600@1.generation_tokens_per_s", "out tokens", "tok/s"),
        ("engine.600@1.waiting", "waiting", ""),
        ("target.600@1.engine_core_pct", "engine-core's main thread", "%"),
        ("host.mem_available_bytes", "mem available", "B"),
    ],
)
def test_a_history_series_is_named_in_words_with_its_unit(series, name, unit):
    assert (series_name(series), series_unit(series)) == (name, unit)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (185, "3 m"), (7300, "2 h"), (200_000, "2 d")]
)
def test_a_brief_duration_has_one_unit(seconds, text):
    assert brief(seconds) == text


def test_severities_differ_in_sign_word_and_style():
    tags = [tag(severity) for severity in Severity]
    assert all(width_of(line) == TAG for line in tags)
    assert len({line[0][0][0] for line in tags}) == len({line[0][0][2:] for line in tags}) == 3
    assert len({line[0][1] for line in tags}) == 3


def test_roots_are_counted_by_severity_and_the_rest_follows():
    assert how_many(frames.incident().symptoms) == "1 critical, 1 warning, 1 note, 2 follow"
    assert how_many(frames.eight_capped().symptoms) == "1 critical, 8 warnings, 1 follows"
    assert how_many(frames.blind().symptoms) == ""


# -- memory --------------------------------------------------------------------------------------


def frame(at_s, *active, **report):
    return frames.later(frames.one_root(), at_s, *active, **report)


def test_what_cleared_is_kept_with_its_evidence_for_an_hour():
    seen = Seen()
    seen.take(frame(0, frames.ROOT))
    seen.take(frame(5))
    found = seen.find(frames.ROOT.key, frame(5))
    assert (found.symptom, found.state, found.cleared_s) == (frames.ROOT, "cleared", AT_S + 5)
    seen.take(frame(KEPT_S + 6))
    assert seen.find(frames.ROOT.key, frame(KEPT_S + 6)) is None


def test_memory_is_bounded():
    seen = Seen()
    came = [frames.symptom(f"rule-{at}", frames.ENGINE, WARNING, "it is", 1) for at in range(2 * MOST + 1)]
    for at, symptom in enumerate(came):
        seen.take(frame(at, symptom))
    remembered = [seen.find(symptom.key, frame(2 * MOST)) is not None for symptom in came[:-1]]
    assert remembered == [False] * MOST + [True] * MOST


def test_the_log_knows_better_when_it_was_over():
    seen = Seen()
    seen.take(frame(0, frames.ROOT))
    seen.take(frame(60, log=(frames.held(frames.ROOT, -40),)))
    assert seen.find(frames.ROOT.key, frame(60, log=(frames.held(frames.ROOT, -40),))).cleared_s == AT_S + 40


# -- room ----------------------------------------------------------------------------------------


@given(
    size=st.tuples(st.integers(40, 300), st.integers(10, 120)),
    gpus=st.integers(0, 16),
    processes=st.integers(0, 40),
    engine=st.none() | st.integers(3, 12),
    must=st.integers(0, 4),
    use=st.integers(2, 14),
)
def test_panels_never_overlap_or_leave_the_screen_and_what_is_wrong_has_a_line(
    size, gpus, processes, engine, must, use
):
    width, height = size
    plan = plan_overview(width, height, gpus, processes, engine, (must, use))
    taken = set()
    for rect in plan.values():
        assert 0 <= rect.x < rect.x + rect.width <= width
        assert 1 <= rect.y < rect.y + rect.height <= height - 1
        cells = {(x, y) for x in (rect.x, rect.x + rect.width - 1) for y in range(rect.y, rect.y + rect.height)}
        assert not taken & cells
        taken |= cells
    if must:
        assert plan["symptoms"].height >= 1
        assert plan["engine"].height >= min(3, height - 4)
