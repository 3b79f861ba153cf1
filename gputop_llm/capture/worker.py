"""Takes one capture: a process of its own, which its terminal and its parent may leave at any moment.

It is told its plan by standard input, whose end cancels, and tells its progress by standard output. Whatever happens to
it: its locks and pipes are the kernel's to take back, the clients in the target end when their pipes break, and its
watchdog undoes what doesn't end by itself and settles the folder.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gputop_llm import __version__
from gputop_llm.capture.engine_watch import EngineSample, EngineWatch, sample_line
from gputop_llm.capture.folder import FACTS, CaptureFolder
from gputop_llm.capture.guardian import Guardian
from gputop_llm.capture.lock import Lock
from gputop_llm.capture.orders import Orders
from gputop_llm.capture.plan import RECOVERY_S, Plan, plan_json, plan_of
from gputop_llm.capture.preflight import Refused
from gputop_llm.capture.progress import Progress, Stage, Teller
from gputop_llm.capture.recovery import recovered
from gputop_llm.capture.undo import Step, public
from gputop_llm.capture.way import Recorded, Setting
from gputop_llm.capture.ways import way_of
from gputop_llm.errors import GputopError
from gputop_llm.redact_argv import redact_record
from gputop_llm.sources.base import Source
from gputop_llm.sources.procfs import ProcFs

SCHEMA = 1
ENGINE_LINES, FRAME_LINES = "engine.jsonl", "frames.jsonl"
_ORDER_WITHIN_S = 20.0
_PREPARE_S, _FINISH_S, _VERDICT_S = 20.0, 30.0, 300.0
#: The verdict is worked out on the node that serves: whoever wants the CPU more may have it.
_NICE = 5
#: Of the engine's own pace before anything is done to it, where the monitor has not seen it already.
_BEFORE_S = 3.0
_LEAST_AFTER_S = 2.0
_TICK_S = 0.05
_TELL_EVERY_S = 0.1


def main() -> None:
    """Runs one capture."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    teller = Teller(sys.stdout.fileno())
    orders = Orders(sys.stdin.buffer)
    signal.signal(signal.SIGTERM, lambda *_: orders.cancelled.set())
    order = orders.first(_ORDER_WITHIN_S)
    if order is None:
        return
    worker = Worker(plan_of(order["plan"]), order, orders, teller)
    try:
        ended = worker.capture()
    except Refused as refusal:
        ended = Progress("ended", outcome="refused", what=refusal.what, why=refusal.why, todo=refusal.todo)
    except GputopError as failure:
        ended = Progress("ended", outcome="failed", what=failure.what, why=failure.why, todo=failure.todo)
    except Exception as bug:  # noqa: BLE001 - whoever waits must be told
        ended = Progress("ended", outcome="failed", what="the capture failed", why=f"{type(bug).__name__}: {bug}")
    finally:
        kept = worker.settle()
    if kept is not None and ended.path is None:
        ended = replace(ended, path=str(kept), todo="what was recorded until then is kept")
    teller.tell_last(ended)


