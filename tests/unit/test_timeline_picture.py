"""The picture of a timeline tells the truth: shares of cells are unions, letters are causes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.timeline.intervals import union
from gputop_llm.tui.draw import plain
from gputop_llm.tui.panels.timeline_picture import CAUSES, legend, picture, scale, shares
from gputop_llm.tui.panels.timeline_scene import hottest_kernel, longest_gaps, scene, slowest_steps
from gputop_llm.tui.viewport import Viewport
from gputop_llm.verdict import kernels
from gputop_llm.verdict.causes import Cause
from tests.support.synth import Simulation
from tests.support.timelines import made

SPANS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 120)), max_size=30)


@given(SPANS, st.integers(0, 300), st.integers(1, 400), st.integers(1, 50))
def test_each_cell_is_the_share_that_the_union_covers(spans, low, length, count):
    start = np.array([s for s, _ in spans], dtype=np.int64)
    end = np.array([s + d for s, d in spans], dtype=np.int64)
    edges = low + np.arange(count + 1, dtype=np.int64) * length // count
    covered = {moment for s, d in spans for moment in range(s, s + d)}
    wanted = [
        len(covered & set(range(a, b))) / max(b - a, 1)
        for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]

    assert shares(union(start, end), edges).tolist() == pytest.approx(wanted)


def simulated(steps=20):
    simulation = Simulation()
    process = simulation.process(4000, "python")
    host = simulation.host(process, device=0, name="main")
    for _ in range(steps):
        host.launch(7, 400_000, "gemm_kernel")
        host.run(900_000)
        host.sync(7)
    return made(simulation.schedule())


def test_two_streams_are_two_lanes_and_idle_time_has_its_letter():
    context = simulated()
    drawn = scene(context)
    timeline = context.timeline
    text = plain(picture(drawn, timeline.start, timeline.end, 100))
    letters = {CAUSES[cause][0] for cause in drawn.devices[0].idle}

    assert "GPU 0" in text
    assert "str 7" in text
    waits = next(line for line in text.splitlines() if line.startswith("waits on"))[9:]
    assert set(waits) - {" ", "·"} <= letters
    assert set(waits) & letters


def test_the_legend_names_each_letter_that_is_drawn():
    drawn = scene(simulated())
    text = plain(legend(drawn, 80))

    for cause in drawn.devices[0].idle:
        letter, _, words = CAUSES[cause]
        assert f"{letter} {words}" in text
    assert len({letter for letter, _, _ in CAUSES.values()}) == len(Cause)


def test_long_work_has_its_name_in_it():
    context = simulated(3)
    drawn = scene(context)
    ops = context.timeline.ops
    text = plain(picture(drawn, int(ops.start[0]), int(ops.end[0]) + 100_000, 80))

    assert "gemm_kernel" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_ticks_stand_where_their_time_is(width):
    context = simulated()
    drawn = scene(context)
    start, end = context.timeline.start, context.timeline.end
    text = plain([scale(drawn, start, end, width)])

    assert len(text) <= width
    assert text.count("│") >= 1
    assert "0.0" in text or "│0" in text


def test_places_are_sorted_by_length():
    context = simulated()
    for places in (
        longest_gaps(context, dict.fromkeys(Cause, "x")),
        slowest_steps(context, dict.fromkeys(range(4), "x")),
    ):
        lengths = [place.end - place.start for place in places]
        assert lengths == sorted(lengths, reverse=True)
    assert "gemm_kernel" in hottest_kernel(context)[0].text


def test_the_hottest_kernel_is_that_of_the_table():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(10):
        # By summed time "wide" comes first; its runs overlap, so by the time that it covers it comes second.
        for stream in (7, 13, 14):
            host.launch(stream, 200_000, "wide<float>")
        host.sync()
        host.launch(7, 150_000, "narrow<float>")
        host.launch(7, 150_000, "narrow<half>")
        host.sync()
    context = made(simulation.schedule())
    (hot,) = kernels.analyse(context)
    places = hottest_kernel(context)

    assert [kernel.name for kernel in hot.kernels] == ["narrow", "wide"]
    assert places[0].text == "hottest kernel (20 runs): narrow"
    assert len(places) == 20
    assert sum(place.end - place.start for place in places) == hot.kernels[0].union_ns


@given(st.integers(1, 10**9), st.lists(st.sampled_from("+-<>0"), max_size=40))
def test_the_view_stays_within_the_window(length, moves):
    viewport = Viewport(1_000, 1_000 + length)
    for move in moves:
        if move in "+-":
            viewport.zoom(closer=move == "+")
        elif move in "<>":
            viewport.pan(later=move == ">")
        else:
            viewport.show(1_000 + length // 3, 1_000 + length // 2)
        assert viewport.start <= viewport.low < viewport.high <= viewport.end
