"""`gputop-llm open FILE…`: what a capture or a bundle says, full-screen, with a picture of its window."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from gputop_llm.config import Config
from gputop_llm.tui import terminal


def run(arguments: Namespace) -> int:
    """Shows the captures until the user leaves; returns the exit code.

    Raises:
        UsageError: there is no terminal to draw on, or the files don't go together.
        GputopError: a file can't be read or is no capture.
    """
    ascii_only = getattr(arguments, "ascii", False)
    config = Config(ascii=True, origins={"ascii": "--ascii"}) if ascii_only else Config()
    # Before anything is read or loaded.
    terminal.check(os.environ, config)
    terminal.ensure_size()
    # Only here: the live monitor never loads NumPy.
    from gputop_llm.tui.verdict_app import run as run_app

    return run_app([Path(name) for name in arguments.files], config)
