"""Targets and their processes as a table: fixed columns, one key per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gputop_llm.model import NO_PROCESS_DATA, Frame, ProcessLoad, Target, TargetProcess
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, cells, fit, joined, pad, rule, wrapped
from gputop_llm.tui.panels.common import gpus_text, labelled, ranges, stale_text, target_name
from gputop_llm.units import DASH, pct, size, uptime

# Heading, width, aligned right. Width 0: as wide as its words, which seldom change. "inside" (the PID that a process
# has in its own container) is only there where one has another PID there.
COLUMNS = (
    ("pid", 8, True),
    ("inside", 0, False),
    ("role", 0, False),
    ("rank", 0, False),
    ("GPU", 0, False),
    ("st", 3, False),
    ("CPU", 6, True),
    ("I/O", 6, True),
    ("RSS", 9, True),
    ("GPU mem", 9, True),
    ("SM", 5, True),
)
Columns = Sequence[tuple[str, int, bool]]


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """Column headings, the rows, and remarks to stand below them."""

    heading: Line
    rows: Block
    notes: list[Line] = field(default_factory=list)


def process_table(frame: Frame, width: int) -> ProcessTable:
    """All targets, the attached one first, each followed by its processes."""
    found = frame.targets.value
    columns = _columns(found.targets if found else ())
    if found is None:
        heading = _heading(columns, [column or len(name) + 1 for name, column, _ in columns], width)
        reason = frame.targets.error
        text = f"▲ {printable(reason)}" if reason else "looking at the processes of this node …"
        return ProcessTable(heading, Block(wrapped(text, width, "warn" if reason else "dim")))
    loads = {p.pid: p for p in frame.host.value.processes} if frame.host.value else {}
    sm = _sm_shares(frame)
    lines: list[Line] = []
    keys: dict[int, str] = {}
    notes: list[str] = []
    targets = sorted(found.targets, key=lambda t: (t.key != frame.focus, t.engine == "cuda"))
    texts = {
        (target.key, at): _process_cells(process, loads.get(process.pid or -1), sm, columns)
        for target in targets
        for at, process in enumerate(target.processes)
    }
    widths = [
        column or 1 + max((cells(text) for text in (name, *(row[at] for row in texts.values()))), default=0)
        for at, (name, column, _) in enumerate(columns)
    ]
    heading = _heading(columns, widths, width)
    for target in targets:
        keys[len(lines)] = f"target:{target.key}"
        lines.append(_target_row(frame, target, width))
        for at, process in enumerate(target.processes):
            keys[len(lines)] = f"process:{at}:{target.key}"
            lines.append(_cells(texts[target.key, at], columns, widths, "", width, printable(process.title)))
            if process.note:
                notes.append(f"pid {_pid(process)}: {process.note}")
        if target.remote:
            lines.append([(f"  {NO_PROCESS_DATA}", "dim")])
        notes += [f"{target_name(target)}: {note}" for note in target.notes]
        if target.attachable is not None and target.attachable not in (p.note for p in target.processes):
            notes.append(f"{target_name(target)} can't be watched: {target.attachable}")
    if not targets:
        lines.append([("no engine and no other CUDA process can be seen from here", "dim")])
    notes += list(found.notes)
    shown = [load for t in targets for p in t.processes if (load := loads.get(p.pid or -1)) is not None]
    notes += _memory_unknown(frame)
    notes += [f"I/O wait unknown: {load.missing['io_wait_pct']}" for load in shown if "io_wait_pct" in load.missing]
    if frame.gpus.value is not None and (stale := stale_text(frame.gpus)):
        notes.insert(0, stale)
    if frame.host.value is not None and (stale := stale_text(frame.host)):
        notes.insert(0, stale)
    if frame.targets.error is not None:
        notes.insert(0, f"▲ {frame.targets.error}")
    remarks: list[Line] = []
    for note in dict.fromkeys(notes):
        remarks += wrapped(printable(note), width, "dim", "  ")
    return ProcessTable(heading, Block(lines, keys), remarks)


def target_of(key: str) -> str:
    """The target's key in a row's key."""
    kind, _, rest = key.partition(":")
    return rest.partition(":")[2] if kind == "process" else rest


def _sm_shares(frame: Frame) -> dict[int, float]:
    node = frame.gpus.value
    shares: dict[int, float] = {}
    for gpu in node.gpus if node else ():
        for process in gpu.processes or ():
            if process.sm_util_pct is not None:
                shares[process.pid] = shares.get(process.pid, 0.0) + process.sm_util_pct
    return shares


def _memory_unknown(frame: Frame) -> list[str]:
    gpus = frame.gpus.value.gpus if frame.gpus.value else ()
    return [
        f"GPU memory of processes unknown: {gpu.missing['processes.mem_bytes']}"
        for gpu in gpus
        if "processes.mem_bytes" in gpu.missing
    ]


def _target_row(frame: Frame, target: Target, width: int) -> Line:
    attached = target.key == frame.focus
    age_s = None if target.started_s is None else frame.at_s - target.started_s
    head: Line = [("● " if attached else "○ ", ""), (target_name(target), "strong")]
    parts = [head]
    if attached:
        parts.append([("attached", "good")])
    if target.attachable is not None:
        parts.append([("can't be watched", "warn")])
    if target.orphan:
        parts.append([("▲ orphan: its parent is gone", "warn")])
    parts += [
        labelled("user", printable(target.user or DASH)),
        labelled("up", uptime(age_s)),
        labelled("at", printable(target.urls[0]) if target.urls else DASH),
    ]
    if target.container:
        parts.append(labelled("in", printable(target.container)))
    line = joined(parts, width)
    return fit(line or head, width)


def _pid(process: TargetProcess) -> str:
    if process.pid is not None:
        return str(process.pid)
    return f"({process.nvml_pid})" if process.nvml_pid is not None else DASH


def _columns(targets: Sequence[Target]) -> Columns:
    inside = any(process.container_pid is not None for target in targets for process in target.processes)
    return [column for column in COLUMNS if inside or column[0] != "inside"]


def _heading(columns: Columns, widths: Sequence[int], width: int) -> Line:
    return _cells([name for name, _, _ in columns], columns, widths, "title", width, "command")


def _process_cells(
    process: TargetProcess, load: ProcessLoad | None, sm: Mapping[int, float], columns: Columns
) -> list[str]:
    gpus = ranges(process.gpus)
    if process.mig_instance is not None:
        gpus += f" MIG{process.mig_instance}"
    if process.gpus and process.gpus_from == "inferred":
        gpus += " inferred"
    texts = {
        "pid": _pid(process),
        "inside": DASH if process.container_pid is None else str(process.container_pid),
        "role": printable(process.role),
        "rank": printable(process.rank or ""),
        "GPU": gpus,
        "st": process.state or DASH,
        "CPU": pct(load.cpu_pct if load else None),
        "I/O": pct(load.io_wait_pct if load else None),
        "RSS": size(load.rss_bytes if load else None),
        "GPU mem": size(process.mem_bytes),
        "SM": pct(sm.get(process.nvml_pid or process.pid or -1)),
    }
    return [texts[name] for name, _, _ in columns]


def _cells(texts: Sequence[str], columns: Columns, widths: Sequence[int], role: str, width: int, last: str) -> Line:
    line: Line = []
    used = 0
    for text, column, (_, _, right) in zip(texts, widths, columns, strict=True):
        cell = pad(text, column - 1, right=right) + " "
        line.append((cell, "dim" if text == DASH else role))
        used += column
    line.append((pad(last, max(width - used, 1)), role))
    return fit(line, width)


def target_rows(frame: Frame, width: int) -> Block:
    """One row per target, for choosing one."""
    found = frame.targets.value
    lines: list[Line] = []
    keys: dict[int, str] = {}
    for target in sorted(found.targets, key=lambda t: t.engine == "cuda") if found else ():
        keys[len(lines)] = f"target:{target.key}"
        age_s = None if target.started_s is None else frame.at_s - target.started_s
        name = ("● " if target.key == frame.focus else "  ") + target_name(target)
        parts = (
            (pad(name, max(24, width - 50)), "strong"),
            (pad(DASH if target.root_pid is None else str(target.root_pid), 8, right=True), ""),
            (pad(gpus_text(target), 7, right=True), ""),
            (pad(uptime(age_s), 11, right=True), ""),
            ("  " + printable(target.user or DASH), "dim"),
            ("  " + printable(target.container or ""), "dim"),
        )
        lines.append(fit(list(parts), width))
        if target.attachable is not None:
            lines.append(fit([(f"    can't be watched: {printable(target.attachable)}", "warn")], width))
    if not lines:
        lines.append([("nothing to watch can be seen from here", "dim")])
    return Block(lines, keys)


def target_heading(width: int) -> Line:
    """Column headings of `target_rows`."""
    text = (
        pad("  engine or process", max(24, width - 50))
        + pad("pid", 8, right=True)
        + pad("GPUs", 7, right=True)
        + pad("up", 11, right=True)
        + "  user"
    )
    return fit([(text, "title")], width)


def section(title: str, width: int) -> Line:
    """A rule with a title."""
    return rule([(title, "title")], width)
