"""What the monitor has of captures: the one that is asked about, the one that is taken, the verdicts of all taken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from gputop_llm.captures import WINDOWS_S, Captures, Ended, Taking
from gputop_llm.errors import GputopError

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan
    from gputop_llm.model.stacks import Flame, StackReport
    from gputop_llm.tui.app import MonitorApp
    from gputop_llm.tui.viewer import Opened, Viewer

#: The first window that is offered.
_FIRST = WINDOWS_S.index(0.5)


class CaptureMoved(Message, bubble=False):
    """A capture came further, ended, or was read."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, CaptureMoved)


class Desk:
    """Captures of the monitor. Its methods are called in the display's own thread.

    Args:
        app: the monitor.
        captures: the session's.
    """

    def __init__(self, app: MonitorApp, captures: Captures) -> None:
        self._app = app
        self._captures = captures
        self._window = _FIRST
        # By the capture: `Taking` is its own key.
        self._viewers: dict[object, Viewer] = {}
        self._read: list[tuple[object, Opened | GputopError]] = []
        self._reading = 0
        self._early: Taking | None = None
        self._shown_end: Taking | None = None
        self.plan: Plan | None = None
        #: The symptom that a capture is to wait for, while it is asked about.
        self.arming: str | None = None

    @property
    def taking(self) -> Taking | None:
        """The capture that goes on, or the last one."""
        return self._captures.taking

    @property
    def ended(self) -> Sequence[Ended]:
        """Those of this session that ended."""
        return self._captures.ended

    @property
    def opening(self) -> bool:
        """Whether a record is being read."""
        return self._reading > 0

    @property
    def busy(self) -> bool:
        """Whether one goes on."""
        return self.taking is not None and self.taking.ended is None

    def ask(self) -> None:
        """Shows what a capture would do; while one goes on: cancels it, where its page is on top, else shows that."""
        if not self.busy:
            self.arming = None
            self.plan = self._planned()
            # On the asking page itself it looks again at what a capture would do.
            if self._app.on_top == "capture":
                self._app.refresh_view()
            else:
                self._app.push_screen("confirm")
        elif self._app.on_top == "capturing":
            assert self.taking is not None
            self.taking.cancel()
            self._app.say("cancelling …")
        else:
            self._app.push_screen("capturing")

    @property
    def armed_for(self) -> str | None:
        """The symptom that a capture waits for."""
        armed = self._captures.armed
        return armed.symptom if armed is not None else None

    def arm(self) -> None:
        """On a symptom's page: asks whether to capture when it holds; ends it where one waits for that already."""
        key = self._app.selected_symptom
        if self._app.on_top != "symptom" or key is None:
            waits = f"armed: waits until {self.armed_for} holds; " if self.armed_for else ""
            self._app.say(f"{waits}open a symptom's page first (5), a arms a capture there")
            return
        symptom = key.partition("@")[0]
        if self.armed_for == symptom:
            self._captures.disarm()
            self._app.say(f"disarmed: no capture waits for {symptom} any more")
            return
        self.plan = self._planned()
        self.arming = symptom
        self._app.push_screen("confirm")

    def another_window(self, by: int) -> None:
        """Offers a longer or a shorter window."""
        self._window = max(0, min(len(WINDOWS_S) - 1, self._window + by))
        try:
            self.plan = self._planned()
        except GputopError as failure:
            self._app.say(f"▲ {failure.sentence()}")
        self._app.refresh_view()

    def take(self) -> None:
        """Takes what was asked about."""
        if self.plan is None:
            return
        if self.arming is not None:
            clock = self._app.session.clock
            armed = self._captures.arm(self.arming, self.plan.window_s, clock.mono(), self._moved)
            self._app.pop_screen()
            self._app.say(f"armed: {armed.words()}")
            return
        try:
            self._captures.begin(self.plan, self._moved)
        except GputopError as failure:
            self._app.say(f"▲ {failure.sentence()}")
            return
        self._app.switch_screen("capturing")

    def open(self, number: int) -> None:
        """Shows the verdict of one that ended, or says why there is none."""
        ended = self.ended[number]
        path = ended.last.path
        if path is None:
            last = ended.last
            self._app.say(f"▲ {GputopError(last.what, last.why, last.todo).sentence()}")
        elif ended.taking in self._viewers:
            self._viewers[ended.taking].open("verdict")
        elif not self.opening:
            self._app.say("reading the record …")
            self._begin_reading(ended.taking, [Path(path)])

    def moved(self) -> None:
        """Something happened in another thread."""
        if (failure := self._captures.failure) is not None:
            self._captures.failure = None
            self._app.say(f"▲ {failure.sentence()}")
        taking = self.taking
        if taking is not None:
            self._look_at(taking)
        while self._read:
            self._show(*self._read.pop(0))
        self._app.refresh_view()

    def _look_at(self, taking: Taking) -> None:
        """Reads what it has recorded: as soon as that is whole, and again with what it cost."""
        records = taking.told.details.get("records") if taking.told is not None else None
        if isinstance(records, str) and self._early is not taking and taking.ended is None:
            self._early = taking
            if files := sorted(Path(records).glob("*.gtw")):
                self._begin_reading(taking, files)
        if taking.ended is not None and self._shown_end is not taking:
            self._shown_end = taking
            if taking.ended.path is not None:
                self._begin_reading(taking, [Path(taking.ended.path)])
            if (failed := taking.ended.details.get("bundle_error")) is not None:
                self._app.say(f"▲ the record holds no verdict: {failed}")

    def _show(self, key: object, result: Opened | GputopError) -> None:
        self._reading -= 1
        viewer = self._viewers.get(key)
        if isinstance(result, GputopError):
            # What was read early is shown already; where it is put away meanwhile, it is read from there.
            if viewer is None and not self._reading:
                self._app.say(f"▲ {result.sentence()}")
            return
        if viewer is not None:
            viewer.replace(result)
            return
        from gputop_llm.tui.again import SessionNode
        from gputop_llm.tui.viewer import Viewer

        viewer = self._viewers[key] = Viewer(self._app, result, node=SessionNode(self._app.session))
        if self._app.on_top == "capturing":
            self._app.pop_screen()
            viewer.open("verdict")
        elif self._app.on_top == "captures":
            viewer.open("verdict")
        else:
            self._app.say("the verdict is there: v lists the captures")

    def stacks(self) -> StackReport:
        """Where the Python code of all ranks is now; takes up to some seconds.

        Raises:
            GputopError: it can't be told.
        """
        return self._captures.stacks(self._app.session.latest)

    def doctor(self) -> Sequence[str]:
        """Which ways of capturing are open, as lines; takes up to a second.

        Raises:
            GputopError: it can't be told.
        """
        return self._captures.doctor(self._app.session.latest)

    def flames(self, seconds: float) -> tuple[Flame, ...]:
        """Which functions run for so long.

        Raises:
            GputopError: it can't be told.
        """
        return self._captures.flames(self._app.session.latest, seconds)

    def _planned(self) -> Plan:
        return self._captures.plan(self._app.session.latest, WINDOWS_S[self._window])

    def _moved(self) -> None:
        """Called from another thread."""
        self._app.post_message(CaptureMoved())

    def _begin_reading(self, key: object, files: Sequence[Path]) -> None:
        self._reading += 1
        threading.Thread(target=self._read_capture, args=(key, files), name="reader", daemon=True).start()

    def _read_capture(self, key: object, files: Sequence[Path]) -> None:
        """The reader's thread."""
        from gputop_llm.tui.viewer import opened

        try:
            result: Opened | GputopError = opened(files, lambda _phase, _share: None, lambda: False)
        except GputopError as failure:
            result = failure
        self._read.append((key, result))
        self._moved()
