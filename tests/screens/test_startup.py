"""Start-up is a target: the first screen loads nothing that it does not draw with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import asyncio, sys
from gputop_llm.config import Config
from gputop_llm.tui.app import MonitorApp
from gputop_llm.tui.terminal import Terminal
from tests.support import frames
from tests.support.fake_session import FakeSession

async def go():
    app = MonitorApp(FakeSession(frames.one_gpu_loaded()), Config(), Terminal(256, False))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        print("\\n".join(sorted(sys.modules)))

asyncio.run(go())
"""


def test_the_first_screen_loads_no_other_screen_and_nothing_heavy():
    ended = subprocess.run(
        [sys.executable, "-c", CODE], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    loaded = set(ended.stdout.split())
    assert "gputop_llm.tui.screens.overview" in loaded
    for name in (
        "pygments", "markdown_it", "rich.markdown", "rich.syntax", "rich.traceback", "textual.widgets._data_table",
        "prometheus_client", "urllib3", "psutil", "pynvml", "torch",
        *(f"gputop_llm.tui.screens.{name}" for name in ("gpus", "engine", "processes", "targets", "help", "palette")),
    ):  # fmt: skip
        assert name not in loaded
