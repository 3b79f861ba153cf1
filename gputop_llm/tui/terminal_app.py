"""What every full-screen display is: it draws as the terminal allows, obeys commands, and leaves cleanly."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from textual.app import App

from gputop_llm.errors import GputopError
from gputop_llm.tui import terminal
from gputop_llm.tui.skin import Skin

log = logging.getLogger(__name__)

MESSAGE_S = 6.0
HANGUP_EXIT = 128 + signal.SIGHUP


class TerminalApp(App[int], inherit_bindings=False):
    """Commands are methods `do_NAME`. Subclasses show `message` when `refresh_view` is called.

    Args:
        term: what the terminal can show.
    """

    ENABLE_COMMAND_PALETTE = False
    ESCAPE_TO_MINIMIZE = False
    AUTO_FOCUS = None
    CSS = "Screen { scrollbar-size: 0 0; }"

    def __init__(self, term: terminal.Terminal) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self.skin = Skin(term.colours, term.ascii_only)
        self.message: str | None = None
        self.failed = False

    def refresh_view(self) -> None:
        """Shows what there is now."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Lets go of what the display looks at; called when the terminal is lost."""
        raise NotImplementedError

    def _fatal_error(self) -> None:
        """Ends the app after a bug. Textual would print a traceback with all local values, secrets among them."""
        log.error("the display failed", exc_info=self._exception)
        self.failed = True
        self._close_messages_no_wait()

    def check_failed(self) -> None:
        """Says so if the display ended by a bug.

        Raises:
            GputopError: it did.
        """
        if self.failed:
            raise GputopError(
                "the display failed",
                "a bug in this program",
                "the log has the details; `gputop-llm snapshot` needs no display",
            )

    def guard_terminal(self) -> None:
        """Watches for signals and for the loss of the terminal; to be called when the app is mounted."""
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGHUP, signal.SIGTERM):
                loop.add_signal_handler(number, self.leave, 128 + number)
            terminal.watch(self._terminal_gone)
        # The screen that a shell leaves behind has nothing of ours on it.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh())

    def leave(self, code: int) -> None:
        """Ends the program after a signal."""
        if terminal.still_there():
            self.exit(code)
        else:
            self._terminal_gone()

    def _terminal_gone(self) -> None:
        """Ends at once: writing to a lost terminal may block for ever, and there is nothing to restore."""
        self.let_go()
        os._exit(HANGUP_EXIT)

    # -- commands --------------------------------------------------------------

    def action_run(self, name: str) -> None:
        self.run_command(name)

    async def action_back(self) -> None:
        if len(self.screen_stack) > 1:
            self.pop_screen()

    def run_command(self, name: str) -> None:
        """Does what the command says; a failure is told on the status line."""
        try:
            getattr(self, f"do_{name}")()
        except GputopError as failure:
            self.say(f"▲ {failure.sentence()}")

    def say(self, message: str) -> None:
        """Shows a sentence on the status line for a while."""
        self.message = message
        self.set_timer(MESSAGE_S, lambda: self._unsay(message))
        self.refresh_view()

    def _unsay(self, message: str) -> None:
        if self.message == message:
            self.message = None
            self.refresh_view()

    def do_suspend(self) -> None:
        self.action_suspend_process()

    def do_quit(self) -> None:
        self.exit(0)
