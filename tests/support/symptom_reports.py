"""Reports of symptoms, where it doesn't matter which rule made them."""

from __future__ import annotations

from typing import Any

from gputop_llm.model.symptom import (
    Advice,
    CantTell,
    Cause,
    Evidence,
    Held,
    Severity,
    Subject,
    Symptom,
    SymptomReport,
)

ENGINE = Subject("engine:600@1795967802", "vllm org/model-a")


def a_symptom(rule: str = "kv-pressure", severity: Severity = Severity.WARNING, **fields: Any) -> Symptom:
    """A symptom with one of each kind of thing in it."""
    given = {
        "subject": ENGINE,
        "headline": f"{rule}: 99 % full, 7 waiting",
        "evidence": (
            Evidence("KV cache usage", 99.0, "%", "vllm /metrics", 10.0, threshold=95.0, threshold_origin="default"),
            Evidence("pool", None, "", "cache_config_info", text="2000 blocks of 16 tokens"),
            Evidence("power", None, "W", "NVML", missing="not supported"),
        ),
        "causes": (Cause("the pool is too small", ("requests wait",), ("few tokens are cached",)),),
        "advice": (Advice("give it more memory", {"vllm": "--gpu-memory-utilization"}),),
        "refuted_by": "usage under 90 % for 10 s",
        "next_capture": "nsys",
        "agreeing": 2,
        "signals": 3,
        "chart": "engine.600@1795967802.kv_usage_pct",
        "chart_threshold": 95.0,
        "since_s": 1_795_968_500.0,
    }
    return Symptom(rule, severity=severity, **{**given, **fields})


def a_report(*active: Symptom, **fields: Any) -> SymptomReport:
    """A report with these symptoms raised."""
    return SymptomReport(**{"active": active, "judged": 9, **fields})


def a_full_report(*active: Symptom) -> SymptomReport:
    """A report with something in each of its lists."""
    return a_report(
        *active,
        held_back=(a_symptom("tpot-high", held_back="the engine is warming up"),),
        pending=(a_symptom("host-bound"),),
        cant_tell=(
            CantTell("comm-bound", Subject("gpu:0", "GPU 0"), "GPM counters"),
            CantTell("comm-bound", Subject("gpu:1", "GPU 1"), "GPM counters"),
            CantTell("bandwidth-bound", Subject("gpu:1", "GPU 1"), "GPM counters"),
            CantTell("stalled", ENGINE, "a live counter"),
        ),
        overridden=("kv-pressure.kv_pct = 98 (my.toml)",),
        log=(
            Held("kv-pressure", ENGINE, Severity.CRITICAL, "full", 1.0, 2.0),
            Held("x", ENGINE, Severity.NOTE, "", 1.0),
        ),
    )
