"""The big generated captures, made small: their truth is known by construction, and the verdict gives it."""

from __future__ import annotations

from xml.dom import minidom

import pytest

from benchmarks.verdict import Cost, Row, plot
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict.assemble import judge
from tests.support.synth_big import big_kineto_json, big_nsys_sqlite

#: Kernels of 29.1 µs in six launches of 6.5 µs.
BUSY_PCT = 100 * 29.1 / 39.0


@pytest.mark.parametrize("form", ["nsys", "kineto"])
def test_a_generated_decode_is_launch_bound_and_as_busy_as_its_cadence_says(tmp_path, form):
    if form == "nsys":
        path = big_nsys_sqlite(tmp_path / "capture", 20_000, 40_000)
        # Launching takes 130 ms; the recorded window is 1 ms longer.
        busy_pct = BUSY_PCT * 130 / 131
    else:
        path = big_kineto_json(tmp_path / "capture", 10_000_000)
        busy_pct = BUSY_PCT

    verdict = judge(read_capture([path]))

    assert verdict.findings[0].id == "launch-bound"
    assert verdict.tables["coverage"][0]["busy_pct"] == pytest.approx(busy_pct, abs=0.1)


def test_the_plot_has_a_point_for_each_size_and_measure():
    costs = [Row("", 1, Cost(1.0, cpu, int(cpu * 1e8), 0), None) for cpu in (0.6, 4.0, 12.7)]

    drawn = minidom.parseString(plot((100_000, 1_000_000, 3_000_000), costs))

    assert len(drawn.getElementsByTagName("circle")) == 6
