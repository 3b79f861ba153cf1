"""Frames that move: a base frame whose load goes up and down with time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sin

from gputop_llm.model import EngineFrame, EngineLive, EngineWindow, Frame, GpuNode, Host, Latency
from tests.support.frame_parts import exactly


def moving(base: Frame, seconds: int, start: int = 0) -> Iterator[Frame]:
    """`seconds` frames, one a second, whose load goes up and down; the last one ends at `base`'s time."""
    for at in range(start, seconds):
        swing = 1.0 + 0.45 * sin(at / 9.0) + 0.15 * sin(at / 2.3)
        back = seconds - 1 - at
        yield replace(
            base,
            seq=base.seq + at,
            at_s=base.at_s - back,
            mono_s=base.mono_s - back,
            gpus=replace(base.gpus, value=_scaled_node(base.gpus.value, swing)),
            engines=tuple(_scaled_engine(e, swing) for e in base.engines),
            host=replace(base.host, value=_scaled_host(base.host.value, swing)),
        )


def answering(frame: Frame) -> Frame:
    """The frame as it was while all its sources still answered."""
    engines = tuple(replace(one, scrape=replace(one.scrape, error=None)) for one in frame.engines)
    return replace(frame, gpus=replace(frame.gpus, error=None), host=replace(frame.host, error=None), engines=engines)


def _times(value, factor: float, top: float | None = None):
    if value is None:
        return None
    return value * factor if top is None else min(top, value * factor)


def _scaled_node(nodes: GpuNode | None, swing: float) -> GpuNode | None:
    if nodes is None:
        return None
    gpus = []
    for gpu in nodes.gpus:
        by = swing + 0.05 * gpu.index
        gpm = gpu.gpm
        if gpm is not None:
            scaled = {
                name: _times(getattr(gpm, name), by, 100.0)
                for name in ("sm_active_pct", "tensor_pct", "dram_bw_pct", "sm_occupancy_pct")
            }
            gpm = replace(gpm, **scaled)
        gpus.append(
            replace(
                gpu,
                util_pct=_times(gpu.util_pct, by, 100.0),
                power_w=_times(gpu.power_w, 0.6 + 0.4 * by),
                pcie_rx_bytes_per_s=_times(gpu.pcie_rx_bytes_per_s, by),
                pcie_tx_bytes_per_s=_times(gpu.pcie_tx_bytes_per_s, by),
                gpm=gpm,
            )
        )
    return replace(nodes, gpus=tuple(gpus))


def _scaled_engine(one: EngineFrame, swing: float) -> EngineFrame:
    if one.window is None:
        return one

    def scaled(it: EngineLive) -> EngineLive:
        names = (
            "requests_per_s",
            "prompt_computed_tokens_per_s",
            "prompt_cached_tokens_per_s",
            "generation_tokens_per_s",
            "steps_per_s",
            "kv_usage_pct",
        )
        changes = {name: _times(getattr(it, name), swing) for name in names}
        ttft = it.latency.get("ttft")
        latency = dict(it.latency)
        if ttft is not None:
            mean = _times(ttft.mean_s, swing)
            latency["ttft"] = Latency(
                round(ttft.count * swing),
                mean,
                *(exactly(q.value * swing) for q in (ttft.p50, ttft.p95, ttft.p99) if q and q.value),
            )
        running = None if it.running is None else float(round(it.running * swing))
        return replace(it, **changes, running=running, latency=latency)

    window = one.window
    return replace(
        one,
        window=EngineWindow(
            scaled(window.total), tuple(scaled(m) for m in window.models), tuple(scaled(r) for r in window.ranks)
        ),
    )


def _scaled_host(value: Host | None, swing: float) -> Host | None:
    if value is None:
        return None
    processes = tuple(
        replace(p, main_thread_pct=_times(p.main_thread_pct, swing, 100.0), cpu_pct=_times(p.cpu_pct, swing))
        for p in value.processes
    )
    return replace(
        value, cpu_pct=_times(value.cpu_pct, swing), load_1m=_times(value.load_1m, swing), processes=processes
    )
