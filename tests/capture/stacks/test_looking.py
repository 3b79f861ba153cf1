"""Stacks of real Python processes, read by the real py-spy: who stands elsewhere, what moves, what can't be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from gputop_llm.capture import way
from gputop_llm.capture.process import Ran
from gputop_llm.capture.stacks import looking, pyspy, route
from gputop_llm.capture.stacks.looking import Seen
from gputop_llm.cli import main
from gputop_llm.sources.procfs import ProcFs
from tests.capture.stacks.conftest import BUSY, RANK

RECORDED = Path(__file__).parents[2] / "fixtures" / "pyspy_vllm-enginecore.json"


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def seen_by_doctor(pid):
    return way.Seen(pid, ProcFs().stat(pid).start_ticks, ProcFs())


def ranks(*pids):
    return [Seen(pid, f"worker {at}", "worker", f"TP{at}") for at, pid in enumerate(pids)]


def main_thread(report):
    return next(kind for kind in report.compared if kind.name == "MainThread")


def test_the_rank_that_stands_elsewhere_is_named_with_where_it_is(python):
    pids = [python(RANK, word) for word in ("waits", "waits", "hangs")]

    report = looking.report("three ranks", ranks(*pids))

    kind = main_thread(report)
    assert [variant.labels for variant in kind.variants] == [("TP0", "TP1"), ("TP2",)]
    assert kind.majority
    outlier = kind.variants[1]
    assert [call.function for call in outlier.calls] == ["load_weights", "step", "<module>"]
    # step is on another line's call, but the module calls it from the same one.
    assert outlier.differs_at == 2
    assert report.headline.startswith("TP2 in load_weights (<string>:")
    assert "the other 2 in Condition.wait" in report.headline or "the other 2 in Event.wait" in report.headline
    assert all(variant.moved == 0 for variant in kind.variants)
    feed = next(kind for kind in report.compared if kind.name == "feed")
    assert feed.same


def test_of_two_ranks_neither_is_the_outlier_and_both_are_told(python):
    report = looking.report("two ranks", ranks(python(RANK, "waits"), python(RANK, "hangs")))

    kind = main_thread(report)
    assert not kind.majority
    assert all(variant.differs_at is None for variant in kind.variants)
    assert "TP1 in load_weights (<string>:" in report.headline
    assert "TP0 in " in report.headline


def test_ranks_that_all_stand_at_the_same_place_are_said_to(python):
    report = looking.report("two ranks", ranks(python(RANK, "waits"), python(RANK, "waits")))

    assert report.headline.startswith("all 2 stand at the same place: ")
    assert report.headline.endswith("and did not move between two looks")


def test_a_rank_that_is_stopped_is_shown_beside_the_one_that_waits_for_it(python):
    pids = [python(RANK, "waits"), python(RANK, "hangs")]
    os.kill(pids[1], signal.SIGSTOP)
    report = looking.report("two ranks", ranks(*pids))

    assert [variant.labels for variant in main_thread(report).variants] == [("TP0",), ("TP1",)]
    assert "TP1 in load_weights (<string>:" in report.headline
    assert state(pids[1]) == "T"


def test_a_busy_interpreter_is_read_without_stopping_it(python):
    pid = python(BUSY)

    report = looking.report("busy", [Seen(pid, "engine", "engine-core")])

    (process,) = report.processes
    assert process.unreadable is None
    assert len(process.threads) == 11
    (spinning,) = [thread for thread in process.threads if thread.name == "MainThread"]
    assert spinning.calls[0].function == "spin"
    assert spinning.active
    assert all(thread.moved is False for thread in process.threads if thread is not spinning)
    assert state(pid) in ("R", "S")


def test_a_rank_that_cannot_be_read_does_not_hide_the_others(python, tmp_path):
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            report = looking.report("mixed", ranks(python(RANK, "waits"), other.pid))
        finally:
            other.kill()

    good, bad = report.processes
    assert good.unreadable is None
    assert bad.unreadable is not None
    assert "no Python process" in bad.unreadable.why
    assert looking.unreadable_of(report) is None


def test_a_look_that_takes_too_long_is_given_up_and_the_process_runs_on(python):
    pid = python(RANK, "waits")

    report = looking.report("late", [Seen(pid, "engine", "engine-core")], look=lambda _: pyspy.dump(pid, within_s=0.0))

    refused = report.processes[0].unreadable
    assert refused is not None
    assert refused.why.endswith("the process runs on (looked at afterwards)")
    assert state(pid) == "S"


def test_a_recorded_engine_is_understood():
    recorded = Ran(0, RECORDED.read_bytes(), b"")

    report = looking.report("vLLM", [Seen(624, "EngineCore", "engine-core")], look=lambda _: recorded)

    (process,) = report.processes
    assert {thread.name for thread in process.threads} == {
        "MainThread", "Thread-1 (process_input_sockets)", "Thread-2 (process_output_sockets)", "signal-callback",
        "tqdm_monitor",
    }  # fmt: skip
    assert report.headline.startswith(
        "MainThread of PID 624 is in Sampler.apply_sampling_params (vllm/v1/worker/gpu/sample/sampler.py:157)"
    )


@pytest.mark.parametrize("answer", [b"", b"{}", b"[[1]]" * 3, b"\xff", b"[" * 100_000])
def test_an_answer_that_makes_no_sense_is_said(answer):
    report = looking.report(
        "vLLM", [Seen(os.getpid(), "EngineCore", "engine-core")], look=lambda _: Ran(0, answer, b"")
    )

    refused = report.processes[0].unreadable
    assert refused is not None
    assert "makes no sense" in refused.why


def test_names_from_the_target_are_shown_inert():
    hostile = [{"thread_name": "\x1b[2J[red]x", "thread_id": 1, "frames": [{"name": "a\nb", "line": "7"}, 5]}, "no"]
    (thread,) = pyspy.threads_of(json.dumps(hostile).encode())

    assert thread.name == "\\x1b[2J[red]x"
    assert [call.function for call in thread.calls] == ["a\\nb"]
    assert thread.calls[0].line == 0


def test_the_command_prints_who_differs_and_json_has_all(python, capsys):
    pid = python(RANK, "hangs")

    assert main(["stacks", "--pid", str(pid), "--period", "0.25"]) == 0
    out = capsys.readouterr().out
    assert "load_weights (<string>:" in out
    assert main(["stacks", "--pid", str(pid), "--period", "0.25", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "gputop-llm/stacks/1"
    assert {thread["name"] for thread in told["stacks"]["processes"][0]["threads"]} == {"MainThread", "Thread-1 (feed)"}


def test_the_command_says_why_nothing_can_be_read(capsys):
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            code = main(["stacks", "--pid", str(other.pid), "--period", "0.25"])
        finally:
            other.kill()

    assert code == 1
    assert capsys.readouterr().err.startswith("cannot read Python stacks: it is no Python process")


def test_doctor_finds_out_by_reading(python):
    seen = seen_by_doctor(python(RANK, "waits"))
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            closed = route.look(seen_by_doctor(other.pid))
        finally:
            other.kill()

    assert route.look(seen).state == "open"
    assert (closed.state, closed.opens) == ("closed", "choose a process that runs Python")
