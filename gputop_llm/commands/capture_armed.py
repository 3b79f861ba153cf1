"""`gputop-llm capture --when SYMPTOM`: waits for it, in the foreground, and captures then.

It needs no terminal: the loss of its own doesn't end it, and it has been agreed to before it waits.
"""

from __future__ import annotations

import signal
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from gputop_llm.armed import Armed, Budget, budget_of, evidence_of, symptom_named
from gputop_llm.capture.plan import Plan
from gputop_llm.captures import CaptureRoute
from gputop_llm.commands import output
from gputop_llm.commands.capture import Forward, followed, planned, printed, route_for
from gputop_llm.commands.live import session_on
from gputop_llm.commands.newest import Newest
from gputop_llm.commands.snapshot import settled_frame
from gputop_llm.config import Config
from gputop_llm.errors import ExitCode, GputopError, NothingFound, UsageError
from gputop_llm.model import Frame
from gputop_llm.model.symptom import Symptom
from gputop_llm.report.jsonform import frame_line
from gputop_llm.session import Session
from gputop_llm.units import uptime

_BEFORE_S = 60.0
#: What a process may write at least, so that its window is worth taking.
_LEAST_BYTES = 8 << 20


def wait_and_take(arguments: Namespace, config: Config) -> int:
    """Waits and captures; returns 0 when all that was taken is whole and could be judged, else 4.

    Raises:
        UsageError: there is no such symptom, the budget can't be read or is too small, or it was not agreed to.
        NothingFound: the symptom did not hold in time, or there is no target.
        GputopError: it could not be captured, several times.
        KeyboardInterrupt: it was ended while it waited, and had taken nothing.
    """
    from gputop_llm.symptoms.catalogue import RULES

    symptom = symptom_named(arguments.when, {rule.id for rule in RULES})
    budget = Budget() if arguments.budget is None else budget_of(arguments.budget)
    newest, forward = Newest(), Forward()

    def stop(*_: object) -> None:
        newest.stop()
        if forward.capture is not None:
            forward.capture.cancel()

    with route_for(config, arguments) as route, session_on(config, arguments, arguments.demo) as session:

        def came(frame: Frame) -> None:
            forward.frame(frame)
            newest.put(frame)

        session.start(came)
        frame = settled_frame(session, config)
        armed = Armed(symptom, arguments.for_s or 0.0, budget, session.clock.mono())
        _said(planned(route, frame, config, arguments), armed, arguments.yes)
        with _signals(stop):
            return _Waiting(session, route, config, arguments, armed, newest, forward).to_the_end()


@contextmanager
def _signals(stop: Callable[..., None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the waiting, the loss of the terminal doesn't."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _said(plan: Plan, armed: Armed, yes: bool) -> None:
    """Says what it would do and waits for."""
    facts = (("armed", armed.words()), *plan.facts())
    output.complain(f"{label + ':':<10}{text}" for label, text in facts)
    if not yes:
        raise UsageError("nothing was armed", "nobody is asked when the symptom holds", "--yes agrees to the above now")
    least = _LEAST_BYTES * len(plan.ranks)
    if armed.budget.disk_bytes is not None and armed.budget.disk_bytes < least:
        raise UsageError("the budget is too small", f"a capture here may need {least >> 20} MiB", "give disk= more")


class _Waiting:
    """An armed capture until its budget is spent."""

    def __init__(
        self,
        session: Session,
        route: CaptureRoute,
        config: Config,
        arguments: Namespace,
        armed: Armed,
        newest: Newest,
        forward: Forward,
    ) -> None:
        self._session = session
        self._route = route
        self._config = config
        self._arguments = arguments
        self._armed = armed
        self._newest = newest
        self._forward = forward
        self._code: int = ExitCode.OK
        self._failure: GputopError | None = None
        self._unseen = False

    def to_the_end(self) -> int:
        armed = self._armed
        _tell("waiting; Ctrl-C or SIGTERM disarms")
        while armed.state == "waiting" and (frame := self._newest.get()) is not None:
            self._lost(frame)
            if (symptom := armed.look(frame)) is None:
                continue
            _tell(f"{symptom.id} holds: {symptom.headline}")
            try:
                self._take(frame, symptom)
            except GputopError as failure:
                self._failure = failure
                armed.failed(self._session.clock.mono())
                _tell(failure.sentence())
        return self._ended()

    def _take(self, frame: Frame, symptom: Symptom) -> None:
        armed = self._armed
        plan = planned(self._route, frame, self._config, self._arguments)
        plan = replace(plan, armed=evidence_of(symptom, armed.held_s, frame.at_s), max_bytes=_share(armed, plan))
        before = self._session.history.frames(_BEFORE_S)
        with closing(self._route.begin(plan, _lines(before), before)) as capture:
            self._forward.capture = capture
            try:
                ended = followed(capture)
            finally:
                self._forward.capture = None
        if ended.path is None:
            raise GputopError(ended.what, ended.why, ended.todo)
        armed.took(ended.records_bytes)
        _tell(f"captured ({armed.taken} of {armed.budget.captures}): {ended.path}")
        try:
            self._code = max(self._code, printed(plan, ended, self._arguments))
        except (GputopError, BrokenPipeError) as failure:
            # Whoever would have read it may be gone; the record is not.
            self._code = ExitCode.PARTIAL
            _tell(failure.sentence() if isinstance(failure, GputopError) else "nobody reads what is printed any more")

    def _lost(self, frame: Frame) -> None:
        """Says once when the engine is gone, and when it is back: until then no symptom of it can hold."""
        if (frame.focused is None) != self._unseen:
            self._unseen = frame.focused is None
            _tell("the engine is gone; waiting goes on" if self._unseen else "the engine is there again")

    def _ended(self) -> int:
        armed = self._armed
        if armed.taken:
            return self._code
        if armed.state == "expired":
            raise NothingFound(
                f"nothing was captured: {armed.symptom} did not hold within {uptime(armed.budget.wait_s)}",
                todo="give it longer: --budget wait=2d",
            )
        if armed.state == "failed" and self._failure is not None:
            raise self._failure
        _tell("disarmed, nothing was captured")
        raise KeyboardInterrupt


def _share(armed: Armed, plan: Plan) -> int:
    """What each process may write: its plan's, or its part of what is left of the budget."""
    left = armed.left_bytes()
    if left is None:
        return plan.max_bytes
    return min(plan.max_bytes, max(_LEAST_BYTES, left // max(1, len(plan.ranks))))


def _lines(frames: Sequence[Frame]) -> list[str]:
    return [frame_line(one) for one in frames]


def _tell(text: str) -> None:
    output.complain([f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}"])
