"""`gputop-llm`: the full-screen monitor of this node, or of a simulated one where there is nothing to monitor."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from argparse import Namespace
from contextlib import suppress

from gputop_llm.commands.live import AUTO_DEMO, session_on, settings
from gputop_llm.tui import terminal

#: In glibc's malloc.h.
_M_ARENA_MAX = -8


def _share_one_heap() -> None:
    """Lets all threads allocate from one heap: one for each costs 3 MB, and Python runs one thread at a time."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _load_without_tls() -> None:
    """Loads what would load OpenSSL because it is there: 5 MB and 6 ms, and nothing here speaks TLS by these two.

    Both are made to work where Python has no OpenSSL. Who does speak TLS loads it then, for an engine behind https.
    """
    if "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # says that there is none
    try:
        import asyncio  # noqa: F401
        import http.client  # noqa: F401
    finally:
        del sys.modules["ssl"]


def run(arguments: Namespace, scenario: str | None = None) -> int:
    """Runs the monitor until the user leaves; returns the exit code.

    Raises:
        UsageError: there is no terminal to draw on, or a setting can't be used.
    """
    config = settings(arguments)
    # Before anything is started or looked for.
    terminal.check(os.environ, config)
    terminal.ensure_size()
    why = ""
    asked_for = (config.pid, config.url, config.gpu) != (None, None, None)
    if scenario is None and not asked_for:
        from gputop_llm.node import nothing_here

        if nothing_here():
            scenario, why = "healthy", AUTO_DEMO
    # A start makes a lot and drops little: looking for garbage would take a tenth of it. The app begins with that.
    gc.disable()
    _share_one_heap()
    _load_without_tls()
    try:
        with session_on(config, arguments, scenario, why) as session:
            from gputop_llm.tui.app import run as run_app

            return run_app(session, config)
    finally:
        gc.enable()
