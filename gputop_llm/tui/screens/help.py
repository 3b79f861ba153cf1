"""Keys, and what the words on the screens mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gputop_llm.tui.commands import COMMANDS, Command
from gputop_llm.tui.draw import Line, pad, rule, wrapped
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.page import PageScreen

KEY_WIDTH = 16
WORD_WIDTH = 14

MORE_KEYS = (
    ("↑ ↓ PgUp PgDn", "scroll, or move in a list"),
    ("← →", "on the GPU screen: another GPU; on a symptom's page: another symptom"),
    ("Enter", "in a list: take the chosen row; of symptoms: open its page"),
    ("Esc, Backspace", "back"),
    ("mouse", "a row, a key on the last line, the wheel"),
)
WORDS = (
    ("–", "not known; screens 2 and 3 say why. Unknown is never shown as 0."),
    ("NVML util", "share of the time in which any kernel ran on the GPU, however small it was"),
    ("SM active", "share of the chip's SMs that had work; far below NVML util means busy, but not working"),
    ("tensor", "share of the time in which the tensor pipes were in use"),
    ("DRAM", "share of the memory bandwidth in use"),
    ("usual", "the median over the last ten minutes; in the latency table of p95; ▲ or ▼ when p95 is far off it"),
    ("≤ and –", "the histogram's bucket is too wide for one number: the truth lies inside these bounds"),
    ("n", "how many requests or tokens a latency rests on, within the window"),
    ("prompt", "prompt tokens per second that were computed; cached: that came from the prefix cache"),
    ("steps", "scheduler steps of the engine per second; ? marks a figure that this engine gets wrong at times"),
    ("of a core", "how busy the process's main thread is: near 100 % it holds the GPU back"),
    ("▲ ◆ ○", "how bad a symptom is: critical, warning, note; a note tells what the limit is, and nothing is wrong"),
    ("explains", "symptoms that follow from this one; they stand below it, and not each for itself"),
    ("confidence", "how many independent signals agree that it is so"),
    ("held back", "the condition holds, but the engine is warming up: it is told and not raised"),
    ("can't tell", "a rule that lacks what it needs; it is not taken for healthy"),
    ("strip", "when a symptom held: the higher a cell, the worse; ─ watched and quiet, blank not watched yet"),
    ("MBU", "share of the memory bandwidth that decode's reads of weights and KV cache come to, by calculation"),
    ("MFU", "share of the arithmetic peak that computing prompts comes to, by calculation"),
    ("inferred", "which GPU a process uses, guessed from open device files because NVML can't see it from here"),
)


class HelpScreen(PageScreen):
    """Drawn from the command table."""

    command = "help"
    commands: ClassVar[Sequence[Command]] = COMMANDS
    more_keys: ClassVar[Sequence[tuple[str, str]]] = MORE_KEYS
    words: ClassVar[Sequence[tuple[str, str]]] = WORDS

    def lines(self, view: View, width: int) -> Sequence[Line]:
        lines: list[Line] = []
        for group in dict.fromkeys(c.group for c in self.commands):
            lines.append(rule([(group, "title")], width))
            for command in self.commands:
                if command.group == group:
                    lines += _entry(_keys(command.keys), command.help, KEY_WIDTH, width)
        lines.append(rule([("Moving", "title")], width))
        for keys, text in self.more_keys:
            lines += _entry(keys, text, KEY_WIDTH, width)
        lines.append(rule([("Words", "title")], width))
        for word, text in self.words:
            lines += _entry(word, text, WORD_WIDTH, width)
        return lines


_NAMES = {"plus": "+", "equals_sign": "=", "minus": "-", "question_mark": "?", "colon": ":"}


def _keys(keys: tuple[str, ...]) -> str:
    return " ".join(_NAMES.get(key, key) for key in keys)


def _entry(head: str, text: str, head_width: int, width: int) -> list[Line]:
    rows = wrapped(text, max(width - head_width, 10))
    return [[(pad(head if at == 0 else "", head_width), "key"), *row] for at, row in enumerate(rows)]
