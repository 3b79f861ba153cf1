"""`gputop-llm capture`: one bounded window in the running engine, agreed to first; then its verdict."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from gputop_llm import __version__
from gputop_llm.capture.node_route import NodeRoute
from gputop_llm.capture.plan import Plan, plan_json
from gputop_llm.capture.progress import Progress
from gputop_llm.captures import CaptureRoute, Run
from gputop_llm.commands import output
from gputop_llm.commands.capture_wishes import of_ranks, plan_with
from gputop_llm.commands.live import session_on, several_engines, short_settings
from gputop_llm.commands.snapshot import settled_frame
from gputop_llm.config import Config
from gputop_llm.errors import ExitCode, GputopError, NothingFound, UsageError
from gputop_llm.model import Frame, Target
from gputop_llm.model.finding import Verdict
from gputop_llm.node import driver_here
from gputop_llm.printable import printable
from gputop_llm.report.jsonform import frame_line, plain
from gputop_llm.report.outcome import judge
from gputop_llm.store import bundle

SCHEMA = "gputop-llm/capture/1"
_BEFORE_S = 60.0


def run(arguments: Namespace) -> int:
    """Plans, asks, captures, prints the verdict; returns 0 when it is whole and could be judged, else 4.

    Raises:
        UsageError: a setting can't be used, or nobody could be asked.
        NothingFound: there is no target, or none of its processes uses a GPU.
        GputopError: it was refused, or nothing could be recorded.
        KeyboardInterrupt: it was not agreed to, or cancelled before anything was recorded.
    """
    config = short_settings(arguments)
    if arguments.when is not None:
        from gputop_llm.commands.capture_armed import wait_and_take

        return wait_and_take(arguments, config)
    if arguments.once or arguments.budget is not None or arguments.for_s is not None:
        raise UsageError("--for, --once and --budget are for a capture that waits", todo="name a symptom with --when")
    with route_for(config, arguments) as route, session_on(config, arguments, arguments.demo) as session:
        forward = Forward()
        session.start(forward.frame)
        frame = settled_frame(session, config)
        plan = planned(route, frame, config, arguments)
        _agree(plan, arguments.yes)
        before = session.history.frames(_BEFORE_S)
        with closing(route.begin(plan, [frame_line(one) for one in before], before)) as capture:
            forward.capture = capture
            ended = followed(capture)
            forward.capture = None
        if ended.path is None:
            if ended.outcome == "cancelled":
                raise KeyboardInterrupt
            raise GputopError(ended.what, ended.why, ended.todo)
        return printed(plan, ended, arguments)


@contextmanager
def route_for(config: Config, arguments: Namespace) -> Iterator[CaptureRoute]:
    """How captures are taken on this node, or on the simulated one that was asked for; ends with the block.

    Raises:
        UsageError: there is no place for them.
    """
    route: CaptureRoute
    if arguments.demo is None:
        route = NodeRoute(config, Path(arguments.output) if arguments.output else None)
    else:
        from gputop_llm.demo.captures import SimulatedRoute

        route = SimulatedRoute()
    with closing(route):
        yield route


def planned(route: CaptureRoute, frame: Frame, config: Config, arguments: Namespace) -> Plan:
    """What a capture of the target would do now.

    Raises:
        GputopError: there is no target, or it can't be captured.
    """
    target = _target(frame, config)
    if not arguments.stacks:
        return plan_with(route, frame, target, arguments)
    # Stacks are joined to the idle gaps of a native window.
    if arguments.route not in (None, "native"):
        raise UsageError("--stacks goes with a native window", f"--route {arguments.route} is another one")
    if arguments.including is not None or arguments.at is not None:
        raise UsageError("--stacks goes with a native window", "it takes no --with and no --at")
    plan = route.plan(frame, target, arguments.seconds, arguments.steps, "native", {"stacks": True})
    return of_ranks(plan, arguments.ranks)


class Forward:
    """Hands the session's frames on to the capture that goes on."""

    def __init__(self) -> None:
        self.capture: Run | None = None

    def frame(self, frame: Frame) -> None:
        """Called from the session's thread."""
        if (capture := self.capture) is not None:
            capture.frame(frame_line(frame))


