"""One thread per source: what a source does must harm nobody but itself."""

from __future__ import annotations

import threading
import time

import pytest

from gputop_llm.clock import SystemClock
from gputop_llm.errors import SourceError
from gputop_llm.sampling.poller import MAX_BACKOFF_S, MAX_FAILING_PERIOD_S, Poller
from tests.support.clock import ManualClock
from tests.support.fake_sources import FakeSource, until


@pytest.fixture
def polling():
    """Makes started pollers, and stops them at the end."""
    pollers: list[Poller] = []

    def make(source: FakeSource, period_s: float = 0.25, clock=None, on_poll=None) -> Poller:
        poller = Poller(source, period_s, clock or SystemClock(), on_poll)
        pollers.append(poller)
        poller.start()
        return poller

    yield make
    for poller in pollers:
        poller.source.release()
        poller.stop()


def test_before_the_first_answer_everything_is_unknown(polling):
    source = FakeSource("slow", 1)
    source.hanging = True
    part = polling(source).part()
    assert (part.value, part.at_s, part.age_s, part.took_s, part.error, part.polls) == (None, None, None, None, None, 0)


def test_a_part_has_the_value_its_time_and_its_age(polling):
    clock = ManualClock()
    poller = polling(FakeSource("fine", 42), clock=clock)
    until(lambda: poller.part().polls)
    clock.step(2.5)
    part = poller.part()
    assert (part.value, part.at_s, part.at_mono_s, part.age_s, part.error) == (
        42,
        clock.wall() - 2.5,
        clock.mono() - 2.5,
        2.5,
        None,
    )


def test_a_source_error_keeps_the_last_good_value_and_says_why(polling):
    source = FakeSource("GPUs", 1)
    poller = polling(source)
    until(lambda: poller.part().value == 1)
    source.answer = SourceError("cannot read GPUs", "the driver is gone", "wait")
    part = until(lambda: (p := poller.part()).error and p)
    assert part.value == 1
    assert part.error == "cannot read GPUs: the driver is gone; wait"
    source.answer = 2
    assert until(lambda: (p := poller.part()).error is None and p).value == 2


def test_a_bug_in_a_source_is_one_sentence_and_polling_goes_on(polling, caplog):
    source = FakeSource("host", ZeroDivisionError("division by zero"))
    poller = polling(source)
    error = until(lambda: poller.part().error)
    assert error == "host failed: ZeroDivisionError: division by zero (the log has the details)"
    assert "Traceback" in caplog.text
    source.answer = 3
    until(lambda: poller.part().value == 3)


def test_a_bug_in_what_is_made_of_a_reading_is_told_and_polling_goes_on(polling):
    def on_poll(value: object) -> None:
        if value == 1:
            raise KeyError("no such thing")

    source = FakeSource("engine", 1)
    poller = polling(source, on_poll=on_poll)
    assert "KeyError" in until(lambda: poller.part().error)
    source.answer = 2
    until(lambda: (p := poller.part()).value == 2 and p.error is None)


def test_a_poll_over_its_deadline_is_aborted_once_and_said_to_be_overdue(polling):
    clock = ManualClock()
    source = FakeSource("http://127.0.0.1:8000", 1, deadline_s=2.0, obeys_abort=False)
    source.hanging = True
    poller = polling(source, clock=clock)
    until(lambda: source.polls)
    clock.step(1.9)
    assert poller.part().error is None
    assert source.aborts == 0
    clock.step(10.1)
    assert poller.part().error == "http://127.0.0.1:8000 has not answered for 12.0 s"
    poller.part()
    assert source.aborts == 1


def test_a_poll_that_was_aborted_is_followed_by_the_next(polling):
    source = FakeSource("engine", 1, deadline_s=0.05)
    source.hanging = True
    poller = polling(source, period_s=0.05)
    until(lambda: poller.part().error)
    source.hanging = False
    until(lambda: (p := poller.part()).value == 1 and p.error is None)


def test_an_abort_that_raises_is_not_the_readers_problem(polling):
    source = FakeSource("engine", 1, deadline_s=0.0)
    source.hanging = True

    def abort() -> None:
        raise OSError("bad file descriptor")

    source.abort = abort
    poller = polling(source)
    assert "has not answered" in until(lambda: poller.part().error)


def test_the_second_poll_comes_early_for_rates(polling):
    source = FakeSource("host", 1)
    polling(source, period_s=30.0)
    until(lambda: source.polls == 2, timeout_s=5.0)


def test_a_hurried_source_is_polled_twice_before_it_rests_again(polling):
    source = FakeSource("host", 1)
    poller = polling(source, period_s=600.0)
    until(lambda: source.polls == 2)
    poller.hurry()
    until(lambda: source.polls == 4, timeout_s=5.0)
    assert poller.part().period_s == 600.0


