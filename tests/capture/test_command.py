"""`gputop-llm capture` as a user meets it: what it says first, what it asks, what it prints and returns."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm import node as node_module
from gputop_llm.capture.run import CaptureRun
from gputop_llm.cli import main
from gputop_llm.sources.metrics import MetricsSource
from tests.capture.native.hosting import built
from tests.capture.support import serving, target_of
from tests.support.fake_sources import FakeNode
from tests.support.real_processes import until

SECRET = "sk-verysecretvalue0123456789"


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return built((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native")


@pytest.fixture
def engine(native, tmp_path, monkeypatch):
    """An engine that the program finds, as discovery would."""
    monkeypatch.setenv("GPUTOP_TEST_LIBRARY", str(native.client))
    with serving(tmp_path, cupti=native.cupti) as target:
        find(monkeypatch, target)
        yield target


def find(monkeypatch, target):
    sources = replace(FakeNode((target_of(target),)).sources, metrics=MetricsSource)
    monkeypatch.setattr(node_module, "real_sources", lambda config: sources)


def captured(capsys, captures, *arguments):
    code = main(["capture", "--period", "0.25", "--output", str(captures), *arguments])
    output = capsys.readouterr()
    assert "Traceback" not in output.out + output.err
    return code, output.out, output.err


def test_without_a_terminal_nothing_happens_unless_agreed_to(engine, captures, capsys):
    files = engine.open_files()
    code, out, err = captured(capsys, captures)

    assert (code, out) == (2, "")
    assert "--yes agrees" in err
    assert f"PID {engine.pid}" in err
    assert "2–13 % of the token rate" in err
    assert str(captures) in err
    assert not captures.exists()
    assert until(lambda: engine.open_files() <= files)


def test_agreed_to_it_captures_and_prints_the_verdict(engine, captures, capsys):
    code, out, err = captured(capsys, captures, "--yes")

    (path,) = captures.iterdir()
    assert f"kept in {path}" in err
    assert json.loads((path / "capture.json").read_text())["outcome"] == "done"
    headline = json.loads((path / "verdict.json").read_text())["headline"]
    assert " ".join(headline.split())[:40] in " ".join(out.split())
    assert code == (0 if json.loads((path / "verdict.json").read_text())["judged"] else 4)
    assert engine.serves()


def test_as_json(engine, captures, capsys):
    _, out, _ = captured(capsys, captures, "--yes", "--json", "--seconds", "0.2")

    told = json.loads(out)
    assert (told["schema"], told["outcome"]) == ("gputop-llm/capture/1", "done")
    assert Path(told["path"]).parent == captures
    assert told["plan"]["window_s"] == 0.2
    assert told["verdict"]["schema"] == "gputop-llm/verdict/1"


@pytest.mark.parametrize(("answer", "code"), [("n\n", 130), ("\n", 130), ("y\n", 0)])
def test_at_a_terminal_it_asks_and_the_default_is_no(answer, code, engine, captures, capsys, monkeypatch):
    master, slave = pty.openpty()
    with os.fdopen(os.dup(slave), "r") as stdin, os.fdopen(os.dup(slave), "w") as stderr:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stderr", stderr)
        os.write(master, answer.encode())
        got = main(["capture", "--period", "0.25", "--output", str(captures)])
    said = ""
    while "Capture now? [y/N]" not in said:
        said += os.read(master, 65536).decode()
    os.close(master)
    os.close(slave)

    assert (got in (0, 4)) == (code == 0)
    assert captures.exists() == (code == 0)
    if code:
        assert got == code


def test_ctrl_c_ends_the_window_and_shows_what_there_is(engine, captures, capsys, monkeypatch):
    pressed = threading.Event()
    follow = CaptureRun.follow

    def following(self):
        for told in follow(self):
            if told.stage == "recording" and (told.share or 0) > 0.002 and not pressed.is_set():
                pressed.set()
                os.kill(os.getpid(), signal.SIGINT)
            yield told

    monkeypatch.setattr(CaptureRun, "follow", following)
    code, out, err = captured(capsys, captures, "--yes", "--seconds", "60")

    assert code == 4
    assert "the window was cancelled" in err
    assert out
    assert [path.name.endswith("-incomplete") for path in captures.iterdir()] == [True]
    assert engine.serves()


def test_a_refusal_is_one_sentence(a_target, captures, capsys, monkeypatch):
    target = a_target("refuse")
    find(monkeypatch, target)
    code, out, err = captured(capsys, captures, "--yes")

    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("cannot capture: no CUPTI is loaded in this process")


def test_no_target_is_said(captures, capsys, monkeypatch):
    monkeypatch.setattr(node_module, "real_sources", lambda config: FakeNode().sources)
    code, _, err = captured(capsys, captures, "--yes")

    assert code == 3
    assert err.splitlines()[-1].startswith("cannot capture: no engine or process on a GPU was found")


def test_the_key_is_in_no_file_of_the_capture(engine, captures, capsys, monkeypatch):
    monkeypatch.setenv("GPUTOP_LLM_API_KEY", SECRET)
    captured(capsys, captures, "--yes")

    (path,) = captures.iterdir()
    for file in path.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("seconds", ["0", "0.01", "61", "nan", "-1"])
def test_windows_have_bounds(seconds, engine, captures, capsys):
    code, _, err = captured(capsys, captures, "--yes", "--seconds", seconds)

    assert code == 2
    assert "from 0.05 to 60 s" in err
    assert not captures.exists()
