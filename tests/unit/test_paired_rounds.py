"""What the overhead benchmark says of its rounds, and of its own noise."""

from __future__ import annotations

import pytest

from benchmarks.paired import Seen, difference, noise, table


def rounds(*rates, busy_pct=30.0):
    return [Seen(20.0, rate, 50.0, 10.0, 15.0, 40.0, busy_pct) for rate in rates]


def test_the_least_difference_is_students_t_times_the_standard_error():
    """-1, -2 and -3 %: standard deviation 1, error 1/√3, t of two degrees of freedom 4.30."""
    one = difference(rounds(1000, 2000, 4000), rounds(990, 1960, 3880))

    assert one.mean == pytest.approx(-2.0)
    assert one.error == pytest.approx(0.577, abs=0.001)
    assert one.least == pytest.approx(2.48, abs=0.01)


def test_noise_beyond_what_is_asked_is_said_with_what_can_be_told():
    off, watching = rounds(2928, 4743, 3800), rounds(4100, 3000, 4700)
    spread, busiest, told = noise({"off": off, "1 Hz": watching}, "off", 2.0)

    assert spread == "off: 2928 to 4743 tokens/s in 3 rounds, standard deviation 23.7 % of the mean"
    assert busiest == "busiest process that sends: 30 % of a core"
    least = difference(off, watching).least
    assert told == (
        f"1 Hz: no difference below {least:.1f} % can be told, and 2 % is asked: take more rounds, or longer ones"
    )


def test_rounds_that_agree_need_no_word_and_one_round_tells_nothing():
    quiet = {"off": rounds(1000, 2000, 4000), "1 Hz": rounds(999, 1998, 3996)}

    assert len(list(noise(quiet, "off", 2.0))) == 2
    *_, told = noise({"off": rounds(1000), "1 Hz": rounds(990)}, "off", 2.0)
    assert told == "1 Hz: nothing can be told from one round"


def test_a_process_that_is_busy_all_the_time_is_named_as_what_may_limit_the_rate():
    _, busiest = noise({"off": [*rounds(1000), *rounds(1000, busy_pct=97.0)]}, "off", 2.0)

    assert (
        busiest == "busiest process that sends: 97 % of a core: it may be what limits the rate; give more --processes"
    )


def test_an_arm_that_failed_later_is_compared_in_the_rounds_that_it_had_and_one_without_any_is_unknown():
    found = {"off": rounds(1000, 2000, 4000), "native": rounds(990, 1980), "nsys": []}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(found, "off")][2:]

    assert rows[0][:5] == ["off", "3", "2333", "–", "–"]
    assert rows[1][:5] == ["native", "2", "1485", "-1.00 % ± 0.00", "0.00 %"]
    assert rows[2] == ["nsys", "0", *["–"] * 7]
    assert rows[0][5:] == ["50.00 ms", "10.00 ms", "15.00 ms", "40.00 ms"]
