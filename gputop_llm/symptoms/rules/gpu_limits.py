"""bandwidth-bound and compute-bound: which of the chip's two limits the work has come to. Both are notes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gputop_llm import gpus
from gputop_llm.model.limits import LimitEstimate
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.advice import LARGER_BATCHES, SMALLER_CHUNKS, SMALLER_KV, SMALLER_WEIGHTS
from gputop_llm.symptoms.checks import Check, all_of, at_least, judged, under
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import gpu_number, limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import unplaced
from gputop_llm.symptoms.view import EngineView, GpuView, NodeView
from gputop_llm.units import number, pct

_MIG = "MIG: the GPM counters of the parent GPU aren't the instance's"


def bandwidth_bound(view: NodeView, limits: Limits) -> Iterator[Check]:
    """DRAM near its peak while the tensor pipe is not."""
    rule = "bandwidth-bound"
    yield from unplaced(view, rule)
    for index, engines in view.users.items():
        gpu = view.gpus[index]
        state = all_of(
            at_least(gpu.mean("gpm.dram_bw_pct"), limits, f"{rule}.dram_bw_pct"),
            under(gpu.mean("gpm.tensor_pct"), limits, f"{rule}.tensor_pct"),
        )
        make = partial(_bandwidth_symptom, gpu, engines[0], limits)
        yield judged(rule, gpu.subject, state, partial(_needs, gpu, "gpm.dram_bw_pct"), make)


def compute_bound(view: NodeView, limits: Limits) -> Iterator[Check]:
    """The tensor pipe near its peak."""
    rule = "compute-bound"
    yield from unplaced(view, rule)
    for index, engines in view.users.items():
        gpu = view.gpus[index]
        state = at_least(gpu.mean("gpm.tensor_pct"), limits, f"{rule}.tensor_pct")
        make = partial(_compute_symptom, gpu, engines[0], limits)
        yield judged(rule, gpu.subject, state, partial(_needs, gpu, "gpm.tensor_pct"), make)


def _needs(gpu: GpuView, name: str) -> str:
    return _MIG if gpu.now.mig_enabled else f"GPM counters ({gpu.missing(name)})"


def _bandwidth_symptom(gpu: GpuView, engine: EngineView, limits: Limits) -> Symptom:
    rule = "bandwidth-bound"
    dram, tensor = gpu.mean("gpm.dram_bw_pct"), gpu.mean("gpm.tensor_pct")
    prefill, decode = engine.mean("prompt_computed_tokens_per_s"), engine.mean("generation_tokens_per_s")
    running = engine.mean("running")
    return Symptom(
        id=rule,
        subject=gpu.subject,
        severity=Severity.NOTE,
        headline=f"{gpu.subject.label} is bandwidth-bound, normal for decode: DRAM {pct(dram)}, tensor {pct(tensor)}",
        evidence=(
            gpu_number(gpu, "gpm.dram_bw_pct", "DRAM bandwidth", "%", "GPM", **limit(limits, f"{rule}.dram_bw_pct")),
            gpu_number(gpu, "gpm.tensor_pct", "tensor pipe", "%", "GPM", **limit(limits, f"{rule}.tensor_pct")),
            _achieved_bandwidth(gpu, dram),
            _estimate(engine, "mbu", "MBU"),
        ),
        causes=ranked(
            Cause(
                "decode reads all weights and the KV cache for each token: normal",
                when(bool(decode), f"{number(decode)} tokens/s generated, {number(running)} sequences a step"),
                when(
                    bool(prefill and decode and prefill > decode),
                    f"{number(prefill)} prompt tokens/s computed: prefill",
                ),
            ),
        ),
        advice=(SMALLER_WEIGHTS, SMALLER_KV, LARGER_BATCHES),
        refuted_by="the top kernel's DRAM throughput in ncu well under its compute throughput",
        next_capture="ncu",
        agreeing=2,
        signals=2,
        chart=f"gpu.{gpu.index}.dram_bw_pct",
        chart_threshold=limits.value(f"{rule}.dram_bw_pct"),
    )


def _achieved_bandwidth(gpu: GpuView, dram_pct: float | None) -> Evidence:
    """DRAM traffic in bytes: the share that GPM tells of the peak that the GPU table (else NVML) names."""
    spec = gpus.find(gpu.now.name, gpu.now.mem_total_bytes)
    nominal = gpus.nominal_from_nvml(gpu.now.mem_clock_max_mhz, gpu.now.mem_bus_width_bits)
    peak = spec.mem_bytes_per_s if spec else None
    source = "GPM × the GPU table's bandwidth"
    if peak is None and nominal is not None:
        peak, source = nominal.bytes_per_s, f"GPM × {nominal.source}"
    name = f"{gpu.subject.label} DRAM traffic"
    if peak is None or dram_pct is None:
        return Evidence(name, None, "B/s", source, 10.0, missing="the GPU's peak bandwidth isn't known")
    return Evidence(name, peak * dram_pct / 100.0, "B/s", source, 10.0)


def _estimate(engine: EngineView, which: str, name: str) -> Evidence:
    """The engine's MBU or MFU, as far as its model is known."""
    found: LimitEstimate | None = getattr(engine.frame.limits, which) if engine.frame.limits else None
    if found is None:
        return Evidence(name, None, "%", "estimate", missing="the engine's model hasn't been looked at")
    text = f"at least {pct(found.value_pct)}" if found.at_least and found.value_pct is not None else None
    window_s = engine.live.window_s if engine.live else None
    return Evidence(name, found.value_pct, "%", found.formula, window_s, text, missing=found.unknown)