def test_a_slow_source_is_asked_less_often_so_that_asking_costs_it_a_fifth_of_its_time(polling):
    source = FakeSource("engine", 1)
    source.slow_s = 0.1
    poller = polling(source, period_s=0.25)
    part = until(lambda: (p := poller.part()).polls >= 1 and p)
    assert part.period_s == pytest.approx(part.took_s * 5)
    assert part.period_s > 0.25
    until(lambda: source.polls >= 3)
    gaps = [b - a for a, b in zip(source.poll_times, source.poll_times[1:], strict=False)]
    assert min(gaps) >= 0.5


def test_back_off_has_an_end(polling):
    clock = ManualClock()

    def slow() -> int:
        clock.step(1e6)
        return 1

    poller = polling(FakeSource("engine", slow), clock=clock)
    assert until(lambda: poller.part().period_s > 0.25 and poller.part().period_s) == MAX_BACKOFF_S


def test_a_source_that_keeps_failing_is_asked_less_often_but_within_five_seconds(polling):
    source = FakeSource("engine", SourceError("refused"))
    poller = polling(source, period_s=0.001)
    until(lambda: (poller.part().period_s or 0) > 0.1)
    polling_one_second = Poller(source, 1.0, SystemClock())
    polling_one_second._failures = 100
    assert polling_one_second._steady_period() == MAX_FAILING_PERIOD_S
    polling_rarely = Poller(source, 60.0, SystemClock())
    polling_rarely._failures = 100
    assert polling_rarely._steady_period() == 60.0


def test_a_shorter_period_cuts_the_wait(polling):
    source = FakeSource("host", 1)
    poller = polling(source, period_s=600.0)
    until(lambda: source.polls == 2)
    poller.set_period(0.01)
    until(lambda: source.polls >= 5, timeout_s=5.0)


def test_changing_the_period_is_no_reason_to_ask_a_slow_server_at_once(polling):
    clock = ManualClock()

    def slow() -> int:
        clock.step(10.0)
        return 1

    source = FakeSource("engine", slow)
    poller = polling(source, period_s=1.0, clock=clock)
    until(lambda: poller.part().polls == 1)
    for period_s in (0.25, 2.0, 0.25):
        poller.set_period(period_s)
        until(lambda: not poller._wake.is_set())
    assert source.polls == 1
    clock.step(MAX_BACKOFF_S)
    poller.set_period(0.25)
    until(lambda: source.polls == 2)


def test_even_a_source_slower_than_the_longest_back_off_is_left_alone_half_of_the_time(polling):
    clock = ManualClock()

    def slow() -> int:
        clock.step(1000.0)
        return 1

    source = FakeSource("engine", slow)
    poller = polling(source, period_s=1.0, clock=clock)
    until(lambda: poller.part().polls == 1)
    clock.step(MAX_BACKOFF_S - 1.0)
    poller.set_period(1.0)
    until(lambda: not poller._wake.is_set())
    assert source.polls == 1
    clock.step(1.0)
    poller.set_period(1.0)
    until(lambda: source.polls == 2)


def test_the_source_is_closed_once_when_polling_has_ended(polling):
    source = FakeSource("host", 1)
    poller = polling(source)
    until(lambda: source.polls)
    poller.stop()
    poller.stop()
    assert source.closes == 1


def test_a_poller_that_never_started_closes_its_source_too():
    source = FakeSource("host", 1)
    Poller(source, 1.0, SystemClock()).stop()
    assert source.closes == 1


def test_stop_waits_no_longer_than_told_for_a_source_that_hangs(polling):
    source = FakeSource("driver", 1, obeys_abort=False)
    source.hanging = True
    poller = polling(source)
    until(lambda: source.polls)
    began = time.monotonic()
    poller.stop(wait_s=0.05)
    assert time.monotonic() - began < 1.0
    assert source.closes == 0
    source.release()
    until(lambda: source.closes == 1)
    assert source.polls == 1


def test_stop_may_be_called_from_the_polling_thread_itself(polling):
    stopped = threading.Event()

    def on_poll(_value: object) -> None:
        poller.stop()
        stopped.set()

    source = FakeSource("host", 1)
    poller = Poller(source, 0.01, SystemClock(), on_poll)
    poller.start()
    assert stopped.wait(5.0)
    until(lambda: source.closes == 1)


def test_a_thousand_starts_stops_reads_and_changes_neither_block_nor_leave_threads():
    before = threading.active_count()
    sources = [FakeSource(f"s{i}", i) for i in range(200)]
    failures: list[BaseException] = []

    def live(source: FakeSource) -> None:
        try:
            poller = Poller(source, 0.001, SystemClock(), lambda _value: None)
            poller.start()
            for action in (poller.hurry, poller.part, lambda: poller.set_period(0.002), poller.part) * 5:
                action()
            poller.stop(wait_s=10.0)
            assert source.closes == 1
        except BaseException as failure:  # noqa: BLE001 - handed to the test's own thread
            failures.append(failure)

    for batch in range(0, len(sources), 20):
        threads = [threading.Thread(target=live, args=(s,)) for s in sources[batch : batch + 20]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive(), "a deadlock"
    assert not failures
    assert threading.active_count() <= before
