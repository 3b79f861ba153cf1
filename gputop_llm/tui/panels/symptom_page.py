"""The page of one symptom: what was seen, how it moved, why it may be, what to do, and what would prove it."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.model import Frame
from gputop_llm.model.symptom import Advice, Cause, Evidence, Held, Symptom
from gputop_llm.printable import printable
from gputop_llm.symptoms.catalogue import RULES
from gputop_llm.tui.draw import Line, beside, cells, fit, pad, rule, wrapped
from gputop_llm.tui.panels.common import clock_text, engine_name
from gputop_llm.tui.panels.symptom_chart import held_line, history_chart, span_of
from gputop_llm.tui.panels.symptom_words import (
    arrow,
    engine_kind,
    evidence_text,
    figure,
    lasted,
    names,
    series_name,
    series_unit,
    severity_word,
    subject_name,
    tag,
    titled,
)
from gputop_llm.tui.plan import TWO_COLUMNS
from gputop_llm.tui.seen import Found
from gputop_llm.tui.trails import Trails
from gputop_llm.units import DASH, uptime

GAP = 2
VALUE = 11
LIMIT = 11
CHART_LEAST, CHART_MOST = 5, 12

_TITLES = {rule_.id: rule_.title for rule_ in RULES}
CAPTURES = {
    "nsys": "nsys: a timeline of kernels, CUDA calls and host threads",
    "kineto": "kineto: the framework's own profiler, its operators above their kernels",
    "native": "native: the stacks of the host's threads in C and C++",
    "ncu": "ncu: the hardware counters of single kernels",
    "py-spy": "py-spy: the Python stacks of every rank, side by side",
}


def symptom_page(found: Found | None, frame: Frame, trails: Trails, width: int, height: int) -> list[Line]:
    """The whole page; in two columns where the terminal is wide."""
    if found is None:
        return [[("this symptom is over, and nothing more is known of it: 5 lists what there is", "dim")]]
    symptom = found.symptom
    if symptom is None:
        return _only_times(found, frame, width)
    head = _head(found, symptom, frame, width)
    rows = max(CHART_LEAST, min(CHART_MOST, height // 4))
    if width < TWO_COLUMNS:
        return [
            *head,
            *_evidence(symptom, width),
            *_history(found, symptom, frame, trails, width, rows),
            *_causes(symptom.causes, width),
            *_advice(symptom, frame, width),
            *_proof(symptom, width),
        ]
    left = (width - GAP) // 2
    right = width - GAP - left
    return [
        *head,
        *beside(
            [*_evidence(symptom, left), *_history(found, symptom, frame, trails, left, rows)],
            [*_causes(symptom.causes, right), *_advice(symptom, frame, right), *_proof(symptom, right)],
            left,
            width,
            GAP,
        ),
    ]


def _title(found: Found, width: int) -> Line:
    id_ = found.key.partition("@")[0]
    capture: Line = [("c", "key"), (" capture", "dim")]
    hint: Line = [("Esc", "key"), (" back  ", "dim"), ("← →", "key"), (" another  ", "dim"), *capture]
    title = _TITLES.get(id_)
    return titled([(printable(id_), "title"), (f" {title}" if title else "", "dim")], width, hint, capture)


def _head(found: Found, symptom: Symptom, frame: Frame, width: int) -> list[Line]:
    lines = [_title(found, width)]
    said = wrapped(printable(symptom.headline), max(width - 11, 10), "strong")
    lines += [[*(tag(symptom.severity) if at == 0 else [(" " * 11, "")]), *row] for at, row in enumerate(said)]
    lines += _state(found, symptom, frame, width)
    sure = f"{symptom.agreeing} of {symptom.signals} signals agree"
    facts = f"{subject_name(symptom, frame)} · {symptom.confidence} confidence: {sure}"
    lines += _told("", facts, width)
    active = frame.symptoms.active if frame.symptoms and found.state == "raised" else ()
    below = [s for s in active if s.root == symptom.key]
    root = next((s for s in active if s.key == symptom.root), None)
    if root is not None:
        lines += _told("", f"explained by {root.id}: {printable(root.headline)}", width)
    if below:
        lines += _told("", f"explains {names(below)}", width)
    return lines


def _state(found: Found, symptom: Symptom, frame: Frame, width: int) -> list[Line]:
    """Since when it holds and where it goes; or why it isn't raised; or when it was over."""
    since = "" if symptom.since_s is None else f"since {clock_text(symptom.since_s)}"
    if found.state == "cleared":
        ended = "" if found.cleared_s is None else f" at {clock_text(found.cleared_s)}"
        text = f"cleared{ended}{f', held {since}' if since else ''}; below: as it was at its worst"
        return _told("", text, width, "good")
    duration_s = lasted(symptom, frame.at_s)
    words = since if duration_s is None else f"{since} ({uptime(duration_s)})"
    if found.state == "held back":
        why = printable(symptom.held_back or "")
        return _told("", f"held back, not raised: {why}; the condition holds {words}".rstrip(), width, "good")
    if found.state == "pending":
        return _told("", f"not raised yet: the condition must hold for longer; it does {words}".rstrip(), width, "good")
    if symptom.trend:
        words += f" · {printable(symptom.trend)} {arrow(symptom)}"
    return _told("", words, width) if words else []


