"""Whatever the size and the text: panels never overlap, lines are exactly as wide as they must be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gputop_llm.printable import printable
from gputop_llm.sampling.history import History
from gputop_llm.tui.draw import fit, joined, pad, rule, width_of, wrapped
from gputop_llm.tui.panels.engine import engine_panel
from gputop_llm.tui.panels.gpus import gpu_panel
from gputop_llm.tui.panels.host import host_panel
from gputop_llm.tui.plan import MIN_HEIGHT, MIN_WIDTH, plan_overview
from gputop_llm.tui.skin import to_ascii
from gputop_llm.tui.trails import Trails
from tests.support import frames

# Text as it comes from outside, made printable first, as every panel does.
texts = st.text(max_size=60).map(printable)
lines = st.lists(st.tuples(texts, st.just("")), max_size=6)
widths = st.integers(1, 120)
# Time is measured elsewhere: a busy machine is no failure.
untimed = settings(deadline=None)
ALL = (
    frames.one_gpu_loaded, frames.tp2, frames.eight_gpus, frames.gpu_without_engine, frames.no_gpu,
    frames.nothing_known, frames.unreachable, frames.everything_on, frames.markup_in_names,
)  # fmt: skip


@untimed
@given(
    st.integers(MIN_WIDTH, 400),
    st.integers(MIN_HEIGHT, 120),
    st.integers(0, 16),
    st.integers(0, 40),
    st.one_of(st.none(), st.integers(3, 12)),
)
def test_panels_fill_the_screen_without_overlap(width, height, gpus, processes, engine_lines):
    plan = plan_overview(width, height, gpus, processes, engine_lines)
    taken = set()
    for x, y, w, h in plan.values():
        assert w > 0
        assert h > 0
        assert x >= 0
        assert y >= 1, "the header's line"
        assert x + w <= width
        assert y + h <= height - 1, "the status line"
        cells = {(column, row) for column in (x, x + w - 1) for row in range(y, y + h)}
        assert not cells & taken
        taken |= cells
    assert plan["engine"].height >= 3
    assert "gpus" in plan
    assert max(y + h for _, y, _, h in plan.values()) == height - 1


@untimed
@given(lines, widths)
def test_a_fitted_line_is_exactly_as_wide_as_asked(line, width):
    assert width_of(fit(line, width)) == width


@untimed
@given(texts, widths, st.booleans())
def test_a_padded_text_is_exactly_as_wide_as_asked(text, width, right):
    assert cell_len(pad(text, width, right)) == width


@untimed
@given(lines, lines, widths)
def test_a_rule_is_exactly_as_wide_as_asked(title, remark, width):
    assert width_of(rule(title, width, remark)) == width


@untimed
@given(st.lists(lines, max_size=6), widths)
def test_joined_parts_never_outgrow_their_width(parts, width):
    assert width_of(joined(parts, width)) <= width


@untimed
@given(st.text(max_size=200).map(printable), st.integers(2, 60))
def test_wrapped_text_fits_and_loses_no_character(text, width):
    rows = ["".join(t for t, _ in row) for row in wrapped(text, width)]
    assert all(cell_len(row) <= width for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")


@untimed
@given(st.text(max_size=80))
def test_printable_text_has_nothing_invisible_and_is_stable(text):
    shown = printable(text)
    assert "\x1b" not in shown
    assert "\n" not in shown
    assert all(ord(c) >= 32 for c in shown)
    assert printable(shown) == shown


@untimed
@given(st.text(max_size=40), st.text(max_size=40))
def test_names_that_differ_in_a_hidden_character_stay_different(left, right):
    if "\\" not in left + right and left != right:
        assert printable(left) != printable(right)


@untimed
@given(st.text(max_size=60).map(printable))
def test_ascii_text_has_the_same_width(text):
    assert to_ascii(text).isascii()
    assert cell_len(to_ascii(text)) == cell_len(text)


@pytest.mark.parametrize("build", ALL)
@settings(deadline=None, max_examples=30)
@given(width=st.integers(60, 220), height=st.integers(1, 70))
def test_no_panel_outgrows_its_place(build, width, height):
    frame = build()
    trails = Trails(History())
    trails.at(frame, frame)
    blocks = (
        gpu_panel(frame, trails, width, height),
        engine_panel(frame, trails, width, height),
        host_panel(frame, width, height),
    )
    for block in blocks:
        assert len(block.lines) <= height
        for line in block.lines:
            assert width_of(line) <= width, "".join(t for t, _ in line)
