"""Two profiles of one program: what changed beyond the noise, and the verdict in a few lines."""

from __future__ import annotations

import pytest

from gputop_llm.ncu.assemble import judge
from gputop_llm.ncu.brief import MOST_LINES, WIDTH, brief
from gputop_llm.ncu.change import changes
from gputop_llm.ncu.figures import figures_of
from gputop_llm.ncu.read import Profile, read_profile
from tests.support.kernels import ALONE, DETAILS, FULL, GEMV, RAW, SHARED, TINY, kernel

CLOCK, TIME = "gpc__cycles_elapsed.avg.per_second", "gpu__time_duration.sum"
REGISTERS, SPILLS = "launch__registers_per_thread", "derived__local_spilling_requests"


def figures(*times_us, name="gemm", grid=(1056, 1, 1), memory=50, **metrics):
    """Of launches that took so long."""
    more = {"registers": REGISTERS, "spills": SPILLS, "clock": CLOCK}
    given = {more[key]: value for key, value in metrics.items()}
    launches = [
        kernel(name, sm=20, memory=memory, dram=memory, l2=30, grid=grid, with_={TIME: us * 1e3, **given})
        for us in times_us
    ]
    _, groups = judge(Profile(tuple(launches), ("made-up",), "ncu"))
    return [figures_of(group) for group in groups]


def change(before, after):
    (found,) = changes(before, after)
    return found


@pytest.mark.parametrize(
    ("before", "after", "faster"),
    [
        ((10.0, 10.1, 9.9), (8.0, 8.1, 7.9), True),
        ((10.0, 10.1, 9.9), (12.0, 12.1, 11.9), False),
        ((10.0, 10.1, 9.9), (9.9, 10.0, 9.8), None),
        ((10.0, 13.0, 9.0), (9.0, 9.1, 8.9), None),  # its own launches differ by more
        ((10.0,), (9.6,), None),  # one launch has no spread
        ((10.0,), (9.0,), True),
        ((*[10.0] * 29, 30.0), (*[9.0] * 29, 30.0), True),  # one of many that was disturbed is no noise
    ],
)
def test_a_time_counts_only_beyond_the_noise(before, after, faster):
    found = change(figures(*before), figures(*after))

    assert found.faster is faster
    assert ("no change beyond the noise" in next(found.lines())) == (faster is None)


def test_a_clock_that_moved_is_no_gain():
    found = change(figures(10, 10, 10, clock=1.5e9), figures(8.6, 8.6, 8.6, clock=1.75e9))

    assert found.faster is None
    assert any("1.50 and is 1.75 GHz" in line for line in found.lines())


def test_what_moved_is_named_and_what_did_not_is_left_out():
    before = figures(10, 10, 10, memory=50, registers=168, spills=0)
    found = change(before, figures(7, 7, 7, memory=85, grid=(528, 1, 1), registers=128, spills=400))
    text = "\n".join(found.lines())

    assert "faster, 10 µs → 7 µs (-30.0 %, noise 2.0 %)" in text
    for part in ("latency-bound → DRAM-bound", "DRAM 50 → 85 %", "registers 168 → 128", "spills 0 → 400", "528×1×1"):
        assert part in text
    assert "SM" not in text.replace("SMs", "")


def test_a_missing_figure_is_a_dash_and_no_zero():
    found = change(figures(10, spills=400), figures(10))

    assert ("spills", 400, None, "") in found.moved
    assert any("spills 400 → –" in line for line in found.lines())


def test_kernels_are_paired_by_name_and_launch_and_a_renamed_only_one_too():
    two = [*figures(10, name="a"), *figures(20, name="b")]
    found = changes(two, [*figures(19, name="b"), *figures(9, name="a"), *figures(5, name="new")])

    assert [(one.before.name, one.after.name) for one in found] == [("b", "b"), ("a", "a")]
    assert change(figures(10, name="gemm_v1"), figures(9, name="gemm_v2")).before.name == "gemm_v1"


@pytest.mark.parametrize("path", [ALONE, SHARED, FULL, DETAILS, RAW, GEMV, TINY], ids=lambda path: path.name)
def test_the_short_form_fits_and_says_class_figures_and_what_to_do(path):
    verdict, groups = judge(read_profile([path]))
    lines = brief(verdict, groups)

    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    assert lines[0][:30] == verdict.headline[:30]
    assert any(line.startswith("  SM ") and "DRAM" in line for line in lines)
    assert any(line.startswith("do: ") for line in lines) == verdict.judged


def test_the_short_form_has_spread_floor_and_headroom():
    lines = brief(*judge(Profile(tuple(
        kernel(sm=20, memory=50, dram=50, l2=30, with_={TIME: us * 1e3}) for us in (10, 10.4, 9.8)
    ), ("made-up",), "ncu")))  # fmt: skip

    assert "  10 µs (9.80 to 10.40 µs, 3 launches) · floor 5 µs (DRAM roof): 2.0× headroom" in lines
