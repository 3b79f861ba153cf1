"""`gputop-llm check`: watches for some seconds, one line per symptom, an exit code by severity.

The codes are those that cron jobs, Nagios and probes know, and not those of the other commands.
"""

from __future__ import annotations

import json
import platform
import time
from argparse import Namespace
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from gputop_llm import __version__
from gputop_llm.commands import output
from gputop_llm.commands.live import session_on, short_settings
from gputop_llm.commands.snapshot import PATIENCE_S
from gputop_llm.config import Config
from gputop_llm.errors import ExitCode, GputopError
from gputop_llm.model import Frame
from gputop_llm.model.symptom import Severity, Symptom, SymptomReport
from gputop_llm.node import driver_here
from gputop_llm.report.jsonform import SCHEMA, iso, plain
from gputop_llm.report.outcome import asked_about, judge
from gputop_llm.report.text_symptoms import cant_tell_lines, counted, one_line
from gputop_llm.session import Session

_LOOK_S = 0.02


class Status(IntEnum):
    """The exit code of a check."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found. `reasons` say why something, or all, is unknown."""

    status: Status
    report: SymptomReport
    reasons: tuple[str, ...] = ()


def run(arguments: Namespace) -> int:
    """Watches, prints, and returns the exit code; a failure of any kind is "unknown".

    Raises:
        GputopError: standard output can't be written.
    """
    frame = None
    try:
        config = short_settings(arguments)
        least = Severity[arguments.severity.upper()]
        with session_on(config, arguments, arguments.demo) as session:
            frame = watched(session, config, arguments.for_s)
        result = verdict(frame, config, arguments.demo is None and driver_here(), least)
    except GputopError as failure:
        result = Result(Status.UNKNOWN, SymptomReport(), (failure.sentence(),))
    text = _json(result, frame, arguments.for_s) if arguments.json else _text(result, frame, arguments.for_s)
    # Whoever doesn't read the lines may still read the code.
    with suppress(BrokenPipeError):
        output.write_text(text)
    return result.status


def watched(session: Session, config: Config, for_s: float) -> Frame:
    """The frame after `for_s` seconds of watching; they count from when all sources have answered."""
    session.start()
    give_up = time.monotonic() + config.period_s + PATIENCE_S
    while not session.settled() and time.monotonic() < give_up:
        time.sleep(_LOOK_S)
    time.sleep(for_s)
    return session.tick()


def verdict(frame: Frame, config: Config, driver_here: bool, least: Severity = Severity.NOTE) -> Result:
    """What a frame amounts to.

    What is raised decides, also when something else could not be read; without it, what
    could not be read makes the whole unknown.
    """
    outcome = judge(frame, config, driver_here)
    report = frame.symptoms
    if report is None:
        return Result(
            Status.UNKNOWN, SymptomReport(), ("the rules failed; the log has the details", *outcome.sentences)
        )
    concerns = asked_about(frame, config)

    def counted_ones(symptoms: tuple[Symptom, ...]) -> tuple[Symptom, ...]:
        return tuple(s for s in symptoms if s.severity >= least and concerns(s.subject.key))

    report = replace(
        report,
        active=counted_ones(report.active),
        pending=counted_ones(report.pending),
        held_back=counted_ones(report.held_back),
        cant_tell=tuple(one for one in report.cant_tell if concerns(one.subject.key)),
    )
    reasons = outcome.sentences
    if report.judged == 0:
        reasons = (*reasons, "no rule had what it takes to judge anything")
    worst = max((s.severity for s in report.active), default=Severity.NOTE)
    if worst >= Severity.WARNING:
        status = Status.CRITICAL if worst is Severity.CRITICAL else Status.WARNING
    else:
        status = Status.UNKNOWN if reasons or outcome.code is not ExitCode.OK else Status.OK
    return Result(status, report, reasons)


def _text(result: Result, frame: Frame | None, for_s: float) -> str:
    at_s = frame.at_s if frame else 0.0
    # Nagios shows the first line.
    lines = [f"UNKNOWN {reason}" for reason in result.reasons if result.status is Status.UNKNOWN]
    lines += [one_line(symptom, at_s) for symptom in result.report.active]
    if result.status is Status.OK and not result.report.active:
        lines.append(f"OK no symptom in {for_s:g} s, {result.report.judged} conditions judged")
    lines += [f"not yet for long enough: {one_line(symptom, at_s)}" for symptom in result.report.pending]
    lines += [f"held back, since {s.held_back}: {one_line(s, at_s)}" for s in result.report.held_back]
    lines += cant_tell_lines(result.report.cant_tell)
    if result.status is not Status.UNKNOWN:
        lines += [f"could not be read: {reason}" for reason in result.reasons]
    return "".join(f"{line}\n" for line in lines)


def _json(result: Result, frame: Frame | None, for_s: float) -> str:
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "check": result.status.name.lower(),
        "exit_code": int(result.status),
        "summary": counted(result.report) or "no symptom",
        "at": iso(frame.at_s) if frame else None,
        "at_s": plain(frame.at_s) if frame else None,
        "watched_s": plain(for_s),
        "node": plain(platform.node()),
        "simulated": plain(frame.simulated) if frame else None,
        "reasons": plain(result.reasons),
        "symptoms": plain(result.report),
    }
    return json.dumps(told, allow_nan=False, indent=2) + "\n"
