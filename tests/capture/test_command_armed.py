"""`gputop-llm capture --when`: waits for a symptom, captures once, says what fired it; survives its terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm.cli import main
from gputop_llm.commands import capture_armed
from gputop_llm.model.symptom import Evidence, Severity, Subject, Symptom, SymptomReport
from tests.capture.test_command import captured, engine, find, native  # noqa: F401
from tests.support.real_processes import until


@pytest.fixture
def rules(monkeypatch):
    """Raises what a test puts in: the rules themselves have their own tests."""
    raised: list[Symptom] = []
    look = capture_armed.Armed.look
    monkeypatch.setattr(
        capture_armed.Armed,
        "look",
        lambda self, frame: look(self, replace(frame, symptoms=SymptomReport(active=tuple(raised)))),
    )
    return raised


def stalled(target, since_s=0.0):
    evidence = (Evidence("no token for", 12.0, "s", "engine", threshold=10.0, threshold_origin="default"),)
    subject = Subject(f"engine:vllm:{target.pid}:0", "vLLM")
    return Symptom("stalled", subject, Severity.CRITICAL, "no token for 12 s", evidence, (), (), "", since_s=since_s)


def facts_of(captures):
    (path,) = captures.iterdir()
    return json.loads((path / "capture.json").read_text())


def test_it_captures_when_the_symptom_holds_and_writes_down_what_fired_it(engine, captures, capsys, rules):  # noqa: F811
    rules.append(stalled(engine))

    code, out, err = captured(capsys, captures, "--when", "stalled", "--once", "--yes", "--seconds", "0.2")

    assert code in (0, 4)
    assert out
    assert "armed:    waits until stalled holds; once, for at most 1 d 00 h" in err
    assert "stalled holds: no token for 12 s" in err
    assert "captured (1 of 1): " in err
    told = facts_of(captures)["plan"]["armed"]
    assert (told["symptom"], told["headline"]) == ("stalled", "no token for 12 s")
    assert told["evidence"][0]["value"] == 12.0
    assert engine.serves()


def test_nothing_is_armed_unless_agreed_to(engine, captures, capsys, rules):  # noqa: F811
    code, _, err = captured(capsys, captures, "--when", "stalled")

    assert code == 2
    assert "--yes agrees to the above now" in err
    assert not captures.exists()


def test_it_gives_up_when_the_symptom_never_holds(engine, captures, capsys, rules):  # noqa: F811
    code, _, err = captured(capsys, captures, "--when", "stalled", "--budget", "wait=1s", "--yes")

    assert code == 3
    assert "nothing was captured: stalled did not hold within 1 s" in err
    assert not captures.exists()


@pytest.mark.parametrize("flags", [("--for", "5"), ("--once",), ("--budget", "wait=1s")])
def test_what_is_for_waiting_is_refused_without_a_symptom(flags, capsys):
    assert main(["capture", *flags]) == 2
    assert "name a symptom with --when" in capsys.readouterr().err


def test_a_budget_that_is_too_small_for_any_capture_is_said(engine, captures, capsys, rules):  # noqa: F811
    code, _, err = captured(capsys, captures, "--when", "stalled", "--budget", "disk=1M", "--yes")

    assert code == 2
    assert "the budget is too small" in err


@pytest.fixture
def demo(tmp_path):
    """Starts an armed capture of the simulated node at a terminal of its own."""
    started = []

    def start(*arguments):
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "gputop_llm", "capture", "--demo", "stalled", "--when", "stalled", *arguments],
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=slave,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        os.close(slave)
        started.append((process, master))
        return process, master

    yield start
    for process, _ in started:
        process.kill()
        process.wait()
        process.stdout.close()


def said_until(master, words):
    said = ""
    while words not in said:
        said += os.read(master, 65536).decode()
    return said


def test_a_scenario_fires_it_from_end_to_end_though_its_terminal_is_gone(demo):
    process, master = demo("--yes", "--json")
    said_until(master, "waiting; Ctrl-C or SIGTERM disarms")
    # The terminal hangs up.
    os.close(master)
    process.send_signal(signal.SIGHUP)

    out, _ = process.communicate(timeout=120)

    assert process.returncode in (0, 4)
    told = json.loads(out)
    assert told["outcome"] == "done"
    assert told["plan"]["armed"]["symptom"] == "stalled"
    assert told["plan"]["armed"]["evidence"]
    assert told["verdict"]["findings"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_disarmed_by_a_signal(number, demo):
    process, master = demo("--yes")
    said_until(master, "waiting; Ctrl-C or SIGTERM disarms")
    process.send_signal(number)

    said = said_until(master, "disarmed, nothing was captured")

    assert "captured (" not in said
    assert until(lambda: process.poll() is not None)
    assert process.returncode == 130
    os.close(master)
