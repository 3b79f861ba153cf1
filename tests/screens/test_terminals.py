"""What is drawn in which terminal: ASCII, 16 colours, none; field case 33."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_llm.config import Config
from gputop_llm.errors import ExitCode, UsageError
from gputop_llm.tui import terminal
from gputop_llm.tui.skin import Skin, to_ascii
from gputop_llm.tui.terminal import Terminal, ascii_only, colours
from tests.support import frames
from tests.support.frame_parts import CAPTURES
from tests.support.screen_text import screen_lines, screen_text

KEYS = ("1", "2", "3", "4", "t", "question_mark", "colon")
ALL = (
    frames.one_gpu_loaded, frames.tp2, frames.eight_gpus, frames.gpu_without_engine, frames.no_gpu,
    frames.nothing_known, frames.unreachable, frames.everything_on, frames.markup_in_names,
)  # fmt: skip
CONDITIONS = json.loads((CAPTURES / "field-cases" / "33-plain-console" / "conditions.json").read_text())


def sgr_codes(app) -> list[str]:
    """Every SGR parameter list that drawing the screen on top sends."""
    drawn = "".join(strip.render(app.console) for strip in app.screen._compositor.render_strips(app.size))
    return re.findall(r"\x1b\[([0-9;]*)m", drawn)


def has_colour(code: str) -> bool:
    numbers = [int(n) for n in code.split(";") if n]
    return any(30 <= n <= 38 or 40 <= n <= 48 or 90 <= n <= 107 for n in numbers)


@pytest.mark.parametrize(
    ("build", "size"),
    [*((build, (80, 24)) for build in ALL), *((frames.eight_gpus, size) for size in ((120, 40), (200, 60), (60, 15)))],
)
async def test_ascii_mode_draws_nothing_but_ascii(running, build, size):
    async with running(build(), size, Terminal(16, True)) as it:
        for key in KEYS:
            await it.press(key)
            text = screen_text(it.app)
            assert text.isascii(), [c for c in text if not c.isascii()]


async def test_ascii_bars_and_histories_still_tell_busy_from_working(running):
    async with running(frames.one_gpu_loaded(), term=Terminal(16, True)) as it:
        util, sm, tensor = screen_lines(it.app)[2:5]
        assert util.count("=") > sm.count("=") > tensor.count("=") > 0


async def test_ascii_mode_also_holds_for_an_exported_text(running, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(frames.one_gpu_loaded(), term=Terminal(16, True)) as it:
        await it.press("x")
        (file,) = tmp_path.iterdir()
        assert file.read_text().isascii()


def test_every_character_has_its_own_width_in_ascii():
    from rich.cells import cell_len

    text = "━╸─▁▂▃▄▅▆▇█▲▼●○·–…≤≥×°µ" + "".join(chr(0x2800 + n) for n in range(256)) + "模型é"
    assert cell_len(to_ascii(text)) == cell_len(text)
    assert to_ascii(text).isascii()


async def test_no_color_sends_no_colour_code_and_still_tells_states_apart(running, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(frames.unreachable(), (120, 40), Terminal(0, False)) as it:
        for key in KEYS:
            await it.press(key)
            assert not [code for code in sgr_codes(it.app) if has_colour(code)]
        await it.press("escape", "1")
        assert "▲ last good 42 s ago" in screen_text(it.app)


async def test_with_16_colours_only_those_are_used(running, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM", raising=False)
    async with running(frames.unreachable(), (120, 40), Terminal(16, False)) as it:
        for key in KEYS:
            await it.press(key)
            assert not [code for code in sgr_codes(it.app) if "38;" in code or "48;" in code]
        await it.press("escape", "1")
        assert any(has_colour(code) for code in sgr_codes(it.app))


@pytest.mark.parametrize("depth", [0, 16, 256, 2**24])
def test_every_depth_knows_every_role(depth):
    skin = Skin(depth, False)
    assert set(skin.styles) == set(Skin(256, False).styles)
    # Warnings differ from plain text by more than colour at any depth.
    assert skin.styles["warn"].bold
    assert skin.styles["selected"].reverse


def env_of(condition) -> dict[str, str]:
    names = ("TERM", "LANG", "NO_COLOR", "COLORTERM")
    return {name: condition[name] for name in names if condition.get(name) is not None}


def test_case_33_consoles_and_locales_that_need_ascii():
    wanted = [True, True, True, False, None, False, False, False, False]
    for condition, plain in zip(CONDITIONS, wanted, strict=True):
        if plain is not None:
            assert ascii_only(env_of(condition), Config()) is plain, condition


def test_case_33_colours():
    by_term = [colours(env_of(c)) for c in CONDITIONS]
    assert by_term == [16, 256, 256, 16, 16, 0, 16, 16, 16]


def test_case_33_dumb_terminals_and_pipes_get_a_sentence_that_names_the_headless_command(monkeypatch):
    class Tty:
        def __init__(self, yes):
            self.yes = yes

        def isatty(self):
            return self.yes

    for condition in CONDITIONS:
        for stream in ("__stdin__", "__stdout__", "__stderr__"):
            monkeypatch.setattr(sys, stream, Tty(condition["tty"]))
        if condition["TERM"] in (None, "dumb"):
            with pytest.raises(UsageError, match="gputop-llm snapshot"):
                terminal.check(env_of(condition), Config())
        else:
            terminal.check(env_of(condition), Config())


def test_case_33_no_escape_byte_goes_into_a_pipe():
    code = (
        "from gputop_llm.config import Config\n"
        "from gputop_llm.errors import GputopError\n"
        "from gputop_llm.tui.app import run\n"
        "from tests.support.fake_session import FakeSession\n"
        "try:\n    run(FakeSession(), Config())\n"
        "except GputopError as error:\n    print(error.sentence()); raise SystemExit(int(error.exit_code))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "TERM": "xterm"},
        check=False,
    )
    assert ended.returncode == ExitCode.USAGE
    assert b"\x1b" not in ended.stdout + ended.stderr
    assert b"standard input is not a terminal; `gputop-llm snapshot`" in ended.stdout


async def test_case_33_60x15_shows_the_most_important_and_the_way_to_the_rest(running):
    async with running(frames.one_gpu_loaded(), (60, 15), Terminal(16, False)) as it:
        text = screen_text(it.app)
        for word in ("vLLM 0.24.0", "NVML util", "SM active", "tensor", "DRAM", "running", "waiting", "TTFT", "ITL"):
            assert word in text
        for word in ("2 GPUs", "3 engine", "4 processes", "? help"):
            assert word in screen_lines(it.app)[-1]


@pytest.mark.parametrize(
    ("env", "plain"),
    [
        ({"TERM": "xterm"}, False),
        ({"TERM": "vt220"}, True),
        ({"TERM": "vt220", "LANG": "de_DE.UTF-8"}, True),
        ({"TERM": "xterm", "LANG": "POSIX"}, True),
        ({"TERM": "xterm", "LANG": "C.utf8"}, False),
        ({"TERM": "xterm", "LANG": "C", "LC_CTYPE": "en_US.UTF-8"}, False),
        ({"TERM": "xterm", "LC_ALL": "C", "LANG": "en_US.UTF-8"}, True),
        ({"TERM": "something-else"}, True),
    ],
)
def test_locale_and_term_decide_on_ascii(env, plain):
    assert ascii_only(env, Config()) is plain


def test_asking_for_ascii_or_against_it_wins():
    assert ascii_only({"TERM": "xterm", "LANG": "C.UTF-8"}, Config(ascii=True, origins={"ascii": "--ascii"}))
    assert not ascii_only({"TERM": "linux"}, Config(ascii=False, origins={"ascii": "GPUTOP_LLM_ASCII"}))


def test_a_c_locale_stays_ascii_although_python_calls_itself_utf_8():
    """PEP 538: in the C locale Python sets LC_CTYPE=C.UTF-8 for itself, which says nothing of the terminal."""
    code = (
        "import os; from gputop_llm.config import Config; from gputop_llm.tui.terminal import ascii_only;"
        "print(ascii_only(os.environ, Config()))"
    )
    env = {"PATH": os.environ["PATH"], "TERM": "xterm"}
    root = Path(__file__).parents[2]

    def answer(more: dict[str, str]) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", code], cwd=root, env={**env, **more}, capture_output=True, text=True, check=True
        )
        return ended.stdout.strip()

    assert answer({"LANG": "C"}) == "True"
    assert answer({"LANG": "C", "LC_CTYPE": "C.UTF-8"}) == "False"