def _target(frame: Frame, config: Config) -> Target:
    if frame.focused is not None:
        return frame.focused
    outcome = judge(frame, config, driver_here())
    if outcome.code is ExitCode.NOTHING_FOUND:
        raise NothingFound(outcome.sentences[0])
    if several := several_engines(frame):
        raise UsageError("cannot tell which engine to capture", several, "name one with --pid")
    raise NothingFound("cannot capture", "no engine or process on a GPU was found", "name one with --pid")


def _agree(plan: Plan, yes: bool) -> None:
    """Says what will be done, and asks whether it may be.

    Raises:
        UsageError: nobody can be asked.
        KeyboardInterrupt: the answer is no.
    """
    output.complain(f"{label + ':':<10}{text}" for label, text in plan.facts())
    if yes:
        return
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()):
        raise UsageError("nothing was captured", "there is no terminal to ask at", "--yes agrees to the above")
    sys.stderr.write("Capture now? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        output.complain(["nothing was captured"])
        raise KeyboardInterrupt


def followed(capture: Run) -> Progress:
    """How it ended. The first Ctrl-C cancels it, a second one doesn't wait for its end."""
    ended, cancelled = None, False
    with _progress_line() as show:
        told = capture.follow()
        while True:
            try:
                for one in told:
                    show(one)
                    ended = one
                break
            except KeyboardInterrupt:
                if cancelled:
                    raise
                cancelled = True
                capture.cancel()
                told = capture.follow()
    assert ended is not None
    return ended


@contextmanager
def _progress_line() -> Iterator[Any]:
    """Shows progress in one line on standard error, where that is a terminal."""
    stream = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None

    def show(progress: Progress) -> None:
        if stream is not None and progress.stage != "ended":
            share = f" {100 * progress.share:3.0f} %" if progress.share is not None else ""
            stream.write(f"\r{printable(progress.text, 100)}{share}\x1b[K")
            stream.flush()

    try:
        yield show
    finally:
        if stream is not None:
            stream.write("\r\x1b[K")
            stream.flush()


def printed(plan: Plan, ended: Progress, arguments: Namespace) -> int:
    """Prints the verdict of one that left a record; returns 0 when it is whole and could be judged, else 4.

    Where it lies is told of a real one only: that of a simulated node goes with the node.

    Raises:
        GputopError: it can't be read, or not printed.
    """
    # Only here: nothing before the end needs NumPy.
    from gputop_llm.report import verdict_json, verdict_text
    from gputop_llm.report.verdict_read import verdict_of

    assert ended.path is not None
    if ended.outcome != "done":
        output.complain([GputopError(ended.what, ended.why, ended.todo).sentence()])
    if not arguments.json and arguments.demo is None:
        output.complain([f"kept in {ended.path}"])
    if (failed := ended.details.get("bundle_error")) is not None:
        output.complain([f"it holds no verdict: {failed}"])
    taken = bundle.read(Path(ended.path))
    output.complain(taken.notes)
    verdict = verdict_of(taken.verdict) or _judged(taken)
    if arguments.json:
        told = {
            "schema": SCHEMA,
            "version": __version__,
            "outcome": ended.outcome,
            "path": ended.path if arguments.demo is None else None,
            "why": ended.why or None,
            "details": plain(dict(ended.details)),
            "plan": plain(plan_json(plan)),
            "verdict": verdict_json.verdict_object(verdict),
        }
        output.write_text(json.dumps(told, allow_nan=False, indent=2) + "\n")
    else:
        output.write_text(verdict_text.verdict_text(verdict))
    return ExitCode.OK if verdict.judged and ended.outcome == "done" else ExitCode.PARTIAL


def _judged(taken: bundle.Bundle) -> Verdict:
    """What the records say, where the capture's own process has not come to it."""
    from gputop_llm.timeline.read import read_capture
    from gputop_llm.verdict import assemble

    return assemble.judge(read_capture(taken.records), pace=taken.pace)
