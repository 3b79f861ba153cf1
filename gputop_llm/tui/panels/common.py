"""Words and cells that several panels share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from gputop_llm.model import NO_PROCESS_DATA, Frame, Latency, Part, Quantile, Target
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Line, Run
from gputop_llm.units import DASH, number, seconds, uptime

T = TypeVar("T")

_ENGINE_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tgi": "TGI",
    "trtllm": "TensorRT-LLM",
    "triton": "Triton",
    "llamacpp": "llama.cpp",
    "lmdeploy": "LMDeploy",
}

LATENCY_NAMES = {
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "queue": "queue",
    "prefill": "prefill",
    "decode": "decode",
    "e2e": "e2e",
}


def engine_name(engine: str) -> str:
    """The engine's name as its makers write it."""
    return _ENGINE_NAMES.get(engine, printable(engine))


def rank_name(rank: str | None) -> str:
    """A data-parallel rank as a column's head; a server behind a router by its address."""
    return printable(f"DP{rank}" if (rank or "").isdecimal() else rank or "DP?")


def target_name(target: Target) -> str:
    """An engine by name and model, a CUDA process by its command line."""
    if target.engine == "cuda":
        return printable(" ".join(target.argv)) or (target.processes[0].title if target.processes else "CUDA process")
    if target.remote:
        return f"engine at {address(target.urls[0])}"
    return f"{engine_name(target.engine)} {printable(target.model or '')}".rstrip()


def gpus_text(target: Target) -> str:
    """Which GPUs it uses: "0-3", "0 MIG2"."""
    instances = sorted({p.mig_instance for p in target.processes if p.mig_instance is not None})
    return " ".join((ranges(target.gpus), *(f"MIG{instance}" for instance in instances)))


def ranges(numbers: tuple[int, ...]) -> str:
    """ "0-3,6" for (0, 1, 2, 3, 6)."""
    if not numbers:
        return DASH
    parts: list[str] = []
    start = last = numbers[0]
    for value in (*numbers[1:], None):
        if value is not None and value == last + 1:
            last = value
            continue
        parts.append(str(start) if start == last else f"{start}-{last}")
        if value is not None:
            start = last = value
    return ",".join(parts)


def spaced(name: str) -> str:
    """A field's name as words."""
    return name.replace("_", " ")


def small_pct(value: float | None) -> str:
    """A percentage with a decimal below 10: "0.4 %", "45 %"."""
    if value is None:
        return DASH
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def elsewhere(frame: Frame) -> str | None:
    """What is said beside this machine's own figures while a remote engine is watched."""
    target = frame.focused
    return f"of this machine: {NO_PROCESS_DATA}" if target and target.remote else None


def stale_text(part: Part[T]) -> str | None:
    """Why what is shown is not of now, and how old it is; None when the newest poll succeeded."""
    if part.error is None:
        return None
    age = f"values {uptime(part.age_s)} old: " if part.age_s is not None else ""
    return f"▲ {age}{printable(part.error)}"


def stepped_back(lines: Sequence[Line], part: Part[T]) -> list[Line]:
    """A panel's lines, all but its title dimmed where they are not of now: the title says so."""
    if part.error is None:
        return list(lines)
    return [*lines[:1], *([(text, "dim") for text, _ in line] for line in lines[1:])]


def part_state(part: Part[T], period_s: float) -> Line:
    """How fresh a source is: silent when all is well, else the reason and the age of what is shown."""
    if (stale := stale_text(part)) is not None:
        return [(stale, "warn")]
    if part.period_s is not None and part.period_s > period_s * 1.01:
        return [(f"slow: asked every {seconds(part.period_s)}", "dim")]
    return []


def quantile_text(quantile: Quantile | None, width: int) -> str:
    """A quantile as honestly as `width` allows: its value, else its bucket, else its upper bound."""
    if quantile is None:
        return DASH
    if quantile.value is not None:
        return seconds(quantile.value)
    if quantile.high is None:
        return f">{seconds(quantile.low)}"
    below = f"≤{seconds(quantile.high)}"
    if quantile.low <= 0:
        return below
    low, low_unit = _split(seconds(quantile.low))
    high, high_unit = _split(seconds(quantile.high))
    both = f"{low}–{high} {high_unit}" if low_unit == high_unit else f"{low} {low_unit}–{high} {high_unit}"
    for text in (both, both.replace(" ", "")):
        if len(text) <= width:
            return text
    return below


def _split(text: str) -> tuple[str, str]:
    number_text, _, unit = text.partition(" ")
    if "." in number_text:
        number_text = number_text.rstrip("0").rstrip(".")
    return number_text, unit


def count_text(latency: Latency | None) -> str:
    """How many observations a latency rests on."""
    return DASH if latency is None else number(latency.count)


def labelled(label: str, text: str, role: str = "") -> list[Run]:
    """ "label text", the label in the background."""
    return [(f"{label} ", "dim"), (text, role or ("dim" if text == DASH else ""))]


def period_text(period_s: float) -> str:
    """ "1 s", "0.25 s" """
    return f"{period_s:g} s"


def clock_text(wall_s: float) -> str:
    """Local time of day."""
    import time

    return time.strftime("%H:%M:%S", time.localtime(wall_s))


def engines_of(frame: Frame) -> tuple[Target, ...]:
    """All targets that are engines."""
    found = frame.targets.value
    return tuple(t for t in found.targets if t.engine != "cuda") if found else ()


NO_REASON = "no reason was given"
# Figures that are worked out from another field.
_SHARES = {"mem_used_pct": "mem_used_bytes", "power_pct": "power_w"}


def reason_for(missing: Mapping[str, str], name: str) -> str:
    """Why a field is not known: its own reason, else that of the group it belongs to."""
    group, _, own = name.rpartition(".")
    for key in (name, own, group, own.split("_", 1)[0], _SHARES.get(own, "")):
        if key and key in missing:
            return printable(missing[key])
    return NO_REASON


def address(url: str) -> str:
    """Host and port of an endpoint."""
    return printable(urlsplit(url).netloc or url)
