"""Taking a capture from the live screens: asked first, taken behind them, its verdict shown over them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm.capture.progress import Progress
from gputop_llm.captures import Captures
from gputop_llm.demo.captures import SimulatedRoute
from gputop_llm.errors import GputopError
from gputop_llm.tui.desk import Desk
from tests.support import frames
from tests.support.screen_text import assert_golden, screen_lines, screen_text
from tests.support.scripted_capture import ScriptedRoute
from tests.support.symptom_screens import incident

SIZES = [(80, 24), (120, 40), (200, 60)]
RECORDING = Progress("recording", "recording", share=0.4, records_bytes=3_000_000)


def on_top(it):
    return it.app.screen.command


async def until(it, condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, screen_text(it.app)
        await it.pilot.pause(0.01)


def use(it, route):
    """The session takes captures by that route from now on."""
    it.session.captures = Captures(lambda: route, it.session.history.frames, it.session.clock.wall)
    it.app.desk._captures = it.session.captures


async def taking(it, route):
    """Says yes; returns the run."""
    use(it, route)
    await it.press("c", "y")
    await until(it, lambda: route.runs)
    return route.runs[0]


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_what_is_asked_looks_as_it_did(running, tmp_path, size):
    async with running(frames.one_gpu_loaded(), size) as it:
        use(it, ScriptedRoute(tmp_path))
        await it.press("c")
        assert_golden(screen_text(it.app), f"confirm-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_how_far_it_is_looks_as_it_did(running, tmp_path, size):
    async with running(frames.one_gpu_loaded(), size) as it:
        run = await taking(it, ScriptedRoute(tmp_path))
        run.tell(RECORDING)
        await until(it, lambda: "300 ms left" in screen_text(it.app))
        assert_golden(screen_text(it.app), f"capturing-{size[0]}x{size[1]}")


@pytest.mark.parametrize("no", ["n", "enter", "escape", "backspace"])
async def test_nothing_is_done_without_a_yes(running, tmp_path, no):
    async with running(frames.one_gpu_loaded()) as it:
        route = ScriptedRoute(tmp_path)
        use(it, route)
        await it.press("c", no)
        assert on_top(it) == "overview"
        assert not route.runs


async def test_plus_and_minus_offer_other_windows(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        use(it, ScriptedRoute(tmp_path))
        await it.press("c", "plus")
        await until(it, lambda: "how long   1 s" in screen_text(it.app))
        await it.press("minus", "minus")
        await until(it, lambda: "how long   0.25 s" in screen_text(it.app))


async def test_the_verdict_comes_over_the_live_screens_and_goes_with_escape(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        route = ScriptedRoute(tmp_path)
        run = await taking(it, route)
        run.tell(Progress("ended", outcome="done", path=str(route.written("whole"))))
        await until(it, lambda: on_top(it) == "verdict")
        await until(it, lambda: "GPU-bound" in screen_text(it.app))
        await it.press("2")
        assert on_top(it) == "timeline"
        await it.press("escape", "escape")
        assert on_top(it) == "overview"
        assert run.closed


async def test_the_verdict_is_there_before_the_engine_has_come_back_to_its_pace(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        route = ScriptedRoute(tmp_path)
        run = await taking(it, route)
        records = route.written()
        run.tell(Progress("recovering", "watching", details={"records": str(records)}))
        await until(it, lambda: on_top(it) == "verdict")
        early = it.app.desk._viewers[it.app.desk.taking].opened
        run.tell(Progress("ended", outcome="done", path=str(records.rename(tmp_path / "whole"))))
        await until(it, lambda: it.app.desk._viewers[it.app.desk.taking].opened is not early)
        assert on_top(it) == "verdict"


async def test_what_is_put_away_while_it_is_read_is_read_from_there(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        route = ScriptedRoute(tmp_path)
        run = await taking(it, route)
        run.tell(Progress("recovering", "watching", details={"records": str(tmp_path / "gone")}))
        run.tell(Progress("ended", outcome="done", path=str(route.written("whole"))))
        await until(it, lambda: on_top(it) == "verdict")


async def test_the_watching_goes_on_and_the_verdict_waits_in_the_list(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        route = ScriptedRoute(tmp_path)
        run = await taking(it, route)
        run.tell(RECORDING)
        await it.press("escape")
        assert on_top(it) == "overview"
        await it.tick()
        run.tell(Progress("ended", outcome="done", path=str(route.written("whole"))))
        await until(it, lambda: "v lists the captures" in screen_text(it.app))
        await it.press("v")
        assert on_top(it) == "captures"
        assert "whole" in screen_text(it.app)
        await it.press("enter")
        assert on_top(it) == "verdict"


async def test_c_again_cancels(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        run = await taking(it, ScriptedRoute(tmp_path))
        run.tell(RECORDING)
        await until(it, lambda: "recorded" in screen_text(it.app))
        await it.press("c")
        await until(it, lambda: "the capture was cancelled" in screen_text(it.app))
        await it.press("escape", "v")
        assert "cancelled" in screen_text(it.app)


async def test_c_while_one_goes_on_shows_it_and_takes_no_second(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        route = ScriptedRoute(tmp_path)
        run = await taking(it, route)
        run.tell(RECORDING)
        await it.press("escape", "c")
        assert on_top(it) == "capturing"
        assert len(route.runs) == 1


async def test_a_failure_is_told_with_what_to_do(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        run = await taking(it, ScriptedRoute(tmp_path))
        run.tell(
            Progress("ended", outcome="refused", what="cannot capture", why="gdb is attached to it", todo="detach it")
        )
        await until(it, lambda: "detach it" in screen_text(it.app))
        assert "not taken" in screen_text(it.app)


async def test_what_cannot_be_planned_is_said_at_once(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        use(it, ScriptedRoute(tmp_path, GputopError("cannot capture", "no GPU is used", "look there")))
        await it.press("c")
        assert "no GPU is used; look there" in screen_lines(it.app)[-1]
        assert on_top(it) == "overview"


async def test_without_a_target_it_says_to_choose_one(running):
    async with running(frames.no_gpu()) as it:
        await it.press("c")
        assert "choose one first" in screen_lines(it.app)[-1]


async def test_frames_that_come_meanwhile_go_into_the_record(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        run = await taking(it, ScriptedRoute(tmp_path))
        it.session.captures.frame(replace(it.session.latest, seq=4711))
        assert '"seq":4711' in run.frames[-1].replace(" ", "")


async def test_leaving_cancels(running, tmp_path):
    async with running(frames.one_gpu_loaded()) as it:
        run = await taking(it, ScriptedRoute(tmp_path))
        it.session.captures.close(5.0)
        assert run.closed


async def test_an_armed_capture_is_taken_when_the_next_frame_has_the_symptom(running):
    async with running(incident()) as it:
        it.session.captures = Captures(SimulatedRoute, it.session.history.frames, it.session.clock.wall)
        it.app.desk = Desk(it.app, it.session.captures)
        await it.press("5", "enter", "a", "minus", "minus", "y")
        symptom = it.app.desk.armed_for
        it.session.captures.frame(it.session.latest)
        assert it.app.desk.armed_for is None
        await until(it, lambda: it.app.desk.ended)
        (ended,) = it.app.desk.ended
        assert ended.last.outcome == "done"
        assert ended.plan.armed["symptom"] == symptom
        assert ended.plan.armed["evidence"]
        assert json.loads((Path(ended.last.path) / "capture.json").read_text())["plan"]["armed"]["symptom"] == symptom
        it.session.captures.close(1.0)


async def test_why_nothing_can_be_captured_is_said_on_the_doctors_page(running):
    async with running(incident()) as it:
        await it.press("d")
        await until(it, lambda: "no engine or process is attached" in screen_text(it.app))
