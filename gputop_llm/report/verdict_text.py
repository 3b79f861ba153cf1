"""A verdict for the terminal: at most 100 columns, plain text. Foreign text in it is inert."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from unicodedata import combining, east_asian_width

from gputop_llm.model.finding import Fact, Finding, Verdict
from gputop_llm.printable import printable
from gputop_llm.report import verdict_words as words

WIDTH = 100
_MOST_ROWS = 8
_NAME_CELLS = 42


def verdict_text(verdict: Verdict) -> str:
    """The whole page, with a line end at its end."""
    return "\n".join(line.rstrip() for line in _page(verdict)) + "\n"


def _page(verdict: Verdict) -> Iterator[str]:
    yield from _wrapped(verdict.headline)
    files = verdict.capture.get("files")
    for name in files if isinstance(files, Sequence) else ():
        yield from _wrapped(str(name), "  ")
    yield from _wrapped(words.captured(verdict), "  ")
    for fact in verdict.facts:
        yield from _fact(fact, "  ")
    for number, finding in enumerate(verdict.findings, 1):
        yield ""
        yield from _finding(number, finding, verdict)
    for name, title in words.TABLES.items():
        if rows := verdict.tables.get(name):
            yield ""
            yield title
            yield from _table(rows)
    if verdict.notes:
        yield ""
        yield "Notes"
        for note in verdict.notes:
            yield from _wrapped(note, "  - ", "    ")


def _finding(number: int, finding: Finding, verdict: Verdict) -> Iterator[str]:
    subject = f"{finding.subject}: " if finding.subject else ""
    yield from _wrapped(f"{subject}{finding.headline}", f"{number}. [{words.WEIGHTS[finding.weight]}] ", "   ")
    parts = (
        ("could give", words.recoverable(finding)),
        ("cause", finding.cause),
        *(("do", words.advised(advice, verdict)) for advice in finding.advice),
        ("confidence", finding.confidence),
        ("refuted by", finding.refuted_by),
        ("next capture", finding.next_capture),
    )
    for label, text in parts:
        if text:
            yield from _wrapped(text, f"   {label + ':':<14}", " " * 17)
    for fact in finding.facts:
        yield from _fact(fact, "   · ")


def _fact(fact: Fact, indent: str) -> Iterator[str]:
    beside = "; ".join(part for part in (fact.text, fact.rows) if part)
    text = f"{fact.name}: {words.amount(fact)}" + (f" ({beside})" if beside else "")
    yield from _wrapped(text, indent, " " * (len(indent) + 2))


def _table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    shown = rows[:_MOST_ROWS]
    table = [[words.column(name) for name in columns]]
    table += [[_cut(printable(words.cell(row.get(name))), _NAME_CELLS) for name in columns] for row in shown]
    left = [any(isinstance(row.get(name), str) for row in shown) for name in columns]
    widths = [max(_cells(line[i]) for line in table) for i in range(len(columns))]
    # Columns that don't fit are left to --json and --markdown, the rightmost first.
    fit = len(columns)
    while fit > 1 and 2 + sum(widths[:fit]) + 2 * (fit - 1) > WIDTH:
        fit -= 1
    for line in table:
        yield "  " + "  ".join(_padded(line[i], widths[i], left[i]) for i in range(fit))
    if len(rows) > len(shown):
        yield f"  … and {len(rows) - len(shown)} more (--json)"


def _padded(text: str, width: int, left: bool) -> str:
    room = " " * (width - _cells(text))
    return text + room if left else room + text


def _cells(text: str) -> int:
    """Columns of the terminal: wide characters take two, combining ones none."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _cut(text: str, cells: int) -> str:
    if _cells(text) <= cells:
        return text
    while _cells(text) > cells - 1:
        text = text[:-1]
    return text + "…"


def _wrapped(text: str, first: str = "", later: str | None = None) -> Iterator[str]:
    rest = first if later is None else later
    for line in textwrap.wrap(
        printable(text), WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ) or [first]:
        if _cells(line) <= WIDTH:
            yield line
        else:
            yield from _halved(line, rest)


def _halved(line: str, indent: str) -> Iterator[str]:
    """A line of wide characters, in pieces that fit."""
    while _cells(line) > WIDTH:
        cut = len(line)
        while _cells(line[:cut]) > WIDTH:
            cut -= 1
        yield line[:cut]
        line = indent + line[cut:]
    yield line
