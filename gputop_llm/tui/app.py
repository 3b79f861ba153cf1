"""The Textual app: takes frames from the session, shows them on the screen on top, obeys commands."""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Callable
from typing import ClassVar, cast

from textual.binding import Binding, BindingType
from textual.screen import Screen

from gputop_llm.config import Config
from gputop_llm.model import Frame
from gputop_llm.session import Session
from gputop_llm.tui import terminal
from gputop_llm.tui.commands import COMMANDS, step_period
from gputop_llm.tui.desk import Desk
from gputop_llm.tui.messages import FrameReady
from gputop_llm.tui.panels.common import engines_of, period_text
from gputop_llm.tui.panels.frame_edges import State
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.screens.overview import Overview
from gputop_llm.tui.seen import Seen
from gputop_llm.tui.terminal_app import TerminalApp
from gputop_llm.tui.trails import Trails

# How often a display that gets no frames says how old it is.
STALL_CHECK_S = 2.0
# The start is over by then.
SETTLED_S = 2.0
# How long leaving may wait for the sources to let go.
STOP_WAIT_S = 0.4
OVERLAYS = ("targets", "captures", "stacks", "doctor", "help", "palette")


def _later(module: str, name: str) -> Callable[[], Screen[None]]:
    """A screen that is imported when it is first opened: start-up draws the overview only."""

    def make() -> Screen[None]:
        screen: type[MonitorScreen] = getattr(importlib.import_module(f"gputop_llm.tui.screens.{module}"), name)
        return screen()

    return make


