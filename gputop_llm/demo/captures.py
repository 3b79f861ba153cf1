"""Captures of the simulated node: the same steps and screens, on a record that is made up to fit the scenario."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gputop_llm.capture.folder import FACTS
from gputop_llm.capture.plan import GPU_KINDS, Plan, PlannedRank, asked_window_s, plan_json
from gputop_llm.capture.progress import Progress
from gputop_llm.capture.ways import way_of
from gputop_llm.demo.record import Shape, record
from gputop_llm.demo.stacks import simulated_flames, simulated_stacks
from gputop_llm.errors import GputopError
from gputop_llm.follow import describe
from gputop_llm.model import Frame, Target
from gputop_llm.model.stacks import Flame, StackReport

_LOOK_S = 0.05
_IDLE_STEP_S = 0.05
#: Of a loaded engine's step that the figures of a frame don't settle, the GPU works this share.
_BUSY = 0.85


class SimulatedPlan(Plan):
    """What a simulated capture will do."""

    def facts(self) -> tuple[tuple[str, str], ...]:
        return (
            ("what", f"pretend to record {self.target}"),
            ("how", "this node is simulated: no process is touched, and the record is made up to fit the scenario"),
            ("how long", f"{self.window_s:.3g} s"),
            ("cost", "none; of a real engine it is said here, as measured"),
            ("written", f"below {self.folder}, removed when this program ends"),
            ("stays", "nothing"),
        )


class SimulatedRoute:
    """Takes captures of the simulated node."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gputop-llm-demo-")
        self._frame: Frame | None = None
        self._count = 0

    def plan(
        self,
        frame: Frame,
        target: Target,
        window_s: float | None = None,
        steps: int | None = None,
        route: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Plan:
        if route is not None:
            # A name that is none is none here, too.
            way_of(route)
        self._frame = frame
        ranks = [p for p in target.processes if p.pid is not None and p.gpus]
        self._count += 1
        return SimulatedPlan(
            target=describe(target),
            key=target.key,
            engine=target.engine,
            ranks=tuple(PlannedRank(n, p.pid or 0, 0, p.title, p.rank, p.gpus) for n, p in enumerate(ranks)),
            window_s=asked_window_s(window_s, steps, frame.focused_engine),
            max_bytes=64 << 20,
            folder=self._folder.name,
            name=f"simulated-{self._count}",
            at_s=time.time(),
            model=target.model,
        )

    def begin(self, plan: Plan, frames: Sequence[str], before: Sequence[Frame]) -> SimulatedRun:
        return SimulatedRun(plan, _shape(self._frame))

    def stacks(self, frame: Frame, target: Target) -> StackReport:
        return simulated_stacks(frame, target)

    def doctor(self, target: Target) -> Sequence[str]:
        return [
            describe(target),
            "  open   a simulated window: no process is touched, and the record is made up to fit the scenario",
            "  no     every other way: this node is simulated -> run gputop-llm where an engine runs",
        ]

    def flames(self, target: Target, seconds: float) -> tuple[Flame, ...]:
        return simulated_flames(target, seconds)

    def close(self) -> None:
        """Removes what was recorded."""
        self._folder.cleanup()


class SimulatedRun:
    """A capture that only takes its time."""

    def __init__(self, plan: Plan, shape: Shape) -> None:
        self.plan = plan
        self._shape = shape
        self._cancelled = threading.Event()

    def follow(self) -> Iterator[Progress]:
        window_s = self.plan.window_s
        yield Progress("inject", "pretending to load the library")
        begun = time.monotonic()
        while (spent := time.monotonic() - begun) < window_s and not self._cancelled.is_set():
            yield Progress("recording", "recording (simulated)", share=spent / window_s)
            self._cancelled.wait(_LOOK_S)
        if spent < _LOOK_S:
            yield Progress("ended", outcome="cancelled", what="the capture was cancelled", why="you asked for it")
            return
        try:
            path = self._write(min(spent, window_s))
        except OSError as error:
            why = error.strerror or str(error)
            yield Progress("ended", outcome="failed", what="cannot write the simulated record", why=why)
            return
        yield Progress("ended", outcome="done", path=str(path))

    def _write(self, window_s: float) -> Path:
        folder = self.plan.path
        folder.mkdir(parents=True)
        calls = self.plan.kinds != GPU_KINDS
        for rank in self.plan.ranks:
            with (folder / rank.file).open("wb") as file:
                file.writelines(record(self._shape, window_s, rank.pid, seed=rank.number, calls=calls))
        facts = {"schema": 1, "kind": "simulated", "outcome": "done", "plan": plan_json(self.plan)}
        (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        return folder

    def frame(self, text: str) -> None:
        """A simulated record holds no frames."""

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self._cancelled.set()


def _shape(frame: Frame | None) -> Shape:
    """The steps of the engine as its metrics have them at the moment.

    Raises:
        GputopError: there is nothing to go by.
    """
    engine = frame.focused_engine if frame is not None else None
    total = engine.window.total if engine is not None and engine.window is not None else None
    if frame is None or total is None:
        raise GputopError("cannot simulate a capture", "the simulated engine has not said anything yet", "try again")
    if not total.steps_per_s:
        return Shape(_IDLE_STEP_S, 0.02, 1)
    return Shape(1.0 / total.steps_per_s, _busy(frame), max(1, int(total.running or 1)))


def _busy(frame: Frame) -> float:
    """The share of its time in which the target's first GPU works."""
    target, node = frame.focused, frame.gpus.value
    gpus = {gpu.index: gpu for gpu in node.gpus} if node is not None else {}
    gpu = gpus.get(target.gpus[0]) if target is not None and target.gpus else None
    pct = gpu.gpm.graphics_pct if gpu is not None and gpu.gpm is not None else None
    return _BUSY if pct is None else min(0.97, max(0.02, pct / 100))
