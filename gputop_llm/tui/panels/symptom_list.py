"""All that the rules say: what is raised, held back, coming up, over; what can't be told; which limits were changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputop_llm.model import Frame
from gputop_llm.model.symptom import CantTell, Held, Subject, Symptom, SymptomReport, alike
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, Run, fit, joined, pad, rule, width_of, wrapped
from gputop_llm.tui.panels.common import clock_text, ranges
from gputop_llm.tui.panels.symptom_words import (
    TAG,
    arrow,
    brief,
    headline,
    how_many,
    lasted,
    severity_word,
    subject_name,
    tag,
    titled,
)
from gputop_llm.tui.panels.timeline_strip import Axis, axis_of, strip
from gputop_llm.tui.seen import Found, Seen
from gputop_llm.tui.trails import Trails

_INDENT = 2


def symptom_list(frame: Frame, trails: Trails, seen: Seen, width: int) -> Block:
    """Two lines per symptom, which lead to its page; then what can only be read."""
    report = frame.symptoms
    if report is None:
        text = "▲ the rules did not judge this frame: the log file says why"
        return Block(wrapped(text, width, "warn"))
    rows = _Rows(frame, report, axis_of(frame.at_s, trails.known_s, _strip_width(width)), width)
    if not report.active:
        rows.say(_nothing(report), "good" if report.judged else "warn")
    for symptom in report.active:
        rows.add(symptom, _INDENT if symptom.root else 0, _now(symptom, frame))
    for why in dict.fromkeys(s.held_back for s in report.held_back):
        rows.section("Held back", f"not raised: {printable(why or '')}")
        for symptom in report.held_back:
            if symptom.held_back == why:
                rows.add(symptom, 0, _now(symptom, frame))
    if report.pending:
        rows.section("Not yet for long enough")
        for symptom in report.pending:
            rows.add(symptom, 0, _now(symptom, frame))
    over = _over(report)
    if over:
        rows.section("Cleared within the last hour")
        for one in over:
            rows.add_past(one, seen.find(one.key, frame))
    if report.cant_tell:
        rows.section("Can't tell")
        for line in _cant_tell(report.cant_tell, width):
            rows.lines.append(line)
    if report.overridden:
        rows.section("Thresholds changed")
        for text in report.overridden:
            rows.say(printable(text), "")
    return Block(rows.lines, rows.keys)


def list_heading(frame: Frame, trails: Trails, width: int) -> Line:
    """The title of the list: how many there are, and how far back the strips go."""
    report = frame.symptoms
    title: Line = [("Symptoms", "title")]
    if report is not None and report.active:
        title.append((f" {how_many(report)}", ""))
    strips: Line = [(f"strips: last {brief(axis_of(frame.at_s, trails.known_s, 1).span_s)}", "dim")]
    hint: Line = [("Enter", "key"), (" opens · ", "dim"), *strips]
    return titled(title, width, hint, strips)


class _Rows:
    """Lines as they are added, with the keys of those that can be chosen."""

    def __init__(self, frame: Frame, report: SymptomReport, axis: Axis, width: int) -> None:
        self.lines: list[Line] = []
        self.keys: dict[int, str] = {}
        self._frame = frame
        self._axis = axis
        self._width = width
        self._held: dict[str, list[Held]] = {}
        for one in report.log:
            self._held.setdefault(one.key, []).append(one)

    def section(self, title: str, remark: str = "") -> None:
        self.lines.append(rule([(title, "title"), (f" {remark}" if remark else "", "")], self._width))

    def say(self, text: str, role: str) -> None:
        self.lines += wrapped(text, self._width, role)

    def add(self, symptom: Symptom, indent: int, facts: Sequence[Sequence[Run]]) -> None:
        role = "dim" if symptom.held_back else "strong"
        text = headline(symptom, self._frame)
        first: Line = [(" " * indent, ""), *tag(symptom.severity), (text, role)]
        more = [*facts, [(subject_name(symptom, self._frame), "dim")], [(f"{symptom.confidence} confidence", "dim")]]
        self._both(symptom.key, first, indent, [[(symptom.id, "")], *more])

    def add_past(self, one: Held, found: Found | None) -> None:
        ended = "" if one.until_s is None else f"–{clock_text(one.until_s)}"
        lasted_s = (one.until_s or one.since_s) - one.since_s
        worst = found.symptom if found else None
        headline_ = one.headline if worst is None else worst.headline
        first: Line = [(pad("cleared", TAG), "dim"), (printable(headline_), "")]
        facts: list[list[Run]] = [
            [(one.id, "")],
            [(f"{clock_text(one.since_s)}{ended}", "dim")],
            [(brief(lasted_s), "dim")],
            [(f"was {severity_word(one.severity)}", "dim")],
            [(printable(one.subject.label), "dim")],
        ]
        self._both(one.key, first, 0, facts)

    def _both(self, key: str, first: Line, indent: int, facts: Sequence[Sequence[Run]]) -> None:
        """The headline; below it the facts, and when it held at the right."""
        left = indent + TAG
        drawn = strip(self._held.get(key, ()), self._axis)
        room = self._width - left - width_of(drawn) - 2
        second: Line = [(" " * left, ""), *fit(joined(facts, room), room), ("  ", ""), *drawn]
        for line in (fit(first, self._width), second):
            self.keys[len(self.lines)] = f"symptom:{key}"
            self.lines.append(line)


def _strip_width(width: int) -> int:
    return max(10, min(60, width // 4))


def _now(symptom: Symptom, frame: Frame) -> list[list[Run]]:
    duration_s = lasted(symptom, frame.at_s)
    if symptom.since_s is None or duration_s is None:
        return []
    trend = f" {arrow(symptom)}".rstrip()
    return [[(f"since {clock_text(symptom.since_s)} ({brief(duration_s)}){trend}", "dim")]]


def _nothing(report: SymptomReport) -> str:
    if report.judged == 0:
        return "– nothing can be judged yet; below is what it needs"
    return f"● no symptoms: {report.judged} conditions judged, none holds"


def _over(report: SymptomReport) -> list[Held]:
    """The last time of each symptom that is over, the newest first."""
    listed = {s.key for s in (*report.active, *report.held_back, *report.pending)}
    last = {one.key: one for one in report.log if one.key not in listed and one.until_s is not None}
    return sorted(last.values(), key=lambda one: one.until_s or 0.0, reverse=True)


def _cant_tell(unknown: Iterable[CantTell], width: int) -> list[Line]:
    """What is missing, and which rules wait for it on what."""
    by_need: dict[str, list[CantTell]] = {}
    for one in unknown:
        by_need.setdefault(one.needs, []).append(one)
    lines: list[Line] = []
    for needs, several in by_need.items():
        lines += wrapped(f"needs {printable(needs)}", width, "")
        for rules, subjects in alike(several):
            text = f"{', '.join(map(printable, rules))} of {_subjects(subjects)}"
            lines += [[("  ", ""), *row] for row in wrapped(text, width - 2, "dim")]
    return lines


def _subjects(subjects: Iterable[Subject]) -> str:
    """Each once; several GPUs as "GPUs 0-7"."""
    found = dict.fromkeys(subjects)
    numbers = [subject.key.removeprefix("gpu:") for subject in found if subject.key.startswith("gpu:")]
    gpus = tuple(sorted(int(number) for number in numbers if number.isdecimal()))
    if len(gpus) < 2 or len(gpus) != len(numbers):
        return ", ".join(dict.fromkeys(printable(subject.label) for subject in found))
    rest = dict.fromkeys(printable(subject.label) for subject in found if not subject.key.startswith("gpu:"))
    return ", ".join([f"GPUs {ranges(gpus)}", *rest])
