"""The parts of a capture by themselves: streams, guards, plans, the pace afterwards."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, replace

import pytest

from gputop_llm.capture import guards, native_taker
from gputop_llm.capture.clients import Reached
from gputop_llm.capture.engine_watch import EngineSample, sample_line, sample_of
from gputop_llm.capture.folder import LOCK, CaptureFolder
from gputop_llm.capture.guards import Disk, Guards, disk_full, standing_still_s
from gputop_llm.capture.plan import make_plan, plan_json, plan_of
from gputop_llm.capture.progress import Progress, Teller, line_of, progress_of
from gputop_llm.capture.recovery import recovered
from gputop_llm.capture.stream import SLACK_BYTES, Stream
from gputop_llm.capture.way import Setting
from gputop_llm.capture.window import Window
from gputop_llm.errors import GputopError, NothingFound, UsageError
from gputop_llm.model import (
    EngineFrame,
    EngineLive,
    EngineReading,
    EngineSeries,
    EngineWindow,
    Histogram,
    Part,
    Target,
    TargetProcess,
)
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk, Kinds


def chunk(kind, payload):
    return form.CHUNK_HEADER.pack(kind, len(payload)) + payload


HELLO = chunk(Chunk.HELLO, form.HELLO.pack(form.VERSION, 7, 8, 130000) + b"/lib/libcupti\x1b[2J.so")
STARTED = chunk(Chunk.STARTED, form.STARTED.pack(1, 2, 3, 4, 31, 0, 5000))
ROWS = chunk(Chunk.KERNELS, bytes(88 * 10))
END = chunk(Chunk.END, form.END.pack(1, 2, 3, 4, 0, 0, 6, 10, 880, 100, 200))
WHOLE = form.MAGIC + HELLO + STARTED + ROWS + END


@pytest.fixture
def stream(tmp_path):
    """A stream into a file, and what is in that."""
    path = tmp_path / "record"
    made = Stream(os.open(path, os.O_WRONLY | os.O_CREAT), 1 << 20)
    made.path = path
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_record_may_come_in_any_pieces(seed, stream):
    pieces = random.Random(seed)
    at = 0
    while at < len(WHOLE):
        size = pieces.randint(1, 40)
        stream.feed(WHOLE[at : at + size])
        at += size

    assert stream.path.read_bytes() == WHOLE
    assert (stream.hello.pid, stream.hello.cupti_version) == (7, 130000)
    assert stream.hello.library == "/lib/libcupti\\x1b[2J.so", "what a target says is made safe to show"
    assert (stream.started_ns, stream.enabling_ns) == (3, 5000)
    assert (stream.end.dropped, stream.end.records, stream.end.bytes, stream.end.took_ns) == (6, 10, 880, 300)
    assert stream.broken is None


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"no record at all", b"no recor"),
        (form.MAGIC + form.CHUNK_HEADER.pack(5, form.MAX_PAYLOAD_BYTES + 1) + bytes(100), None),
        (form.MAGIC + form.CHUNK_HEADER.pack(5, 0xFFFFFFFF) + bytes(100), None),
        (form.MAGIC + chunk(Chunk.HELLO, b"short") + ROWS, None),
        (form.MAGIC + HELLO + chunk(Chunk.END, b""), None),
    ],
)
def test_a_stream_that_breaks_a_rule_is_read_no_further(data, kept, stream):
    stream.feed(data)
    size = stream.bytes
    stream.feed(ROWS)

    assert stream.broken
    assert stream.bytes == size < len(data) + 1
    assert kept is None or stream.path.read_bytes() == kept


def test_what_comes_after_the_end_is_not_stored(stream):
    stream.feed(WHOLE + ROWS * 3)
    stream.feed(ROWS)

    assert stream.path.read_bytes() == WHOLE


def test_a_stream_is_bounded(tmp_path):
    stream = Stream(os.open(os.devnull, os.O_WRONLY), 1 << 20)
    stream.feed(form.MAGIC + HELLO + STARTED)
    rows = chunk(Chunk.KERNELS, bytes(1 << 20))
    for _ in range(100):
        stream.feed(rows)
    stream.close()

    assert "more than" in stream.broken
    assert stream.bytes <= (1 << 20) + SLACK_BYTES + len(rows)


def target(**changed):
    process = TargetProcess(os.getpid(), 1, "worker", "VLLM::Worker_TP0", "TP0", (0,), "nvml")
    return replace(Target("vllm:1:1", "vllm", model="a/b", urls=("http://x",), processes=(process,)), **changed)


def frame(steps_per_s):
    live = EngineLive(None, None, steps_per_s=steps_per_s)
    return EngineFrame("vllm:1:1", "http://x", Part(), EngineWindow(live))


def test_a_plan_survives_its_json(tmp_path):
    plan = make_plan(target(), tmp_path, seconds=2.0)

    assert plan_of(plan_json(plan)) == plan


def test_no_two_plans_have_one_name(tmp_path):
    assert len({make_plan(target(), tmp_path, now_s=1.8e9).name for _ in range(3)}) == 3


def test_only_processes_on_a_gpu_are_captured(tmp_path):
    server = TargetProcess(os.getpid(), 1, "api-server", "vllm serve")
    plan = make_plan(target(processes=(server, *target().processes)), tmp_path)

    assert [rank.title for rank in plan.ranks] == ["VLLM::Worker_TP0"]
    with pytest.raises(NothingFound, match="none of its 1 processes is known to use a GPU"):
        make_plan(target(processes=(server,)), tmp_path)


def test_steps_are_bounded_by_the_engines_own_pace(tmp_path):
    assert make_plan(target(), tmp_path, steps=49, engine=frame(100.0)).window_s == pytest.approx(0.5)
    assert make_plan(target(), tmp_path, steps=1, engine=frame(1000.0)).window_s == 0.05
    assert make_plan(target(), tmp_path, steps=10_000, engine=frame(2.0)).window_s == 60.0
    for unknown in (frame(None), frame(0.0), None):
        with pytest.raises(UsageError, match="give --seconds"):
            make_plan(target(), tmp_path, steps=10, engine=unknown)


GIB = 1 << 30
EMPTY_DISK = Disk(1 << 50, 1 << 50)


@pytest.mark.parametrize(
    ("total", "free", "planned", "full"),
    [
        (1000 * GIB, 51 * GIB, 0, False),
        (1000 * GIB, 49 * GIB, 0, True),
        (10 * GIB, 3 * GIB, 0, False),
        (10 * GIB, 1 * GIB, 0, True),
        (10 * GIB, 3 * GIB, 2 * GIB, True),
    ],
)
def test_some_room_always_stays(total, free, planned, full):
    assert bool(disk_full(Disk(total, free), planned)) is full


def sample(at_s, tokens, running=1.0):
    return EngineSample(int(at_s * 1e9), 0.0, 0, tokens, tokens, running)


@pytest.fixture
def guarded(tmp_path):
    """Guards of a window in this very process: `guarded(samples, disk, window_s)`."""

    def make(samples=(), disk=EMPTY_DISK, window_s=10.0):
        plan = make_plan(target(), tmp_path, seconds=window_s)
        return Guards(plan, tmp_path, lambda: samples, lambda _: disk)

    return make


def test_all_is_well(guarded):
    assert guarded([sample(t / 2, t * 10) for t in range(20)]).trouble(0, 1.0) is None


def test_the_disk_fills_up(guarded):
    assert "the disk is nearly full" in guarded(disk=Disk(100 * GIB, GIB)).trouble(0, 1.0)


def test_as_many_bytes_as_agreed_to(guarded):
    assert "the most that this window may have" in guarded().trouble(1 << 30, 1.0)


def test_its_time_is_long_over(guarded):
    assert guarded().trouble(0, 10.0 + guards.LATE_S + 1).startswith("its end is overdue")


def test_the_target_grows(guarded, monkeypatch):
    watched = guarded()
    monkeypatch.setattr(guards, "GROWTH_BYTES", 1 << 20)
    grown = bytearray(os.urandom(64 << 20))

    assert "has grown by" in watched.trouble(0, 1.0)
    assert len(grown) == 64 << 20


STOOD = [sample(0, 10), sample(1, 20), *(sample(1 + t / 2, 20) for t in range(1, 6))]


def test_the_engine_stands_still(guarded):
    assert standing_still_s(STOOD) == pytest.approx(2.5)
    assert guarded(STOOD).trouble(0, 1.0) == "the engine has made no token for 2.5 s"
    assert guarded(STOOD, window_s=2.0).trouble(0, 1.0) is None, "a short window is over before that is known"


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample(0, 10)],
        [sample(0, 10), sample(9, 10)],
        [replace(one, running=0.0) for one in STOOD],
        [replace(one, progress=None) for one in STOOD],
    ],
)
def test_an_engine_that_is_idle_or_says_nothing_does_not_stand_still(samples, guarded):
    assert guarded(samples).trouble(0, 1.0) is None


def pace(rate, begin, end):
    """Answers twice a second at a rate."""
    return [sample(begin + n / 2, rate * n / 2) for n in range(int((end - begin) * 2) + 1)]


def after(before, rate, begin, end):
    return [replace(one, generation_tokens=before[-1].generation_tokens + one.generation_tokens)
            for one in pace(rate, begin, end)]  # fmt: skip


@pytest.mark.parametrize(("rate", "seconds", "back"), [(1000, 3, True), (950, 3, True), (500, 3, False), (0, 9, False),
                                                       (1000, 1, False)])  # fmt: skip
def test_the_engine_is_back_when_its_rate_is(rate, seconds, back):
    before = pace(1000, 0, 10)
    samples = [*before, *after(before, rate, 11.1, 11.1 + seconds)]

    assert recovered(samples, int(10.1e9), int(11e9)) is back


def test_of_an_idle_or_silent_engine_it_cannot_be_told():
    assert recovered(pace(0, 0, 20), int(10e9), int(11e9)) is None
    assert recovered([], int(10e9), int(11e9)) is None


def test_a_reader_that_sleeps_does_not_hold_the_worker_up():
    reading, writing = os.pipe()
    teller = Teller(writing)
    for number in range(5000):
        teller.tell(Progress("recording", "x" * 100, records_bytes=number))
    os.set_blocking(reading, False)
    lines = b""
    while True:
        try:
            lines += os.read(reading, 1 << 16)
        except BlockingIOError:
            break
    teller.tell(Progress("finishing"))
    teller.tell_last(Progress("ended", outcome="done"))
    os.close(writing)
    lines += os.read(reading, 1 << 16)
    os.close(reading)
    told = [progress_of(line) for line in lines.splitlines()]

    assert None not in told, "every line is whole"
    assert told[-1].outcome == "done"
    assert progress_of(line_of(told[0])) == told[0]


def test_two_captures_of_one_name_are_both_kept(tmp_path):
    for _ in range(3):
        folder = CaptureFolder(tmp_path / "captures", "one")
        folder.make()
        folder.keep(whole=True)

    assert sorted(path.name for path in (tmp_path / "captures").iterdir()) == ["one", "one-2", "one-3"]


def test_a_folder_that_is_exchanged_for_a_link_leads_nowhere(tmp_path):
    """Root may write to a user's own place."""
    folder = CaptureFolder(tmp_path / "captures", "one")
    folder.make()
    (tmp_path / "precious").mkdir()
    folder.path.rename(tmp_path / "moved")
    folder.path.symlink_to(tmp_path / "precious")
    os.close(folder.open_record("rank0_pid7.gtw"))
    folder.write_json("capture.json", {})

    assert list((tmp_path / "precious").iterdir()) == []
    assert {path.name for path in (tmp_path / "moved").iterdir()} == {"rank0_pid7.gtw.part", "capture.json", LOCK}


