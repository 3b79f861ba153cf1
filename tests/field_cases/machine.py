"""A node made of a field case: every real source of the program, on recorded answers and a clock moved by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gputop_llm.config import Config
from gputop_llm.model import Frame, GpuNode, TargetProcess
from gputop_llm.model.symptom import Symptom, SymptomReport
from gputop_llm.report import jsonform, text
from gputop_llm.report.outcome import Outcome, judge
from gputop_llm.sampling.poller import Poller
from gputop_llm.session import Session, Sources
from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.host import HostSource
from gputop_llm.sources.metrics import MetricsSource
from gputop_llm.sources.nvml import NvmlSource
from gputop_llm.tui.app import MonitorApp
from gputop_llm.tui.terminal import Terminal
from tests.support.captures import case_json, case_page, field_case
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_proc import HOST_PIDS, FakeClock, FakeProc
from tests.support.fake_session import FakeSession
from tests.support.http_server import HttpServer, page
from tests.support.screen_text import screen_lines

VLLM = ["vllm", "serve", "org/model-a", "--port", "8000"]


class Machine:
    """One machine, watched by a real session without threads; `frames` are all it made, one a second.

    Args:
        number: the field case; its meminfo, driver version and mounts are this machine's, where it has them.
        folder: an empty folder for /proc and the control groups.
        nvml: the name of the file with NVML's answers, None for a machine without a GPU.
        procs: likewise the processes.
        pid_namespace: the link of /proc/self/ns/pid.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        nvml: str | None = "nvml.json",
        procs: str | None = "procs.json",
        pid_namespace: str = HOST_PIDS,
        config: Config | None = None,
    ) -> None:
        self.number = number
        self.case = field_case(number)
        mounts = self.case / "mountinfo.txt"
        self.clock = FakeClock()
        self.nvml = FakeNvml.from_case(self.case, nvml) if nvml else FakeNvml([], {"init": {"error": 9}, "nvml": "12"})
        self.proc = FakeProc(
            folder / "proc",
            pid_namespace,
            mountinfo=mounts.read_text() if mounts.exists() else "",
        )
        if (self.case / "meminfo.txt").exists():
            self.proc.write("meminfo", (self.case / "meminfo.txt").read_text())
        if procs:
            self.proc.add_case(self.case / procs)
        self.cgroups = folder / "cgroup"
        self.server = HttpServer({"/metrics": page("", status=404)})
        self.config = config or Config()
        self.frames: list[Frame] = []
        self._session = Session(self.config, self.sources(), self.clock)

    def add_engine(self, pid: int = 100, **given: Any) -> None:
        """A vLLM server in one process with GPU 0 open."""
        self.proc.add(pid, **{"cmdline": VLLM, "fds": ["/dev/nvidia0"], **given})

    def serve(self, body: str) -> None:
        """What /metrics answers from now on, at whatever address the engine is."""
        self.server.behaviours["/metrics"] = page(body)

    def sources(self) -> Sources:
        """The program's own sources, reading this machine instead of that on which the test runs."""

        def discovery(gpus: Callable[[], GpuNode | None]) -> DiscoverySource:
            return DiscoverySource(gpus, lambda _url: False, self.proc.root, self.clock)

        def host(watch: Callable[[], tuple[TargetProcess, ...]]) -> HostSource:
            return HostSource(watch, self.proc.root, str(self.cgroups), self.clock)

        return Sources(
            gpus=lambda: NvmlSource(
                self.nvml, self.clock, self.proc.path / "meminfo", self.case / "proc_driver_nvidia_version.txt"
            ),
            discovery=discovery,
            host=host,
            metrics=lambda _url: MetricsSource(self.server.url),
        )

    def run(self, seconds: int, each: Callable[[int], Any] = lambda _s: None) -> Machine:
        """Watches for so long; `each(second)` changes the machine before everything is polled at that second."""
        first = len(self.frames)
        for second in range(first, first + seconds):
            each(second)
            self._poll_all()
            self.frames.append(self._session.tick())
            self.nvml.advance()
            self.clock.pass_s(1.0)
        return self

    def _poll_all(self) -> None:
        """Has each source polled once, those of engines that are found by it included."""
        done: list[Poller[Any]] = []
        while waiting := [poller for poller in self._session._pollers() if poller not in done]:
            for poller in waiting:
                poller._poll_once()
            done += waiting

    def run_scrapes(self, seconds: int) -> Machine:
        """Watches for so long; the case's page and NVML's answers change at the times that it names."""
        pages = {at: case_page(self.number, name) for name, at in case_json(self.number, "times").items()}
        ticks = {tick["t"]: tick for tick in (self.nvml.devices[0].pop("ticks", ()) if self.nvml.devices else ())}

        def each(second: int) -> None:
            if second in pages:
                self.serve(pages[second])
            for name, answer in ticks.get(second, {}).items():
                self.nvml.set(name, answer)

        return self.run(seconds, each)

    @property
    def report(self) -> SymptomReport:
        assert self.frame.symptoms is not None
        return self.frame.symptoms

    def raised(self) -> dict[str, Symptom]:
        """The symptoms of the newest frame, the first in the list first."""
        return {symptom.id: symptom for symptom in self.report.active}

    def cannot_tell(self) -> dict[str, str]:
        """What each rule lacks that can't judge."""
        return {one.id: one.needs for one in self.report.cant_tell}

    @asynccontextmanager
    async def shown(self, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Callable[..., Any]]:
        """The frames on screen: `await shown("4")` presses keys and gives the screen's lines."""
        session = FakeSession(self.frame, self.config)
        for earlier in self.frames[:-1]:
            session.history.append(earlier)
        app = MonitorApp(session, self.config, Terminal(256, False))
        async with app.run_test(size=size) as pilot:

            async def press(*keys: str) -> list[str]:
                await pilot.press(*keys)
                await pilot.pause()
                return screen_lines(app)

            yield press

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def json(self) -> dict[str, Any]:
        """The newest frame as `snapshot --json` prints it, read by a parser that knows no NaN."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        return json.loads(jsonform.frame_text(self.frame), parse_constant=refuse)

    def text(self) -> str:
        """The newest frame as `snapshot` prints it, its lines joined by blanks."""
        return " ".join(text.frame_text(self.frame, "node").split())

    def outcome(self) -> Outcome:
        """What `snapshot` ends with."""
        return judge(self.frame, self.config, driver_here=True)

    def close(self) -> None:
        self._session.stop()
        self.server.stop()
