"""A way of taking captures that does what the test says, with records that are made up as the demo's are."""

from __future__ import annotations

import queue
from pathlib import Path

from gputop_llm.capture.plan import Plan, PlannedRank
from gputop_llm.capture.progress import Progress
from gputop_llm.demo.record import Shape, record


class ScriptedRun:
    """Tells what is put into `told`, until something with the stage "ended"; cancelling ends it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.told: queue.Queue[Progress] = queue.Queue()
        self.frames: list[str] = []
        self.closed = False

    def tell(self, *told: Progress) -> None:
        for one in told:
            self.told.put(one)

    def follow(self):
        while True:
            one = self.told.get(timeout=30)
            yield one
            if one.stage == "ended":
                return

    def frame(self, text: str) -> None:
        self.frames.append(text)

    def cancel(self) -> None:
        self.tell(Progress("ended", outcome="cancelled", what="the capture was cancelled", why="you asked for it"))

    def close(self) -> None:
        self.closed = True


class ScriptedRoute:
    """Plans windows of one rank below `folder`; `refusal` is raised instead."""

    def __init__(self, folder: Path, refusal: Exception | None = None) -> None:
        self.folder = folder
        self.refusal = refusal
        self.runs: list[ScriptedRun] = []

    def plan(self, frame, target, window_s):
        if self.refusal is not None:
            raise self.refusal
        return Plan(
            target="vllm llama-1b (pid 512)",
            key=target.key,
            engine=target.engine,
            ranks=(PlannedRank(0, 624, 1234, "VLLM::EngineCore", None, (0,)),),
            window_s=window_s,
            max_bytes=64 << 20,
            folder="/captures",
            name="20261129T120000Z-vllm-llama-1b-624",
            at_s=1_795_968_526.0,
        )

    def doctor(self, target):
        if self.refusal is not None:
            raise self.refusal
        return [
            "vllm llama-1b",
            "",
            "PID 624 (VLLM::\x1b[31mEngineCore)",
            "  open   native window, injected",
            "  no     Nsight Systems window: it was not started under nsys -> start it by `gputop-llm run --nsys`",
        ]

    def begin(self, plan, frames, before):
        self.runs.append(ScriptedRun(plan))
        return self.runs[-1]

    def close(self) -> None:
        pass

    def written(self, name: str = "partial") -> Path:
        """A folder with one record."""
        folder = self.folder / name
        folder.mkdir()
        with (folder / "rank0_pid624.gtw").open("wb") as file:
            file.writelines(record(Shape(0.01, 0.9, 8), 0.2, 624))
        return folder