@dataclass
class PipeChannel:
    commands: int
    records: int


def test_putting_a_window_away_twice_closes_nobody_elses_files(tmp_path):
    folder = CaptureFolder(tmp_path / "captures", "one")
    folder.make()
    commands, records = os.pipe()[1], os.pipe()[0]
    window = Window([("rank0_pid7.gtw", PipeChannel(commands, records))], folder, Kinds.KERNELS, 10**9, 1 << 20)
    window.put_away()
    with open(os.devnull, "rb") as first, open(os.devnull, "rb") as second:
        assert {first.fileno(), second.fileno()} & {commands, records}, "their numbers are used again"
        window.put_away()

        assert first.read() == second.read() == b""


class Slow:
    """Injections that take their time, by a clock of their own."""

    def __init__(self):
        self.now_s, self.deadlines = 100.0, []

    def inject(self, rank, deadline_s):
        self.deadlines.append(deadline_s)
        self.now_s += min(4.0, deadline_s)
        return Reached(PipeChannel(*os.pipe()[::-1]), "injected")


def test_all_ranks_together_are_injected_within_a_time_that_the_first_of_them_waits(tmp_path, monkeypatch):
    slow = Slow()
    monkeypatch.setattr(native_taker.time, "monotonic", lambda: slow.now_s)
    monkeypatch.setattr(native_taker.clients, "inject", slow.inject)
    plan = make_plan(target(), tmp_path)
    ranks = tuple(replace(plan.ranks[0], number=number) for number in range(8))
    folder, nothing = CaptureFolder(tmp_path, "one"), lambda *_: None
    setting = Setting(replace(plan, ranks=ranks), folder, {}, tuple, lambda: False, nothing, nothing, nothing, nothing)
    taker = native_taker.NativeTaker(setting)

    with pytest.raises(GputopError, match="only 7 of 8 processes were reached within 25 s"):
        taker.begin()
    assert slow.deadlines == [5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 1.0]
    taker.close()


@pytest.mark.parametrize("value", [1e308, float("inf"), float("nan")])
def test_what_an_engine_says_can_always_be_written_down(value):
    histogram = Histogram((0.1, float("inf")), (value, value), None)
    counters = {"generation_tokens": value}
    series = [EngineSeries("m", "0", running=value, counters=counters, histograms={"itl": histogram})] * 2
    reading = EngineReading("vllm", series=tuple(series), started_s=value)

    told = json.loads(sample_line(sample_of(reading, 1, 2.0, 3)))
    assert (told["generation_tokens"], told["running"], told["itl"]) == (None, None, None)
