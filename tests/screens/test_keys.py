"""Every key does what the command table says."""

from __future__ import annotations

import time

import pytest

from gputop_llm.captures import Captures
from gputop_llm.demo.captures import SimulatedRoute
from gputop_llm.tui.commands import COMMANDS, step_period
from gputop_llm.tui.desk import Desk
from gputop_llm.tui.panels.process_rows import target_of
from tests.support import frames
from tests.support.screen_text import screen_lines, screen_text
from tests.support.scripted_capture import ScriptedRoute
from tests.support.symptom_screens import incident, near_limits

TESTED: dict[str, set[str]] = {}


def keys_of(name):
    """Marks the keys of a command as tested, one test each."""
    keys = next(c.keys for c in COMMANDS if c.name == name)
    TESTED[name] = set(keys)
    return pytest.mark.parametrize("key", keys)


def on_top(it):
    return it.app.screen.command


def simulated(it):
    """Captures are taken as on the simulated node."""
    it.session.captures = Captures(SimulatedRoute, it.session.history.frames, it.session.clock.wall)
    it.app.desk = Desk(it.app, it.session.captures)


async def until_true(it, true):
    """Waits for what another thread does."""
    give_up = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < give_up
        await it.pilot.pause(0.02)


async def shows(it, text):
    await until_true(it, lambda: text in screen_text(it.app))


