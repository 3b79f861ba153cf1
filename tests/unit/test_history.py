"""The hour of history: what it gives back, where it has gaps, and how much memory it may take."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace

import pytest

from gputop_llm.model import (
    EngineFrame,
    EngineLive,
    EngineWindow,
    Frame,
    GpuNode,
    Host,
    Latency,
    Part,
    ProcessLoad,
    Quantile,
)
from gputop_llm.model import TargetList as Targets
from gputop_llm.sampling.history import History
from gputop_llm.symptoms.view import Timeline
from tests.support.fake_sources import a_gpu, an_engine_reading

MIB = 1 << 20


def frame(mono_s: float, *, util: float | None = 50.0, period_s: float = 1.0, gpus: int = 1, **parts: object) -> Frame:
    node = GpuNode(gpus=tuple(a_gpu(i, util_pct=util) for i in range(gpus)))
    given: dict = {
        "seq": 0,
        "at_s": 1.7e9 + mono_s,
        "mono_s": mono_s,
        "period_s": period_s,
        "gpus": Part(value=node),
        "host": Part(),
        "targets": Part(value=Targets()),
    }
    return Frame(**{**given, **parts})


def filled(times: list[float], history: History | None = None, period_s: float = 1.0) -> History:
    history = history or History()
    for time in times:
        history.append(frame(time, util=time, period_s=period_s))
    return history


UTIL = "gpu.0.util_pct"


def test_a_series_ends_with_the_newest_value():
    assert filled([10, 11, 12]).series(UTIL, 3) == [10, 11, 12]


def test_a_source_that_has_stopped_answering_leaves_a_gap_and_no_flat_line():
    history = filled([10, 11])
    live = EngineLive(None, None, running=7.0)
    engine = EngineFrame("e", "http://x", Part(value=an_engine_reading()), EngineWindow(live, ()))
    history.append(frame(12, engines=(engine,), host=Part(value=Host(cpu_pct=3.0))))
    node, host, scrape = (
        Part(value=GpuNode(gpus=(a_gpu(0, util_pct=12),)), error="gpu has not answered for 2.10 s"),
        Part(value=Host(cpu_pct=3.0), error="host has not answered for 2.10 s"),
        Part(value=an_engine_reading(), error="no answer within 5 s"),
    )
    history.append(replace(frame(13), gpus=node, host=host, engines=(replace(engine, scrape=scrape),)))
    assert history.series(UTIL, 4) == [10, 11, 50, None]
    assert history.series("host.cpu_pct", 2) == [3, None]
    assert history.series("engine.e.running", 2) == [7, None]


def test_slots_before_the_first_frame_are_unknown():
    assert filled([10, 11]).series(UTIL, 4) == [None, None, 10, 11]


def test_an_unknown_series_is_all_unknown():
    assert filled([10]).series("gpu.7.util_pct", 2) == [None, None]


def test_an_unknown_value_is_none_and_not_zero():
    history = History()
    history.append(frame(1, util=None))
    assert history.series(UTIL, 1) == [None]


def test_of_frames_within_one_slot_the_newest_wins():
    assert filled([10.0, 10.25, 10.75]).series(UTIL, 2) == [None, 10.75]


def test_a_long_pause_is_a_gap():
    assert filled([10, 11, 20]).series(UTIL, 11) == [10, 11, None, None, None, None, None, None, None, None, 20]


def test_a_tick_that_comes_late_leaves_no_gap():
    assert filled([10.999, 12.001]).series(UTIL, 3) == pytest.approx([10.999, 12.001, 12.001])


def test_with_a_long_period_each_value_covers_the_time_since_the_one_before():
    assert filled([10, 13, 16], period_s=3.0).series(UTIL, 7) == [10, 13, 13, 13, 16, 16, 16]


def test_the_ring_forgets_what_is_older_than_its_length():
    history = filled([float(t) for t in range(25)], History(points=10))
    assert history.series(UTIL, 100) == list(range(15, 25))


def test_a_pause_longer_than_the_ring_empties_it():
    assert filled([1, 2, 100], History(points=5)).series(UTIL, 5) == [None, None, None, None, 100]


def test_a_series_that_has_ended_is_forgotten_after_the_kept_time():
    history = History(points=5)
    history.append(frame(0, host=Part(value=Host(cpu_pct=5.0))))
    for time in range(1, 5):
        history.append(frame(time))
        assert "host.cpu_pct" in history.names()
    history.append(frame(5))
    assert "host.cpu_pct" not in history.names()


def test_the_median_is_of_known_values_and_needs_three():
    history = filled([1, 2])
    assert history.median(UTIL, 10) is None
    history.append(frame(3, util=None))
    assert history.median(UTIL, 10) is None
    history.append(frame(4, util=40))
    assert history.median(UTIL, 10) == 2


def engine_frame(key: str, seed: float = 0.0) -> EngineFrame:
    latency = Latency(10.0 + seed, 0.1 + seed, *(Quantile(0.05 + seed, 0.2 + seed, 0.1 + seed) for _ in range(3)))
    names = ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e")
    live = EngineLive(
        model="org/model-a",
        rank=None,
        window_s=10.0 + seed,
        running=seed,
        waiting=seed,
        latency=dict.fromkeys(names, latency),
    )
    reading = an_engine_reading(scale=1.0 + seed)
    return EngineFrame(key, "http://127.0.0.1:8000", Part(value=reading), EngineWindow(live, (live,)))


def test_an_engine_that_restarts_for_hours_does_not_lose_its_newest_series():
    history = History(points=600, max_series=200)
    for time in range(400):
        history.append(frame(time, engines=(engine_frame(f"{time // 4}@0", float(time)),)))
    assert history.series("engine.99@0.running", 4) == [396, 397, 398, 399]
    assert len(history.names()) <= 200
    assert history.dropped == 0


def test_series_that_go_on_are_never_pushed_out_by_new_ones():
    history = History(max_series=3)
    for time in range(3):
        history.append(frame(time, util=float(time), gpus=8))
    assert history.series(UTIL, 3) == [0, 1, 2]
    assert len(history.names()) == 3
    assert history.dropped > 0


def test_frames_are_kept_for_two_minutes_and_come_oldest_first():
    history = filled([float(t) for t in range(300)])
    assert [f.mono_s for f in history.frames(3)] == [296, 297, 298, 299]
    assert history.frames(1e9)[0].mono_s == 299 - 120


def test_frames_are_bounded_in_number_however_fast_they_come():
    history = History()
    for i in range(2000):
        history.append(frame(i * 0.01))
    assert len(history.frames(1e9)) == History.MAX_FRAMES


def test_frames_older_than_rules_look_closely_at_are_thinner():
    history = History()
    host = Part(value=Host(cpu_pct=5.0))
    for time in range(40):
        history.append(frame(time, engines=(engine_frame("1@0", float(time)),), host=host))
    frames = history.frames(1e9)
    whole = [f.mono_s for f in frames if f.host.value is not None and f.engines[0].window.models]
    assert whole == [f.mono_s for f in history.frames(15)]
    for old in frames[:20]:
        (engine,) = old.engines
        assert old.gpus.value.gpus[0].util_pct == 50.0
        assert engine.window.total.running == old.mono_s
        assert engine.window.total.latency == {}
        assert engine.scrape.value.series[0].counters == engine_frame("1@0", old.mono_s).scrape.value.series[0].counters


def test_the_timeline_of_the_rules_follows_the_history_to_thinner_frames():
    history, timeline = History(), Timeline()
    for time in range(140):
        history.append(frame(time, engines=(engine_frame("1@0", float(time)), engine_frame("2@0"))))
        timeline.move(history.frames(120))
    for at, key in enumerate(("1@0", "2@0")):
        kept = [(f.mono_s, id(f.engines[at])) for f in history.frames(120)]
        assert [(mono_s, id(engine)) for mono_s, engine in timeline.engines[key]] == kept


def test_a_ring_is_no_longer_than_what_it_has_to_keep():
    def bytes_for(points: int) -> int:
        tracemalloc.start()
        try:
            history = filled([1e6 + t for t in range(10)], History(points=points))
            assert history.series(UTIL, 3) == pytest.approx([1e6 + 7, 1e6 + 8, 1e6 + 9])
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert bytes_for(1_000_000) < bytes_for(10) + MIB


def test_kept_frames_have_counters_and_windows_but_no_raw_histograms():
    history = History()
    history.append(frame(1, engines=(engine_frame("1@0"),)))
    (kept,) = history.frames(1)
    assert kept.engines[0].scrape.value.series[0].counters["generation_tokens"] > 0
    assert kept.engines[0].scrape.value.series[0].histograms == {}
    assert kept.engines[0].window.total.latency["ttft"].p95 is not None


@pytest.mark.parametrize("period_s", [1.0, 0.25])
def test_an_hour_of_eight_gpus_and_four_engines_fits_into_32_mib(period_s: float):
    history = History()
    tracemalloc.start()
    try:
        # More different frames than the history keeps; what it doesn't keep dies with `pool`.
        pool = [
            frame(
                0,
                gpus=8,
                host=Part(value=Host(cpu_pct=float(i))),
                engines=tuple(engine_frame(f"{n}@1", i + n / 8) for n in range(4)),
            )
            for i in range(History.MAX_FRAMES + 1)
        ]
        for tick in range(3600):
            history.append(replace(pool[tick % len(pool)], mono_s=tick * period_s, period_s=period_s))
        del pool
        taken, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert history.dropped == 0
    assert len(history.names()) == 8 * 15 + 4 * 42 + 6
    assert taken < 32 * MIB


def test_on_a_node_of_too_many_gpus_no_engine_and_no_host_goes_without_history():
    history = History(points=10)
    history.append(frame(1, gpus=128, host=Part(value=Host(cpu_pct=5.0)), engines=(engine_frame("1@0"),)))
    assert history.dropped > 0
    assert history.series("host.cpu_pct", 1) == [5.0]
    assert history.series("engine.1@0.ttft_p95_s", 1) != [None]


def test_what_there_is_nothing_to_tell_of_takes_no_room():
    history = History(points=10)
    history.append(replace(frame(1, engines=(engine_frame("1@0"),)), focus="1@0"))
    assert not [n for n in history.names() if n.endswith(("_apart", "throttled_pct", "acceptance_pct", "5xx_pct"))]


@pytest.mark.parametrize(("shares", "kept"), [((3.0, 99.0, 7.0), 99.0), ((None, 7.0), 7.0), ((None, None), None)])
def test_of_several_engine_cores_the_busiest_is_kept(shares, kept):
    cores = tuple(ProcessLoad(pid=n, role="engine-core", main_thread_pct=share) for n, share in enumerate(shares))
    history = History(points=10)
    history.append(replace(frame(1, host=Part(value=Host(processes=cores))), focus="1@0"))
    assert history.series("target.1@0.engine_core_pct", 1) == [kept]


def test_reading_while_frames_are_added_is_safe():
    """Readers in other threads see whole, ordered series and raise nothing."""
    import threading

    history = filled([0.0])
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                known = [v for v in history.series(UTIL, 50) if v is not None]
                assert known == sorted(known)
                history.names(), history.median(UTIL, 50), history.frames(10)
        except BaseException as failure:  # noqa: BLE001 - handed to the test's own thread
            failures.append(failure)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for time in itertools.islice(itertools.count(1), 2000):
        history.append(frame(float(time), util=float(time)))
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
