"""`gputop-llm doctor`: which captures are possible, what is in the way, and what crashes have left."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gputop_llm import __version__, paths
from gputop_llm.capture import leftovers
from gputop_llm.capture.doctor import Examined, examine
from gputop_llm.capture.doctor_text import examined_lines, mapped_lines
from gputop_llm.capture.leftovers import Leftover, Mapped
from gputop_llm.commands import output
from gputop_llm.commands.live import session_on, several_engines, short_settings
from gputop_llm.commands.snapshot import settled_frame
from gputop_llm.config import Config
from gputop_llm.errors import ExitCode
from gputop_llm.model import Frame
from gputop_llm.printable import printable
from gputop_llm.report.jsonform import plain

SCHEMA = "gputop-llm/doctor/1"


def run(arguments: Namespace) -> int:
    """Looks, prints; returns 0.

    Raises:
        UsageError: a setting can't be used.
        NothingFound: there is no such process.
    """
    config = short_settings(arguments)
    folders = [folder for folder in (paths.captures_folder(), *map(Path, arguments.output or ())) if folder]
    found = None
    told: tuple[str, ...] = ()
    if arguments.leftovers:
        found = leftovers.clean_up(folders, leftovers.run_folders())
        examined, still = None, leftovers.mapped()
    else:
        frame = _frame(config, arguments)
        told = tuple(remarks_on(frame))
        examined = examine(frame.focused, config.pid, folders[-1] if folders else None)
        still = examined.mapped
    if arguments.json:
        output.write_text(_json(examined, found, still, told))
    else:
        lines = [*(examined_lines(examined) if examined is not None else _leftover_lines(found or (), still))]
        lines += [f"to know        {remark}" for remark in told]
        output.write_text("".join(f"{printable(line)}\n" for line in lines))
    return ExitCode.OK


def _frame(config: Config, arguments: Namespace) -> Frame:
    """The node now; its focus is what a capture would be of: None where there is no target, or several."""
    with session_on(config, arguments, None) as session:
        session.start()
        return settled_frame(session, config)


def remarks_on(frame: Frame) -> Iterator[str]:
    """What can't be seen or read from here, and why."""
    node, targets = frame.gpus.value, frame.targets.value
    if node is not None and node.problem is not None:
        yield node.problem
    yield from targets.notes if targets is not None else ()
    if several := several_engines(frame):
        yield f"several engines to choose from: {several}; name one with --pid"
    for engine in frame.engines:
        reading = engine.scrape.value
        if reading is not None:
            yield from (f"{engine.url}: {text}" for text in (reading.problem, reading.skipped) if text)


def _leftover_lines(found: tuple[Leftover, ...], still: tuple[Mapped, ...]) -> Iterator[str]:
    if not found:
        yield "no leftovers"
    for one in found:
        yield f"{one.path}: {one.done}"
    yield from mapped_lines(still)


def _json(
    examined: Examined | None,
    found: tuple[Leftover, ...] | None,
    still: tuple[Mapped, ...],
    remarks: tuple[str, ...],
) -> str:
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        **({name: plain(value) for name, value in asdict(examined).items()} if examined is not None else {}),
        "mapped": [plain(asdict(one)) for one in still],
        "remarks": list(remarks),
        "leftovers": None if found is None else [plain(asdict(one)) for one in found],
    }
    return json.dumps(told, allow_nan=False, indent=2) + "\n"
