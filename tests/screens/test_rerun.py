"""A hot kernel run again from its row: what is shown first, that only y runs it, and what is shown then."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gputop_llm.capture.lock import Lock
from gputop_llm.errors import NothingFound
from gputop_llm.ncu.tool import NoNcu
from gputop_llm.rerun import job
from gputop_llm.rerun.place import Python
from gputop_llm.tui.again import SessionNode
from tests.support import frames
from tests.support.capture_app import showing
from tests.support.captures import CAPTURES
from tests.support.frame_parts import h200, node, part
from tests.support.screen_text import screen_text
from tests.support.timelines import KINETO_VLLM_CPU

LM_HEAD = "nvjet_sm90_tst_256x32_64x5_2x1_v_bz_TNT"
CASE = "aten::mm of 32×2048, 2048×32000"


class Here:
    """A node with one idle H200, and nobody who serves."""

    def frame(self):
        idle = replace(h200(0, pid=None), mem_used_bytes=1 << 30)
        return replace(frames.one_gpu_loaded(), gpus=part(node([idle])), targets=part(None), engines=())

    def samples(self):
        return ()


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """One that prints what an H200 would; ncu is not there."""
    kernel = {"name": LM_HEAD, "grid": [2, 63, 1], "block": [384, 1, 1], "duration_us": 34.4, "calls": 5}
    told = {"torch": "2.11.0", "device": "NVIDIA H200", "cases": [{"case": CASE, "kernels": [kernel], "error": None}]}
    (tmp_path / "says").write_text(json.dumps(told, indent=1))
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\ncat {tmp_path}/says\n')
    path.chmod(0o755)

    def no_ncu():
        raise NoNcu("there is no ncu")

    monkeypatch.setattr(job, "python_for", lambda _pid: (Python(str(path), "a test's"), ""))
    monkeypatch.setattr(job, "find_ncu", no_ncu)
    monkeypatch.setattr(job, "Lock", lambda target: Lock(target, f"gputop-llm-test/rerun-{os.getpid()}"))
    monkeypatch.setattr("gputop_llm.paths.captures_folder", lambda: tmp_path / "captures")
    return tmp_path


async def test_n_on_a_kernels_row_asks_and_only_y_runs_it(interpreter):
    async with showing(KINETO_VLLM_CPU, (120, 40)) as it:
        viewer = it.app.viewer
        viewer._node = Here()
        viewer.opened = replace(viewer.opened, paths=(Path(CAPTURES / KINETO_VLLM_CPU),))
        kernels = viewer.opened.verdict.tables["kernels"]
        row = next(n for n, one in enumerate(kernels) if one["full_name"] == LM_HEAD)
        it.app.screen.rows.cursor = f"kernels:{row}"
        await it.press("n")
        await it.until(lambda: viewer.again.state == "asking")
        await it.pilot.pause()
        assert it.on_top == "rerun"
        asked = screen_text(it.app)
        assert "Run the hot kernel again?" in asked
        assert LM_HEAD in asked
        assert not (interpreter / "ran").exists()

        await it.press("y")
        await it.until(lambda: viewer.again.state == "ended")
        await it.until(lambda: "Under ncu" in screen_text(it.app))
        shown = screen_text(it.app)
        assert CASE in shown
        assert "not profiled: there is no ncu" in shown
        assert len((interpreter / "ran").read_text().splitlines()) == 1


async def test_esc_is_no_and_a_node_that_is_full_is_told(interpreter):
    class Full(Here):
        def frame(self):
            full = replace(h200(0, pid=None), mem_used_bytes=140 << 30, mem_total_bytes=141 << 30)
            return replace(super().frame(), gpus=part(node([full])))

    async with showing(KINETO_VLLM_CPU) as it:
        viewer = it.app.viewer
        viewer.opened = replace(viewer.opened, paths=(Path(CAPTURES / KINETO_VLLM_CPU),))
        for here, state in ((Here(), "asking"), (Full(), "ended")):
            viewer._node = here
            await it.press("n")
            await it.until(lambda: not viewer.again.busy)
            assert viewer.again.state == state
            await it.press("escape")
            assert it.on_top == "verdict"
        assert "no GPU has room" in viewer.again.failure.sentence()
        assert not (interpreter / "ran").exists()


async def test_leaving_ends_what_runs(interpreter):
    (interpreter / "python").write_text(f"#!/bin/sh\necho $$ > {interpreter}/pid\nexec sleep 600\n")
    async with showing(KINETO_VLLM_CPU) as it:
        viewer = it.app.viewer
        viewer._node = Here()
        viewer.opened = replace(viewer.opened, paths=(Path(CAPTURES / KINETO_VLLM_CPU),))
        await it.press("n")
        await it.until(lambda: viewer.again.state == "asking")
        await it.press("y")
        await it.until(lambda: (interpreter / "pid").exists() and (interpreter / "pid").read_text().strip())
    pid = int((interpreter / "pid").read_text())
    give_up = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < give_up, "it still runs"
        await asyncio.sleep(0.02)


def test_the_sessions_node_has_its_newest_frame_and_the_pace_of_what_is_attached():
    session = SimpleNamespace(latest=None, history=SimpleNamespace(frames=lambda _seconds: [frames.one_gpu_loaded()]))
    with pytest.raises(NothingFound):
        SessionNode(session).frame()
    assert SessionNode(session).samples() == ()
    session.latest = frames.one_gpu_loaded()
    assert SessionNode(session).frame() is session.latest
    assert SessionNode(session).samples()[0].running == 32.0
