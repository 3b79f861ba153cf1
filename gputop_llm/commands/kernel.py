"""`gputop-llm kernel -- CMD`: a program under ncu, and the verdict on its kernels; again after each save."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_llm import __version__, paths
from gputop_llm.capture.timed import time_kernels
from gputop_llm.commands import output
from gputop_llm.commands.saved import Saved
from gputop_llm.errors import ExitCode, GputopError, UsageError
from gputop_llm.model.finding import Verdict
from gputop_llm.ncu import assemble
from gputop_llm.ncu.brief import brief
from gputop_llm.ncu.change import Change, changes
from gputop_llm.ncu.collect import Order, Refused, Round, Taken, beforehand, collect
from gputop_llm.ncu.figures import Figures, figures_of, of_times
from gputop_llm.ncu.tool import Ncu, NoNcu, find_ncu
from gputop_llm.printable import printable
from gputop_llm.report import verdict_json, verdict_text
from gputop_llm.report.jsonform import plain
from gputop_llm.report.verdict_words import figure
from gputop_llm.sources import vllm_argv
from gputop_llm.sources.engines import ENGINES

SCHEMA = "gputop-llm/kernel/1"
#: Of kernels that were timed, or changed.
_MOST_ROWS = 6


@dataclass(frozen=True)
class _Result:
    """What one run gave: a verdict, or without counters only times."""

    figures: tuple[Figures, ...]
    lines: tuple[str, ...]
    verdict: Verdict | None = None
    taken: Taken | None = None

    @property
    def code(self) -> ExitCode:
        return ExitCode.OK if self.verdict is not None and self.verdict.judged else ExitCode.PARTIAL


def run(arguments: Namespace) -> int:
    """Profiles, prints the verdict; returns 0 when it could be judged, 4 when not or where only times could be had.

    With `--watch` it goes on until Ctrl-C, and returns 0 then.

    Raises:
        UsageError: there is no program, or something asked for can't be.
        GputopError: ncu or the program failed, or nothing was profiled (with `--watch` that is told, and it goes on).
    """
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise UsageError("kernel needs a command", todo="gputop-llm kernel -k NAME -- ./bench")
    _refuse_ranks(argv)
    try:
        re.compile(arguments.kernel or "")
    except re.error as error:
        raise UsageError(f"-k {printable(arguments.kernel, 60)} is no regular expression", str(error)) from error
    order = Order(
        argv=tuple(argv),
        round=Round.FULL if arguments.full else Round.TRIAGE,
        kernel=arguments.kernel,
        launches=arguments.launches,
        skip=arguments.skip,
        cold=not arguments.warm_l2,
        within_s=arguments.within_s,
    )
    bench = _Bench(order, _report(arguments.output, argv[0]), arguments.details)
    if not arguments.watch:
        result = bench.run()
        _print(result, (), arguments.json, once=True)
        return result.code
    return _watch(bench, Saved([Path(name) for name in arguments.watch]), arguments.json)


def _refuse_ranks(argv: Sequence[str]) -> None:
    """An engine that works in several ranks isn't profiled: ncu would hold one of them for its replays."""
    launches = (vllm_argv.read_launch(argv), *(engine.launch(argv) for engine in ENGINES.values()))
    ranks = max((one.tensor_parallel * one.pipeline_parallel for one in launches if one is not None), default=1)
    if ranks > 1:
        raise UsageError(
            f"kernel doesn't profile an engine of {ranks} ranks",
            "while one is held for a replay the others wait in their next collective, and may time out",
            "capture it, then `gputop-llm rerun CAPTURE`: its hot kernels in a process of their own",
        )


def _watch(bench: _Bench, saved: Saved, as_json: bool) -> int:
    last: _Result | None = None
    try:
        while True:
            saved.mark()
            try:
                result = bench.run()
            except UsageError:
                raise
            except GputopError as failure:
                # A program that doesn't build, say: the next save may mend it.
                output.complain([failure.sentence()])
            else:
                _print(result, changes(last.figures, result.figures) if last else (), as_json, once=False)
                last = result
            output.complain(["waiting for the next save; Ctrl-C ends"])
            changed = saved.wait()
            output.complain([f"{time.strftime('%H:%M:%S')} saved: {', '.join(map(str, changed)) or 'again'}"])
    except KeyboardInterrupt:
        return ExitCode.OK