def _compute_symptom(gpu: GpuView, engine: EngineView, limits: Limits) -> Symptom:
    rule = "compute-bound"
    tensor, dram = gpu.mean("gpm.tensor_pct"), gpu.mean("gpm.dram_bw_pct")
    prefill, decode = engine.mean("prompt_computed_tokens_per_s"), engine.mean("generation_tokens_per_s")
    cached = engine.live.prefix_hit_pct if engine.live else None
    return Symptom(
        id=rule,
        subject=gpu.subject,
        severity=Severity.NOTE,
        headline=f"{gpu.subject.label} is compute-bound, normal for prefill: tensor pipe {pct(tensor)}",
        evidence=(
            gpu_number(gpu, "gpm.tensor_pct", "tensor pipe", "%", "GPM", **limit(limits, f"{rule}.tensor_pct")),
            gpu_number(gpu, "gpm.sm_active_pct", "SM active", "%", "GPM"),
            gpu_number(gpu, "gpm.dram_bw_pct", "DRAM bandwidth", "%", "GPM"),
            _estimate(engine, "mfu", "MFU"),
        ),
        causes=ranked(
            Cause(
                "prompts are being computed: normal",
                when(bool(prefill), f"{number(prefill)} prompt tokens/s computed, prefix-cache hits {pct(cached)}"),
                when(prefill == 0, "no prompt tokens are computed"),
            ),
            Cause(
                "the batch is large enough to make decode compute-bound too",
                when(bool(decode and prefill is not None and decode > prefill), f"{number(decode)} tokens/s generated"),
                when(bool(prefill and decode is not None and decode <= prefill), "more prompt than output tokens"),
            ),
        ),
        advice=(
            SMALLER_WEIGHTS,
            Advice(
                "compute no prompt twice: share prefixes",
                {
                    "vllm": "--enable-prefix-caching",
                    "sglang": "no --disable-radix-cache",
                    "trtllm": "kv_cache_config.enable_block_reuse: true",
                },
            ),
            SMALLER_CHUNKS,
        ),
        refuted_by="the top kernel's compute throughput in ncu well under its DRAM throughput",
        next_capture="ncu",
        agreeing=1 + (dram is not None and dram < limits.clear("bandwidth-bound.dram_bw_pct")) + bool(prefill),
        signals=1 + (dram is not None) + (prefill is not None),
        chart=f"gpu.{gpu.index}.tensor_pct",
        chart_threshold=limits.value(f"{rule}.tensor_pct"),
    )


RULES = (
    Rule("bandwidth-bound", "memory bandwidth is the limit", bandwidth_bound),
    Rule("compute-bound", "the tensor cores are the limit", compute_bound),
)
