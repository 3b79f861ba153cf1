"""The display of a capture: what it looks like, and that every key does what the command table says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.timeline.read_kineto import read_kineto
from gputop_llm.tui import verdict_app
from gputop_llm.tui.capture_commands import CAPTURE_COMMANDS
from gputop_llm.tui.panels.timeline_picture import picture
from gputop_llm.tui.terminal import Terminal
from tests.support.capture_app import judged, showing
from tests.support.captures import field_case
from tests.support.screen_text import assert_golden, screen_lines, screen_text
from tests.support.synth import Simulation
from tests.support.synth_kineto import to_kineto
from tests.support.timelines import KINETO_VLLM_CPU, NO_KERNELS, NSYS_VLLM, OFFLOAD

SIZES = [(80, 24), (120, 40), (200, 60)]
TESTED: dict[str, set[str]] = {}


def keys_of(name):
    """Marks the keys of a command as tested, one test each."""
    keys = next(c.keys for c in CAPTURE_COMMANDS if c.name == name)
    TESTED[name] = set(keys)
    return pytest.mark.parametrize("key", keys)


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize(
    ("screen", "name", "keys"),
    [
        ("verdict", "nsys-vllm", ()),
        ("finding", "nsys-vllm", ("enter",)),
        ("timeline", "nsys-vllm", ("2",)),
        ("timeline-gap", "nsys-vllm", ("g",)),
        ("help", "nsys-vllm", ("question_mark",)),
        ("verdict", "offload", ()),
        ("timeline", "offload", ("2",)),
        ("timeline-kernel", "offload", ("2", "k")),
        ("timeline-step", "kineto-vllm", ("s",)),
        ("verdict", "no-kernels", ()),
        ("timeline", "no-kernels", ("2",)),
    ],
)
async def test_screen_looks_as_it_did(screen, name, keys, size):
    captures = {"nsys-vllm": NSYS_VLLM, "offload": OFFLOAD, "kineto-vllm": KINETO_VLLM_CPU, "no-kernels": NO_KERNELS}
    async with showing(captures[name], size) as it:
        await it.press(*keys)
        assert_golden(screen_text(it.app), f"capture-{screen}-{name}-{size[0]}x{size[1]}")


@keys_of("verdict")
async def test_1_shows_the_verdict(key):
    async with showing(NSYS_VLLM) as it:
        await it.press("2", key)
        assert it.on_top == "verdict"
        assert "Launch-bound" in screen_text(it.app)


@keys_of("timeline")
async def test_2_shows_the_timeline(key):
    async with showing(NSYS_VLLM) as it:
        await it.press(key)
        assert it.on_top == "timeline"
        assert "waits on" in screen_text(it.app)


@keys_of("rerun")
async def test_n_says_how_to_run_a_kernel_again_where_no_node_is_watched(key):
    async with showing(NSYS_VLLM) as it:
        await it.press(key)
        assert it.on_top == "verdict"
        assert "gputop-llm rerun" in screen_text(it.app)


@keys_of("gap")
async def test_g_goes_to_the_longest_gap_then_to_the_next(key):
    async with showing(NSYS_VLLM) as it:
        (idle,) = judged(NSYS_VLLM)[0].idle.values()
        first, second = idle.longest(2).tolist()
        await it.press(key)
        assert it.on_top == "timeline"
        assert it.viewport.low <= idle.gaps.start[first] < idle.gaps.end[first] <= it.viewport.high
        assert "1/" in screen_text(it.app)
        await it.press(key)
        assert it.viewport.low <= idle.gaps.start[second] < idle.gaps.end[second] <= it.viewport.high


@keys_of("step")
async def test_s_goes_to_the_slowest_step(key):
    async with showing(NSYS_VLLM) as it:
        (marks,) = judged(NSYS_VLLM)[0].marks.values()
        time = marks.at[1:] - marks.at[:-1]
        slowest = int(time.argmax())
        await it.press(key)
        assert it.viewport.low <= marks.at[slowest] < marks.at[slowest + 1] <= it.viewport.high
        assert f"step {slowest + 1} of {len(marks)}" in screen_text(it.app)


@keys_of("kernel")
async def test_k_goes_to_the_hot_kernel(key):
    async with showing(OFFLOAD) as it:
        await it.press("2", key)
        shown = screen_text(it.app)
        assert "hottest kernel" in shown
        first = (it.viewport.low, it.viewport.high)
        await it.press(key)
        assert (it.viewport.low, it.viewport.high) != first


async def test_a_kernel_shorter_than_a_microsecond_is_not_0_long():
    async with showing(str(field_case(26) / "trace.json")) as it:
        await it.press("2", "k")
        assert "0.20 µs hottest kernel (50 runs): tiny" in screen_text(it.app)


async def test_a_step_of_no_known_phase_is_called_a_step():
    async with showing(OFFLOAD) as it:
        await it.press("2", "s")
        assert re.search(r"  1/50 186 ms step \d+ of \d+ on GPU 0", screen_text(it.app))


async def test_on_the_verdict_k_moves_up_as_in_every_list():
    async with showing(NSYS_VLLM) as it:
        await it.press("down", "down", "k")
        assert it.on_top == "verdict"
        assert it.app.screen.rows.cursor == "finding:1"


@keys_of("zoom_in")
async def test_plus_halves_the_view(key):
    async with showing(NSYS_VLLM) as it:
        whole = it.viewport.high - it.viewport.low
        await it.press("2", key)
        assert it.viewport.high - it.viewport.low == whole // 2


@keys_of("zoom_out")
async def test_minus_doubles_the_view_up_to_the_window(key):
    async with showing(NSYS_VLLM) as it:
        await it.press("2", "plus", "plus", key)
        assert it.viewport.high - it.viewport.low == pytest.approx((it.viewport.end - it.viewport.start) / 2, rel=0.01)
        await it.press(key, key)
        assert it.viewport.whole


@keys_of("left")
async def test_left_shows_what_was_before(key):
    async with showing(NSYS_VLLM) as it:
        await it.press("2", "plus", "plus")
        low, high = it.viewport.low, it.viewport.high
        await it.press(key)
        assert it.viewport.low < low
        assert it.viewport.high - it.viewport.low == high - low


@keys_of("right")
async def test_right_shows_what_came_after_and_stops_at_the_end(key):
    async with showing(NSYS_VLLM) as it:
        await it.press("2", "plus", "plus", *[key] * 12)
        assert it.viewport.high == it.viewport.end


async def test_left_and_right_go_through_the_findings():
    async with showing(NSYS_VLLM, (120, 40)) as it:
        await it.press("enter", "right")
        assert "Finding 2 of" in screen_text(it.app)
        await it.press("left", "left")
        count = len(it.app.opened.verdict.findings)
        assert f"Finding {count} of {count}" in screen_text(it.app)
        await it.press("escape")
        assert it.on_top == "verdict"


@keys_of("reset")
async def test_0_shows_all(key):
    async with showing(NSYS_VLLM) as it:
        await it.press("g", key)
        assert it.viewport.whole
        assert "(all)" in screen_text(it.app)


@keys_of("perfetto")
async def test_shift_p_saves_what_is_in_view_as_a_trace(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with showing(NSYS_VLLM, (120, 40)) as it:
        await it.press("g", key)
        await it.until(lambda: "saved" in screen_text(it.app))
        (file,) = tmp_path.iterdir()
        saved = read_kineto([file])
        assert file.name.endswith(".perfetto.json.gz")
        assert (saved.start, saved.end) == (it.viewport.low, it.viewport.high)
        assert "saved" in screen_text(it.app)


@keys_of("export_text")
async def test_x_saves_the_whole_page(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with showing(NSYS_VLLM) as it:
        await it.press(key)
        (file,) = tmp_path.iterdir()
        text = file.read_text(encoding="utf-8")
        assert "Hot kernels" in text
        assert "Notes" in text


@keys_of("export_svg")
async def test_shift_x_saves_a_picture(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with showing(NSYS_VLLM) as it:
        await it.press("2", key)
        (file,) = tmp_path.iterdir()
        assert file.read_text(encoding="utf-8").startswith("<svg")


@keys_of("help")
async def test_help_names_every_key(key):
    async with showing(NSYS_VLLM, (120, 60)) as it:
        await it.press(key)
        shown = screen_text(it.app)
        for command in CAPTURE_COMMANDS:
            assert command.help in shown
        await it.press(key)
        assert it.on_top == "verdict"
        await it.press("2", key, "escape")
        assert it.on_top == "timeline"


@keys_of("suspend")
async def test_ctrl_z_asks_textual_to_suspend(key, monkeypatch):
    async with showing(NSYS_VLLM) as it:
        asked = []
        monkeypatch.setattr(it.app, "action_suspend_process", lambda: asked.append(True))
        await it.press(key)
        assert asked == [True]


@keys_of("quit")
@pytest.mark.parametrize("screen", ["1", "2", "enter", "question_mark"])
async def test_quit_leaves_from_every_screen(key, screen):
    async with showing(NSYS_VLLM) as it:
        await it.press(screen, key)
        assert it.app.return_code == 0
        assert it.app._exit


def test_every_key_is_tested():
    assert {c.name: set(c.keys) for c in CAPTURE_COMMANDS} == TESTED


async def test_enter_on_a_gap_goes_to_its_place():
    async with showing(NSYS_VLLM) as it:
        it.app.screen.rows.select("gaps:1")
        await it.press("enter")
        row = it.app.opened.verdict.tables["gaps"][1]
        middle = (it.viewport.low + it.viewport.high) / 2 - it.viewport.start
        assert it.on_top == "timeline"
        assert middle / 1e6 == pytest.approx(row["at_ms"] + row["length_us"] / 2e3, rel=1e-3)


async def test_escape_never_leaves_the_verdict():
    async with showing(NSYS_VLLM) as it:
        await it.press("escape", "escape")
        assert it.on_top == "verdict"


async def test_ascii_and_no_colours_show_the_same_letters():
    async with showing(NSYS_VLLM, (120, 40), Terminal(0, True)) as it:
        await it.press("2")
        shown = screen_text(it.app)
        assert shown.isascii()
        assert "U host, unattributed" in shown
        for strip in it.app.screen._compositor.render_strips(it.app.size):
            assert all(segment.style is None or segment.style.color is None for segment in strip)


async def test_while_reading_the_share_is_shown_and_q_gives_up(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    begun, ended = asyncio.Event(), []

    def opened(paths, progress, cancelled):
        progress("reading", 0.42)
        loop.call_soon_threadsafe(begun.set)
        app.cancelled.wait(20)
        ended.append(cancelled())
        raise GputopError("reading was cancelled")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(verdict_app, "opened", opened)
    app = verdict_app.VerdictApp([Path("a\x1b[2Jfile.json")], Terminal(256, False))
    async with app.run_test(size=(80, 24)) as pilot:
        await asyncio.wait_for(begun.wait(), 20)
        await pilot.pause()
        assert "reading 42 %" in screen_text(app)
        assert "\\x1b[2J" in screen_text(app)
        await pilot.press("x", "2", "g", "enter", "escape", "q")
    app.let_go()
    assert ended == [True]


def test_reading_and_analysing_tell_how_far_they_are():
    told = []
    verdict_app.opened([field_case(28) / "trace.json"], lambda *came: told.append(came), lambda: False)
    phases = [phase for phase, _ in told]
    assert list(dict.fromkeys(phases)) == ["reading", "analysing"]
    shares = [share for phase, share in told if phase == "analysing"]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1], len(set(shares)) > 5) == (0.0, 1.0, True)


def test_the_analysis_can_be_given_up():
    told = []
    with pytest.raises(GputopError, match="analysing was cancelled"):
        verdict_app.opened(
            [field_case(28) / "trace.json"],
            lambda *came: told.append(came),
            lambda: bool(told) and told[-1][0] == "analysing" and told[-1][1] > 0.2,
        )
    assert told[-1][1] < 0.5


async def test_a_real_file_is_read_and_shown():
    app = verdict_app.VerdictApp([field_case(28) / "trace.json"], Terminal(256, False))
    async with app.run_test(size=(80, 24)) as pilot:
        while app.opened is None:
            assert app.failure is None
            await pilot.pause(0.01)
        await pilot.pause()
        await pilot.pause()
        assert "trace.json" in screen_lines(app)[0]


HOSTILE = "\x1b[31mgemm\x1b]0;owned\x07[bold]x[/bold]\u202eevil\n# heading"


@pytest.mark.parametrize("keys", [(), ("enter",), ("2",), ("g",), ("k", "2", "k", "plus"), ("s",)])
async def test_names_of_a_capture_are_shown_inert(tmp_path, keys):
    simulation = Simulation()
    process = simulation.process(4000, HOSTILE)
    host = simulation.host(process, device=0, name=HOSTILE)
    for _ in range(60):
        with host.op(HOSTILE), host.range(HOSTILE):
            host.launch(7, 400_000, HOSTILE)
            host.run(900_000)
            host.sync(7)
    file = to_kineto(simulation.schedule(), tmp_path / "\x1b[2Jtrace[b].json")
    app = verdict_app.VerdictApp([file], Terminal(256, False))
    async with app.run_test(size=(120, 40)) as pilot:
        while app.opened is None or app.screen.command != "verdict":
            assert app.failure is None
            await pilot.pause(0.01)
        await pilot.press(*keys)
        await pilot.pause()
        shown = screen_text(app)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", shown)
        assert "trace[b].json" in shown
        assert keys or "[bold]" in app.screen.text()


async def test_the_first_row_brings_back_what_stands_above_it():
    async with showing(NSYS_VLLM) as it:
        before = screen_lines(it.app)
        await it.press("end")
        assert screen_lines(it.app) != before
        await it.press("home")
        assert screen_lines(it.app) == before


async def test_a_file_that_is_no_capture_ends_the_display_with_its_sentence(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("hello")
    app = verdict_app.VerdictApp([file], Terminal(256, False))
    async with app.run_test(size=(80, 24)):
        app.let_go()
    assert isinstance(app.failure, GputopError)
    assert "Nsight Systems" in app.failure.sentence()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", [NSYS_VLLM, OFFLOAD])
def test_every_line_of_the_picture_has_the_width_asked_for(name, width):
    drawn = judged(name)[2]
    timeline = drawn.timeline
    for part in (1, 7, 1000, 10**9):
        high = timeline.start + max(timeline.window_ns // part, 1)
        for line in picture(drawn, timeline.start, high, width):
            assert sum(len(text) for text, _ in line) == width
