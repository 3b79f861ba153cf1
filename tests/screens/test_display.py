"""What the display does over time: frames that come too fast or not at all, small windows, clicks."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from textual.events import MouseScrollDown

from gputop_llm.model import TargetList
from gputop_llm.tui.capture_commands import CAPTURE_COMMANDS
from gputop_llm.tui.commands import COMMANDS
from gputop_llm.tui.draw import plain
from gputop_llm.tui.panels.frame_edges import State, status_line
from tests.support import frames
from tests.support.screen_text import screen_lines, screen_text


async def test_frames_that_queued_up_are_drawn_once(running):
    async with running(frames.one_gpu_loaded()) as it:
        drawn = []
        show = it.app.screen.show
        it.app.screen.show = lambda view: (drawn.append(view.frame.seq), show(view))
        for _ in range(500):
            it.session.tick(0.01)
        await it.pilot.pause()
        assert len(drawn) < 20
        assert drawn[-1] == it.session.latest.seq


async def test_a_hidden_screen_does_no_work(running):
    async with running(frames.one_gpu_loaded()) as it:
        overview = it.app.screen
        await it.press("2")
        overview.show_body = None
        await it.tick()
        assert it.app.screen.command == "gpus"


async def test_only_rows_that_changed_are_painted_again(running):
    async with running(frames.one_gpu_loaded()) as it:
        view = it.app.screen.panels["engine"]
        strips = list(view._strips)
        await it.tick()
        assert [a is b for a, b in zip(strips, view._strips, strict=True)] == [True] * len(strips)


async def test_a_session_that_stalls_shows_how_old_the_display_is(running):
    async with running(frames.one_gpu_loaded()) as it:
        it.session.clock.forward(95)
        it.app._check_stall()
        await it.pilot.pause()
        assert "NO NEW DATA for 1 m 35 s" in screen_lines(it.app)[-1]
        await it.tick(100)
        assert "NO NEW DATA" not in screen_text(it.app)


async def test_the_age_of_a_paused_display_grows(running):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press("space")
        await it.tick(42)
        assert "PAUSED 42 s" in screen_lines(it.app)[-1]


async def test_a_pause_outlasts_a_change_of_screen_and_of_size(running):
    async with running(frames.one_gpu_loaded(), (120, 40)) as it:
        before = screen_lines(it.app)
        await it.press("space")
        for seconds in (30, 40, 50):
            await it.push(replace(list(frames.moving(frames.one_gpu_loaded(), 9))[2], mono_s=frames.MONO_S + seconds))
        await it.press("3", "1")
        await it.pilot.resize_terminal(100, 30)
        await it.pilot.resize_terminal(120, 40)
        await it.pilot.pause()
        assert screen_lines(it.app)[1:-1] == before[1:-1]


@pytest.mark.parametrize("screen", ["1", "2", "3", "4", "5", "6", "t"])
async def test_a_tiny_window_shows_one_sentence_and_growing_restores_the_view(running, screen):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press(screen)
        before = screen_lines(it.app)
        await it.pilot.resize_terminal(20, 5)
        await it.pilot.pause()
        small = screen_lines(it.app)
        assert " ".join(" ".join(small).split()) == "terminal too small (20×5): 40×10 or more, or q to quit"
        await it.push(it.session.latest)
        assert screen_lines(it.app) == small
        await it.pilot.resize_terminal(80, 24)
        await it.pilot.pause()
        assert screen_lines(it.app) == before


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (39, 9), (40, 10), (500, 200)])
async def test_no_size_breaks_a_screen(running, size):
    async with running(frames.eight_gpus(), size) as it:
        for key in ("2", "3", "4", "5", "6", "t", "escape", "question_mark", "escape", "1"):
            await it.press(key)
            lines = screen_lines(it.app)
            assert len(lines) == size[1]


async def test_demo_data_is_called_simulated_on_every_screen(running):
    async with running(replace(frames.one_gpu_loaded(), simulated="overload")) as it:
        for key in ("1", "2", "3", "4", "5", "6", "t", "question_mark", "colon"):
            await it.press(key)
            assert "SIMULATED: overload" in screen_lines(it.app)[-1]
        await it.press("escape", "plus")
        assert "SIMULATED: overload" in screen_lines(it.app)[-1], "also while something else is said"


async def test_several_engines_and_none_chosen_asks_once(running):
    async with running(frames.several_candidates()) as it:
        assert it.app.screen.command == "targets"
        await it.press("escape")
        await it.tick()
        assert it.app.screen.command == "overview"
        assert "press t to attach to one" in screen_text(it.app)


async def test_one_engine_is_not_asked_about(running):
    async with running(frames.one_gpu_loaded()) as it:
        assert it.app.screen.command == "overview"


async def test_a_target_that_can_t_be_watched_says_why(running):
    base = frames.one_gpu_loaded()
    shut = frames.target("9@9", 9, 10, attachable="its /proc can't be read: run as root")
    targets = replace(base.targets, value=TargetList((*base.targets.value.targets, shut)))
    async with running(replace(base, targets=targets)) as it:
        await it.press("t", "end", "enter")
        assert it.session.attached == []
        assert "can't watch it: its /proc can't be read: run as root" in screen_lines(it.app)[-1]


async def test_an_exited_target_is_waited_for(running):
    base = frames.one_gpu_loaded()
    async with running(base) as it:
        await it.push(replace(base, targets=replace(base.targets, value=TargetList()), engines=()))
        text = screen_text(it.app)
        assert "the attached engine has exited" in text
        assert "waiting for it to come back" in text


async def test_events_are_shown_newest_first(running):
    async with running(frames.one_gpu_loaded(), (120, 40)) as it:
        it.session.events = ((frames.AT_S - 60, "attached to vllm x (pid 1)"), (frames.AT_S - 5, "vllm x has exited"))
        await it.tick()
        lines = screen_lines(it.app)
        first = next(at for at, line in enumerate(lines) if "16:08:41 vllm x has exited" in line)
        assert "16:07:46 attached to vllm x (pid 1)" in lines[first + 1]


async def test_a_click_on_a_gpu_opens_it(running):
    async with running(frames.eight_gpus(), (80, 24)) as it:
        await it.pilot.click(offset=(10, 7))
        await it.pilot.pause()
        assert it.app.screen.command == "gpus"
        assert "GPU 5 of 8" in screen_text(it.app)
        await it.pilot.click(offset=(10, 3))
        await it.pilot.pause()
        assert "GPU 1 of 8" in screen_text(it.app)


async def test_a_click_on_the_engine_opens_it(running):
    async with running(frames.one_gpu_loaded()) as it:
        await it.pilot.click(offset=(10, 12))
        await it.pilot.pause()
        assert it.app.screen.command == "engine"


@pytest.mark.parametrize("commands", [COMMANDS, CAPTURE_COMMANDS])
def test_whoever_watches_a_simulated_node_is_told_the_key_of_the_help(commands):
    state = State("overview", 1.0, simulated="simulated: kv-pressure, seed 7", more_below=59)

    assert "? help" in plain([status_line(state, 80, commands).line])


async def test_a_click_on_a_key_of_the_status_line_is_that_key(running):
    async with running(frames.one_gpu_loaded()) as it:
        await it.pilot.click(offset=(screen_lines(it.app)[-1].index("processes"), 23))
        await it.pilot.pause()
        assert it.app.screen.command == "processes"


async def test_two_clicks_on_a_row_attach(running):
    async with running(frames.eight_gpus()) as it:
        await it.press("t")
        for _ in range(2):
            await it.pilot.click(offset=(10, 4))
            await it.pilot.pause()
        assert it.session.attached == ["2600@1795960000"]


async def test_a_click_on_a_candidate_attaches(running):
    async with running(frames.several_candidates()) as it:
        await it.press("escape")
        row = next(at for at, line in enumerate(screen_lines(it.app)) if "Qwen/Qwen3-32B" in line)
        await it.pilot.click(offset=(5, row))
        await it.pilot.pause()
        assert it.session.attached == ["2600@1795960000"]


async def test_the_wheel_scrolls(running):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press("3")
        top = screen_lines(it.app)
        it.app.screen.post_message(MouseScrollDown(it.app.screen.page, 5, 5, 0, 1, 0, False, False, False, 5, 5))
        await it.pilot.pause()
        assert screen_lines(it.app)[1] == top[4]


async def test_the_wheel_scrolls_a_list_and_leaves_the_cursor(running):
    async with running(frames.markup_in_names()) as it:
        await it.press("4")
        rows = it.app.screen.rows
        before, cursor = screen_lines(it.app), rows.cursor
        rows.post_message(MouseScrollDown(rows, 5, 5, 0, 1, 0, False, False, False, 5, 5))
        await it.pilot.pause()
        assert screen_lines(it.app)[2] == before[5]
        assert rows.cursor == cursor


async def test_notes_that_do_not_fit_are_counted_and_saved(running, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(frames.markup_in_names()) as it:
        await it.press("4")
        assert "and 2 more lines: x saves them all" in screen_text(it.app)
        await it.press("x")
        (file,) = tmp_path.iterdir()
        for name in frames.markup_names():
            assert f"note on {name}" in file.read_text(encoding="utf-8")


async def test_a_long_model_name_is_cut_not_left_out(running):
    base = frames.one_gpu_loaded()
    long = frames.target(model="organisation/" + "a-very-long-model-name-" * 5)
    # Before its page has said what clients call it.
    async with running(replace(base, targets=frames.part(TargetList((long,))), engines=())) as it:
        assert "organisation/a-very-long-" in screen_lines(it.app)[0]
        assert "pid 600" in screen_lines(it.app)[0]


async def test_a_value_that_can_t_be_drawn_does_not_end_the_watch(running, caplog):
    async with running(frames.one_gpu_loaded()) as it:
        broken = replace(it.session.latest.gpus, value=frames.node([replace(frames.h200(), name=7)]))
        await it.push(replace(it.session.latest, gpus=broken))
        assert "can't be drawn" in screen_lines(it.app)[-1]
        assert "the overview screen failed" in caplog.text
        await it.push(frames.one_gpu_loaded())
        assert it.app.is_running


async def test_the_app_starts_the_session_once(running):
    async with running(frames.one_gpu_loaded()) as it:
        await it.press("2", "1", "t", "escape")
        assert it.session.starts == 1


async def test_nothing_is_animated_and_no_stock_header_or_footer_is_there(running):
    async with running(frames.one_gpu_loaded()) as it:
        assert it.app.animation_level == "none"
        names = {type(w).__name__ for w in it.app.screen.walk_children()}
        assert names == {"LinesView", "StatusBar"}


async def test_a_frame_is_drawn_within_its_budget(running):
    """Generous for shared machines; benchmarks/ has the exact figures."""
    async with running(frames.eight_gpus(), (120, 40)) as it:
        await it.press("escape")
        steps = list(frames.moving(frames.eight_gpus(), 40))
        for step in steps[:10]:
            it.session.push(step)
            it.app.refresh_view()
        began = time.thread_time()
        for step in steps[10:]:
            it.session.push(step)
            it.app.refresh_view()
        assert (time.thread_time() - began) / 30 < 0.025


async def test_a_bug_ends_the_display_with_no_traceback_on_the_terminal(running, caplog):
    async def run_into_a_bug(seen):
        async with running(frames.one_gpu_loaded()) as it:
            seen.append(it.app)
            it.app.call_later(lambda: 1 / 0)
            await it.pilot.pause()

    seen = []
    with pytest.raises(ZeroDivisionError):
        await run_into_a_bug(seen)
    (app,) = seen
    assert app.failed
    assert not app._exit_renderables
    assert "the display failed" in caplog.text


@pytest.mark.parametrize("frame", [frames.one_gpu_loaded(), frames.eight_gpus()], ids=["one-gpu", "eight-gpus"])
async def test_figures_that_are_not_of_now_are_called_old_wherever_they_are_shown(running, frame):
    why = "cannot ask the driver: a call into it has not come back since the watchdog looked at it"
    stale = replace(
        frame,
        gpus=replace(frame.gpus, error=f"gpu: {why}", age_s=14.0),
        host=replace(frame.host, error=f"host: {why}", age_s=15.0),
    )
    async with running(stale, (80, 24)) as it:
        overview = screen_text(it.app)
        assert "▲ values 14 s old: gpu: cannot ask" in overview
        assert "▲ values 15 s old: host: cannot ask" in overview
        await it.press("2")
        assert f"▲ values 14 s old: gpu: {why}" in " ".join(screen_text(it.app).split())
        await it.press("4")
        processes = " ".join(screen_text(it.app).split())
        assert f"▲ values 14 s old: gpu: {why}" in processes
        assert f"▲ values 15 s old: host: {why}" in processes


async def test_rows_of_gpus_that_are_asked_seldom_keep_their_headings(running):
    frame = frames.eight_gpus()
    async with running(replace(frame, gpus=replace(frame.gpus, period_s=2.5)), (80, 24)) as it:
        heading = screen_lines(it.app)[1]
        for words in ("NVML util", "SM active", "DRAM", "MHz", "every 2.50 s"):
            assert words in heading