class MonitorApp(TerminalApp, inherit_bindings=False):
    """Shows what a session sees.

    Args:
        session: watched, started when the app is up; stopped by whoever runs the app.
        config: what the user asked for.
        term: what the terminal can show.
    """

    SCREENS: ClassVar[dict[str, Callable[[], Screen[None]]]] = {
        "gpus": _later("gpus", "GpusScreen"),
        "engine": _later("engine", "EngineScreen"),
        "processes": _later("processes", "ProcessesScreen"),
        "symptoms": _later("symptoms", "SymptomsScreen"),
        "symptom": _later("symptom", "SymptomScreen"),
        "limits": _later("limits", "LimitsScreen"),
        "targets": _later("targets", "TargetsScreen"),
        "confirm": _later("capturing", "ConfirmScreen"),
        "capturing": _later("capturing", "TakingScreen"),
        "captures": _later("capturing", "CapturesScreen"),
        "stacks": _later("stacks", "StacksScreen"),
        "doctor": _later("doctor", "DoctorScreen"),
        "help": _later("help", "HelpScreen"),
        "palette": _later("palette", "PaletteScreen"),
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(",".join(c.keys), f"run('{c.name}')", c.label, id=c.name, tooltip=c.help) for c in COMMANDS),
        Binding("escape,backspace", "back", "back", show=False),
    ]

    def __init__(self, session: Session, config: Config, term: terminal.Terminal) -> None:
        super().__init__(term)
        self.session = session
        self.config = config
        self.selected_gpu: int | None = None
        self.selected_symptom: str | None = None
        self.seen = Seen()
        self.desk = Desk(self, session.captures)
        self._trails = Trails(session.history)
        self._paused: Frame | None = None
        self._shown: Frame | None = None
        self._picker_offered = False
        self.view = View(None, self._trails, self._state())

    # -- life ------------------------------------------------------------------

    def get_default_screen(self) -> Screen[None]:
        return Overview()

    def on_mount(self) -> None:
        self.guard_terminal()
        self.set_interval(STALL_CHECK_S, self._check_stall)
        if not self.is_headless:
            self.set_timer(SETTLED_S, collect_from_now_on)
        self.session.start(self._frame_came)

    def _frame_came(self, _frame: Frame) -> None:
        """Called from the session's thread."""
        self.post_message(FrameReady())

    def let_go(self) -> None:
        stop_session(self.session)

    def _check_stall(self) -> None:
        if self._stalled_s() is not None:
            self.refresh_view()

    # -- frames ----------------------------------------------------------------

    def on_frame_ready(self) -> None:
        self.refresh_view()

    def on_capture_moved(self) -> None:
        self.desk.moved()

    @property
    def on_top(self) -> str:
        """The command of the screen on top."""
        screen = self.screen
        return screen.command if isinstance(screen, MonitorScreen) else ""

    def refresh_view(self) -> None:
        newest = self.session.latest
        frame = self._paused or newest
        if frame is not None:
            self._trails.at(frame, newest)
        if newest is not None:
            self.seen.take(newest)
        self._shown = frame
        self.view = View(frame, self._trails, self._state(), self.session.events)
        screen = self.screen
        if isinstance(screen, MonitorScreen):
            if self._paused is None:
                screen.show(self.view)
            else:
                screen.show_edges(self.view)
        self._offer_targets(frame)

    def _offer_targets(self, frame: Frame | None) -> None:
        """Several engines and none chosen: asks once."""
        if self._picker_offered or frame is None or frame.targets.value is None:
            return
        if frame.focus is not None:
            self._picker_offered = True
        elif len([t for t in engines_of(frame) if t.attachable is None]) > 1:
            self._picker_offered = True
            self.run_command("targets")

    def _state(self) -> State:
        paused_s = None if self._paused is None else max(0.0, self.session.clock.wall() - self._paused.at_s)
        return State(
            screen="",
            period_s=self.session.period_s,
            paused_s=paused_s,
            stalled_s=self._stalled_s(),
            simulated=self._shown.simulated if self._shown else None,
            armed=self.desk.armed_for,
            message=self.message,
        )

    def _stalled_s(self) -> float | None:
        """How long no frame has come, when that is longer than it should be."""
        newest = self.session.latest
        if newest is None:
            return None
        age_s = self.session.clock.mono() - newest.mono_s
        return age_s if age_s > max(3.0, 3 * self.session.period_s) else None

    # -- commands --------------------------------------------------------------

    def follow_key(self, key: str) -> None:
        """Goes where a clicked row leads."""
        kind, _, rest = key.partition(":")
        if kind == "gpu":
            self.selected_gpu = int(rest)
            self._open("gpus")
        elif kind == "engine":
            self._open("engine")
        elif kind == "symptoms":
            self._open("symptoms")
        elif kind == "symptom":
            self.selected_symptom = rest
            self.push_screen("symptom")
        elif kind == "target":
            self.attach(rest)

    def attach(self, key: str) -> None:
        """Watches that target from now on, and shows the overview."""
        found = self.session.latest.targets.value if self.session.latest else None
        target = next((t for t in found.targets if t.key == key), None) if found else None
        if target is None:
            self.say("it is gone")
        elif target.attachable is not None:
            self.say(f"▲ can't watch it: {target.attachable}")
        else:
            self._paused = None
            self._picker_offered = True
            self.session.attach(key)
            self._open("overview")

    def _open(self, name: str) -> None:
        while len(self.screen_stack) > (1 if name == "overview" else 2):
            self.pop_screen()
        if name == "overview":
            return
        current = self.screen
        if isinstance(current, MonitorScreen) and current.command == name:
            return
        if len(self.screen_stack) > 1:
            self.switch_screen(name)
        else:
            self.push_screen(name)

    def _toggle_overlay(self, name: str) -> None:
        current = cast(MonitorScreen, self.screen)
        if current.command == name:
            self.pop_screen()
            return
        if current.command in OVERLAYS:
            self.pop_screen()
        self.push_screen(name)

    def do_overview(self) -> None:
        self._open("overview")

    def do_gpus(self) -> None:
        self._open("gpus")

    def do_engine(self) -> None:
        self._open("engine")

    def do_processes(self) -> None:
        self._open("processes")

    def do_symptoms(self) -> None:
        self._open("symptoms")

    def do_limits(self) -> None:
        self._open("limits")

    def do_capture(self) -> None:
        self.desk.ask()

    def do_arm(self) -> None:
        self.desk.arm()

    def do_stacks(self) -> None:
        self._toggle_overlay("stacks")

    def do_doctor(self) -> None:
        self._toggle_overlay("doctor")

    def do_captures(self) -> None:
        self._toggle_overlay("captures")

    def do_targets(self) -> None:
        self._toggle_overlay("targets")

    def do_help(self) -> None:
        self._toggle_overlay("help")

    def do_palette(self) -> None:
        self._toggle_overlay("palette")

    def do_pause(self) -> None:
        self._paused = None if self._paused is not None else self.session.latest
        self.refresh_view()

    def do_faster(self) -> None:
        self._set_period(step_period(self.session.period_s, faster=True))

    def do_slower(self) -> None:
        self._set_period(step_period(self.session.period_s, faster=False))

    def _set_period(self, period_s: float) -> None:
        self.session.set_period(period_s)
        self.say(f"looking every {period_text(period_s)}")

    def do_export_text(self) -> None:
        from gputop_llm.tui.export import save

        screen = cast(MonitorScreen, self.screen)
        self.say(f"saved {save(self.skin.shown(screen.text()), 'txt', self.session.clock.wall())}")

    def do_export_svg(self) -> None:
        from gputop_llm.tui.export import save

        picture = self.export_screenshot(title="gputop-llm")
        self.say(f"saved {save(picture, 'svg', self.session.clock.wall())}")


def collect_from_now_on() -> None:
    """Looks for garbage again, but no more in what the start has made: that stays."""
    gc.collect()
    gc.freeze()
    gc.enable()


def stop_session(session: Session) -> None:
    """Stops the session; a source that hangs is left behind after `STOP_WAIT_S`."""
    stopper = threading.Thread(target=session.stop, daemon=True)
    stopper.start()
    stopper.join(STOP_WAIT_S)


def run(session: Session, config: Config) -> int:
    """Runs the full-screen display until the user leaves; returns the exit code.

    Raises:
        UsageError: standard input, output and error are not all a terminal that can place the cursor.
        GputopError: the display failed.
    """
    app = MonitorApp(session, config, terminal.check(os.environ, config))
    try:
        code = app.run()
    finally:
        stop_session(session)
    app.check_failed()
    return code if code is not None else app.return_code or 0
