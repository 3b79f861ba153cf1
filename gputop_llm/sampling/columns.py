"""Which numbers of a frame become series of the history, and what they are called.

`gpu.<index>.<field>`, `engine.<target key>.<field>`, `host.<field>`,
`target.<target key>.<field>`; fields are named as in the model, latency quantiles
`<name>_<p50|p95|p99|mean>_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from gputop_llm.model import EngineFrame, EngineLive, Frame, Latency, Part, ProcessLoad, Quantile
from gputop_llm.model.engine import FAILED_REASONS

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
HOST_FIELDS = ("cpu_pct", "iowait_pct", "steal_pct", "load_1m", "mem_available_bytes", "swap_in_bytes_per_s")
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
        if frame.focus is not None:
            yield from _processes(f"target.{frame.focus}.", host.processes)
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


def _processes(prefix: str, processes: Sequence[ProcessLoad]) -> Iterator[tuple[str, float | None]]:
    cores = [process.main_thread_pct for process in processes if process.role == "engine-core"]
    if cores:
        # Of several data-parallel ranks the busiest: it is the one that may be short of its core.
        yield prefix + "engine_core_pct", _most(cores)
    throttled = _most(process.cgroup.throttled_pct if process.cgroup else None for process in processes)
    # Without a quota, or a kernel that tells of it, there is nothing to keep.
    for name, most in (
        ("throttled_pct", throttled),
        ("run_wait_pct", _most(process.run_wait_pct for process in processes)),
    ):
        if most is not None:
            yield prefix + name, most


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _engine(engine: EngineFrame) -> Iterator[tuple[str, float | None]]:
    prefix = f"engine.{engine.target_key}."
    yield prefix + "scrape_age_s", engine.scrape.age_s
    yield prefix + "scrape_took_s", engine.scrape.took_s
    if engine.window is None or engine.scrape.error is not None:
        return
    total = engine.window.total
    if total.spec is not None:
        yield prefix + "spec_acceptance_pct", total.spec.acceptance_pct
    answers = engine.window.http_per_s
    failed_per_s = sum(total.finished_per_s.get(reason, 0.0) for reason in FAILED_REASONS)
    counted_per_s = None if "failures" in total.missing else total.requests_per_s
    for name, share in (
        ("failed_pct", _share_pct(failed_per_s, counted_per_s)),
        ("http_5xx_pct", _share_pct(answers.get("5xx", 0.0), sum(answers.values()))),
    ):
        if share is not None:
            yield prefix + name, share
    for name in ("running", "waiting"):
        if (apart := _apart(engine.window.ranks, name)) is not None:
            yield f"{prefix}{name}_apart", apart
    for name in ENGINE_FIELDS:
        yield prefix + name, getattr(total, name)
    for name, latency in total.latency.items():
        yield f"{prefix}{name}_mean_s", latency.mean_s
        for quantile in QUANTILES:
            yield f"{prefix}{name}_{quantile}_s", representative(latency, quantile)


def _share_pct(part: float, whole: float | None) -> float | None:
    return 100.0 * part / whole if whole else None


def _apart(ranks: Sequence[EngineLive], name: str) -> float | None:
    """What the rank with most of it has more than the one with least; None without ranks to compare."""
    known: dict[str, float] = {}
    for live in ranks:
        value: float | None = getattr(live, name)
        if live.rank is not None and value is not None:
            known[live.rank] = known.get(live.rank, 0.0) + value
    return max(known.values()) - min(known.values()) if len(known) > 1 else None


def representative(latency: Latency, quantile: str) -> float | None:
    """One number to draw for a quantile: the interpolation, else the bucket's upper bound, else its lower one."""
    found: Quantile | None = getattr(latency, quantile)
    if found is None:
        return None
    if found.value is not None:
        return found.value
    return found.high if found.high is not None else found.low
