"""What the rules say, as text: the ranked list, and what could not be judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gputop_llm.model import Frame
from gputop_llm.model.symptom import CantTell, Cause, Severity, Symptom, SymptomReport, alike
from gputop_llm.printable import printable
from gputop_llm.report.jsonform import iso
from gputop_llm.units import uptime

# One sensor that is missing silences several rules on every GPU.
_MOST_REASONS = 8
_WORD = 8


def symptom_lines(frame: Frame) -> list[str]:
    """The symptoms of a frame, worst first, each root with what it explains below it."""
    report = frame.symptoms
    if report is None:
        return []
    quiet = "none" if report.judged else "nothing could be judged"
    lines = ["Symptoms" if report.active else f"Symptoms  {quiet}"]
    for symptom in report.active:
        lines += _entry(symptom, frame.at_s)
    if report.pending:
        lines.append("  not yet for long enough to be called a symptom (`gputop-llm check` watches longer):")
        lines += [f"  {_word(s.severity)}  {_what(s)}" for s in report.pending]
    for symptom in report.held_back:
        why = printable(symptom.held_back or "")
        lines.append(f"  held back, since {why}: {_what(symptom)}")
    lines += [f"  {line}" for line in cant_tell_lines(report.cant_tell)]
    return lines + [f"  threshold changed: {printable(text)}" for text in report.overridden]


def one_line(symptom: Symptom, at_s: float) -> str:
    """A symptom as one line: "CRITICAL kv-pressure vllm llama-8b: KV cache 99 % full (for 2 m 05 s, …)"."""
    follows = f", follows from {printable(symptom.root)}" if symptom.root else ""
    return f"{symptom.severity.name} {_what(symptom)} ({_for(symptom, at_s)}{symptom.confidence} confidence{follows})"


def cant_tell_lines(unknown: Sequence[CantTell]) -> Iterator[str]:
    """What can't be told, one line per reason."""
    by_reason: dict[str, list[CantTell]] = {}
    for one in unknown:
        by_reason.setdefault(one.needs, []).append(one)
    for needs, several in list(by_reason.items())[:_MOST_REASONS]:
        for rules, subjects in alike(several):
            labels = ", ".join(dict.fromkeys(printable(subject.label) for subject in subjects))
            yield f"can't tell {', '.join(rules)} of {labels}: needs {printable(needs)}"
    if len(by_reason) > _MOST_REASONS:
        yield f"… and {len(by_reason) - _MOST_REASONS} more reasons (--json has all)"


def counted(report: SymptomReport) -> str:
    """How many of each severity: "1 critical, 2 warnings"."""
    names = {Severity.CRITICAL: "critical", Severity.WARNING: "warning", Severity.NOTE: "note"}
    found = []
    for severity, name in names.items():
        count = sum(s.severity is severity for s in report.active)
        if count:
            found.append(f"{count} {name}{'s' if count > 1 and severity is not Severity.CRITICAL else ''}")
    return ", ".join(found)


def _entry(symptom: Symptom, at_s: float) -> Iterator[str]:
    indent = "    " if symptom.root else "  "
    yield f"{indent}{_word(symptom.severity)}  {_what(symptom)}"
    since = "" if symptom.since_s is None else f"since {(iso(symptom.since_s) or '')[11:19]} UTC, "
    facts = [
        f"{since}{_for(symptom, at_s)}{symptom.trend or ''}".rstrip(", "),
        f"{symptom.confidence} confidence",
        f"next capture: {printable(symptom.next_capture)}" if symptom.next_capture else "",
    ]
    blank = " " * (len(indent) + _WORD + 2)
    yield blank + "; ".join(fact for fact in facts if fact)
    if symptom.causes and not symptom.root:
        yield f"{blank}check first: {_cause(symptom.causes[0])}"


def _what(symptom: Symptom) -> str:
    return f"{symptom.id} {printable(symptom.subject.label)}: {printable(symptom.headline)}"


def _for(symptom: Symptom, at_s: float) -> str:
    return "" if symptom.since_s is None else f"for {uptime(max(0.0, at_s - symptom.since_s))}, "


def _cause(cause: Cause) -> str:
    reasons: Iterable[str] = cause.speaks_for[:1] or [f"but {text}" for text in cause.speaks_against[:1]]
    return printable(cause.text) + "".join(f" ({printable(reason)})" for reason in reasons)


def _word(severity: Severity) -> str:
    return severity.name.ljust(_WORD)
