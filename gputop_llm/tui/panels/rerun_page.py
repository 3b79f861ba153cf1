"""A hot kernel that is run again, as lines: the question, how far it is, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_llm.ncu.brief import brief
from gputop_llm.printable import printable
from gputop_llm.rerun.outcome import outcome_lines
from gputop_llm.tui.draw import Line, pad, rule, wrapped

if TYPE_CHECKING:
    from gputop_llm.rerun.job import Finished, Job
    from gputop_llm.tui.again import Again

_LABEL = 10


def again_lines(again: Again, width: int) -> list[Line]:
    """The whole page."""
    if again.failure is not None:
        lines: list[Line] = [rule([("Run again", "title"), (" not done", "warn")], width)]
        return lines + wrapped(printable(again.failure.sentence()), width)
    if again.finished is not None and again.job is not None:
        return _finished_lines(again.job, again.finished, width)
    if again.state == "asking" and again.job is not None:
        return _question(again.job, width)
    lines = [rule([("Run again", "title")], width, [("Esc", "key"), (" leaves it to itself", "dim")])]
    return lines + wrapped(f"{again.text} …", width, "strong")


def _question(job: Job, width: int) -> list[Line]:
    lines: list[Line] = [rule([("Run the hot kernel again?", "title")], width, [("nothing is done yet", "dim")])]
    for label, text in job.facts():
        rows = wrapped(printable(text), max(width - _LABEL, 10))
        lines += [[(pad(label if at == 0 else "", _LABEL), "dim"), *row] for at, row in enumerate(rows)]
    return [*lines, [], [("y", "key"), (" run it   ", ""), ("Esc", "key"), (" no", "")]]


def _finished_lines(job: Job, finished: Finished, width: int) -> list[Line]:
    lines: list[Line] = [rule([("Run again", "title")], width, [("Esc", "key"), (" back", "dim")])]
    lines += [[(line, "")] for line in outcome_lines(job.prepared, finished.outcome)]
    lines += [[], rule([("Under ncu", "title")], width)]
    if finished.verdict is None:
        return lines + wrapped(printable(f"not profiled: {finished.why}"), width, "warn")
    lines += [[(printable(line), "")] for line in brief(finished.verdict, finished.groups)]
    return [*lines, [], *wrapped(f"gputop-llm open {finished.report}", width, "dim")]
