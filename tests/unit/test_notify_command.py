"""`--exec` with real commands: what they get, what they don't, and how they end."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from gputop_llm.errors import GputopError, UsageError
from gputop_llm.model.symptom import Severity
from gputop_llm.notify.announcer import Event
from gputop_llm.notify.command import Command
from gputop_llm.notify.notice import Notice, notice
from gputop_llm.notify.outbox import MOST_WAITING, Outbox
from tests.support.fake_sources import until
from tests.support.symptom_reports import a_symptom

EVENT = notice(Event(True, a_symptom("kv-pressure", Severity.CRITICAL), 1.7e9), "gpu-node-7", None)


@pytest.fixture
def script(tmp_path):
    """Makes a Python script; returns the command line that runs it."""

    def make(body: str) -> str:
        path = tmp_path / f"script-{len(list(tmp_path.iterdir()))}.py"
        path.write_text(f"import json, os, signal, subprocess, sys, time\nfrom pathlib import Path\n{body}\n")
        return f"{sys.executable} {path}"

    return make


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_event_is_json_on_standard_input_and_in_a_few_variables(script, tmp_path):
    out = tmp_path / "out.json"
    names = ["EVENT", "SYMPTOM", "SEVERITY", "SUBJECT", "HEADLINE", "NODE"]
    Command(
        script(
            f"got = {{name: os.environ.get('GPUTOP_LLM_' + name) for name in {names!r}}}\n"
            f"Path({str(out)!r}).write_text(json.dumps([json.load(sys.stdin), got, sys.argv[1:]]))"
        )
        + " --team 'inference on call'"
    ).deliver(EVENT)
    event, words, arguments = json.loads(out.read_text())
    assert (event["schema"], event["event"], event["node"], event["dropped"]) == (1, "raised", "gpu-node-7", 0)
    assert event["symptom"]["id"] == "kv-pressure"
    assert event["symptom"]["evidence"][0]["value"] == 99
    assert words == {
        "EVENT": "raised",
        "SYMPTOM": "kv-pressure",
        "SEVERITY": "critical",
        "SUBJECT": "vllm org/model-a",
        "HEADLINE": "kv-pressure: 99 % full, 7 waiting",
        "NODE": "gpu-node-7",
    }
    assert arguments == ["--team", "inference on call"]


def test_no_shell_reads_the_command_or_the_event(script, tmp_path):
    out, pwned = tmp_path / "out.json", tmp_path / "pwned"
    event = notice(
        Event(True, a_symptom(headline=f"$(touch {pwned}) `touch {pwned}`\n; touch {pwned}"), 1.7e9), "n", None
    )
    command = script(f"Path({str(out)!r}).write_text(json.dumps(sys.argv[1:]))")
    Command(f"{command} ; touch {pwned} && $HOME '|' *").deliver(event)
    assert json.loads(out.read_text()) == [";", "touch", str(pwned), "&&", "$HOME", "|", "*"]
    assert not pwned.exists()
    assert "\n" not in event.words["GPUTOP_LLM_HEADLINE"]


def test_secrets_are_not_in_the_commands_environment_nor_in_any_argument(script, tmp_path, monkeypatch):
    out = tmp_path / "out"
    secrets = {"API_KEY": "hush-1", "WEBHOOK": "http://h/hush-2", "EXEC": "echo hush-3"}
    for name, value in secrets.items():
        monkeypatch.setenv(f"GPUTOP_LLM_{name}", value)
    monkeypatch.setenv("PAGER_TOKEN", "my own")
    Command(
        script(
            f"Path({str(out)!r}).write_bytes(Path(f'/proc/{{os.getpid()}}/cmdline').read_bytes() + "
            "Path('/proc/self/environ').read_bytes())"
        )
    ).deliver(EVENT)
    seen = out.read_text()
    assert "hush" not in seen
    assert "PAGER_TOKEN=my own" in seen


def test_one_that_reads_nothing_and_one_that_writes_much_are_fine(script, capfd):
    big = Notice(b"x" * 1_000_000, {})
    Command("true").deliver(big)
    Command(script("print('noise' * 1_000_000); print('noise' * 1_000_000, file=sys.stderr)")).deliver(big)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(3)", "the command of --exec ended with status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the command of --exec was killed by signal 9"),
    ],
)
def test_one_that_fails_is_one_sentence(script, body, said):
    with pytest.raises(GputopError) as caught:
        Command(script(body)).deliver(EVENT)
    assert caught.value.sentence() == said


def test_one_that_hangs_is_killed_at_its_deadline_with_all_it_started(script, tmp_path):
    pids = tmp_path / "pids"
    command = Command(
        script(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "child = subprocess.Popen(['sleep', '600'])\n"
            f"Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{child.pid}}')\n"
            "time.sleep(600)"
        ),
        deadline_s=1.0,
    )
    began = time.monotonic()
    with pytest.raises(GputopError, match="was killed: it ran for 1 s"):
        command.deliver(EVENT)
    assert time.monotonic() - began < 10
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not alive(pid))


def test_one_that_ends_in_time_may_leave_children_behind(script, tmp_path):
    pids = tmp_path / "pids"
    Command(
        script(f"child = subprocess.Popen(['sleep', '600'])\nPath({str(pids)!r}).write_text(str(child.pid))")
    ).deliver(EVENT)
    pid = int(pids.read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_abort_kills_the_one_that_runs_and_starts_no_other(script, tmp_path):
    pids = tmp_path / "pids"
    command = Command(script(f"Path({str(pids)!r}).write_text(str(os.getpid()))\ntime.sleep(600)"))
    outbox = Outbox(command)
    outbox.put(EVENT)
    outbox.put(EVENT)
    pid = int(until(lambda: pids.exists() and pids.read_text()))
    began = time.monotonic()
    outbox.close(0.1)
    until(lambda: not alive(pid))
    assert time.monotonic() - began < 5
    assert int(pids.read_text()) == pid


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the command is empty"),
        ("  ", "the command is empty"),
        ("page 'me", "no closing quotation"),
        ("no-such-program-here --x", "there is no program 'no-such-program-here'; give its full path"),
        ("/etc/passwd", "there is no program '/etc/passwd'"),
    ],
)
def test_one_that_can_not_be_run_is_told_at_once(text, said):
    with pytest.raises(UsageError) as caught:
        Command(text)
    assert said in caught.value.sentence()


def test_one_that_went_away_since_is_a_failure(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    command = Command(str(program))
    program.unlink()
    with pytest.raises(GputopError, match="could not be started"):
        command.deliver(EVENT)


# -- the outbox -------------------------------------------------------------------


class Slow:
    """A delivery that waits until it may go on."""

    name = "the slow one"

    def __init__(self, failure: Exception | None = None) -> None:
        self.go = threading.Event()
        self.taken: list[bytes] = []
        self.failure = failure

    def deliver(self, given: Notice) -> None:
        assert self.go.wait(10)
        self.taken.append(given.body)
        if self.failure is not None:
            raise self.failure

    def abort(self) -> None:
        self.go.set()


def test_notices_are_delivered_in_order_and_put_never_waits():
    slow = Slow()
    outbox = Outbox(slow)
    began = time.monotonic()
    for i in range(5):
        outbox.put(Notice(str(i).encode(), {}))
    assert time.monotonic() - began < 1
    slow.go.set()
    outbox.close(5.0)
    assert slow.taken == [b"0", b"1", b"2", b"3", b"4"]


def test_a_full_outbox_drops_the_oldest_and_says_so(caplog):
    slow = Slow()
    outbox = Outbox(slow)
    outbox.put(Notice(b"first", {}))
    until(lambda: not outbox._waiting)
    for i in range(MOST_WAITING + 3):
        outbox.put(Notice(str(i).encode(), {}))
    slow.go.set()
    outbox.close(5.0)
    assert slow.taken == [b"first", *(str(i).encode() for i in range(3, MOST_WAITING + 3))]
    assert caplog.messages == ["the slow one is too slow: a notice was dropped"]


@pytest.mark.parametrize("failure", [GputopError("it failed", "no reason"), ValueError("http://h/secret")])
def test_failures_are_logged_once_a_minute_and_stop_nothing(caplog, failure):
    slow = Slow(failure)
    slow.go.set()
    outbox = Outbox(slow)
    for _ in range(5):
        outbox.put(Notice(b"", {}))
    outbox.close(5.0)
    assert len(slow.taken) == 5
    (message,) = caplog.messages
    assert message in ("it failed: no reason", "the slow one failed: ValueError")
    assert all(record.exc_info is None for record in caplog.records)
