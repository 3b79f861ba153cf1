"""Which numbers of a frame become series of the history, and what they are called.

`gpu.<index>.<field>`, `engine.<target key>.<field>`, `host.<field>`,
`target.<target key>.<field>`; fields are named as in the model, latency quantiles
`<name>_<p50|p95|p99|mean>_s`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from gputop_llm.model import EngineFrame, Frame, Latency, Part, Quantile

T = TypeVar("T")

GPU_FIELDS = (
    "util_pct",
    "mem_util_pct",
    "mem_used_pct",
    "power_w",
    "power_pct",
    "temp_c",
    "sm_clock_mhz",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
)
GPM_FIELDS = ("sm_active_pct", "sm_occupancy_pct", "tensor_pct", "dram_bw_pct")
ENGINE_FIELDS = (
    "running",
    "waiting",
    "kv_usage_pct",
    "requests_per_s",
    "prompt_tokens_per_s",
    "prompt_computed_tokens_per_s",
    "prompt_cached_tokens_per_s",
    "generation_tokens_per_s",
    "steps_per_s",
    "tokens_per_step",
    "preemptions_per_s",
    "prefix_hit_pct",
)
HOST_FIELDS = ("cpu_pct", "iowait_pct", "load_1m", "mem_available_bytes", "swap_in_bytes_per_s")
QUANTILES = ("p50", "p95", "p99")


def columns(frame: Frame) -> Iterator[tuple[str, float | None]]:
    """Yields (series name, value) for everything in the frame that is worth an hour of history.

    Nothing of a source whose newest poll failed or is overdue: the frame has its last good values, which aren't of now.
    GPUs come last: on a node of so many that the history can't keep all series, no engine goes without.
    """
    for engine in frame.engines:
        yield from _engine(engine)
    host = _of_now(frame.host)
    if host is not None:
        for name in HOST_FIELDS:
            yield "host." + name, getattr(host, name)
        cores = [process.main_thread_pct for process in host.processes if process.role == "engine-core"]
        if cores and frame.focus is not None:
            # Of several data-parallel ranks the busiest: it is the one that may be short of its core.
            busiest = max((share for share in cores if share is not None), default=None)
            yield f"target.{frame.focus}.engine_core_pct", busiest
    node = _of_now(frame.gpus)
    for gpu in node.gpus if node else ():
        prefix = f"gpu.{gpu.index}."
        for name in GPU_FIELDS:
            yield prefix + name, getattr(gpu, name)
        if gpu.gpm is not None:
            for name in GPM_FIELDS:
                yield prefix + name, getattr(gpu.gpm, name)


def _of_now(part: Part[T]) -> T | None:
    return part.value if part.error is None else None


def _engine(engine: EngineFrame) -> Iterator[tuple[str, float | None]]:
    if engine.window is None or engine.scrape.error is not None:
        return
    prefix = f"engine.{engine.target_key}."
    total = engine.window.total
    for name in ENGINE_FIELDS:
        yield prefix + name, getattr(total, name)
    for name, latency in total.latency.items():
        yield f"{prefix}{name}_mean_s", latency.mean_s
        for quantile in QUANTILES:
            yield f"{prefix}{name}_{quantile}_s", representative(latency, quantile)


def representative(latency: Latency, quantile: str) -> float | None:
    """One number to draw for a quantile: the interpolation, else the bucket's upper bound, else its lower one."""
    found: Quantile | None = getattr(latency, quantile)
    if found is None:
        return None
    if found.value is not None:
        return found.value
    return found.high if found.high is not None else found.low
