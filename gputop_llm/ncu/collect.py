"""Runs a program under ncu: triage first, the full set on request; bounded, and what it takes is said beforehand."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from gputop_llm.errors import GputopError, UsageError
from gputop_llm.ncu import child, container, csv_text
from gputop_llm.ncu.failures import Failure, explain
from gputop_llm.ncu.read import Profile, read_profile
from gputop_llm.ncu.tool import Ncu
from gputop_llm.printable import printable
from gputop_llm.units import DASH

#: Replays of one run at most: passes by launches.
MOST_REPLAYS = 800
#: A replay saves and restores memory, and sets up its counters: 114 of 1.9 GB took under 19 s on an H200.
_REPLAY_S = 0.15
_TRIAGE = ("SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis")
_MOST_WORDS = 16 << 20
_PASSES = re.compile(r"^==PROF== Profiling .* - (\d+) pass(?:es)?\b", re.MULTILINE)
_BEGUN = re.compile(r'^==PROF== Profiling "(.*?)"', re.MULTILINE)
_PROGRAM_CODE = re.compile(r"application returned an error code \((-?\d+)\)")


class Round(Enum):
    """What is collected; the value is its name."""

    TRIAGE = "triage"
    FULL = "full"

    @property
    def passes(self) -> int:
        """For each launch, as ncu 2025.3 needed on an H200; other chips and versions differ a little."""
        return 11 if self is Round.TRIAGE else 38


@dataclass(frozen=True)
class Order:
    """What to profile.

    Args:
        argv: the program and its arguments.
        round: what to collect.
        kernel: a regular expression that a kernel's name has to match; None: every kernel.
        launches: of those that match, how many are profiled.
        skip: how many of those that match are let through before.
        nvtx: only within this range of NVTX ("name/" for one that is pushed); None: everywhere.
        cold: whether L2 is flushed before each pass; else it is left as the launch before left it.
        within_s: when it takes longer, all of it is ended.
        cwd: where the program runs; None: here.
        environment: None: this process's own.
    """

    argv: tuple[str, ...]
    round: Round = Round.TRIAGE
    kernel: str | None = None
    launches: int = 5
    skip: int = 0
    nvtx: str | None = None
    cold: bool = True
    within_s: float = 300.0
    cwd: Path | None = None
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Taken:
    """What was profiled.

    `passes` is the most that a launch needed, None where ncu didn't say. `program_code` is the exit code that ncu tells
    of a program that failed after all, None for one that didn't. `trouble` is what ncu said that went wrong beside.
    """

    report: Path
    profile: Profile
    passes: int | None
    wall_s: float
    program_code: int | None = None
    trouble: Failure | None = None


class Refused(GputopError):
    """The GPU's counters can't be had here; times can."""

    def __init__(self, failure: Failure) -> None:
        super().__init__("ncu can't read this GPU's counters", failure.why, failure.todo)
        self.failure = failure


def beforehand(order: Order, ncu: Ncu, last: Taken | None = None) -> str:
    """What a run will do, and how long that takes, as one sentence."""
    count = f"{order.launches} launch{'es' if order.launches != 1 else ''}"
    what = "4 sections" if order.round is Round.TRIAGE else "every section"
    which = " of any kernel (-k names one)" if order.kernel is None else f" of /{printable(order.kernel, 60)}/"
    passes = last.passes if last is not None and last.passes is not None else order.round.passes
    if last is not None:
        took = f"the last time {last.wall_s:.1f} s"
    else:
        took = f"about {max(1.0, passes * order.launches * _REPLAY_S):.0f} s beside the program's own time"
    cache = "L2 flushed before each" if order.cold else "L2 left as it is"
    return (
        f"ncu {ncu.version or DASH}, {order.round.value} ({what}): about {passes} passes × {count}{which}, "
        f"{took}; clocks left alone, {cache}; ended after {order.within_s:g} s"
    )


def command(order: Order, ncu: Ncu, report: Path, log: Path) -> list[str]:
    """The command line, with the options that this ncu has.

    Raises:
        UsageError: more is asked for than a run may do.
    """
    if order.launches * order.round.passes > MOST_REPLAYS:
        raise UsageError(
            f"{order.launches} launches are too many",
            f"each is replayed about {order.round.passes} times, and a run may take {MOST_REPLAYS} replays",
            f"ask for {MOST_REPLAYS // order.round.passes} at most",
        )
    wanted: list[tuple[str, ...]] = [
        # It adds the ending itself, and replaces %h, %p and the like.
        ("--export", str(report.with_suffix("")).replace("%", "%%")),
        ("--log-file", str(log)),
        ("--target-processes", "all"),
        ("--clock-control", "none"),
        ("--cache-control", "all" if order.cold else "none"),
        ("--launch-skip", str(order.skip)),
        ("--launch-count", str(order.launches)),
        *([("--kernel-name", f"regex:{order.kernel}")] if order.kernel is not None else []),
        *([("--nvtx",), ("--nvtx-include", order.nvtx)] if order.nvtx is not None else []),
        *([("--set", "full")] if order.round is Round.FULL else [("--section", name) for name in _TRIAGE]),
    ]
    known = [one for one in wanted if one[0] in ncu.flags and (one[0] != "--section" or one[1] in ncu.sections)]
    return [str(ncu.path), *(word for one in known for word in one), *order.argv]


def collect(
    order: Order,
    ncu: Ncu,
    report: Path,
    cancelled: Callable[[], bool] = lambda: False,
) -> Taken:
    """Runs the program under ncu, and reads what came of it.

    Args:
        report: where the report goes once it is whole; what the program printed goes beside it (`.log`).
        cancelled: asked some times a second whether to end it.

    Raises:
        UsageError: more is asked for than a run may do.
        Refused: this GPU's counters can't be had here.
        GputopError: ncu or the program failed, took too long, or no kernel was profiled.
        KeyboardInterrupt: Ctrl-C, or `cancelled`; all that was started is ended by then.
    """
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".gputop-llm-", dir=report.parent) as name:
            return _collect(order, ncu, report, Path(name), cancelled)
    except OSError as error:
        raise GputopError(f"cannot write {report}", (error.strerror or str(error)).lower()) from error


def _collect(order: Order, ncu: Ncu, report: Path, folder: Path, cancelled: Callable[[], bool]) -> Taken:
    made, log, output = folder / "report.ncu-rep", folder / "ncu.log", folder / "output.log"
    argv = command(order, ncu, made, log)
    with open(output, "wb") as printed:
        ended = child.run(argv, printed, order.within_s, order.cwd, order.environment, cancelled)
    words, printed_words = _words(log, output)
    os.replace(output, report.with_suffix(".log"))
    if ended.code is None:
        raise _too_long(order, words)
    failure = explain(words)
    try:
        profile = _profile(ncu, made) if made.exists() else None
    except GputopError:
        if failure is None:
            raise
        profile = None
    if profile is None:
        raise _failed(failure, printed_words, ended.code)
    os.replace(made, report)
    passes = [int(count) for count in _PASSES.findall(words)]
    code = _PROGRAM_CODE.search(words)
    told = None if "==ERROR==" not in words or code else failure
    return Taken(
        report=report,
        profile=replace(profile, files=(str(report),)),
        passes=max(passes, default=None),
        wall_s=ended.wall_s,
        program_code=int(code[1]) if code else None,
        trouble=told,
    )


def _words(log: Path, output: Path) -> tuple[str, str]:
    """What ncu said, and what the program did. Some of ncu's errors come by its standard error whatever it is told."""
    texts = []
    for path in (log, output):
        data = b""
        with suppress(FileNotFoundError), open(path, "rb") as file:
            data = file.read(_MOST_WORDS)
        texts.append(data.decode("utf-8", "replace"))
    lines = texts[1].splitlines()
    if not texts[0]:
        # An ncu without --log-file, or one that failed before it opened that: all is in one.
        return texts[1], "\n".join(line for line in lines if not line.startswith("=="))
    own = [line for line in lines if line.startswith("==")]
    return "\n".join([texts[0], *own]), "\n".join(line for line in lines if not line.startswith("=="))


