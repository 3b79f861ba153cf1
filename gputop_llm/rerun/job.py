"""One re-run, from the plan, which is said first, to its end: the script, then the hottest kernel under ncu."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gputop_llm.capture.engine_watch import EngineSample
from gputop_llm.capture.lock import Lock
from gputop_llm.errors import GputopError
from gputop_llm.model import Frame
from gputop_llm.model.finding import Verdict
from gputop_llm.ncu.assemble import Group
from gputop_llm.ncu.collect import beforehand, collect
from gputop_llm.ncu.tool import Ncu, NoNcu, find_ncu
from gputop_llm.rerun.match import launched_of, matches
from gputop_llm.rerun.outcome import Outcome
from gputop_llm.rerun.place import SERVING_COST, Chosen, Python, gpu_for, python_for
from gputop_llm.rerun.prepare import Prepared
from gputop_llm.rerun.profiled import order_for, verdict_of
from gputop_llm.rerun.run import WITHIN_S, environment, run_script, server_cost
from gputop_llm.rerun.script import needs_bytes
from gputop_llm.units import size

#: The server's rate is measured so long before and after.
BESIDE_S = 5.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class Finished:
    """What came of it. Without a verdict `why` says why there is none."""

    outcome: Outcome
    verdict: Verdict | None = None
    groups: tuple[Group, ...] = ()
    report: Path | None = None
    why: str = ""


@dataclass(frozen=True)
class Job:
    """What will be run, where and by what. `without` says why there is no ncu."""

    prepared: Prepared
    text: str
    folder: Path
    python: Python
    gpu: Chosen
    ncu: Ncu | None
    without: str

    @property
    def script(self) -> Path:
        return self.folder / "rerun.py"

    def facts(self) -> list[tuple[str, str]]:
        """What must be known before saying yes, as (label, text)."""
        hot = self.prepared.hot
        beside = f"; somebody works on it: {SERVING_COST}; what it really costs is measured" if self.gpu.serving else ""
        taken_on, here = self.prepared.gpu, self.gpu.name
        other = taken_on is not None and here is not None and here not in taken_on
        beside += f"; the capture is of a {taken_on}: its kernels are hardly those of this GPU" if other else ""
        needed = size(needs_bytes(self.prepared.cases))
        then = "what launches the hottest kernel again, under ncu: 3 launches, 4 sections, under a minute"
        return [
            ("what", f"{len(self.prepared.cases)} operations for {len(hot)} kernels; the hottest is {hot[0].short}"),
            ("script", str(self.script)),
            ("by", f"{self.python.path} ({self.python.whose})"),
            (
                "on",
                f"GPU {self.gpu.index} ({self.gpu.name}): {size(self.gpu.free_bytes)} free, {needed} needed{beside}",
            ),
            ("how long", f"a minute or two, at most {WITHIN_S:g} s"),
            ("then", self.without or then),
        ]

    def run(
        self,
        samples: Callable[[], Sequence[EngineSample]],
        told: Callable[[str], None] = lambda _text: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Finished:
        """Runs all of it.

        Args:
            samples: what the engine on that GPU has said of its pace so far; none where none is watched.
            told: told what begins.

        Raises:
            LockTaken: somebody captures, or runs something again, on this node.
            GputopError: the script can't be written or failed, or ncu did.
            KeyboardInterrupt: Ctrl-C, or `cancelled`; nothing of it runs by then.
        """
        # Two at once would each take the room that both have found, and disturb what the other measures.
        lock = Lock(f"{self.prepared.hot[0].short} (run again)")
        try:
            return self._run(samples, told, cancelled)
        finally:
            lock.release()

    def _run(
        self,
        samples: Callable[[], Sequence[EngineSample]],
        told: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> Finished:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise GputopError(f"cannot write below {self.folder}", error.strerror or str(error)) from error
        write_whole(self.script, self.text)
        variables = environment(self.gpu)
        watched = self.gpu.serving or bool(samples())
        if watched:
            told("watching the server's rate before")
            _wait_for(samples, time.monotonic_ns() + int(BESIDE_S * 1e9), cancelled)
        told(f"running {len(self.prepared.cases)} operations")
        # Who keeps them forgets them after some minutes.
        before = tuple(samples())
        began_ns = time.monotonic_ns()
        printed = run_script(self.python, self.script, variables, cancelled=cancelled)
        launched, errors = launched_of(printed)
        found = matches(self.prepared.hot, launched)
        device, torch = str(printed.get("device")), str(printed.get("torch"))
        outcome = Outcome(self.script, self.python, self.gpu, found, errors, device, torch)
        try:
            finished = self._profiled(outcome, variables, told, cancelled)
        except GputopError as failure:
            # What was launched again is known all the same.
            finished = Finished(outcome, why=failure.sentence())
        if not watched:
            return finished
        ended_ns = time.monotonic_ns()
        told("watching the server's rate after")
        _wait_for(samples, ended_ns + int(BESIDE_S * 1e9), cancelled)
        return replace(finished, outcome=replace(outcome, cost=server_cost([*before, *samples()], began_ns, ended_ns)))

    def _profiled(
        self,
        outcome: Outcome,
        variables: Mapping[str, str],
        told: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> Finished:
        """The hottest kernel that was launched again, under ncu."""
        best = next((match for match in outcome.matches if match.best is not None), None)
        if best is None or best.best is None:
            return Finished(outcome, why="nothing was launched again: there is nothing to profile")
        if self.ncu is None:
            return Finished(outcome, why=self.without)
        order = order_for(best, self.python, self.script, variables)
        told(beforehand(order, self.ncu))
        taken = collect(order, self.ncu, self.folder / "rerun.ncu-rep", cancelled)
        case = next(case for case in self.prepared.cases if case.label == best.best.case)
        verdict, groups = verdict_of(taken, best.hot, case)
        return Finished(outcome, verdict, groups, taken.report)


def make_job(prepared: Prepared, frame: Frame, place: Path, asked_gpu: int | None = None) -> Job:
    """Where and by what it can be run.

    Args:
        frame: of the node, now: which GPUs have room, and on which somebody serves.
        place: where captures go.

    Raises:
        GputopError: it can't be run, and why.
    """
    if frame.simulated is not None:
        raise GputopError("nothing can be run again", "this node is a simulated one", "watch a real engine")
    if not prepared.hot:
        one, why, todo = prepared.refused[0]
        raise GputopError(f"{one.short} can't be run again", why, todo)
    text = prepared.script("rerun.py")
    python, why = python_for(prepared.engine.pid)
    if python is None:
        raise GputopError("there is no Python to run it by", why, "write the script with --write, and run it by hand")
    gpus = frame.gpus.value.gpus if frame.gpus.value is not None else ()
    targets = frame.targets.value.targets if frame.targets.value is not None else ()
    serving = {gpu for target in targets for gpu in target.gpus}
    gpu = gpu_for(gpus, serving, needs_bytes(prepared.cases), asked_gpu)
    ncu, without = None, ""
    try:
        ncu = find_ncu()
    except NoNcu as failure:
        without = failure.sentence()
    return Job(prepared, text, folder_for(prepared, place), python, gpu, ncu, without)


def folder_for(prepared: Prepared, place: Path) -> Path:
    """A folder of its own for what a re-run leaves."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = re.sub(r"[^A-Za-z0-9]+", "-", prepared.hot[0].short).strip("-")[:40]
    return place / f"rerun_{name}_{stamp}"


def write_whole(path: Path, text: str) -> None:
    """Writes a file under another name first.

    Raises:
        GputopError: it can't be written.
    """
    try:
        # A device or pipe would be replaced by a file: /dev/stdout, for every program of the machine.
        if path.exists() and not path.is_file():
            raise GputopError(f"cannot write {path}", "it is not a regular file", "name another place")
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".gputop-llm-")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(draft, 0o700)
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)
            raise
    except OSError as error:
        raise GputopError(f"cannot write {path}", error.strerror or str(error), "name another place") from error


def _wait_for(samples: Callable[[], Sequence[EngineSample]], at_ns: int, cancelled: Callable[[], bool]) -> None:
    """Waits until the engine has said something after a moment, or hasn't for as long again."""
    give_up_ns = at_ns + int(BESIDE_S * 1e9)
    while (now_ns := time.monotonic_ns()) < give_up_ns:
        known = samples()
        if now_ns >= at_ns and (not known or known[-1].mono_ns >= at_ns):
            return
        if cancelled():
            raise KeyboardInterrupt
        time.sleep(_LOOK_S)
