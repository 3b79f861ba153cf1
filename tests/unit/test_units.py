"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm import units

FORMATS = [units.pct, units.number, units.seconds, units.uptime, units.size, units.rate]


@pytest.mark.parametrize("show", FORMATS)
@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_unknown_is_a_dash_and_never_zero(show, unknown):
    assert show(unknown) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.42, "0.42"),
        (9.94, "9.94"),
        (9.96, "10.0"),
        (12.34, "12.3"),
        (99.4, "99.4"),
        (99.6, "100"),
        (237.4, "237"),
        (9999, "9999"),
        (9999.6, "10.0k"),
        (12_345, "12.3k"),
        (99_949, "99.9k"),
        (99_960, "100k"),
        (999_949, "1000k"),
        (999_951, "1.0M"),
        (1_234_567, "1.2M"),
        (999_940_000, "999.9M"),
        (999_960_000, "1.0G"),
        (-237.4, "-237"),
    ],
)
def test_counts_and_rates(value, text):
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.00085, "850 µs"),
        (0.0009996, "1.0 ms"),
        (0.0027, "2.7 ms"),
        (0.00996, "10 ms"),
        (0.075, "75 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.344, "1.34 s"),
        (9.996, "10.0 s"),
        (42.0, "42.0 s"),
        (125, "2 m 05 s"),
    ],
)
def test_durations(value, text):
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.9, "0 s"), (59.9, "59 s"), (60, "1 m 00 s"), (11_530, "3 h 12 m"), (356_400, "4 d 03 h")]
)
def test_long_durations(value, text):
    assert units.uptime(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1.0 KiB"),
        (61 << 20, "61.0 MiB"),
        (100 << 20, "100 MiB"),
        (95_884_000_000, "89.3 GiB"),
        (2 << 50, "2048 TiB"),
    ],
)
def test_bytes(value, text):
    assert units.size(value) == text


def test_rates_and_percentages():
    assert units.rate(44_354_765) == "42.3 MiB/s"
    assert units.pct(98.4) == "98 %"
    assert units.pct(0.04, 1) == "0.0 %"


@given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(FORMATS))
def test_every_float_has_a_short_text(value, show):
    text = show(value)
    assert text
    assert "nan" not in text
    assert "inf" not in text


@given(st.floats(0, 999e9))
def test_a_number_takes_at_most_six_characters(value):
    assert len(units.number(value)) <= 6
