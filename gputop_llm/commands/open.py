"""`gputop-llm open FILE…`: what a capture or a bundle says, full-screen, with a picture of its window."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from gputop_llm.commands.live import session_on
from gputop_llm.commands.snapshot import settled_frame
from gputop_llm.config import Config
from gputop_llm.tui import terminal

if TYPE_CHECKING:
    from gputop_llm.capture.engine_watch import EngineSample
    from gputop_llm.model import Frame
    from gputop_llm.session import Session


def run(arguments: Namespace) -> int:
    """Shows the captures until the user leaves; returns the exit code.

    Raises:
        UsageError: there is no terminal to draw on, or the files don't go together.
        GputopError: a file can't be read or is no capture.
    """
    ascii_only = getattr(arguments, "ascii", False)
    config = Config(ascii=True, origins={"ascii": "--ascii"}) if ascii_only else Config()
    # Before anything is read or loaded.
    terminal.check(os.environ, config, "`gputop-llm verdict` prints the same as text")
    terminal.ensure_size()
    # Only here: the live monitor never loads NumPy.
    from gputop_llm.tui.verdict_app import run as run_app

    with closing(_ThisNode(config, arguments)) as node:
        return run_app([Path(name) for name in arguments.files], config, node)


class _ThisNode:
    """This node, watched from the first time that somebody asks."""

    def __init__(self, config: Config, arguments: Namespace) -> None:
        self._config, self._arguments = config, arguments
        self._until = ExitStack()
        self._session: Session | None = None

    def frame(self) -> Frame:
        if self._session is None:
            self._session = self._until.enter_context(session_on(self._config, self._arguments, None))
            self._session.start()
        return settled_frame(self._session, self._config)

    def samples(self) -> Sequence[EngineSample]:
        from gputop_llm.tui.again import SessionNode

        return SessionNode(self._session).samples() if self._session is not None else ()

    def close(self) -> None:
        """Ends the watching."""
        self._until.close()
