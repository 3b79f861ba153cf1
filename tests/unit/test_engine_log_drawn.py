"""The log on the engine's screen and in a snapshot's text, also where there is no engine any more, or no log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import EngineLog, LogSignal, Part, TargetLog
from gputop_llm.model.symptom import Severity
from gputop_llm.report.text import frame_text
from gputop_llm.tui.panels.engine_details import engine_details
from tests.support import frames

LOGGED = frames.logged()


def with_log(log, **part):
    return replace(LOGGED, logs=(TargetLog(LOGGED.focus, Part(log, **part)),))


def page(frame, width=100):
    return "\n".join("".join(text for text, _ in line).rstrip() for line in engine_details(frame, width))


def test_an_engine_that_ended_still_shows_its_last_words():
    ended = replace(LOGGED, engines=(), targets=replace(LOGGED.targets, value=None))
    for text in (page(ended), frame_text(ended, "n")):
        assert "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)" in text


@pytest.mark.parametrize(
    ("frame", "on_the_page", "in_the_text"),
    [
        (
            with_log(EngineLog(problem="stdout is a pipe to PID 7 (tee)")),
            "out of reach: stdout is a pipe to PID 7 (tee)",
            "Engine's log  out of reach: stdout is a pipe to PID 7 (tee)",
        ),
        (
            with_log(EngineLog(("/l",))),
            "/l\nnothing of note in it so far",
            "Engine's log  /l\n  nothing of note in it so far",
        ),
        (with_log(None), "not read yet", "log: no answer yet"),
        (
            with_log(None, error="the engine's log has not answered for 9.00 s"),
            "▲ the engine's log has not answered for 9.00 s",
            "log: the engine's log has not answered for 9.00 s",
        ),
    ],
)
def test_a_log_without_signals_says_why(frame, on_the_page, in_the_text):
    assert f"─\n{on_the_page}\n" in page(frame)
    assert in_the_text in frame_text(frame, "n")


def test_where_nobody_looks_for_logs_there_is_no_section():
    assert "Log ─" not in page(replace(LOGGED, logs=()))


def test_of_many_signals_the_newest_are_shown_and_the_rest_is_counted():
    names = [f"KeyError: {chr(97 + at)}" for at in range(20)]
    log = EngineLog(("/l",), signals=tuple(LogSignal("exception", Severity.WARNING, name, None) for name in names))
    text = page(with_log(log))
    assert text.index("KeyError: t") < text.index("KeyError: s")
    assert "KeyError: l" not in text
    assert "… and 12 older ones" in text
    assert "… and 14 older ones" in frame_text(with_log(log), "n")


def test_a_line_whose_time_nothing_tells_has_no_age_and_the_reason():
    log = EngineLog(("/l",), signals=(LogSignal("died", Severity.CRITICAL, "Fatal Python error: Aborted", None),))
    for shown, timed in (
        (page(with_log(log)), page(LOGGED)),
        (frame_text(with_log(log), "n"), frame_text(LOGGED, "n")),
    ):
        assert "age –: no time on or before the line, and it was there when the log was first read" in shown
        assert "age –" not in timed


def test_of_several_logs_each_says_whose_it_is():
    gone = TargetLog("vllm:7:9", Part(EngineLog(problem="its processes are gone")))
    both = replace(LOGGED, logs=(*LOGGED.logs, gone))
    said = frame_text(replace(both, focus=None), "n")
    assert "Engine's log of PID 600  /" in said
    assert "Engine's log of vllm:7:9  out of reach: its processes are gone" in said
    assert "Engine's log  /" in frame_text(both, "n")