class _Bench:
    """A program that is run again and again."""

    def __init__(self, order: Order, report: Path, details: bool) -> None:
        self._order = order
        self._report = report
        self._details = details
        self._last: Taken | None = None
        self._ncu: Ncu | None = None
        self._without: str | None = None
        try:
            self._ncu = find_ncu()
        except NoNcu as failure:
            self._without = failure.sentence()

    def run(self) -> _Result:
        """Once; without counters, if they can't be had."""
        if self._ncu is not None and self._without is None:
            output.complain(textwrap.wrap(beforehand(self._order, self._ncu, self._last), 80))
            try:
                return self._profiled(collect(self._order, self._ncu, self._report))
            except Refused as refused:
                # Who holds the counters may let go of them; all else stays so, and isn't asked again.
                if refused.failure.id != "counters-busy":
                    self._without = refused.sentence()
                return self._timed(refused.sentence())
        return self._timed(self._without or "")

    def _profiled(self, taken: Taken) -> _Result:
        self._last = taken
        verdict, groups = assemble.judge(taken.profile)
        if taken.program_code is not None:
            output.complain([f"the program ended with code {taken.program_code} under ncu"])
        if taken.trouble is not None:
            output.complain([f"not all was profiled: {taken.trouble.why}; {taken.trouble.todo}"])
        if self._details:
            lines = verdict_text.verdict_text(verdict).splitlines()
        else:
            more = "" if self._order.round is Round.FULL else "; --full: every section"
            lines = [*brief(verdict, groups), f"all of it: gputop-llm verdict {shlex.quote(str(taken.report))}{more}"]
        return _Result(tuple(map(figures_of, groups)), tuple(lines), verdict, taken)

    def _timed(self, why: str) -> _Result:
        output.complain([why, "times only, by windows of our own client in the program (no counters, no replays)"])
        log = self._report.with_suffix(".log")
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise GputopError(f"cannot write {log}", why, "name a place with --output") from error
        found, code = time_kernels(self._order.argv, log, self._order.within_s)
        if code != 0:
            output.complain([f"the program {'took too long' if code is None else f'ended with code {code}'}"])
        wanted = re.compile(self._order.kernel or "")
        kept = [one for one in found if wanted.search(one.name)]
        if not kept:
            names = ", ".join(dict.fromkeys(printable(one.name, 60) for one in found[:_MOST_ROWS]))
            raise GputopError(f"no kernel matches /{self._order.kernel}/", f"launched were: {names}")
        figures = tuple(of_times(one.name, one.durations_ns, one.grid, one.block) for one in kept)
        return _Result(figures, tuple(_time_rows(figures)))


def _time_rows(figures: Sequence[Figures]) -> list[str]:
    rows = [f"{'median µs':>10} {'least':>8} {'most':>8} {'seen':>6}  kernel"]
    for one in figures[:_MOST_ROWS]:
        low, middle, high = (
            figure(ns / 1e3) for ns in (one.durations_ns[0], one.median_ns or 0.0, one.durations_ns[-1])
        )
        rows.append(f"{middle:>10} {low:>8} {high:>8} {len(one.durations_ns):>6}  {printable(one.name, 43)}")
    if len(figures) > _MOST_ROWS:
        rows.append(f"… and {len(figures) - _MOST_ROWS} more (--json)")
    return rows


def _print(result: _Result, changed: Sequence[Change], as_json: bool, once: bool) -> None:
    if as_json:
        said = json.dumps(_object(result, changed), allow_nan=False, indent=2 if once else None)
        output.write_text(f"{said}\n")
        return
    lines = list(result.lines)
    for one in changed[:_MOST_ROWS]:
        name = [f"{printable(one.after.name, 70)}:"] if len(changed) > 1 else []
        lines += [*name, *(part for line in one.lines() for part in textwrap.wrap(line, 80, subsequent_indent="    "))]
    output.write_text("\n".join(lines) + "\n")


def _object(result: _Result, changed: Sequence[Change]) -> dict[str, Any]:
    taken, verdict = result.taken, result.verdict
    return {
        "schema": SCHEMA,
        "version": __version__,
        "counters": verdict is not None,
        "run": None
        if taken is None
        else {
            "report": str(taken.report),
            "passes": taken.passes,
            "wall_s": taken.wall_s,
            "program_code": taken.program_code,
            "trouble": taken.trouble.why if taken.trouble else None,
        },
        "kernels": [plain(one.as_object()) for one in result.figures],
        "changes": [plain(one.as_object()) for one in changed],
        "verdict": None if verdict is None else verdict_json.verdict_object(verdict),
    }


def _report(asked: str | None, program: str) -> Path:
    if asked is not None:
        return Path(asked if asked.endswith(".ncu-rep") else f"{asked}.ncu-rep").absolute()
    folder = paths.captures_folder()
    if folder is None:
        raise UsageError("there is no place for the report", "there is no home directory", "name one with --output")
    name = re.sub(r"[^\w.-]", "_", Path(program).name)[:40]
    return folder / f"{name}_{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.ncu-rep"
