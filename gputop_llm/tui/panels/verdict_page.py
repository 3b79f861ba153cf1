"""The verdict as lines: the page with its findings and tables, and one finding with all that it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from gputop_llm.model.finding import Fact, Finding, Verdict, Weight
from gputop_llm.printable import printable
from gputop_llm.report import verdict_words as words
from gputop_llm.tui.draw import Block, Line, Run, cells, pad, rule, width_of, wrapped

_WEIGHT_ROLES = {Weight.NOTE: "dim", Weight.FINDING: "strong", Weight.SEVERE: "warn"}
_NAME_CELLS = 42
_LABEL = 15
#: What can be done with a row of a table.
_HINTS: Mapping[str, list[Run]] = {
    "gaps": [("Enter", "key"), (" goes there", "dim")],
    "kernels": [("n", "key"), (" runs one again, alone", "dim")],
}


def capture_line(verdict: Verdict) -> Line:
    """What was read: files, tool, window."""
    files = verdict.capture.get("files")
    names = [PurePath(str(name)).name for name in files] if isinstance(files, Sequence) else []
    shown = names[0] if len(names) == 1 else f"{len(names)} files"
    return [(printable(shown), "strong"), ("  ", ""), (printable(words.captured(verdict)), "dim")]


def verdict_rows(verdict: Verdict, width: int) -> Block:
    """The whole page. Rows that can be chosen have keys: "finding:2", "gaps:0", "note:1"."""
    lines: list[Line] = []
    keys: dict[int, str] = {}

    def row(line: Line, key: str) -> None:
        keys[len(lines)] = key
        lines.append(line)

    of_kernels = str(verdict.capture.get("format")).startswith("ncu")
    role = "good" if verdict.healthy else "warn" if not verdict.judged else "strong"
    lines += wrapped(printable(verdict.headline), width, role)
    if verdict.findings:
        lines.append(rule([("Findings", "title")], width, [("Enter", "key"), (" shows what one rests on", "dim")]))
    for number, finding in enumerate(verdict.findings):
        row(_finding_row(number, finding, width, of_kernels), f"finding:{number}")
    if verdict.facts:
        lines.append(rule([("Figures", "title")], width))
    for number, fact in enumerate(verdict.facts):
        row([(printable(f"{fact.name}: {words.amount(fact)}"), ""), (_beside(fact), "dim")], f"fact:{number}")
    for name, title in words.TABLES.items():
        if rows := verdict.tables.get(name):
            lines.append(rule([(title, "title")], width, _HINTS.get(name, [])))
            head, *body = _table(rows, width)
            lines.append([(head, "dim")])
            for number, text in enumerate(body):
                row([(text, "")], f"{name}:{number}")
    if verdict.notes:
        lines.append(rule([("Notes", "title")], width))
    for number, note in enumerate(verdict.notes):
        for part, line in enumerate(wrapped(printable(note), width, indent="  ")):
            row(line, f"note:{number}:{part}")
    return Block(lines, keys)


def _finding_row(number: int, finding: Finding, width: int, of_kernels: bool) -> Line:
    weight = words.WEIGHTS[finding.weight]
    gives = _gives(finding, of_kernels)
    left: Line = [(f"{number + 1:>2} ", "dim"), (pad(weight, 8), _WEIGHT_ROLES[finding.weight])]
    subject = f"{finding.subject}: " if finding.subject else ""
    room = width - width_of(left) - 8
    return [*left, (pad(gives, 7, right=True) + " ", "strong"), (pad(printable(subject + finding.headline), room), "")]


def _gives(finding: Finding, of_kernels: bool) -> str:
    """The share that fixing it could give. Beside shares of a window, those of a kernel stand on the finding's page."""
    if finding.recoverable_pct is None:
        return "" if finding.weight is Weight.NOTE else "≤ ?"
    told = (finding.of == "window" or of_kernels) and finding.recoverable_pct
    return f"≤ {finding.recoverable_pct:.0f} %" if told else ""


def finding_lines(verdict: Verdict, number: int, width: int) -> list[Line]:
    """One finding: what it could give, cause, what to do, how sure it is, what would refute it, and its figures."""
    finding = verdict.findings[number]
    count = len(verdict.findings)
    title: Line = [
        (f"Finding {number + 1} of {count}", "title"), ("  ", ""),
        (words.WEIGHTS[finding.weight], _WEIGHT_ROLES[finding.weight]),
    ]  # fmt: skip
    hint: list[Run] = [("← →", "key"), (" another, ", "dim"), ("Esc", "key"), (" back", "dim")]
    lines: list[Line] = [rule(title, width, hint)]
    subject = f"{finding.subject}: " if finding.subject else ""
    lines += wrapped(printable(subject + finding.headline), width, "strong")
    lines.append([])
    parts: list[tuple[str, str | None]] = [
        ("could give", words.recoverable(finding)),
        ("cause", finding.cause),
        *(("do", words.advised(advice, verdict)) for advice in finding.advice),
        ("confidence", finding.confidence),
        ("refuted by", finding.refuted_by),
        ("next capture", finding.next_capture),
    ]
    for label, text in parts:
        if text:
            lines += _part(label, printable(text), width)
    lines += [[], rule([("Figures", "title")], width)]
    for fact in finding.facts:
        lines += _fact(fact, width)
    return lines


def _part(label: str, text: str, width: int) -> list[Line]:
    rows = wrapped(text, max(width - _LABEL, 10))
    return [[(pad(label if at == 0 else "", _LABEL), "dim"), *row] for at, row in enumerate(rows)]


def _fact(fact: Fact, width: int) -> Iterator[Line]:
    yield from wrapped(printable(f"{fact.name}: {words.amount(fact)}"), width, "strong", indent="  ")
    for text in (f"= {fact.formula}" if fact.formula else "", fact.rows and f"from {fact.rows}", fact.text or ""):
        for line in wrapped(printable(text), max(width - 4, 10), "dim") if text else ():
            yield [("    ", ""), *line]


def _beside(fact: Fact) -> str:
    text = "; ".join(part for part in (fact.rows, fact.text) if part)
    return f" ({printable(text)})" if text else ""


def _table(rows: Sequence[Mapping[str, object]], width: int) -> list[str]:
    """Heading and rows; columns that don't fit are left to the exports, the rightmost first."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = [[words.column(name) for name in columns]]
    table += [[_cell(row.get(name)) for name in columns] for row in rows]
    left = [any(isinstance(row.get(name), str) for row in rows) for name in columns]
    widths = [max(cells(line[at]) for line in table) for at in range(len(columns))]
    fit = len(columns)
    while fit > 1 and sum(widths[:fit]) + 2 * (fit - 1) > width:
        fit -= 1
    return ["  ".join(pad(line[at], widths[at], right=not left[at]) for at in range(fit)) for line in table]


def _cell(value: object) -> str:
    text = printable(words.cell(value))
    return pad(text, _NAME_CELLS) if cells(text) > _NAME_CELLS else text
