"""`gputop-llm stacks`: the Python stacks of every rank side by side, or a recording of them."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from gputop_llm import __version__
from gputop_llm.capture.stacks import flame, looking
from gputop_llm.capture.stacks.looking import Seen
from gputop_llm.commands import output
from gputop_llm.commands.live import session_on, several_engines, short_settings
from gputop_llm.commands.snapshot import settled_frame
from gputop_llm.config import Config
from gputop_llm.errors import ExitCode, NothingFound
from gputop_llm.follow import describe
from gputop_llm.model.stacks import Flame, StackReport
from gputop_llm.printable import printable
from gputop_llm.report.jsonform import plain
from gputop_llm.report.stacks_text import flame_text, stacks_text
from gputop_llm.sources.procfs import ProcFs

SCHEMA = "gputop-llm/stacks/1"


def run(arguments: Namespace) -> int:
    """Reads, prints; returns 0, or 4 when some process could not be read.

    Raises:
        UsageError: a setting can't be used.
        NothingFound: there is no target, or no process of it can be seen.
        GputopError: py-spy isn't there, or no process can be read.
    """
    config = short_settings(arguments)
    name, processes = _processes(config, arguments)
    if arguments.record is not None:
        flames = flame.record(processes, arguments.record)
        if (failure := flame.unreadable_of(flames)) is not None:
            raise failure
        output.write_text(_json(name, None, flames) if arguments.json else flame_text(flames))
        return ExitCode.OK if all(one.unreadable is None for one in flames) else ExitCode.PARTIAL
    report = looking.report(name, processes)
    if (failure := looking.unreadable_of(report)) is not None:
        raise failure
    output.write_text(_json(name, report, ()) if arguments.json else stacks_text(report))
    return ExitCode.OK if all(one.unreadable is None for one in report.processes) else ExitCode.PARTIAL


def _processes(config: Config, arguments: Namespace) -> tuple[str, tuple[Seen, ...]]:
    """The processes of the target; of a named process that belongs to none, itself."""
    with session_on(config, arguments, None) as session:
        session.start()
        frame = settled_frame(session, config)
    if frame.focused is not None:
        return describe(frame.focused), looking.processes_of(frame.focused)
    if config.pid is not None:
        return f"process {config.pid}", (Seen(config.pid, _comm(config.pid), "process"),)
    if several := several_engines(frame):
        raise NothingFound("cannot tell whose stacks to read", several, "name one with --pid")
    raise NothingFound("cannot read stacks", "no engine was found", "name a process with --pid")


def _comm(pid: int) -> str:
    try:
        return printable(ProcFs().stat(pid).comm)
    except (OSError, ValueError):
        raise NothingFound(f"there is no process {pid}", "it has ended, or is hidden from this user") from None


def _json(name: str, report: StackReport | None, flames: tuple[Flame, ...]) -> str:
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "target": name,
        "stacks": None if report is None else plain(asdict(report)),
        "recordings": [plain(asdict(one)) for one in flames],
    }
    return json.dumps(told, allow_nan=False, indent=2) + "\n"
