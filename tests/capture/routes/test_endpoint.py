"""Windows by the engine's own profiler: bounded, proven by their files, cleaned up after, or refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gputop_llm.capture import endpoint_taker, endpoint_undo, traces_undo
from gputop_llm.capture.endpoint.ask import Address, base_of
from gputop_llm.capture.plan import Plan, make_plan
from gputop_llm.model import Target, TargetProcess
from gputop_llm.timeline.read import read_capture
from tests.capture.support import capture, kill, last_of, processes_of, reach_stage
from tests.support.real_processes import until

ENGINE = Path(__file__).with_name("engine.py")
CONFIG = '{"profiler": "torch", "torch_profiler_dir": "%s", "torch_profiler_with_stack": false}'


@dataclass
class Engine:
    """A running engine.py."""

    process: subprocess.Popen
    url: str
    log: Path
    kind: str
    folder: Path
    ranks: int

    @property
    def requests(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def posts(self, path):
        return [one for one in self.requests if one["method"] == "POST" and one["path"] == path]

    def plan(self, captures, steps=4, seconds=0.3, **options) -> Plan:
        pid = self.process.pid
        engine = self.kind.partition("-")[0]
        argv = {
            "vllm": ("vllm", "serve", "acme/llama-8b", "--profiler-config", CONFIG % self.folder),
            "vllm-old": ("vllm", "serve", "acme/llama-8b"),
            "sglang": ("python", "-m", "sglang.launch_server", "--model-path", "acme/llama-8b"),
            "trtllm": ("trtllm-serve", "acme/llama-8b"),
        }[self.kind]
        target = Target(
            key=f"{engine}:{pid}:0",
            engine=engine,
            root_pid=pid,
            argv=argv,
            model="acme/llama-8b",
            version={"vllm": "0.32.0", "vllm-old": "0.10.2"}.get(self.kind, "0.5.12"),
            urls=(self.url,),
            urls_from="argv",
            processes=(TargetProcess(pid, 1, "worker", "worker", "TP0", (0,), "nvml"),),
        )
        plan = make_plan(target, captures, seconds=seconds, route="engine-endpoint", options=options)
        # One process plays all ranks.
        ranks = tuple(replace(plan.ranks[0], number=number) for number in range(self.ranks))
        return replace(plan, ranks=ranks, steps=steps)


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stack:

        def run(kind, behaviour="good", ranks=1, stacks="0"):
            log, folder = tmp_path / f"requests-{kind}", tmp_path / "traces"
            folder.mkdir(exist_ok=True)
            environ = {**os.environ}
            if kind == "vllm-old":
                environ |= {"VLLM_TORCH_PROFILER_DIR": str(folder), "VLLM_TORCH_PROFILER_WITH_STACK": stacks}
            process = subprocess.Popen(
                [sys.executable, str(ENGINE), str(log), kind, str(folder), behaviour, str(ranks)],
                env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            port = int(process.stdout.readline())
            return Engine(process, f"http://127.0.0.1:{port}/metrics", log, kind, folder, ranks)

        yield run


def records(path):
    return sorted(Path(path).glob("*.trace.json.gz"))


@pytest.mark.parametrize("kind", ["vllm", "vllm-old", "sglang", "trtllm"])
def test_a_window_is_taken_of_all_ranks_and_judged(kind, start, captures):
    engine = start(kind, ranks=2)
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.why, ended.details.get("bundle_error")) == ("done", "", None)
    names = [path.name for path in records(ended.path)]
    assert names == [f"rank{number}_pid{engine.process.pid}.trace.json.gz" for number in (0, 1)]
    for number, path in enumerate(records(ended.path)):
        assert f'"gemm_{number}"'.encode() in gzip.decompress(path.read_bytes())
        assert len(read_capture([path]).ops) == 200
    assert json.loads((Path(ended.path) / "capture.json").read_text())["kind"] == "engine-endpoint"
    assert "torch.profiler" not in engine.log.read_text()


def test_each_start_is_bounded_in_steps_and_asks_for_no_stacks(start, captures):
    for kind, steps in (("vllm", "max_iterations"), ("sglang", "num_steps"), ("trtllm", "num_steps")):
        engine = start(kind)
        with capture(engine.plan(captures, steps=6)) as run:
            assert last_of(run).outcome == "done"
        (begun,) = engine.posts("/start_profile")
        assert begun["body"][steps] == 6
        assert not begun["body"].get("with_stack")


def test_an_engine_that_takes_no_bound_is_stopped_by_us(start, captures):
    engine = start("vllm-old")
    with capture(engine.plan(captures)) as run:
        assert last_of(run).outcome == "done"

    assert engine.posts("/start_profile") == [
        {"method": "POST", "path": "/start_profile", "body": None, "key": None}
    ]  # fmt: skip
    assert len(engine.posts("/stop_profile")) == 1


def test_shapes_memory_stacks_and_a_stage_are_what_was_asked_for(start, captures):
    engine = start("sglang")
    options = {"cpu": False, "shapes": True, "memory": True, "stacks": True, "stage": "decode"}
    with capture(engine.plan(captures, **options)) as run:
        assert last_of(run).outcome == "done"

    (begun,) = engine.posts("/start_profile")
    body = begun["body"]
    assert (body["activities"], body["with_stack"], body["record_shapes"]) == (["GPU", "MEM"], True, True)
    assert body["profile_by_stage"] is True
    assert body["profile_stages"] == ["decode"]


def test_our_traces_are_removed_and_others_are_not(start, captures):
    engine = start("vllm")
    other = engine.folder / "somebody_elses_rank0.1.pt.trace.json.gz"
    other.write_bytes(b"theirs")
    with capture(engine.plan(captures)) as run:
        assert last_of(run).outcome == "done"

    assert list(engine.folder.iterdir()) == [other]
    assert other.read_bytes() == b"theirs"
    sglang = start("sglang")
    with capture(sglang.plan(captures)) as run:
        assert last_of(run).outcome == "done"
    assert not Path(sglang.posts("/start_profile")[0]["body"]["output_dir"]).exists()


def test_where_ours_can_not_be_told_from_others_they_stay_and_are_named(start, captures):
    engine = start("vllm-old")
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    left = json.loads((Path(ended.path) / "capture.json").read_text())["left_in_target"]
    assert left["folder"] == str(engine.folder)
    assert sorted(left["files"]) == sorted(path.name for path in engine.folder.iterdir())


@pytest.mark.parametrize(
    ("behaviour", "outcome", "says"),
    [
        ("broken", "refused", "it answered 500: Internal Server Error"),
        ("busy", "refused", "already in progress"),
        ("locked", "refused", "it answered 401"),
        ("absent", "refused", "there is no /start_profile"),
    ],
)
def test_what_the_engine_says_no_to_is_refused_and_not_stopped(behaviour, outcome, says, start, captures):
    engine = start("vllm", behaviour)
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    assert ended.outcome == outcome
    assert says in f"{ended.what}: {ended.why}"
    assert ended.todo
    assert engine.posts("/stop_profile") == [], "a window of somebody else's must go on"
    assert list(captures.iterdir()) == []


def test_the_key_opens_what_wants_one_and_is_written_nowhere(start, captures):
    engine = start("sglang", "locked")
    with capture(engine.plan(captures), api_key="sesame") as run:
        ended = last_of(run)

    assert ended.outcome == "done"
    assert all(one["key"] == "Bearer sesame" for one in engine.requests)
    for path in Path(ended.path).iterdir():
        assert b"sesame" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("behaviour", "says"), [("nothing", "wrote no trace"), ("short", "ends too early"), ("stubborn", "wrote no trace")]
)
def test_a_good_answer_without_a_whole_trace_is_a_failure(behaviour, says, start, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_FILES_S", "1.5")
    monkeypatch.setenv("GPUTOP_TEST_LATE_S", "0.5")
    engine = start("vllm", behaviour)
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "failed"
    assert ended.what == "nothing was recorded"
    assert says in ended.why
    assert list(captures.iterdir()) == []
    assert engine.process.poll() is None


def test_a_bad_answer_with_a_whole_trace_is_a_capture(start, captures):
    engine = start("vllm-old", "angry")
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "done"
    assert json.loads((Path(ended.path) / "capture.json").read_text())["stop_status"] == 500


def test_a_trace_that_is_written_bit_by_bit_is_waited_for(start, captures):
    engine = start("sglang", "slow")
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "done"
    assert len(read_capture(records(ended.path)).ops) == 200


def test_steps_that_never_come_end_by_our_request(start, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_LATE_S", "0.5")
    engine = start("sglang", "endless")
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "incomplete"
    assert "overdue" in ended.why
    assert len(engine.posts("/stop_profile")) == 1
    assert len(records(ended.path)) == 1


@pytest.mark.parametrize("kind", ["sglang", "vllm-old"])
def test_a_missing_rank_is_said_and_the_others_are_kept(kind, start, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_FILES_S", "1.5")
    monkeypatch.setenv("GPUTOP_TEST_LATE_S", "0.5")
    engine = start(kind, "fewer", ranks=2)
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "incomplete"
    assert kind == "sglang" or "no trace of rank 1" in ended.why
    assert [path.name[:5] for path in records(ended.path)] == ["rank0"]
    told = json.loads((Path(ended.path) / "capture.json").read_text())
    assert [rank["whole"] for rank in told["ranks"]] == [True, False]


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_who_goes_away_leaves_no_profiler_running(how, start, captures):
    engine = start("sglang", "endless")
    with capture(engine.plan(captures, seconds=30.0)) as run:
        reach_stage(run, "recording")
        if how == "cancel":
            run.cancel()
        else:
            kill(run.pid)
        ended = last_of(run)

    assert ended.outcome == {"cancel": "cancelled", "kill": "failed"}[how]
    assert until(lambda: len(engine.posts("/stop_profile")) == 1)
    assert until(lambda: set(processes_of(captures)) <= {engine.process.pid})


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_traces_of_a_window_whose_worker_is_killed_are_removed_and_no_others(kind, start, captures):
    engine = start(kind, "endless", ranks=2)
    other = engine.folder / "somebody_elses_rank0.1.pt.trace.json.gz"
    other.write_bytes(b"theirs")
    with capture(engine.plan(captures, seconds=30.0)) as run:
        reach_stage(run, "recording")
        kill(run.pid)
        assert last_of(run).outcome == "failed"

    assert until(lambda: set(processes_of(captures)) <= {engine.process.pid}, 20.0)
    assert len(engine.posts("/stop_profile")) == 1
    assert list(engine.folder.iterdir()) == [other]
    if kind == "sglang":
        assert not Path(engine.posts("/start_profile")[0]["body"]["output_dir"]).exists()
    assert list(captures.iterdir()) == []


def test_an_engine_that_wants_a_key_to_be_stopped_is_no_success(start, captures):
    engine = start("sglang", "locked")
    address = Address(base_of(engine.url), None)

    assert "wants its API key" in endpoint_undo.undo(endpoint_undo.step(address, "/stop_profile"))
    open_ = Address(base_of(engine.url), "sesame")
    assert endpoint_undo.undo(endpoint_undo.step(open_, "/stop_profile")) is None


def test_only_traces_of_ours_are_ever_removed(tmp_path):
    for folder, tag, owned in ((tmp_path, "", True), (tmp_path, "gputop-llm-", False), ("/tmp", "", True)):
        step = {"pid": os.getpid(), "folder": str(folder), "tag": tag, "owned": owned, "window_s": 1.0}
        assert "names no traces of ours" in traces_undo.undo(step)


def test_a_server_that_records_stacks_is_asked_only_when_they_are_wanted(start, captures):
    engine = start("vllm-old", stacks="1")
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)
    assert ended.outcome == "refused"
    assert "Python stacks" in ended.why
    assert engine.requests == []

    with capture(engine.plan(captures, stacks=True)) as run:
        assert last_of(run).outcome == "done"


def test_a_start_that_is_never_answered_is_ended_all_the_same(start, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_START_S", "0.5")
    engine = start("sglang", "mute")
    began = time.monotonic()
    with capture(engine.plan(captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "failed"
    assert "no answer within 0.5 s" in f"{ended.what}: {ended.why}"
    assert time.monotonic() - began < 30
    assert len(engine.posts("/stop_profile")) == 1


def test_its_deadlines_cover_what_was_seen():
    """Traces of a large model took minutes to write."""
    assert endpoint_taker._STOP_S >= 120
    assert endpoint_taker._FILES_S >= 60