def _told(label: str, text: str, width: int, role: str = "") -> list[Line]:
    return [[(pad(label, 11), "dim"), *row] for row in wrapped(text, max(width - 11, 10), role)]


def _evidence(symptom: Symptom, width: int) -> list[Line]:
    longest = max((cells(printable(e.name)) for e in symptom.evidence), default=0)
    label = max(12, min(width // 3, longest + 1))
    heads = pad("", label) + pad("value", VALUE, right=True) + pad("limit", LIMIT, right=True) + "  window · source"
    lines = [rule([("Evidence", "title")], width), fit([(heads, "dim")], width)]
    for evidence in symptom.evidence:
        lines += _seen(evidence, label, width)
    return lines


def _seen(evidence: Evidence, label: int, width: int) -> list[Line]:
    """One number: value and limit in columns, the rest behind them or below."""
    name = printable(evidence.name)
    text = evidence_text(evidence)
    threshold = "" if evidence.threshold is None else figure(evidence.threshold, evidence.unit)
    facts = []
    unknown = text == DASH and evidence.missing is not None
    if evidence.missing is not None and unknown:
        facts.append(printable(evidence.missing))
    if evidence.window_s is not None:
        facts.append(f"{evidence.window_s:.3g} s")
    facts.append(printable(evidence.source))
    if evidence.threshold is not None and evidence.threshold_origin:
        facts.append(f"limit: {printable(evidence.threshold_origin)}")
    tail = " · ".join(facts)
    indent = label + VALUE + LIMIT + 2
    words = wrapped(name, label - 1) or [[("", "")]]
    first = "".join(part for part, _ in words[0])
    line: Line = [(pad(first, label), "")]
    more: list[Line] = words[1:]
    if unknown:
        rows = wrapped(tail, max(width - label - 3, 10), "dim")
        return _with_more([*line, (f" {DASH} ", "dim"), *rows[0]], more, [("   ", "")], rows[1:], label)
    if cells(text) < VALUE:
        line += [
            (pad(text, VALUE, right=True), "strong"),
            (pad(threshold, LIMIT, right=True), ""),
            ("  ", ""),
        ]
        if cells(tail) <= width - indent:
            return [[*line, (tail, "dim")], *more]
        return _with_more(line, more, [(" " * 4, "")], wrapped(tail, max(width - label - 4, 10), "dim"), label)
    # Words instead of a number take the columns' room.
    if not threshold and 1 + cells(text) + 2 + cells(tail) <= width - label:
        return [[*line, (f" {text}", "strong"), ("  ", ""), (tail, "dim")], *more]
    rows = wrapped(text + (f", limit {threshold}" if threshold else ""), max(width - label - 1, 10), "strong")
    line += [(" ", ""), *rows[0]]
    rest = [*rows[1:], *wrapped(tail, max(width - label - 4, 10), "dim")]
    return _with_more(line, more, [(" ", "")], rest, label)


def _with_more(first: Line, names_: Sequence[Line], indent: Line, rest: Sequence[Line], label: int) -> list[Line]:
    """The first line, then the rest of the name beside the rest of the words."""
    lines = [first]
    for at in range(max(len(names_), len(rest))):
        left = "".join(part for part, _ in names_[at]) if at < len(names_) else ""
        lines.append([(pad(left, label), ""), *indent, *(rest[at] if at < len(rest) else [])])
    return lines


def _history(found: Found, symptom: Symptom, frame: Frame, trails: Trails, width: int, height: int) -> list[Line]:
    series = symptom.chart
    held = _times(found, symptom)
    since_s = held[0].since_s if held else frame.at_s
    span_s = span_of(trails, frame.at_s - since_s)
    if series is None:
        bare = rule([("History", "title"), (" no single figure shows it", "")], width)
        return [bare, held_line(frame, trails, held, span_s, width)]
    drawn, shown_s = history_chart(frame, trails, series, symptom.chart_threshold, held, span_s, width, height)
    title: Line = [("History", "title"), (f" {series_name(series)}", "")]
    if symptom.chart_threshold is not None:
        title.append((f"  - - limit {figure(symptom.chart_threshold, series_unit(series))}", "warn"))
    if not drawn:
        return [rule(title, width), [("nothing is known of it in this time", "dim")]]
    return [rule(title, width, [(f"last {uptime(shown_s)}", "dim")]), *drawn]


def _times(found: Found, symptom: Symptom) -> tuple[Held, ...]:
    """When it held; of one that isn't raised yet, since when its condition does."""
    if found.held or symptom.since_s is None:
        return found.held
    return (Held(symptom.id, symptom.subject, symptom.severity, symptom.headline, symptom.since_s, found.cleared_s),)


def _causes(causes: Sequence[Cause], width: int) -> list[Line]:
    lines = [rule([("Causes", "title"), (" likeliest first; + speaks for it, - against", "dim")], width)]
    for at, cause in enumerate(causes, 1):
        lines += _hanging(f"{at} ", printable(cause.text), width, "" if cause.speaks_for else "dim")
        for sign, role, reasons in (("+", "warn", cause.speaks_for), ("-", "good", cause.speaks_against)):
            for reason in reasons:
                lines += [[("  ", ""), *row] for row in _hanging(f"{sign} ", printable(reason), width - 2, "", role)]
        if not cause.speaks_for and not cause.speaks_against:
            lines.append([("  nothing seen speaks for or against it", "dim")])
    return lines


def _advice(symptom: Symptom, frame: Frame, width: int) -> list[Line]:
    lines = [rule([("What to do", "title")], width)]
    kind = engine_kind(symptom, frame)
    for at, advice in enumerate(symptom.advice, 1):
        lines += _hanging(f"{at} ", printable(advice.text), width)
        lines += _flags(advice, kind, width)
    return lines


def _flags(advice: Advice, kind: str | None, width: int) -> list[Line]:
    """This engine's own setting first, by itself; then those of the others."""
    own = [engine for engine in advice.flags if engine == kind or kind is None]
    others = [f"{engine_name(e)}: {printable(text)}" for e, text in advice.flags.items() if e not in own]
    lines: list[Line] = []
    for engine in own:
        lines += _hanging("  ", f"{engine_name(engine)}: {printable(advice.flags[engine])}", width, "strong")
    if others and not own and kind is not None:
        lines.append([(f"  {engine_name(kind)}: no setting is known for it", "dim")])
    if others:
        lines += _hanging("  ", " · ".join(others), width, "dim")
    return lines


def _proof(symptom: Symptom, width: int) -> list[Line]:
    lines = [rule([("What would refute it", "title")], width), *wrapped(printable(symptom.refuted_by), width)]
    lines.append(rule([("Next capture", "title")], width))
    if symptom.next_capture is None:
        return [*lines, *wrapped("none: no trace would tell more than the numbers above", width, "dim")]
    wanted = CAPTURES.get(symptom.next_capture, printable(symptom.next_capture))
    first: Line = [("s", "key"), (" reads them", "dim")] if symptom.next_capture == "py-spy" else []
    keys: Line = [*first, ("   " if first else "", ""), ("c", "key"), (" captures now   ", "dim"), ("a", "key")]
    return [*lines, *wrapped(wanted, width), [*keys, (" when it holds", "dim")]]


def _hanging(head: str, text: str, width: int, role: str = "", head_role: str = "dim") -> list[Line]:
    rows = wrapped(text, max(width - len(head), 10), role)
    return [[(head if at == 0 else " " * len(head), head_role), *row] for at, row in enumerate(rows)]


def _only_times(found: Found, frame: Frame, width: int) -> list[Line]:
    """Of a symptom that came and went unseen only its times are kept."""
    lines = [_title(found, width)]
    for one in found.held:
        ended = "still" if one.until_s is None else f"until {clock_text(one.until_s)}"
        text = f"{severity_word(one.severity)}, since {clock_text(one.since_s)}, {ended}: {printable(one.headline)}"
        lines += wrapped(text, width)
    lines += wrapped("its evidence was not kept: it held while no screen was drawn", width, "dim")
    return lines
