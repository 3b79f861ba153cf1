"""Frames with symptoms as the rules word them, one builder per situation that the screens must show well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gputop_llm.model import EngineWindow, Frame
from gputop_llm.model.limits import EngineLimits, LimitEstimate, LimitInput
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
from tests.support import frames
from tests.support.frame_parts import AT_S, KEY

ENGINE = Subject(f"engine:{KEY}", "vllm /models/llama-1b")
NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
PAGE = "vllm /metrics"


def gpu(index: int) -> Subject:
    return Subject(f"gpu:{index}", f"GPU {index}")


def symptom(rule: str, subject: Subject, severity: Severity, headline: str, since_s: float, **fields: Any) -> Symptom:
    """A symptom that has held for `since_s` seconds."""
    given = {
        "evidence": (Evidence("waiting", 41.0, "", PAGE, 10.0),),
        "causes": (Cause("overload: more requests arrive than this engine can serve"),),
        "advice": (Advice("serve fewer requests with this engine"),),
        "refuted_by": "it is gone within the next 20 s although as many requests arrive",
        "since_s": AT_S - since_s,
        "agreeing": 2,
        "signals": 3,
        "trend": "rising",
    }
    return Symptom(rule, subject, severity, headline, **{**given, **fields})


def kv_pressure(**fields: Any) -> Symptom:
    given = {
        "evidence": (
            Evidence("KV cache usage", 97.44, "%", PAGE, 10.02, threshold=95.0, threshold_origin="default"),
            Evidence("preemptions", 1.2, "/s", PAGE, 10.02, threshold=0.0, threshold_origin="config file"),
            Evidence("waiting", 41.0, "", PAGE, 10.02),
            Evidence("KV pool", None, "", f"{PAGE}, cache_config_info", text="8000 blocks of 16 tokens"),
            Evidence("P2P topology", None, "", "nvidia-smi topo -m", missing="not polled: nvidia-smi topo -m shows it"),
        ),
        "causes": (
            Cause("the KV pool is too small for this load", ("41 requests wait beside 32 that run",)),
            Cause("contexts are longer than the pool was planned for"),
            Cause("leaked requests: they never end", (), ("4.20 requests finish per second", "few run for long")),
        ),
        "advice": (
            Advice(
                "give the pool more memory",
                {"sglang": "--mem-fraction-static (up)", "vllm": "--gpu-memory-utilization (up)"},
            ),
            Advice("send less to this engine"),
            Advice("let the others do it", {"sglang": "--schedule-conservativeness (up)"}),
        ),
        "refuted_by": "KV usage under 90 % and no preemption under the same load",
        "agreeing": 3,
        "next_capture": "nsys",
        "chart": f"engine.{KEY}.kv_usage_pct",
        "chart_threshold": 80.0,
    }
    headline = "KV cache 97 % full, 1.20 preemptions/s, 41 waiting"
    return symptom("kv-pressure", ENGINE, CRITICAL, headline, 185, **{**given, **fields})


ROOT = kv_pressure()
TTFT = symptom(
    "ttft-high",
    ENGINE,
    CRITICAL,
    "TTFT p95 19.5 s (limit 1.00 s), 98 % of it queueing, 41 waiting",
    176,
    root=ROOT.key,
    chart=f"engine.{KEY}.ttft_p95_s",
    chart_threshold=0.08,
    evidence=(
        Evidence("TTFT p50", None, "s", f"{PAGE}, windowed histogram", 10.0, text="0.30 – 0.50 s"),
        Evidence("TTFT p95", 19.5, "s", PAGE, 10.0, threshold=0.5, threshold_origin="SLO --slo-ttft"),
    ),
)
QUEUE = symptom(
    "queue-growing",
    ENGINE,
    WARNING,
    "the queue grows by 2.53/s: 41 waiting; 5.71/s arrive, 4.20/s finish",
    178,
    root=ROOT.key,
    trend="steady",
)
CAPPED = symptom(
    "power-capped",
    gpu(0),
    WARNING,
    "GPU 0 is held at 1544 of 1980 MHz by its power limit (299 W, 100 % of the limit)",
    61,
    trend="falling",
    chart="gpu.0.power_w",
    chart_threshold=300.0,
)
BOUND = symptom(
    "bandwidth-bound",
    gpu(0),
    NOTE,
    "GPU 0 is bandwidth-bound, normal for decode: DRAM 81 %, tensor 10 %",
    2400,
    next_capture="ncu",
    trend=None,
    chart=None,
)


def held(one: Symptom, until_s: float | None = None, **fields: Any) -> Held:
    """The time of a symptom, over `until_s` seconds ago if that is given."""
    ended = None if until_s is None else AT_S - until_s
    begun = AT_S if one.since_s is None else one.since_s
    given = {"severity": one.severity, "since_s": begun, "until_s": ended, **fields}
    return Held(one.id, one.subject, headline=one.headline, **given)


OVER = symptom(
    "host-bound",
    ENGINE,
    WARNING,
    "engine-core 624, main thread: 96 % of a core, SM active 40 % on GPU 0",
    500,
)
CANT_TELL = (
    CantTell("spec-decode-weak", ENGINE, "drafts to judge by (speculative decoding is off)"),
    CantTell("comm-bound", gpu(0), "NVLink counters (not supported)"),
    CantTell("link-degraded", gpu(0), "NVLink counters (not supported)"),
)


def with_report(frame: Frame, *active: Symptom, **fields: Any) -> Frame:
    """The frame with these symptoms raised, and the log that belongs to them."""
    log = tuple(held(one) for one in active)
    return replace(frame, symptoms=SymptomReport(**{"active": active, "judged": 34, "log": log, **fields}))


def later(frame: Frame, seconds: float, *active: Symptom, **report: Any) -> Frame:
    """The frame some seconds later, with other symptoms raised."""
    moved = replace(frame, at_s=frame.at_s + seconds, mono_s=frame.mono_s + seconds, seq=frame.seq + 1)
    return with_report(moved, *active, **report)


def full_cache() -> Frame:
    """One H200 whose KV cache swings around 60 %."""
    base = frames.one_gpu_loaded()
    window = EngineWindow(replace(frames.live(), kv_usage_pct=60.0, waiting=41.0))
    return replace(base, engines=(frames.engine(window=window),))


def incident() -> Frame:
    """A root with two consequences, another warning, a note; one that is over; a threshold of one's own."""
    active = (ROOT, TTFT, QUEUE, CAPPED, BOUND)
    before = held(ROOT, 420, since_s=AT_S - 600, severity=WARNING)
    return with_report(
        full_cache(),
        *active,
        cant_tell=CANT_TELL,
        overridden=("kv-pressure.preemptions_per_s = 0 (config file)", "ttft-high.p95_s = 0.5 (SLO --slo-ttft)"),
        log=(before, held(OVER, 380), *(held(one) for one in active)),
    )


