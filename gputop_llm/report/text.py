"""A frame as plain text of at most 100 columns: what one pastes into an incident's channel.

Also the way for those who can't use a full screen: every table has one row per
thing and a word for every state, and nothing is said by colour or position alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from gputop_llm import __version__
from gputop_llm.model import EngineFrame, Frame, Part, Target
from gputop_llm.printable import printable
from gputop_llm.report.jsonform import iso
from gputop_llm.report.text_engine import engine_lines
from gputop_llm.report.text_gpus import gpu_lines
from gputop_llm.report.text_host import host_lines
from gputop_llm.report.text_log import log_lines
from gputop_llm.report.text_symptoms import symptom_lines
from gputop_llm.units import DASH, seconds, size, uptime

WIDTH = 100

_ASCII = str.maketrans({"–": "-", "·": "|", "µ": "u", "≤": "<=", "×": "x", "…": "..."})


def frame_text(frame: Frame, node_name: str, ascii_only: bool = False) -> str:
    """The frame as text, with an end of line after each line.

    Args:
        node_name: this machine's name.
        ascii_only: other characters are replaced, those of foreign names by escapes.
    """
    lines = [line for block in _blocks(frame, node_name) for line in block]
    if ascii_only:
        lines = [line.translate(_ASCII).encode("ascii", "backslashreplace").decode() for line in lines]
    return "".join(f"{line}\n" for whole in lines for line in _fitted(whole))


def _blocks(frame: Frame, node_name: str) -> Iterator[list[str]]:
    when = (iso(frame.at_s) or "").replace("T", " ").partition(".")[0]
    yield [f"gputop-llm {__version__} · {printable(node_name)} · {when} UTC"]
    if frame.simulated is not None:
        yield [f"SIMULATED, no real node: {printable(frame.simulated)}"]
    yield from (["", *block] for block in _parts(frame) if block)


def _parts(frame: Frame) -> Iterator[list[str]]:
    targets = frame.targets.value.targets if frame.targets.value else ()
    if frame.targets.value and all(target.engine == "cuda" for target in targets):
        yield ["No engine found on this node"]
    for target in targets:
        if target.key == frame.focus or (frame.focus is None and target.engine != "cuda"):
            yield _target(frame, target)
    yield symptom_lines(frame)
    yield gpu_lines(frame)
    for engine in frame.engines:
        if frame.focus in (None, engine.target_key):
            yield engine_lines(engine)
    for log in frame.logs:
        if frame.focus in (None, log.target_key):
            yield log_lines(frame, log)
    yield host_lines(frame)
    yield _others(frame)
    yield list(_notes(frame))


def _target(frame: Frame, target: Target) -> list[str]:
    engine = next((e for e in frame.engines if e.target_key == target.key), None)
    facts = [_name(target, engine), printable(target.model) if target.model else None]
    if target.root_pid is not None:
        facts.append(f"PID {target.root_pid}")
    if target.gpus:
        facts.append(f"GPU {', '.join(map(str, target.gpus))}")
    if target.started_s is not None:
        facts.append(f"up {uptime(frame.at_s - target.started_s)}")
    facts += [
        f"user {printable(target.user)}" if target.user else None,
        target.container and printable(target.container),
    ]
    lines = [" · ".join(fact for fact in facts if fact)]
    lines += [f"  metrics  {printable(url)} (from {target.urls_from})" for url in target.urls]
    if target.argv:
        lines.append(f"  command  {printable(' '.join(target.argv))}")
    if target.processes:
        inside = any(process.container_pid is not None for process in target.processes)
        inner = f" {'inside':>8}" if inside else ""
        lines.append(f"  {'PID':>8}{inner}  {'role':12} {'rank':12} {'GPU':10} {'GPU memory':>10}  state")
    for process in target.processes:
        gpus = ",".join(map(str, process.gpus))
        gpus += f" MIG{process.mig_instance}" if process.mig_instance is not None else ""
        gpus += " (inferred)" if process.gpus_from == "inferred" else ""
        memory = size(process.mem_bytes) if process.gpus else ""
        inner = f" {process.container_pid or DASH:>8}" if inside else ""
        lines.append(
            f"  {process.pid or '–':>8}{inner}  {printable(process.role):12} {printable(process.rank or ''):12} "
            f"{gpus:10} {memory:>10}  {process.state or '–'}"
        )
    notes = [note for note in (target.attachable, *target.notes, *(p.note for p in target.processes)) if note]
    return lines + [f"  note: {printable(note)}" for note in dict.fromkeys(notes)]


def _name(target: Target, engine: EngineFrame | None) -> str:
    reading = engine.scrape.value if engine else None
    name = reading.engine if reading and target.engine == "unknown" else target.engine
    version = target.version or (reading.version if reading else None)
    return printable(f"{name} {version}" if version else name)


def _others(frame: Frame) -> list[str]:
    targets = frame.targets.value.targets if frame.targets.value else ()
    others = [t for t in targets if t.key != frame.focus and (frame.focus is not None or t.engine == "cuda")]
    if not others:
        return []
    lines = ["Also on this node"]
    for target in others:
        memory = [p.mem_bytes for p in target.processes if p.mem_bytes is not None]
        what = printable(
            target.model or " ".join(target.argv) or (target.processes[0].title if target.processes else "")
        )
        facts = [
            f"PID {target.root_pid or _pid_by_nvml(target)}",
            f"GPU {', '.join(map(str, target.gpus))}" if target.gpus else "no GPU",
            f"{size(sum(memory)) if memory else '–'} of GPU memory",
        ]
        lines.append(f"  {printable(target.engine)}: {what} ({', '.join(facts)})")
    return lines


def _pid_by_nvml(target: Target) -> str:
    """The PID by which NVML knows a process that can't be seen from here, in brackets as on the screen."""
    known = [p.nvml_pid for p in target.processes if p.nvml_pid is not None]
    return f"({known[0]})" if known else "–"


def _notes(frame: Frame) -> Iterator[str]:
    candidates = [t for t in (frame.targets.value.targets if frame.targets.value else ()) if t.engine != "cuda"]
    noted = [*frame.notes, *(frame.targets.value.notes if frame.targets.value else ())]
    # An engine's own error names its address.
    engines: list[tuple[str, Part[Any]]] = [("engine", engine.scrape) for engine in frame.engines]
    engines += [("log", one.log) for one in frame.logs]
    parts: list[tuple[str, Part[Any]]] = [
        ("GPUs", frame.gpus), ("processes", frame.targets), ("host", frame.host), *engines,
    ]  # fmt: skip
    for name, part in parts:
        if part.error is not None:
            age = "" if part.age_s is None else f" (what is shown is {seconds(part.age_s)} old)"
            noted.append(f"{name}: {part.error}{age}")
        elif part.value is None:
            noted.append(f"{name}: no answer yet")
    if frame.focus is None and len(candidates) > 1:
        noted.append(f"{len(candidates)} engines are here: --pid, --gpu or --url chooses one")
    if noted:
        yield "Notes"
        yield from (f"  {printable(note)}" for note in noted)


def _fitted(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line.rstrip()]
    indent = len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
