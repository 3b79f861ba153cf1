"""Exports changed by hand, and an nsys that isn't one."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

REPORT = b"NVIDIA Tegra Profiler Report "


def changed(path: Path, *statements: str) -> Path:
    """The database after some SQL."""
    database = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        database.execute(statement)
    database.close()
    return path


def report(path: Path, version: str = "2023@4@4@54-234433681190v0") -> Path:
    """A file that begins like a report of nsys."""
    path.write_bytes(REPORT + version.encode() + b".\n\x0bLocal (CLI)\x12\x04" + bytes(200))
    return path


def fake_nsys(folder: Path, version: str, behaviour: str, help_text: str = "") -> Path:
    """A program that answers --version and export --help, and exports by `behaviour` (Python, with `output` set)."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nsys"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "if '--version' in sys.argv:\n"
        f"    print('NVIDIA Nsight Systems version {version}-234433681190v0')\n"
        "    sys.exit()\n"
        "if '--help' in sys.argv:\n"
        f"    print({help_text!r})\n"
        "    sys.exit()\n"
        "output = sys.argv[sys.argv.index('--output') + 1]\n"
        f"{behaviour}\n"
    )
    program.chmod(0o755)
    return program
