"""Python stacks as lines: who stands elsewhere, each kind of thread side by side, and what ran in a recording."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.model.stacks import Call, Compared, Flame, FlameThread, ProcessStacks, StackReport, Variant
from gputop_llm.tui.draw import Line, bar, fit, pad, rule, wrapped
from gputop_llm.tui.panels.common import clock_text
from gputop_llm.units import DASH, seconds

_BAR = 12
_ROWS = 12
_THREADS = 4


def stacks_lines(report: StackReport, width: int) -> list[Line]:
    """The whole page."""
    lines: list[Line] = [rule([("Python stacks", "title")], width, [(f"as at {clock_text(report.at_s)}", "dim")])]
    lines += wrapped(report.headline, width, "strong")
    shown: set[str] = set()
    for kind in report.compared:
        lines += _kind(kind, width)
        shown |= {label for variant in kind.variants for label in variant.labels} | set(kind.missing)
    for process in report.processes:
        if process.label not in shown:
            lines += _process(process, width)
    return lines


def _kind(kind: Compared, width: int) -> list[Line]:
    count = sum(len(variant.labels) for variant in kind.variants)
    what = f"the same in all {count}" if kind.same else f"{len(kind.variants)} places in {count}"
    lines = [rule([(kind.name, "title"), (f" {what}", "dim" if kind.same else "warn")], width, [(kind.role, "dim")])]
    if kind.missing:
        lines += wrapped(f"no such thread in {', '.join(kind.missing)}", width, "warn")
    # Of those that agree the innermost frames tell enough.
    for at, variant in enumerate(kind.variants):
        outlier = kind.majority and at > 0
        word = "outlier" if outlier else "majority" if kind.majority and not kind.same else ""
        head: Line = [
            (", ".join(variant.labels), "strong"),
            (f"  {word}  " if word else "  ", "warn" if outlier else "dim"),
        ]
        lines.append(fit([*head, (_state(variant), "dim")], width))
        lines += _calls(variant.calls, width, variant.differs_at, 3 if kind.same else None)
    return lines


def _state(variant: Variant) -> str:
    count = len(variant.labels)
    moved = "stood still" if not variant.moved else "moved" if variant.moved == count else f"{variant.moved} moved"
    return f"{moved} between two looks, {variant.active} of {count} active"


def _calls(calls: Sequence[Call], width: int, differs_at: int | None = None, most: int | None = None) -> list[Line]:
    if not calls:
        return [[("  no Python code", "dim")]]
    own = len(calls) if differs_at is None else len(calls) - differs_at
    lines: list[Line] = []
    for at, call in enumerate(calls[:most]):
        differs = differs_at is not None and at < own
        mark: Line = [("> " if differs else "  ", "warn")]
        place = f" {call.file}:{call.line}" if call.line else f" {call.file}"
        lines.append(fit([*mark, (call.function, "warn" if differs else ""), (place, "dim")], width))
    if most is not None and len(calls) > most:
        lines.append([(f"  and {len(calls) - most} more frames below", "dim")])
    return lines


def _process(process: ProcessStacks, width: int) -> list[Line]:
    name = f"PID {process.pid} {process.title}{f' {process.rank}' if process.rank else ''}"
    lines = [rule([(name, "title")], width)]
    if process.unreadable is not None:
        lines += wrapped(process.unreadable.why, width, "warn")
        return lines + (wrapped(process.unreadable.todo, width) if process.unreadable.todo else [])
    for thread in sorted(process.threads, key=lambda one: (not one.active, one.name != "MainThread", one.name)):
        words = ["active" if thread.active else "idle", *(["holds the GIL"] if thread.owns_gil else [])]
        if thread.moved is not None:
            words.append("moved" if thread.moved else "stood still")
        lines.append(fit([(thread.name, "strong"), (f"  {', '.join(words)}", "dim")], width))
        lines += _calls(thread.calls, width, most=None if thread.active else 3)
    return lines


def flame_lines(flames: Sequence[Flame], width: int) -> list[Line]:
    """A recording: functions by own and total time, of the threads that ran most."""
    lines: list[Line] = []
    for flame in flames:
        name = flame.rank or f"PID {flame.pid}"
        cost = DASH if flame.cpu_s is None else seconds(flame.cpu_s)
        remark = f"{flame.samples:,} samples in {flame.seconds:g} s, {flame.errors} unreadable, {cost} CPU beside it"
        lines.append(rule([(f"Recorded: {name}", "title")], width, [(remark, "dim")]))
        if flame.unreadable is not None:
            todo = f"; {flame.unreadable.todo}" if flame.unreadable.todo else ""
            lines += wrapped(f"{flame.unreadable.why}{todo}", width, "warn")
        elif not flame.threads:
            lines.append([("no thread ran", "dim")])
        for thread in flame.threads[:_THREADS]:
            lines += _thread(thread, flame, width)
    return lines


def _thread(thread: FlameThread, flame: Flame, width: int) -> list[Line]:
    ran_pct = min(100.0, 100.0 * thread.samples / (flame.seconds * flame.rate_hz))
    lines: list[Line] = [fit([(thread.name, "strong"), (f"  ran about {ran_pct:.0f} % of the time", "dim")], width)]
    lines.append([(pad("", _BAR + 2) + pad("self", 8, right=True) + pad("total", 8, right=True) + "  function", "dim")])
    for row in thread.rows[:_ROWS]:
        figures = pad(f"{row.self_pct:.0f} %", 8, right=True) + pad(f"{row.total_pct:.0f} %", 8, right=True)
        lines.append(
            fit(
                [*bar(row.self_pct, _BAR, "good"), ("  ", ""), (figures, ""), (f"  {row.function}", ""),
                 (f" {row.file}", "dim")], width,
            )
        )  # fmt: skip
    return lines
