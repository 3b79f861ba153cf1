"""The overview's symptoms, ranked, then what happened lately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gputop_llm.model import Frame
from gputop_llm.model.symptom import Held, Severity, Symptom, SymptomReport
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, Run, cells, fit, joined, pad, rule
from gputop_llm.tui.panels.common import clock_text
from gputop_llm.tui.panels.symptom_words import TAG, arrow, brief, headline, how_many, lasted, minute, tag

# So many lines of symptoms may take room from other panels; more only where there is room.
_MOST_NEEDED = 3
_MOST_USEFUL = 12
_LIST = "symptoms:"


@dataclass(slots=True)
class _Group:
    """A root, what it explains, and how many others are like it on other GPUs."""

    root: Symptom
    below: list[Symptom] = field(default_factory=list)
    like: int = 0


def symptom_sizes(report: SymptomReport | None) -> tuple[int, int]:
    """Lines that the panel must have, its title included (0: nothing is wrong), and can use."""
    if report is None:
        return 0, 2
    bad = sum(group.root.severity > Severity.NOTE for group in _merged(_groups(report)))
    needed = 1 + min(bad, _MOST_NEEDED) if bad else 0
    return needed, 2 + min(len(report.active) + bool(report.held_back), _MOST_USEFUL)


def symptoms_panel(frame: Frame, events: Sequence[tuple[float, str]], width: int, height: int) -> Block:
    """The worst first, each root with what it explains as far as there is room; then events, newest first."""
    report = frame.symptoms
    counts = how_many(report) if report else ""
    title: Line = [("Symptoms", "title")]
    if height == 1:
        first = _entry(_groups(report)[0], frame, width - 16, True) if report and report.active else _quiet(report)
        key = f"symptom:{report.active[0].key}" if report and report.active else _LIST
        return Block([rule([*title, (" ", ""), *first], width)], {0: key})
    if counts:
        title.append((f" {counts}", ""))
    ranked, left = _ranked(report, frame, width, height - 1) if report and report.active else ([], 0)
    more = f" shows {left} more" if left else " details"
    lines: list[Line] = [rule(title, width, [("5", "key"), (more, "dim")])]
    keys = {0: _LIST}

    def add(line: Line, key: str = _LIST) -> None:
        keys[len(lines)] = key
        lines.append(line)

    if not ranked:
        add(fit(_quiet(report), width))
    for line, key in ranked:
        add(line, key)
    if report is not None and report.held_back:
        reasons = ", ".join(dict.fromkeys(printable(s.held_back or "") for s in report.held_back))
        add(fit([(pad("held back", TAG), "dim"), (f"{len(report.held_back)}: {reasons}", "")], width))
    lines += _happened(report, events, width)
    return Block(lines[:height], {row: key for row, key in keys.items() if row < height})


def _quiet(report: SymptomReport | None) -> Line:
    """Why nothing is listed."""
    if report is None:
        return [("▲ the rules did not judge this frame: the log file says why", "warn")]
    if report.judged == 0:
        return [("– nothing can be judged yet: 5 says what it needs", "dim")]
    rules = len({one.id for one in report.cant_tell})
    cleared = sum(one.until_s is not None for one in report.log)
    parts: list[list[Run]] = [[("● no symptoms", "good")]]
    if report.pending:
        parts.append([(f"{len(report.pending)} may be coming up", "")])
    if rules:
        parts.append([(f"{rules} rule{'' if rules == 1 else 's'} can't tell", "dim")])
    if cleared:
        parts.append([(f"{cleared} cleared within the last hour", "dim")])
    if report.overridden:
        parts.append([("thresholds changed", "dim")])
    return joined(parts, 200)


def _groups(report: SymptomReport) -> list[_Group]:
    found: list[_Group] = []
    for symptom in report.active:
        if symptom.root is None or not found:
            found.append(_Group(symptom))
        else:
            found[-1].below.append(symptom)
    return found


def _merged(groups: list[_Group]) -> list[_Group]:
    """Eight GPUs with the same symptom as one group."""
    found: dict[tuple[str, Severity], _Group] = {}
    for group in groups:
        first = found.setdefault((group.root.id, group.root.severity), _Group(group.root, []))
        if first.root is not group.root:
            first.like += 1
        first.below += group.below
    return list(found.values())


def _ranked(report: SymptomReport, frame: Frame, width: int, room: int) -> tuple[list[tuple[Line, str]], int]:
    """At most `room` lines, each with the key of what it leads to; and how many roots are left out."""
    groups = _groups(report)
    if len(groups) > room:
        groups = _merged(groups)
    shown = groups[:room]
    spare = room - len(shown)
    lines: list[tuple[Line, str]] = []
    for group in shown:
        listed = len(group.below) <= spare
        lines.append((_entry(group, frame, width, not listed), f"symptom:{group.root.key}"))
        if listed:
            spare -= len(group.below)
            for symptom in group.below:
                line: Line = [("  ", ""), *_entry(_Group(symptom), frame, width - 2, True)]
                lines.append((line, f"symptom:{symptom.key}"))
    return lines, len(groups) - len(shown)


def _entry(group: _Group, frame: Frame, width: int, count_below: bool) -> Line:
    """One symptom in one line: its headline whole where possible, then since when, where it goes, what it explains."""
    symptom = group.root
    text = headline(symptom, frame)
    room = width - TAG
    tails = _tails(group, frame.at_s, count_below)
    tail = next((t for t in tails if cells(text) + cells(t) <= room), None)
    if tail is None:
        tail = tails[2]
        text = pad(text, max(room - cells(tail), 0))
    return [*tag(symptom.severity), (text, "strong" if symptom.severity > Severity.NOTE else ""), (tail, "dim")]


def _tails(group: _Group, at_s: float, count_below: bool) -> list[str]:
    """What stands behind the headline, the longest first."""
    symptom = group.root
    duration_s = lasted(symptom, at_s)
    trend = arrow(symptom)
    lasting = "" if duration_s is None else brief(duration_s)
    since = "" if symptom.since_s is None else f" · since {minute(symptom.since_s)} ({lasting})"
    below = len(group.below) if count_below else 0
    explains = f" · explains {below}" if below else ""
    like = f" · {group.like} more like it" if group.like else ""
    short_like = f" ×{group.like + 1}" if group.like else ""
    short_below = f" +{below}" if below else ""
    arrowed = f" {trend}" if trend else ""
    return [
        f"{like}{since}{arrowed}{explains}",
        f"{like} · {lasting}{arrowed}{explains}" if lasting else f"{like}{explains}",
        f"{short_like} · {lasting}{arrowed}{short_below}",
        f"{short_like}{short_below}",
    ]


def _happened(report: SymptomReport | None, events: Sequence[tuple[float, str]], width: int) -> list[Line]:
    """What is over and what came and went, newest first."""
    past = [(at_s, printable(text)) for at_s, text in events]
    for one in report.log if report else ():
        if one.until_s is not None:
            past.append((one.until_s, f"cleared after {_for(one)}: {printable(one.headline)}"))
    past.sort(key=lambda pair: pair[0], reverse=True)
    return [fit([(f"{clock_text(at_s)} ", "dim"), (text, "")], width) for at_s, text in past]


def _for(held: Held) -> str:
    return brief(max(0.0, (held.until_s or held.since_s) - held.since_s))
