"""`gputop-llm rerun CAPTURE`: its hot kernels again, without the server, then under Nsight Compute; agreed to first."""

from __future__ import annotations

import json
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gputop_llm import paths
from gputop_llm.capture.engine_watch import EngineSample, samples_in
from gputop_llm.commands import output
from gputop_llm.commands.live import session_on, short_settings
from gputop_llm.commands.snapshot import settled_frame
from gputop_llm.errors import ExitCode, GputopError, UsageError
from gputop_llm.model.finding import Verdict
from gputop_llm.ncu.assemble import Group
from gputop_llm.ncu.brief import brief
from gputop_llm.ncu.collect import beforehand, collect
from gputop_llm.ncu.tool import find_ncu
from gputop_llm.printable import printable
from gputop_llm.report import verdict_json
from gputop_llm.report.jsonform import plain
from gputop_llm.rerun.job import Finished, Job, folder_for, make_job, write_whole
from gputop_llm.rerun.outcome import SCHEMA, outcome_lines, outcome_object
from gputop_llm.rerun.prepare import Prepared, prepare
from gputop_llm.rerun.profiled import order_for_command, verdict_of

_BEFORE_S = 120.0


def run(arguments: Namespace) -> int:
    """Prepares, asks, runs, profiles; returns 0 when the hottest kernel was launched again and judged, else 4.

    Raises:
        UsageError: the kernel's pattern can't be used, or nobody could be asked.
        GputopError: the capture can't be read, there is nothing to run or no room, or the script failed.
        KeyboardInterrupt: it was not agreed to.
    """
    try:
        pattern = re.compile(arguments.kernel) if arguments.kernel is not None else None
    except re.error as error:
        raise UsageError(f"--kernel {printable(arguments.kernel, 60)} is no regular expression", str(error)) from error
    config = Path(arguments.model_config) if arguments.model_config else None
    prepared = prepare([Path(arguments.file)], pattern, config)
    if arguments.write is not None:
        path = Path(arguments.write)
        write_whole(path, prepared.script(path.name))
        output.complain([*prepared.notes, f"{len(prepared.cases)} operations in {path}"])
        return ExitCode.OK
    if arguments.repro is not None:
        return _profile_command(prepared, arguments)
    return _run_again(prepared, arguments)


def _run_again(prepared: Prepared, arguments: Namespace) -> int:
    config = short_settings(arguments)
    with session_on(config, arguments, None) as session:
        session.start()
        frame = settled_frame(session, config)
        job = make_job(prepared, frame, _place(), arguments.on_gpu)
        _agree(job.facts(), arguments.yes)

        def samples() -> Sequence[EngineSample]:
            return samples_in(session.history.frames(_BEFORE_S), frame.focus) if frame.focus is not None else ()

        finished = job.run(samples, lambda text: output.complain([text]))
    _print_finished(job, finished, arguments.file, arguments.json)
    first = finished.outcome.matches[0].best is not None
    return ExitCode.OK if first and finished.verdict is not None and finished.verdict.judged else ExitCode.PARTIAL


def _profile_command(prepared: Prepared, arguments: Namespace) -> int:
    """The user's own command under ncu, and of it only what is the hottest kernel of the record."""
    if not prepared.hot:
        one, why, todo = prepared.refused[0]
        raise GputopError(f"{one.short} can't be run again", why, todo)
    try:
        argv = tuple(shlex.split(arguments.repro))
    except ValueError as error:
        raise UsageError(f"--repro {printable(arguments.repro, 60)} is no command", str(error).lower()) from error
    if not argv:
        raise UsageError("--repro needs a command", todo="--repro 'python bench.py'")
    hot, ncu = prepared.hot[0], find_ncu()
    order = order_for_command(hot, argv)
    _agree([("what", f"{hot.short} in: {arguments.repro}"), ("how", beforehand(order, ncu))], arguments.yes)
    taken = collect(order, ncu, folder_for(prepared, _place()) / "repro.ncu-rep")
    verdict, groups = verdict_of(taken, hot)
    told = {"schema": SCHEMA, "kernel": printable(hot.name), "command": arguments.repro, "report": str(taken.report)}
    _print(told, verdict, _verdict_lines(verdict, groups, arguments.file, taken.report), arguments.json)
    return ExitCode.OK if verdict.judged else ExitCode.PARTIAL


def _print_finished(job: Job, finished: Finished, capture: str, as_json: bool) -> None:
    lines = outcome_lines(job.prepared, finished.outcome)
    if finished.verdict is not None and finished.report is not None:
        lines += ["", *_verdict_lines(finished.verdict, finished.groups, capture, finished.report)]
    else:
        lines += ["", f"not profiled: {finished.why}"]
    told = {
        **outcome_object(job.prepared, finished.outcome),
        "report": str(finished.report) if finished.report is not None else None,
        "not_profiled": finished.why or None,
    }
    _print(told, finished.verdict, lines, as_json)


def _verdict_lines(verdict: Verdict, groups: tuple[Group, ...], capture: str, report: Path) -> list[str]:
    files = f"{shlex.quote(capture)} {shlex.quote(str(report))}"
    return [*brief(verdict, groups), f"what it could give of the capture: gputop-llm verdict {files}"]


def _print(told: dict[str, Any], verdict: Verdict | None, lines: list[str], as_json: bool) -> None:
    if as_json:
        told["verdict"] = verdict_json.verdict_object(verdict) if verdict is not None else None
        output.write_text(json.dumps(plain(told), allow_nan=False, indent=2) + "\n")
    else:
        output.write_text("\n".join(lines) + "\n")


def _agree(facts: list[tuple[str, str]], yes: bool) -> None:
    """Says what will be done, and asks whether it may be.

    Raises:
        UsageError: nobody can be asked.
        KeyboardInterrupt: the answer is no.
    """
    output.complain(f"{label + ':':<10}{text}" for label, text in facts)
    if yes:
        return
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()):
        raise UsageError("nothing was run", "there is no terminal to ask at", "--yes agrees to the above")
    sys.stderr.write("Run it now? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        output.complain(["nothing was run"])
        raise KeyboardInterrupt


def _place() -> Path:
    place = paths.captures_folder()
    if place is None:
        raise UsageError(
            "there is no place for the script", "this user has no home directory (set HOME)", "--write FILE"
        )
    return place
