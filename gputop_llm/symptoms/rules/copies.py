"""copy-bound: the PCIe link is busy with copies while tokens are being generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gputop_llm.model.pcie import link_bytes_per_s, link_name
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.argv import has_flag
from gputop_llm.symptoms.checks import Check, State, all_in_turn, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import engine_number, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import unplaced
from gputop_llm.symptoms.threads import computing, hottest
from gputop_llm.symptoms.view import EngineView, GpuView, NodeView
from gputop_llm.units import pct, rate

_OFFLOAD = (
    "--cpu-offload-gb",
    "--kv-offloading-size",
    "--kv-transfer-config",
    "--enable-hierarchical-cache",
    "--swap-space",
)
_WAYS = (("rx", "host to GPU"), ("tx", "GPU to host"))


def copy_bound(view: NodeView, limits: Limits) -> Iterator[Check]:
    """PCIe traffic over a share of the link while the engine decodes."""
    rule = "copy-bound"
    yield from unplaced(view, rule)
    for index, engines in view.users.items():
        gpu = view.gpus[index]
        if gpu.now.mig_enabled:
            yield Check(rule, gpu.subject, State.UNKNOWN, "MIG: PCIe traffic is that of all instances together")
            continue
        share = _share_pct(gpu)
        state = all_in_turn(partial(over, share, limits, f"{rule}.link_pct"), partial(_decoding, engines, limits))
        needs = _needs(gpu) if share is None else "the engine's rate of generated tokens"
        make = partial(_symptom, gpu, engines[0], limits)
        yield judged(rule, gpu.subject, state, needs, make)


def _decoding(engines: Sequence[EngineView], limits: Limits) -> State:
    rates = [value for engine in engines if (value := engine.mean("generation_tokens_per_s")) is not None]
    return over(sum(rates) if rates else None, limits, "copy-bound.generation_tokens_per_s")


def _capacity(gpu: GpuView) -> float | None:
    return link_bytes_per_s(gpu.now.pcie_gen, gpu.now.pcie_width)


def _share_pct(gpu: GpuView) -> float | None:
    """The busier direction in percent of the link's capacity."""
    capacity = _capacity(gpu)
    rates = [value for way, _ in _WAYS if (value := gpu.mean(f"pcie_{way}_bytes_per_s")) is not None]
    return 100.0 * max(rates) / capacity if capacity and rates else None


def _needs(gpu: GpuView) -> str:
    if _capacity(gpu) is None:
        name = "pcie_gen" if gpu.now.pcie_gen is None else "pcie_width"
        return f"the PCIe link's generation and width ({gpu.missing(name)})"
    return f"PCIe traffic ({gpu.missing('pcie_rx_bytes_per_s')})"


def _symptom(gpu: GpuView, engine: EngineView, limits: Limits) -> Symptom:
    capacity, link = _capacity(gpu), link_name(gpu.now.pcie_gen, gpu.now.pcie_width)
    rates = {way: gpu.mean(f"pcie_{way}_bytes_per_s") for way, _ in _WAYS}
    busier = max(rates, key=lambda way: rates[way] or 0.0)
    threshold = capacity * limits.value("copy-bound.link_pct") / 100.0 if capacity else None
    live = engine.live
    return Symptom(
        id="copy-bound",
        subject=gpu.subject,
        severity=Severity.WARNING,
        headline=f"{gpu.subject.label} copies {rate(rates[busier])} {dict(_WAYS)[busier]} while decoding: "
        f"{pct(_share_pct(gpu))} of {link}",
        evidence=(
            *(
                Evidence(
                    f"{gpu.subject.label} PCIe {label}",
                    rates[way],
                    "B/s",
                    f"NVML, {link} carries {rate(capacity)}",
                    10.0,
                    threshold=threshold,
                    threshold_origin=limits.origin("copy-bound.link_pct"),
                    missing=gpu.missing(f"pcie_{way}_bytes_per_s") if rates[way] is None else None,
                )
                for way, label in _WAYS
            ),
            *([engine_number(engine, live, "generation_tokens_per_s", "generated", "tok/s")] if live else []),
        ),
        causes=_causes(gpu, engine, busier, limits),
        advice=(
            Advice(
                "keep weights and KV cache on the GPU",
                {
                    "vllm": "no --cpu-offload-gb, no --kv-offloading-size",
                    "sglang": "no --cpu-offload-gb, no --enable-hierarchical-cache",
                    "trtllm": "kv_cache_config.host_cache_size: 0",
                },
            ),
            Advice(
                "keep the LoRA adapters in use on the GPU",
                {"vllm": "--max-loras (up)", "sglang": "--max-loras-per-batch (up)", "trtllm": "lora_config.max_loras"},
            ),
        ),
        refuted_by="a memcpy table in which copies take little time, or all overlap with kernels",
        next_capture="kineto",
        agreeing=1 + bool(has_flag(engine, *_OFFLOAD)),
        signals=2,
        chart=f"gpu.{gpu.index}.pcie_{busier}_bytes_per_s",
        chart_threshold=threshold,
    )


def _causes(gpu: GpuView, engine: EngineView, busier: str, limits: Limits) -> tuple[Cause, ...]:
    hot = hottest(computing(engine))
    busy = hot is not None and hot.cpu_pct >= limits.value("host-bound.thread_pct")
    offload = has_flag(engine, *_OFFLOAD)
    reading = engine.frame.scrape.value
    lora = reading.lora if reading else None
    # Where all of them stand in both lists, it isn't told which wait.
    waiting = len(lora.waiting) if lora and lora.waiting != lora.running else 0
    no_lora = reading is not None and lora is None and "lora" in reading.missing
    no_nvlink = gpu.get("nvlink_tx_bytes_per_s") is None
    return ranked(
        Cause(
            "copies from pageable memory, which the driver makes through a buffer of its own",
            when(busy and hot is not None, f"{hot.label} takes {pct(hot.cpu_pct)} of a core" if hot else ""),
        ),
        Cause(
            "KV cache or weights that are offloaded to the host",
            when(offload, "started with a flag that offloads"),
            when(offload is False, "no flag that offloads"),
        ),
        Cause(
            "LoRA adapters that are swapped in and out",
            when(waiting > 0, f"{waiting} adapters wait, {lora.max_adapters} fit" if lora else ""),
            when(no_lora, reading.missing["lora"] if reading and no_lora else ""),
        ),
        Cause(
            "results read back for each token (logits, sampling on the host)",
            when(busier == "tx", "most bytes go from the GPU to the host"),
            when(busier == "rx", "most bytes go to the GPU"),
        ),
        Cause(
            "tensor parallelism over PCIe",
            when(len(engine.gpus) > 1 and no_nvlink, f"{len(engine.gpus)} GPUs, and no NVLink traffic is known"),
            when(len(engine.gpus) == 1, "the engine uses one GPU"),
        ),
    )


RULES = (Rule("copy-bound", "copies over PCIe", copy_bound),)
