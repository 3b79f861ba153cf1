"""A verdict as a Markdown page, each finding in five parts: symptom, evidence, conclusion, remedy, how to verify.

Foreign text is escaped: no name makes a link, a heading, HTML or a table cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gputop_llm.model.finding import Fact, Finding, Verdict
from gputop_llm.printable import printable
from gputop_llm.report import verdict_words as words

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|!~&$@])")
_LIST = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s)")
# Without a scheme a renderer still makes links of "www." and "://".
_LINK = re.compile(r"(?<=[A-Za-z])(?=://)|(?<=www)(?=\.)", re.IGNORECASE)


def verdict_markdown(verdict: Verdict) -> str:
    """The whole page."""
    return "\n".join(_page(verdict)) + "\n"


def _page(verdict: Verdict) -> Iterator[str]:
    yield f"# {inert(verdict.headline)}"
    yield ""
    files = verdict.capture.get("files")
    if isinstance(files, Sequence):
        yield f"Capture: {', '.join(inert(str(name)) for name in files)} ({inert(words.captured(verdict))})"
        yield ""
    yield from _facts(verdict.facts)
    for number, finding in enumerate(verdict.findings, 1):
        yield from _finding(number, finding, verdict)
    for name, title in words.TABLES.items():
        if rows := verdict.tables.get(name):
            yield f"## {title}"
            yield ""
            yield from _table(rows)
    if verdict.notes:
        yield "## Notes"
        yield ""
        yield from (f"- {inert(note)}" for note in verdict.notes)
        yield ""


def _finding(number: int, finding: Finding, verdict: Verdict) -> Iterator[str]:
    subject = f"{finding.subject}: " if finding.subject else ""
    yield f"## {number}. {inert(subject + finding.headline)}"
    yield ""
    gives = words.recoverable(finding)
    yield f"**Symptom.** {inert(finding.headline)} ({words.WEIGHTS[finding.weight]})"
    yield ""
    yield "**Evidence.**"
    yield ""
    yield from _facts(finding.facts)
    yield f"**Conclusion.** {inert(finding.cause)}. Confidence: {inert(finding.confidence)}."
    if gives:
        yield f"Fixing it could give: {inert(gives)}."
    yield ""
    yield "**Remedy.**" + ("" if finding.advice else " Nothing to do.")
    yield ""
    if finding.advice:
        yield from (f"- {inert(words.advised(advice, verdict))}" for advice in finding.advice)
        yield ""
    yield f"**How to verify.** Refuted by: {inert(finding.refuted_by)}."
    if finding.next_capture:
        yield f"Next capture: {inert(finding.next_capture)}."
    yield ""


def _facts(facts: Sequence[Fact]) -> Iterator[str]:
    if not facts:
        yield "No figures."
        yield ""
        return
    yield "| what | value | formula | from |"
    yield "|---|---:|---|---|"
    for fact in facts:
        beside = "; ".join(part for part in (fact.rows, fact.text) if part)
        yield f"| {inert(fact.name)} | {inert(words.amount(fact))} | {inert(fact.formula)} | {inert(beside)} |"
    yield ""


def _table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    yield "| " + " | ".join(inert(words.column(name)) for name in columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(inert(words.cell(row.get(name))) for name in columns) + " |"
    yield ""


def inert(text: str) -> str:
    """The text on one line, with everything that Markdown or HTML would act on escaped."""
    escaped = _MARKUP.sub(r"\\\1", printable(text))
    escaped = escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;").replace(r"\&", "&amp;")
    return _LIST.sub(r"\1\\\2", _LINK.sub(r"\\", escaped))
