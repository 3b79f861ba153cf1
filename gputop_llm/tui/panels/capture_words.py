"""A capture's life as lines: what it will do, how far it is, how it ended, and the list of those that ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputop_llm.captures import Ended, Taking
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, bar, pad, rule, wrapped
from gputop_llm.tui.panels.common import clock_text
from gputop_llm.units import seconds, size

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan
    from gputop_llm.capture.progress import Progress

_LABEL = 11
_BAR = 40
_OUTCOMES = {
    "done": ("whole", "good"),
    "incomplete": ("ended early", "warn"),
    "cancelled": ("cancelled", "dim"),
    "refused": ("not taken", "warn"),
    "failed": ("failed", "warn"),
}


def plan_lines(plan: Plan, width: int, arming: str | None = None) -> list[Line]:
    """What must be known before saying yes; `arming` is the symptom that it is to wait for."""
    asked = "Take a capture?" if arming is None else f"Take a capture when {printable(arming)} holds?"
    lines: list[Line] = [rule([(asked, "title")], width, [("nothing is done yet", "dim")])]
    if arming is not None:
        once = "once, the next time that it is raised (at once, if it is), without asking again; a disarms it"
        lines += _labelled("when", once, width)
    for label, text in plan.facts():
        lines += _labelled(label, printable(text), width)
    yes = " take it   " if arming is None else " arm it   "
    keys: Line = [("y", "key"), (yes, ""), ("n, Enter, Esc", "key"), (" no (as it stands)   ", "")]
    lines += [[], [*keys, ("+ −", "key"), (" longer, shorter", "")]]
    return lines


def taking_lines(taking: Taking, width: int) -> list[Line]:
    """How far it is."""
    told = taking.told
    lines: list[Line] = [rule([("Capture", "title")], width, [("the watching goes on behind it", "dim")])]
    lines += wrapped(printable(taking.plan.target), width, "strong")
    text = "starting the capture's own process" if told is None else printable(told.text or told.stage)
    lines += [[], *wrapped(text, width)]
    if told is not None and told.share is not None:
        left_s = max(0.0, (1.0 - told.share) * taking.plan.window_s)
        lines.append([*bar(100.0 * told.share, min(_BAR, width - 30), "good"), (f"  {seconds(left_s)} left", "")])
    if told is not None:
        lines.append([(f"{size(told.records_bytes)} recorded", "dim")])
    lines += [
        [],
        [("c", "key"), (" cancel (what was recorded is kept)   ", ""), ("Esc", "key"), (" leave it to itself", "")],
    ]
    return lines


def ended_lines(ended: Progress, width: int) -> list[Line]:
    """How it ended, where that is no verdict."""
    word, role = _OUTCOMES.get(ended.outcome or "failed", ("failed", "warn"))
    lines: list[Line] = [rule([("Capture", "title"), (" ", ""), (word, role)], width)]
    for label, text in (
        ("what", ended.what),
        ("why", ended.why),
        ("do", ended.todo),
        ("kept", ended.path or "nothing"),
        ("no verdict", ended.details.get("bundle_error")),
    ):
        if text:
            lines += _labelled(label, printable(text), width)
    return lines


def capture_rows(ended: Sequence[Ended], width: int) -> Block:
    """Those of this session, the newest first; keys are "capture:0" by their order of ending."""
    if not ended:
        text = "no capture was taken yet: c takes one of what is watched"
        return Block([[(text, "dim")]])
    lines: list[Line] = []
    keys: dict[int, str] = {}
    for number in reversed(range(len(ended))):
        one = ended[number]
        word, role = _OUTCOMES.get(one.last.outcome or "failed", ("failed", "warn"))
        about = one.last.what if one.last.path is None else one.last.path.rpartition("/")[2]
        keys[len(lines)] = f"capture:{number}"
        lines.append([
            (f"{clock_text(one.at_s)}  ", ""), (pad(word, 12), role),
            (pad(seconds(one.plan.window_s), 9), ""), (pad(printable(about), max(10, width - 31)), "dim"),
        ])  # fmt: skip
    return Block(lines, keys)


def _labelled(label: str, text: str, width: int) -> list[Line]:
    rows = wrapped(text, max(width - _LABEL, 10))
    return [[(pad(label if at == 0 else "", _LABEL), "dim"), *row] for at, row in enumerate(rows)]