class Worker:
    """One capture.

    Args:
        plan: of it.
        order: how to ask the engine: api_key, url, ca_file; `samples`, what it said before.
        orders: what else it is told.
        teller: to whom it tells.
    """

    def __init__(self, plan: Plan, order: dict[str, Any], orders: Orders, teller: Teller) -> None:
        self._plan = plan
        self._order = order
        self._orders = orders
        self._teller = teller
        self._told_at = 0.0
        self._lock: Lock | None = None
        self._guardian: Guardian | None = None
        self._watch: EngineWatch | None = None
        self._folder = CaptureFolder(Path(plan.folder), plan.name)
        self._kept: Path | None = None
        self._before = tuple(EngineSample(**sample) for sample in order.get("samples", ()))
        self._facts: dict[str, Any] = {
            "schema": SCHEMA,
            "version": __version__,
            "kind": plan.route,
            "plan": plan_json(plan),
            "node": platform.node(),
            "kernel": platform.release(),
            "worker": {"pid": os.getpid(), "start_ticks": ProcFs().stat(os.getpid()).start_ticks},
        }
        setting = Setting(
            plan, self._folder, order, self._samples, orders.cancelled.is_set,
            self._tell, self._tell_recording, self._deadline, self._undo,
        )  # fmt: skip
        self._taker = way_of(plan.route).taker(setting)

    def capture(self) -> Progress:
        """Takes it; returns how it ended.

        Raises:
            Refused: nothing was done to the target.
            GputopError: nothing could be recorded.
        """
        self._tell("lock", "taking the node's capture lock")
        self._lock = self._take_lock()
        self._guardian = Guardian(self._folder)
        self._deadline(_PREPARE_S)
        self._folder.make()
        self._store()
        self._tell("preflight", "looking at the target once more")
        self._watch_engine()
        taker = self._taker
        taker.prepare()
        if not self._pace_known():
            return self._cancelled()
        began_ns = time.monotonic_ns()
        taker.begin()
        if self._orders.cancelled.is_set():
            return self._cancelled()
        done = taker.follow()
        self._deadline(_FINISH_S)
        missing = taker.stop()
        if done.trouble is None and missing is not None:
            done = Recorded(done.cancelled, missing)
        ended_ns = time.monotonic_ns()
        self._facts |= {"touched_mono_ns": began_ns, "ended_mono_ns": ended_ns, "starts_mono_ns": taker.starts_ns}
        self._tell("finishing", "putting the record away")
        return self._finish(done, began_ns, ended_ns)

    def settle(self) -> Path | None:
        """Lets go of everything, whatever happened before; returns where anything that is recorded is kept."""
        if self._watch is not None:
            self._watch.close()
        self._taker.close()
        # One of that name that this worker has not made is another's.
        if self._kept is None and self._folder.claimed:
            with suppress(OSError):
                self._kept = self._folder.settle("the capture failed")
        if self._guardian is not None:
            self._guardian.done()
        if self._lock is not None:
            self._lock.release()
        return self._kept

    # -- before the window -------------------------------------------------

    def _take_lock(self) -> Lock:
        try:
            return Lock(self._plan.target)
        except GputopError as taken:
            raise Refused(taken.what, taken.why, taken.todo) from None

    def _watch_engine(self) -> None:
        url = self._order.get("url")
        if url is None:
            return
        try:
            self._watch = EngineWatch(_metrics(url, self._order.get("api_key"), self._order.get("ca_file")))
        except GputopError as failure:
            self._facts["engine_error"] = failure.sentence()

    def _pace_known(self) -> bool:
        """Waits until the engine's own pace is known; false when cancelled meanwhile."""
        until = time.monotonic() + _BEFORE_S if self._watch is not None else 0.0
        if self._before:
            until = min(until, self._before[0].mono_ns / 1e9 + _BEFORE_S)
        while time.monotonic() < until and not self._orders.cancelled.is_set():
            time.sleep(_TICK_S)
        return not self._orders.cancelled.is_set()

    # -- after it ----------------------------------------------------------

    def _finish(self, done: Recorded, began_ns: int, ended_ns: int) -> Progress:
        self._facts |= self._taker.facts()
        if not self._taker.recorded():
            if done.cancelled:
                return self._cancelled()
            raise GputopError("nothing was recorded", done.trouble or "no client began")
        outcome, what = "done", ""
        if done.cancelled:
            outcome, what = "cancelled", "the window was cancelled"
        elif done.trouble is not None:
            outcome, what = "incomplete", "the window was ended early"
        self._facts |= {"outcome": outcome, "what": what, "why": done.trouble}
        self._store()
        if outcome != "cancelled":
            self._facts["recovered"] = self._recover(began_ns, ended_ns)
        self._store()
        path = self._bundled(self._folder.keep(whole=outcome == "done"))
        todo = "what was recorded until then is kept" if outcome != "done" else ""
        return Progress(
            "ended",
            records_bytes=self._taker.bytes,
            outcome=outcome,  # type: ignore[arg-type]
            path=str(path),
            details={name: self._facts[name] for name in ("recovered", "bundle_error") if name in self._facts},
            what=what,
            why=done.trouble or "",
            todo=todo,
        )

    def _bundled(self, folder: Path) -> Path:
        """The folder with its verdict and its lasting name; as it was where that can't be made."""
        # Loads NumPy: not before the window is over.
        from gputop_llm.capture.bundling import bundled

        self._kept = folder
        # Of a window that was cancelled there is a verdict as well; a cancel from now on ends the making of it.
        before = self._orders.cancelled.is_set()
        self._tell("finishing", "making the verdict")
        self._deadline(_VERDICT_S)
        # The target is as it was before: others need not wait for the verdict.
        assert self._lock is not None
        self._lock.release()
        if self._watch is not None:
            self._watch.close()
        with suppress(OSError):
            os.nice(_NICE)
        try:
            self._kept = bundled(folder, lambda: self._orders.cancelled.is_set() and not before)
        except GputopError as failure:
            self._facts["bundle_error"] = failure.sentence()
        except Exception as bug:  # noqa: BLE001 - the record is whole, whatever its verdict runs into
            self._facts["bundle_error"] = f"no verdict could be made: {type(bug).__name__}: {bug}"
        return self._kept

    def _cancelled(self) -> Progress:
        return Progress(
            "ended", outcome="cancelled", what="the capture was cancelled", why="before anything was recorded"
        )

    def _recover(self, began_ns: int, ended_ns: int) -> bool | None:
        """Watches the engine until it is back at its pace, for at most `RECOVERY_S`."""
        if self._watch is None:
            return None
        # Whoever waits for the verdict can read what is recorded meanwhile.
        records = {"records": str(self._folder.path)}
        self._tell("recovering", "watching the engine come back to its pace", records)
        self._deadline(RECOVERY_S + _FINISH_S)
        while True:
            since_s = (time.monotonic_ns() - ended_ns) / 1e9
            back = recovered(self._samples(), began_ns, ended_ns)
            enough = since_s >= _LEAST_AFTER_S and back is not False
            if enough or since_s >= RECOVERY_S or self._orders.cancelled.is_set():
                return back
            time.sleep(_TICK_S)

    def _samples(self) -> Sequence[EngineSample]:
        return (*self._before, *(self._watch.samples() if self._watch is not None else ()))

    def _store(self) -> None:
        """What is known so far, beside the records: nothing that was seen is lost with this process."""
        if self._watch is not None:
            self._facts["engine_error"] = self._watch.error
        with suppress(OSError):
            if samples := self._samples():
                self._folder.write_text(ENGINE_LINES, "".join(f"{sample_line(one)}\n" for one in samples))
            if frames := self._orders.frames():
                self._folder.write_text(FRAME_LINES, "".join(f"{one}\n" for one in frames))
            self._folder.write_json(FACTS, redact_record(self._facts))

    # -- telling -----------------------------------------------------------

    def _tell(self, stage: Stage, text: str, details: Mapping[str, Any] | None = None) -> None:
        self._teller.tell(Progress(stage, text, details=details or {}))

    def _tell_recording(self, share: float | None, recorded_bytes: int) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            self._teller.tell(Progress("recording", "recording", share, recorded_bytes))

    # -- the watchdog ------------------------------------------------------

    def _deadline(self, seconds: float) -> None:
        assert self._guardian is not None
        self._guardian.deadline(seconds)

    def _undo(self, steps: Sequence[Step]) -> None:
        """Written down as well: should the watchdog die, too, `doctor --leftovers` finds it."""
        assert self._guardian is not None
        self._guardian.undo(steps)
        self._facts["undo"] = public(steps)
        with suppress(OSError):
            self._folder.write_json(FACTS, redact_record(self._facts))


def _metrics(url: str, api_key: str | None, ca_file: str | None) -> Source[Any]:
    from gputop_llm.sources.metrics import MetricsSource

    return MetricsSource(url, api_key=api_key, ca_file=ca_file)


if __name__ == "__main__":
    main()
