"""Captures as a display sees them: planned, agreed to, taken by a process of their own while the watching goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from gputop_llm.armed import Armed, Budget, evidence_of
from gputop_llm.errors import GputopError, NothingFound
from gputop_llm.model import Frame, Target

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan
    from gputop_llm.capture.progress import Progress
    from gputop_llm.model.stacks import Flame, StackReport

#: How much of what was seen before a capture goes into its record.
BEFORE_S = 60.0
#: The windows that can be chosen with a key, seconds.
WINDOWS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


class Run(Protocol):
    """A capture that goes on (`capture.run.CaptureRun`, or a simulated one)."""

    def follow(self) -> Iterator[Progress]:
        """Yields progress until the end; waits in between."""

    def frame(self, text: str) -> None:
        """Hands over what was seen of the node meanwhile, one line of JSON."""

    def cancel(self) -> None:
        """Ends it at once; what was recorded is kept."""

    def close(self) -> None:
        """Lets go of it, from any state."""


class CaptureRoute(Protocol):
    """How captures are taken on this node, or on a simulated one."""

    def plan(
        self,
        frame: Frame,
        target: Target,
        window_s: float | None = None,
        steps: int | None = None,
        route: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Plan:
        """What a window of that target will do; by the best way that is open where no `route` is named.

        Raises:
            GputopError: it can't be taken.
        """

    def begin(self, plan: Plan, frames: Sequence[str], before: Sequence[Frame]) -> Run:
        """Begins it. `before`: what was seen of the node until now, oldest first; `frames`: the same as lines of JSON.

        Raises:
            GputopError: it can't be begun.
        """

    def stacks(self, frame: Frame, target: Target) -> StackReport:
        """The Python stacks of its processes, side by side; takes up to some seconds.

        Raises:
            GputopError: none can be read.
        """

    def doctor(self, target: Target) -> Sequence[str]:
        """Which ways of capturing it are open, why the others are not, and what opens them, as lines.

        Raises:
            GputopError: it can't be told.
        """

    def flames(self, target: Target, seconds: float) -> tuple[Flame, ...]:
        """Samples of them for that long, by function.

        Raises:
            GputopError: none can be taken.
        """

    def close(self) -> None:
        """Removes what isn't to be kept."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A capture that ended: how, and when by wall time."""

    taking: Taking
    plan: Plan
    last: Progress
    at_s: float


class Taking:
    """One capture, followed by a thread of its own.

    Args:
        begin: starts it; may take seconds.
        changed: called from the thread when there is something new to show.
    """

    def __init__(self, plan: Plan, begin: Callable[[], Run], changed: Callable[[], None]) -> None:
        self.plan = plan
        self.told: Progress | None = None
        self.ended: Progress | None = None
        self._changed = changed
        self._begin = begin
        self._run: Run | None = None
        self._cancelled = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="capture", daemon=True)

    def start(self) -> None:
        """Begins it."""
        self._thread.start()

    def cancel(self) -> None:
        """Ends it at once; what was recorded is kept."""
        with self._lock:
            self._cancelled = True
            if self._run is not None:
                self._run.cancel()

    def frame(self, frame: Frame) -> None:
        """Hands over the newest frame for the record."""
        from gputop_llm.report.jsonform import frame_line

        with self._lock:
            if self._run is not None and self.ended is None:
                self._run.frame(frame_line(frame))

    def close(self, wait_s: float) -> None:
        """Cancels it and waits a little; its process ends by itself."""
        self.cancel()
        self._thread.join(wait_s)

    def _follow(self) -> None:
        from gputop_llm.capture.progress import Progress

        try:
            run = self._begin()
        except GputopError as failure:
            self.ended = Progress(
                "ended", outcome="failed", what=failure.what, why=failure.why, todo=failure.todo or ""
            )
            self._changed()
            return
        with self._lock:
            self._run = run
            if self._cancelled:
                run.cancel()
        try:
            for told in run.follow():
                self.told = told
                if told.stage == "ended":
                    self.ended = told
                self._changed()
        finally:
            run.close()


