"""`gputop-llm`: the full-screen monitor of this node, or of a simulated one where there is nothing to monitor."""

from __future__ import annotations

import ctypes
import gc
import os
from argparse import Namespace
from contextlib import suppress

from gputop_llm import without_tls
from gputop_llm.commands.live import AUTO_DEMO, session_with, settings, simulator_for
from gputop_llm.tui import terminal

#: In glibc's malloc.h.
_M_ARENA_MAX = -8


def _share_one_heap() -> None:
    """Lets all threads allocate from one heap: one for each costs 3 MB, and Python runs one thread at a time."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def run(arguments: Namespace, scenario: str | None = None) -> int:
    """Runs the monitor until the user leaves; returns the exit code.

    Raises:
        UsageError: there is no terminal to draw on, or a setting can't be used.
    """
    config = settings(arguments)
    # Before anything is started or looked for.
    terminal.check(os.environ, config)
    terminal.ensure_size()
    _share_one_heap()
    why = ""
    asked_for = (config.pid, config.url, config.gpu) != (None, None, None)
    if scenario is None and not asked_for:
        from gputop_llm.node import nothing_here

        if nothing_here():
            scenario, why = "healthy", AUTO_DEMO
    # A start makes a lot and drops little: looking for garbage would take a tenth of it. The app begins with that.
    gc.disable()
    try:
        # The simulator starts while everything else is loaded.
        with simulator_for(arguments, scenario) as simulator:
            without_tls.load("asyncio", "http.client")
            with session_with(config, simulator, why) as session:
                from gputop_llm.tui.app import run as run_app

                return run_app(session, config)
    finally:
        gc.enable()