def one_root() -> Frame:
    """A root with its consequences and nothing else."""
    return with_report(full_cache(), ROOT, TTFT, QUEUE)


def notes_only() -> Frame:
    """Nothing is wrong; what the limit is is known."""
    return with_report(frames.one_gpu_loaded(), BOUND, cant_tell=CANT_TELL[:1])


def warming() -> Frame:
    """The engine is young: two conditions hold and are not raised, a third has held for a moment."""
    young = symptom(
        "warming-up", ENGINE, NOTE, "the engine is 45 s old: normal; other rules are held back", 45, trend=None
    )
    back = tuple(replace(one, root=None, held_back="the engine is warming up") for one in (TTFT, QUEUE))
    starved = symptom("gpu-starved", gpu(0), WARNING, "GPU 0 is busy only 46 % of the time with 10 running", 3)
    return with_report(frames.one_gpu_loaded(), young, held_back=back, pending=(starved,))


def healthy() -> Frame:
    """No symptom, one that is over, and a few rules that lack something."""
    return with_report(frames.one_gpu_loaded(), cant_tell=CANT_TELL, log=(held(OVER, 380),))


def blind() -> Frame:
    """Eight GPUs without GPM counters and an engine that doesn't answer: no rule can judge."""
    unknown = [
        CantTell(rule, gpu(index), "GPM counters (Hopper or newer)")
        for rule in ("gpu-busy-not-working", "bandwidth-bound", "compute-bound")
        for index in range(8)
    ]
    page = "the engine's metrics (cannot read http://127.0.0.1:8000/metrics: nothing listens there)"
    unknown += [CantTell(rule, ENGINE, page) for rule in ("ttft-high", "tpot-high", "kv-pressure", "stalled")]
    return with_report(frames.eight_gpus(), cant_tell=tuple(unknown), judged=0)


