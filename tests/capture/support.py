"""Targets that serve, plans for them, and looks at what a capture leaves."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gputop_llm.capture import run as run_module
from gputop_llm.capture.plan import Plan, make_plan
from gputop_llm.capture.progress import Progress
from gputop_llm.capture.run import CaptureRun
from gputop_llm.model import Target, TargetProcess
from gputop_llm.sources.procfs import ProcFs
from tests.support.real_processes import until

SERVING = Path(__file__).with_name("serving.py")


@dataclass
class Serving:
    """A running target."""

    process: subprocess.Popen[str]
    url: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def tokens(self) -> int:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as page:
            return int(re.search(r"generation_tokens_total\{[^}]*\} (\d+)", page.read().decode())[1])

    def serves(self) -> bool:
        """Whether it is alive and makes tokens."""
        before = self.tokens()
        return until(lambda: self.tokens() > before, 10.0)

    def open_files(self) -> set[str]:
        return {link for link in ProcFs().open_files(self.pid) if "socket" in link or "pipe" in link}


@contextlib.contextmanager
def serving(
    sockets: Path,
    behaviour: str = "good",
    cupti: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Serving]:
    """A target, killed in the end; with a `cupti` it has no client yet."""
    process = subprocess.Popen(
        [sys.executable, str(SERVING), str(sockets / ("PID.sock" if cupti is None else "not-PID.sock")), behaviour],
        env={**os.environ, **({} if cupti is None else {"FAKE_CUPTI": str(cupti)}), **environment},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        port = int(process.stdout.readline())
        yield Serving(process, f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def target_of(*targets: Serving) -> Target:
    """What discovery would say of it."""
    return Target(
        key=f"vllm:{targets[0].pid}:0",
        engine="vllm",
        root_pid=targets[0].pid,
        model="acme/llama-8b",
        urls=(targets[0].url,),
        urls_from="argv",
        processes=tuple(
            TargetProcess(one.pid, 1, "worker", f"VLLM::Worker_TP{number}", f"TP{number}", (number,), "nvml")
            for number, one in enumerate(targets)
        ),
    )


def plan_for(*targets: Serving, folder: Path, seconds: float = 0.3, url: bool = True, **changed) -> Plan:
    plan = make_plan(target_of(*targets), folder, seconds=seconds)
    return replace(plan, url=plan.url if url else None, **changed)


@contextlib.contextmanager
def capture(plan: Plan, **how) -> Iterator[CaptureRun]:
    """A capture under way; ended in any case."""
    run = CaptureRun(plan, **how)
    try:
        yield run
    finally:
        run.close()


def last_of(run: CaptureRun) -> Progress:
    """How it ended."""
    for _ in run.follow():
        pass
    assert run.ended is not None
    return run.ended


def reach_stage(run: CaptureRun, stage: str) -> Progress:
    """Follows it until it tells of a stage."""
    for told in run.follow():
        if told.stage == stage:
            return told
        assert told.stage != "ended", told
    raise AssertionError(stage)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def processes_of(folder: Path) -> list[int]:
    """PIDs of the workers and watchdogs of this test, by the environment that they have from it."""
    proc = ProcFs()
    found = []
    for pid in proc.pids():
        with contextlib.suppress(OSError):
            ours = proc.environ(pid).get("GPUTOP_TEST_SOCKETS") == str(folder.parent)
            if ours and "capture" in " ".join(proc.argv(pid)[:3]) and str(SERVING) not in proc.argv(pid):
                found.append(pid)
    return found


def use_patched_worker(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_module, "WORKER", "tests.capture.patched_worker")
    monkeypatch.setenv("GPUTOP_TEST_SOCKETS", str(tmp_path))
    monkeypatch.setenv("GPUTOP_TEST_LOCK", f"gputop-llm/test{tmp_path}")
