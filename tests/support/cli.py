"""The program as a user runs it: a process of its own, with pipes instead of a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "gputop_llm"]
DEADLINE_S = 60


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment with these changes; None removes a variable."""
    changed = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return {name: value for name, value in changed.items() if value is not None}


def run_cli(*arguments: str, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end; output as text."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(
        [*COMMAND, *arguments], text=True, encoding="utf-8", env=env or environment(), timeout=DEADLINE_S, **given
    )


def start_cli(*arguments: str, env: dict[str, str] | None = None, **options) -> subprocess.Popen[str]:
    """Starts the program; output as text."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*COMMAND, *arguments], text=True, encoding="utf-8", env=env or environment(), **given)
