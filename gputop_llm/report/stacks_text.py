"""Python stacks as text: who differs first, then every kind of thread, then what each process holds."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_llm.model.stacks import Call, Compared, Flame, FlameThread, ProcessStacks, StackReport, ThreadStack, Variant
from gputop_llm.units import DASH

#: Functions of a recording that are listed by thread.
_ROWS = 12
#: Threads of the same stack are named up to here.
_NAMED = 8


def stacks_text(report: StackReport) -> str:
    """The stacks of a target."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: StackReport) -> Iterator[str]:
    yield report.target
    yield report.headline
    for kind in report.compared:
        yield ""
        yield from compared_lines(kind)
    told = {kind.role for kind in report.compared}
    for process in report.processes:
        if process.unreadable is not None or not told or not _is_compared(process, report):
            yield ""
            yield from process_lines(process)


def _is_compared(process: ProcessStacks, report: StackReport) -> bool:
    return any(
        process.label in variant.labels or process.label in kind.missing
        for kind in report.compared
        for variant in kind.variants
    )


def compared_lines(kind: Compared) -> Iterator[str]:
    """One kind of thread, side by side."""
    count = sum(len(variant.labels) for variant in kind.variants)
    if kind.same:
        yield f"{kind.name}: the same in all {count} ({_state(kind.variants[0])})"
    else:
        yield f"{kind.name}: {len(kind.variants)} places in {count} processes"
    if kind.missing:
        yield f"  no such thread in {', '.join(kind.missing)}"
    for at, variant in enumerate(kind.variants):
        if not kind.same:
            word = "majority, " if kind.majority and not at else "OUTLIER, " if kind.majority else ""
            yield f"  {', '.join(variant.labels)} ({word}{_state(variant)})"
        yield from call_lines(variant.calls, variant.differs_at)


def _state(variant: Variant) -> str:
    count = len(variant.labels)
    moved = "stood still" if not variant.moved else "moved" if variant.moved == count else f"{variant.moved} moved"
    return f"{moved} between two looks; {variant.active} of {count} active"


def call_lines(calls: tuple[Call, ...], differs_at: int | None = None) -> Iterator[str]:
    """A stack, innermost first; what is not the majority's is marked."""
    own = len(calls) if differs_at is None else len(calls) - differs_at
    for at, call in enumerate(calls):
        mark = ">" if differs_at is not None and at < own else " "
        yield f"   {mark} {call.words()}"
    if not calls:
        yield "     no Python code"


def process_lines(process: ProcessStacks) -> Iterator[str]:
    """All threads of one process; those with the same stack together."""
    name = f"PID {process.pid} ({process.title}{f', {process.rank}' if process.rank else ''})"
    if process.unreadable is not None:
        todo = f"; {process.unreadable.todo}" if process.unreadable.todo else ""
        yield f"{name}: {process.unreadable.why}{todo}"
        return
    yield f"{name}: {len(process.threads)} Python threads"
    groups: dict[tuple[Call, ...], list[ThreadStack]] = {}
    for thread in sorted(process.threads, key=lambda one: (not one.active, one.name != "MainThread", one.name)):
        groups.setdefault(thread.calls, []).append(thread)
    for calls, threads in groups.items():
        names = ", ".join(one.name for one in threads[:_NAMED])
        more = f" and {len(threads) - _NAMED} more" if len(threads) > _NAMED else ""
        yield f"  {names}{more} ({thread_state(threads[0])})"
        yield from call_lines(calls)


def thread_state(thread: ThreadStack) -> str:
    """ "active, holds the GIL, moved between two looks" """
    words = ["active" if thread.active else "idle"]
    if thread.owns_gil:
        words.append("holds the GIL")
    if thread.moved is not None:
        words.append("moved between two looks" if thread.moved else "stood still between two looks")
    return ", ".join(words)


def flame_text(flames: tuple[Flame, ...]) -> str:
    """Recordings as tables of functions, one for each thread that ran."""
    return "\n".join(line for flame in flames for line in flame_lines(flame)) + "\n"


def flame_lines(flame: Flame) -> Iterator[str]:
    """One process."""
    name = f"PID {flame.pid} ({flame.title}{f', {flame.rank}' if flame.rank else ''})"
    if flame.unreadable is not None:
        todo = f"; {flame.unreadable.todo}" if flame.unreadable.todo else ""
        yield f"{name}: {flame.unreadable.why}{todo}"
        return
    cost = DASH if flame.cpu_s is None else f"{flame.cpu_s:.2f} s"
    yield (
        f"{name}: {flame.samples:,} stacks of threads that ran, in {flame.seconds:g} s "
        f"({flame.rate_hz} looks a second, {flame.errors} unreadable; {cost} of a processor beside it)"
    )
    if flame.behind_s is not None:
        yield f"  sampling fell up to {flame.behind_s:.1f} s behind: shares hold, times don't"
    if not flame.threads:
        yield "  no thread ran"
    for thread in flame.threads:
        yield from _thread_lines(thread, flame)


def _thread_lines(thread: FlameThread, flame: Flame) -> Iterator[str]:
    ran_pct = min(100.0, 100.0 * thread.samples / (flame.seconds * flame.rate_hz))
    yield f"  {thread.name}: ran in {thread.samples:,} samples, about {ran_pct:.0f} % of the time"
    yield f"  {'self':>8} {'total':>8}  function"
    for row in thread.rows[:_ROWS]:
        yield f"  {row.self_pct:6.1f} % {row.total_pct:6.1f} %  {row.function}{f' ({row.file})' if row.file else ''}"
    if len(thread.rows) > _ROWS:
        yield f"  {'':>17}  and {len(thread.rows) - _ROWS} more functions (--json has them)"