@keys_of("overview")
async def test_1_shows_the_overview(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press("3", key)
        assert on_top(it) == "overview"
        assert "TTFT" in screen_text(it.app)


@keys_of("gpus")
async def test_2_shows_every_value_of_the_gpu(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(key)
        assert on_top(it) == "gpus"
        assert "SM occupancy              3.1 %" in screen_text(it.app)


@keys_of("engine")
async def test_3_shows_what_the_engine_says(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(key)
        assert on_top(it) == "engine"
        assert "requests running" in screen_text(it.app)


@keys_of("processes")
async def test_4_shows_processes(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(key)
        assert on_top(it) == "processes"
        assert "624 engine-core" in screen_text(it.app)


@keys_of("symptoms")
async def test_5_shows_the_symptoms(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(key)
        assert on_top(it) == "symptoms"
        assert "no symptoms: 34 conditions judged" in screen_text(it.app)


@keys_of("limits")
async def test_6_shows_the_limits(running, key):
    async with running(near_limits()) as it:
        await it.press(key)
        assert on_top(it) == "limits"
        assert "≥34 % of the limit" in screen_text(it.app)


@keys_of("capture")
async def test_c_asks_before_anything_is_captured_and_enter_is_no(running, key):
    async with running(incident()) as it:
        simulated(it)
        await it.press(key)
        assert on_top(it) == "capture"
        assert "Take a capture?" in screen_text(it.app)
        await it.press("enter")
        assert on_top(it) == "overview"
        assert it.app.desk.taking is None


async def test_c_on_the_asking_page_looks_again_on_that_page(running):
    async with running(incident()) as it:
        simulated(it)
        await it.press("c")
        first = it.app.desk.plan
        await it.press("c", "c")
        assert it.app.desk.plan is not first
        assert on_top(it) == "capture"
        await it.press("n")
        assert on_top(it) == "overview"


@keys_of("captures")
async def test_v_lists_the_captures_of_this_session(running, key):
    async with running(incident()) as it:
        await it.press(key)
        assert on_top(it) == "captures"
        assert "no capture was taken yet" in screen_text(it.app)


@keys_of("doctor")
async def test_d_says_what_can_be_captured(running, key, tmp_path):
    async with running(incident()) as it:
        it.app.desk._captures = Captures(lambda: ScriptedRoute(tmp_path), it.session.history.frames, time.time)
        await it.press(key)
        assert on_top(it) == "doctor"
        await shows(it, "it was not started under nsys")
        assert "\\x1b[31mEngineCore" in screen_text(it.app)
        await it.press(key)
        assert on_top(it) == "overview"


@keys_of("stacks")
async def test_s_shows_the_stacks_of_every_rank_and_r_records_them(running, key):
    async with running(incident()) as it:
        simulated(it)
        await it.press(key)
        assert on_top(it) == "stacks"
        await shows(it, "Model.step")
        await it.press("r")
        await shows(it, "Recorded: ")
        assert "demo/sampler.py" in screen_text(it.app)


async def test_why_there_are_no_stacks_is_said_on_their_page(running):
    async with running(incident()) as it:
        await it.press("s")
        await shows(it, "cannot read stacks: no engine or process is attached")


@keys_of("arm")
async def test_a_arms_a_capture_on_a_symptoms_page_and_disarms_it(running, key):
    async with running(incident()) as it:
        simulated(it)
        await it.press(key)
        assert "open a symptom's page first (5)" in screen_lines(it.app)[-1]
        await it.press("5", "enter", key)
        symptom = it.app.selected_symptom.partition("@")[0]
        assert f"Take a capture when {symptom} holds?" in screen_text(it.app)
        assert it.app.desk.armed_for is None
        await it.press("y")
        assert on_top(it) == "symptom"
        assert f" ARMED {symptom} " in screen_lines(it.app)[-1]
        await it.press(key)
        assert f"disarmed: no capture waits for {symptom} any more" in screen_lines(it.app)[-1]
        assert it.app.desk.armed_for is None


@keys_of("targets")
async def test_t_opens_and_closes_the_choice_of_targets(running, key):
    async with running(frames.eight_gpus()) as it:
        await it.press("2", key)
        assert on_top(it) == "targets"
        await it.press(key)
        assert on_top(it) == "gpus"


@keys_of("pause")
async def test_pause_freezes_the_display_and_resumes(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        before = screen_lines(it.app)
        await it.press(key)
        moved = list(frames.moving(frames.one_gpu_loaded(), 30))[3]
        await it.push(moved)
        await it.tick(5)
        paused = screen_lines(it.app)
        assert paused[1:-1] == before[1:-1]
        assert "PAUSED" in paused[-1]
        await it.press(key)
        resumed = screen_lines(it.app)
        assert "PAUSED" not in resumed[-1]
        assert resumed[1:-1] != before[1:-1]


@keys_of("faster")
async def test_faster_shortens_the_period(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(key)
        assert it.session.period_s == 0.5
        assert "looking every 0.5 s" in screen_text(it.app)
        await it.press(key, key, key)
        assert it.session.period_s == 0.25


@keys_of("slower")
async def test_slower_lengthens_the_period(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(key)
        assert it.session.period_s == 2.0
        await it.press(key, key, key, key)
        assert it.session.period_s == 10.0


@keys_of("export_text")
async def test_x_saves_the_screen_as_text(running, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(frames.one_gpu_loaded(), (120, 40)) as it:
        shown = screen_lines(it.app)
        await it.press(key)
        (file,) = tmp_path.iterdir()
        assert file.name == "gputop-llm-20261129T160846Z.txt"
        assert str(file) in screen_text(it.app).replace("\n", "")
        saved = file.read_text(encoding="utf-8").splitlines()
        assert [line for line in saved if line] == [line for line in shown if line]


@keys_of("export_svg")
async def test_shift_x_saves_the_screen_as_a_picture(running, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(key)
        (file,) = tmp_path.iterdir()
        picture = file.read_text(encoding="utf-8")
        assert file.suffix == ".svg"
        assert picture.startswith("<svg")
        assert "llama-1b" in picture


@keys_of("help")
async def test_help_names_every_key(running, key):
    async with running(frames.one_gpu_loaded(), (120, 60)) as it:
        await it.press(key)
        assert on_top(it) == "help"
        text = screen_text(it.app)
        for command in COMMANDS:
            assert command.help in text
        await it.press(key)
        assert on_top(it) == "overview"


@keys_of("palette")
async def test_the_palette_finds_a_command_and_runs_it(running, key):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(key)
        assert on_top(it) == "palette"
        await it.press(*"every gpu")
        await it.press("enter")
        assert on_top(it) == "gpus"


async def test_in_the_palette_letters_are_text_and_arrows_choose(running):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press("colon", "down", "down", "enter")
        assert on_top(it) == "engine"
        await it.press("colon", "q", "x", "1")
        assert on_top(it) == "palette"
        assert "no command has this in its name" in screen_text(it.app)
        await it.press("escape")
        assert on_top(it) == "engine"


@keys_of("suspend")
async def test_ctrl_z_asks_textual_to_suspend(running, key, monkeypatch):
    async with running(frames.one_gpu_loaded()) as it:
        asked = []
        monkeypatch.setattr(it.app, "action_suspend_process", lambda: asked.append(True))
        await it.press(key)
        assert asked == [True]


@keys_of("quit")
@pytest.mark.parametrize("screen", ["1", "2", "3", "4", "5", "6", "t", "question_mark"])
async def test_quit_leaves_from_every_screen(running, key, screen):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(screen, key)
        assert it.app.return_code == 0
        assert not it.app.is_running or it.app._exit


async def test_ctrl_c_leaves_from_the_palette_too(running):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press("colon", "ctrl+c")
        assert it.app.return_code == 0


def test_every_key_of_every_command_has_a_test():
    assert {c.name: set(c.keys) for c in COMMANDS} == TESTED


def test_no_key_means_two_things():
    keys = [key for c in COMMANDS for key in c.keys]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("screen", ["2", "3", "4", "5", "6", "t", "question_mark", "colon"])
async def test_escape_goes_back(running, screen):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(screen, "escape")
        assert on_top(it) == "overview"
        await it.press("escape")
        assert on_top(it) == "overview"


async def test_pages_scroll_by_line_page_end_and_home(running):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press("3")
        top = screen_lines(it.app)
        await it.press("down")
        assert screen_lines(it.app)[1:-1] != top[1:-1]
        assert screen_lines(it.app)[1] == top[2]
        await it.press("k")
        assert screen_lines(it.app) == top
        await it.press("pagedown")
        assert screen_lines(it.app)[1] == top[-2]
        await it.press("end")
        bottom = screen_lines(it.app)
        assert "more lines" not in bottom[-1]
        await it.press("j", "down")
        assert screen_lines(it.app) == bottom
        await it.press("pageup", "home")
        assert screen_lines(it.app) == top


async def test_left_and_right_choose_the_gpu(running):
    async with running(frames.eight_gpus(), (120, 40)) as it:
        await it.press("2", "right")
        assert "GPU 1 of 8" in screen_text(it.app)
        await it.press("left", "left")
        assert "GPU 7 of 8" in screen_text(it.app)


async def test_enter_on_a_process_attaches_to_its_engine(running):
    async with running(frames.eight_gpus()) as it:
        await it.press("4", "end", "enter")
        assert it.session.attached == ["2600@1795960000"]
        assert on_top(it) == "overview"
        assert "pid 2600" in screen_lines(it.app)[0]


async def test_enter_in_the_choice_of_targets_attaches(running):
    async with running(frames.eight_gpus()) as it:
        await it.press("t", "down", "enter")
        assert it.session.attached == ["2600@1795960000"]


async def test_the_cursor_stays_on_its_process_when_others_appear(running):
    async with running(frames.eight_gpus()) as it:
        await it.press("4", "end")
        chosen = it.app.screen.rows.cursor
        first = frames.gpu_without_engine().targets.value.targets[0]
        listed = it.session.latest.targets
        more = (first, *listed.value.targets)
        changed = frames.replace(listed, value=frames.replace(listed.value, targets=more))
        await it.push(frames.replace(it.session.latest, targets=changed))
        assert it.app.screen.rows.cursor == chosen


@pytest.mark.parametrize("key", ["a@1", "url:http://h:8000", "url:http://h:8000/metrics"])
def test_a_rows_key_leads_back_to_its_target(key):
    assert target_of(f"target:{key}") == key
    assert target_of(f"process:3:{key}") == key


@pytest.mark.parametrize(
    ("period", "faster", "slower"), [(1.0, 0.5, 2.0), (0.25, 0.25, 0.5), (10, 5.0, 10.0), (3, 2, 5)]
)
def test_periods_step_along_the_ladder(period, faster, slower):
    assert step_period(period, faster=True) == faster
    assert step_period(period, faster=False) == slower