class Captures:
    """What a session knows of captures. One is taken at a time.

    Args:
        make_route: makes the way that they are taken, when the first is asked for; None where this session can't.
        recent: gives the frames of the last seconds, oldest first.
        wall: wall time.
    """

    def __init__(
        self,
        make_route: Callable[[], CaptureRoute] | None,
        recent: Callable[[float], Sequence[Frame]],
        wall: Callable[[], float],
    ) -> None:
        self._make_route = make_route
        self._route: CaptureRoute | None = None
        self._recent = recent
        self._wall = wall
        self._firing = threading.Lock()
        self._window_s = 0.0
        self._changed: Callable[[], None] = lambda: None
        self.taking: Taking | None = None
        self.ended: list[Ended] = []
        #: Waits for a symptom; None when none does, or it has fired.
        self.armed: Armed | None = None
        #: Why what was armed could not be taken, the last time.
        self.failure: GputopError | None = None

    def plan(self, frame: Frame | None, window_s: float) -> Plan:
        """What a window of the attached target will do.

        Raises:
            NothingFound: no target is attached.
            GputopError: it can't be taken, and why.
        """
        frame, target, route = self._reached(frame, "cannot capture")
        return route.plan(frame, target, window_s)

    def stacks(self, frame: Frame | None) -> StackReport:
        """The Python stacks of the attached target; takes up to some seconds.

        Raises:
            NothingFound: no target is attached.
            GputopError: none can be read.
        """
        frame, target, route = self._reached(frame, "cannot read stacks")
        return route.stacks(frame, target)

    def doctor(self, frame: Frame | None) -> Sequence[str]:
        """Which ways of capturing the attached target are open, as lines; takes up to a second.

        Raises:
            NothingFound: no target is attached.
            GputopError: it can't be told.
        """
        _, target, route = self._reached(frame, "cannot tell what can be captured")
        return route.doctor(target)

    def flames(self, frame: Frame | None, seconds: float) -> tuple[Flame, ...]:
        """Samples of them for that long.

        Raises:
            NothingFound: no target is attached.
            GputopError: none can be taken.
        """
        _, target, route = self._reached(frame, "cannot record stacks")
        return route.flames(target, seconds)

    def _reached(self, frame: Frame | None, what: str) -> tuple[Frame, Target, CaptureRoute]:
        target = frame.focused if frame is not None else None
        if self._route is None and self._make_route is not None:
            self._route = self._make_route()
        if frame is None or target is None or self._route is None:
            raise NothingFound(what, "no engine or process is attached", "choose one first (t)")
        return frame, target, self._route

    def arm(self, symptom: str, window_s: float, at_mono_s: float, changed: Callable[[], None]) -> Armed:
        """Captures once when a symptom is raised the next time, or now if it is. It was agreed to.

        Args:
            changed: called from another thread when it fires, comes further or gives up.
        """
        with self._firing:
            self._window_s, self._changed, self.failure = window_s, changed, None
            self.armed = Armed(symptom, 0.0, Budget(), at_mono_s)
            return self.armed

    def disarm(self) -> None:
        """What is armed is no more; what it has begun goes on."""
        with self._firing:
            self.armed = None

    def begin(self, plan: Plan, changed: Callable[[], None]) -> Taking:
        """Takes what was agreed to. `changed` is called from another thread.

        Raises:
            GputopError: one is being taken already.
        """
        if self.taking is not None and self.taking.ended is None:
            raise GputopError("a capture is being taken already", "only one at a time", "wait for it, or cancel it (c)")
        from gputop_llm.report.jsonform import frame_line

        route = self._route
        assert route is not None
        before = self._recent(BEFORE_S)
        frames = [frame_line(frame) for frame in before]

        def told() -> None:
            taking = self.taking
            if taking is not None and taking.ended is not None:
                self.ended.append(Ended(taking, plan, taking.ended, self._wall()))
            changed()

        self.taking = Taking(plan, lambda: route.begin(plan, frames, before), told)
        self.taking.start()
        return self.taking

    def frame(self, frame: Frame) -> None:
        """A new frame was made."""
        if self.taking is not None and self.taking.ended is None:
            self.taking.frame(frame)
        elif self.armed is not None:
            with self._firing:
                self._look(frame)

    def _look(self, frame: Frame) -> None:
        armed = self.armed
        if armed is None:
            return
        if (symptom := armed.look(frame)) is not None:
            try:
                plan = self.plan(frame, self._window_s)
                self.begin(replace(plan, armed=evidence_of(symptom, armed.held_s, frame.at_s)), self._changed)
                armed.took(0)
            except GputopError as failure:
                armed.failed(frame.mono_s)
                self.failure = failure
        if armed.state != "waiting":
            self.armed = None
            self._changed()

    def close(self, wait_s: float) -> None:
        """Cancels what is being taken."""
        if self.taking is not None and self.taking.ended is None:
            self.taking.close(wait_s)
        if self._route is not None:
            self._route.close()