def eight_capped() -> Frame:
    """The same warning on eight GPUs, below a critical one of the engine."""
    capped = [
        replace(CAPPED, subject=gpu(index), headline=CAPPED.headline.replace("GPU 0", f"GPU {index}"))
        for index in range(8)
    ]
    return with_report(frames.eight_gpus(), ROOT, TTFT, *capped)


def hostile() -> Frame:
    """Names like markup, with escape sequences and newlines, wherever foreign text may come in."""
    names = frames.markup_names()
    base = frames.markup_in_names()
    key = base.focus

    def bad(at: int) -> str:
        return f"{names[at % len(names)]}\x1b[31m\n[red]x[/red]"

    subject = Subject(f"engine:{key}", f"vllm {bad(0)}")
    one = Symptom(
        "kv-pressure",
        subject,
        CRITICAL,
        f"{bad(1)} is full",
        (
            Evidence(bad(2), None, "", bad(3), 10.0, text=bad(4), threshold=1.0, threshold_origin=bad(0)),
            Evidence(bad(1), None, bad(2), bad(3), missing=bad(0)),
        ),
        (Cause(bad(2), (bad(3),), (bad(4),)),),
        (Advice(bad(0), {"vllm": bad(1), "sglang": bad(2)}),),
        bad(3),
        next_capture=bad(4),
        since_s=AT_S - 30,
        chart=f"engine.{key}.running",
        chart_threshold=10.0,
    )
    back = replace(one, id="ttft-high", held_back=bad(2))
    return with_report(
        base,
        one,
        held_back=(back,),
        cant_tell=(CantTell("stalled", subject, bad(1)),),
        overridden=(bad(3),),
        log=(held(one), held(replace(one, id="queue-growing", headline=bad(2)), 5)),
    )


MBU = LimitEstimate(
    "MBU",
    "(weights + KV read per step on one GPU) × steps/s ÷ memory bandwidth of one GPU",
    34.2,
    (
        LimitInput("GPUs per model copy", 1.0, "", "command line", "TP 1, PP 1, DP 1"),
        LimitInput("running requests", 32.0, "", PAGE),
        LimitInput(
            "weights read per step",
            2.3e9,
            "B",
            "/models/llama-1b/config.json",
            "1.236 B parameters, bf16, without the embedding",
        ),
        LimitInput("KV read per step", 2.7e8, "B", PAGE, "0.4% of a pool of 2197328 tokens: 268 tokens a sequence"),
        LimitInput("steps/s", 332.6, "/s", f"{PAGE}, 10 s"),
        LimitInput("memory bandwidth", 4.8e12, "B/s", "table of GPUs (h200-ds)", "NVIDIA H200"),
    ),
    floor_tpot_s=0.00054,
    at_least=True,
    notes=("a prefix that several sequences share is counted once, and may be read once for each",),
)
MFU = LimitEstimate(
    "MFU",
    "2 × parameters × computed prompt tokens/s ÷ (GPUs × dense peak of the data type)",
    2.7,
    (
        LimitInput("parameters per prompt token", 1.236e9, "", "/models/llama-1b/config.json"),
        LimitInput("dense bf16 peak of one", 989.5e12, "FLOP/s", "table of GPUs (h200-ds)", "NVIDIA H200"),
        LimitInput("computed prompt tokens", 10_900.0, "tok/s", PAGE, "without those from the prefix cache"),
    ),
)
NO_MODEL = "the model's config.json can't be read: permission denied"


def near_limits() -> Frame:
    """Both estimates are known."""
    base = frames.one_gpu_loaded()
    return replace(base, engines=(replace(base.engines[0], limits=EngineLimits(MBU, MFU)),))


def unknown_limits() -> Frame:
    """The model isn't known: no estimate, and why."""
    base = frames.one_gpu_loaded()
    limits = EngineLimits(
        LimitEstimate("MBU", MBU.formula, unknown=NO_MODEL), LimitEstimate("MFU", MFU.formula, unknown=NO_MODEL)
    )
    return replace(base, engines=(replace(base.engines[0], limits=limits),))