def _profile(ncu: Ncu, report: Path) -> Profile:
    """What is in a report: by NVIDIA's reader, or without one (or one that is too old) by ncu itself."""
    try:
        return read_profile([report])
    except GputopError:
        kernels = csv_text.read_text(ncu.said(["--import", str(report), "--page", "raw", "--csv"]))
        if not kernels:
            raise
        return Profile(kernels, (str(report),), "ncu", container.options_of(report))


def _failed(failure: Failure | None, told: str, code: int) -> GputopError:
    if failure is not None and failure.refuses_counters:
        return Refused(failure)
    last = next((line.strip() for line in reversed(told.splitlines()) if line.strip()), "")
    said = f"; the program's last words: {printable(last, 200)}" if last else ""
    if failure is None:
        return GputopError("ncu recorded nothing", f"it ended with status {code}{said}", "run the program without ncu")
    if failure.id in ("program-failed", "program-ended"):
        return GputopError("ncu recorded nothing", f"{failure.why}{said}", failure.todo)
    return failure.error("ncu recorded nothing")


def _too_long(order: Order, words: str) -> GputopError:
    begun = _BEGUN.findall(words)
    last = f"; the last one that it began was {printable(begun[-1], 90)}" if begun else ""
    return GputopError(
        f"ncu was ended after {order.within_s:g} s",
        "a kernel that waits for another (a collective, a persistent or cross-process one) never ends under ncu, which "
        f"runs one at a time{last}",
        "name the kernel (-k) so that such ones (nccl…) are left out, ask for fewer launches, or allow more time",
    )
