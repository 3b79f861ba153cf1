"""Sources that do as a test tells them, and small readings for them to give.

They stand where a driver, /proc or a server would, so that the session's threads
can be met with every behaviour of a source: answering, failing, hanging, slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from gputop_llm.model import (
    EngineReading,
    EngineSeries,
    Gpm,
    Gpu,
    GpuNode,
    GpuProcess,
    Histogram,
    Host,
    ProcessLoad,
    Target,
    TargetList,
    TargetProcess,
)
from gputop_llm.session import Sources

INF = float("inf")


def until(check: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Waits until `check()` is true and returns it; fails after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while True:
        result = check()
        if result:
            return result
        assert time.monotonic() < end, f"not within {timeout_s} s: {check}"
        time.sleep(0.005)


class FakeSource:
    """A source whose next polls are set from the test, at any time.

    Args:
        answer: what a poll gives: a value, an exception to raise, or a function of no arguments.
        obeys_abort: whether `abort` ends a hanging poll, as closing a socket does; a hung driver doesn't.
    """

    def __init__(self, name: str, answer: Any, deadline_s: float = 5.0, obeys_abort: bool = True) -> None:
        self.name = name
        self.deadline_s = deadline_s
        self.answer = answer
        self.obeys_abort = obeys_abort
        self.hanging = False
        self.slow_s = 0.0
        self.polls = 0
        self.aborts = 0
        self.closes = 0
        self.poll_times: list[float] = []
        self._released = threading.Event()

    def poll(self) -> Any:
        self.polls += 1
        self.poll_times.append(time.monotonic())
        if self.hanging:
            self._released.wait(60.0)
            self._released.clear()
        if self.slow_s:
            time.sleep(self.slow_s)
        answer = self.answer() if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def abort(self) -> None:
        self.aborts += 1
        if self.obeys_abort:
            self._released.set()

    def close(self) -> None:
        self.closes += 1

    def release(self) -> None:
        """Ends the hanging poll, and hangs no more."""
        self.hanging = False
        self._released.set()


class FakeNode:
    """Four kinds of fake source with a quiet node behind them; `sources` is what a session takes."""

    def __init__(self, targets: tuple[Target, ...] = (), simulated: str | None = None) -> None:
        self.gpus = FakeSource("GPUs", GpuNode(gpus=(a_gpu(0), a_gpu(1)), driver="580.95.05"))
        self.discovery = FakeSource("processes", TargetList(targets=targets))
        self.host = FakeSource("host", self._host_reading)
        self.engines: dict[str, FakeSource] = {}
        self.engine_answer: Any = an_engine_reading
        self.simulated = simulated
        self._watch: Callable[[], tuple[TargetProcess, ...]] = tuple

    def set_targets(self, *targets: Target) -> None:
        self.discovery.answer = TargetList(targets=targets)

    @property
    def sources(self) -> Sources:
        return Sources(
            gpus=lambda: self.gpus,
            discovery=lambda _gpus: self.discovery,
            host=self._make_host,
            metrics=self._make_engine,
            simulated=self.simulated,
        )

    def _make_host(self, watch: Callable[[], tuple[TargetProcess, ...]]) -> FakeSource:
        self._watch = watch
        return self.host

    def _host_reading(self) -> Host:
        loads = tuple(ProcessLoad(pid=p.pid or 0, role=p.role, cpu_pct=12.5) for p in self._watch())
        return Host(cores=16, cpu_pct=10.0, load_1m=1.5, processes=loads)

    def _make_engine(self, url: str) -> FakeSource:
        source = FakeSource(url, self.engine_answer)
        self.engines[url] = source
        return source


def a_gpu(index: int, **fields: Any) -> Gpu:
    """A busy H200."""
    given: dict[str, Any] = {
        "uuid": f"GPU-{index:08d}",
        "name": "NVIDIA H200",
        "util_pct": 98.0,
        "mem_used_bytes": 120 << 30,
        "mem_total_bytes": 141 << 30,
        "power_w": 480.0,
        "power_limit_w": 700.0,
        "temp_c": 61.0,
        "sm_clock_mhz": 1980.0,
        "gpm": Gpm(interval_s=1.0, sm_active_pct=45.0, tensor_pct=12.0, dram_bw_pct=33.0),
        "processes": (GpuProcess(pid=4712, kind="compute", mem_bytes=120 << 30, sm_util_pct=90.0, gpu_instance=None),),
    }
    return Gpu(index=index, **{**given, **fields})


def a_target(root_pid: int = 4711, port: int | None = 8000, **fields: Any) -> Target:
    """A vLLM with an API server and an engine core on GPU 0."""
    given: dict[str, Any] = {
        "key": f"{root_pid}@1000",
        "engine": "vllm",
        "root_pid": root_pid,
        "argv": ("vllm", "serve", "org/model-a", "--port", str(port)),
        "model": "org/model-a",
        "version": "0.32.0",
        "urls": () if port is None else (f"http://127.0.0.1:{port}",),
        "urls_from": None if port is None else "argv",
        "processes": (
            TargetProcess(pid=root_pid, ppid=1, role="api-server", title="vllm serve"),
            TargetProcess(
                pid=root_pid + 1,
                ppid=root_pid,
                role="engine-core",
                title="VLLM::EngineCore",
                gpus=(0,),
                gpus_from="nvml",
                mem_bytes=120 << 30,
            ),
        ),
        "user": "vllm",
        "started_s": 1000.0,
    }
    return Target(**{**given, **fields})


def a_histogram(scale: float, n: int = 20) -> Histogram:
    """A histogram with `n` buckets, as large as those of a real engine."""
    bounds = (*(scale * 1.5**i for i in range(n - 1)), INF)
    return Histogram(bounds=bounds, counts=tuple(float(10 * i) for i in range(n)), total=123.0 * scale)


def an_engine_reading(model: str = "org/model-a", scale: float = 1.0) -> EngineReading:
    """A scrape of a working engine with as many numbers as vLLM 0.32 gives; no object is shared with another."""
    names = ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e")
    counted = """prompt_tokens prompt_tokens_computed prompt_tokens_cached generation_tokens preemptions
        prefix_queries prefix_hits steps scheduled_tokens finished:stop finished:length"""
    counters = {name: 1000.0 * scale + i for i, name in enumerate(counted.split())}
    return EngineReading(
        engine="vllm",
        version="0.32.0",
        series=(
            EngineSeries(
                model=model,
                rank="0",
                running=35.0,
                waiting=3.0,
                kv_usage_pct=63.0,
                counters=counters,
                histograms={name: a_histogram(0.001 * scale * (i + 1)) for i, name in enumerate(names)},
            ),
        ),
    )
