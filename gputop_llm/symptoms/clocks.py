"""Whether an engine's GPUs run below their clock: what speaks for a power or heat limit as a cause, and against it."""

from __future__ import annotations

from gputop_llm.symptoms.view import EngineView


def low_clocks(engine: EngineView, share_pct: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the SM clocks speak for and against: GPUs under `share_pct` percent of their maximum, or none."""
    low, known = [], False
    for gpu in engine.gpus:
        clock, top = gpu.mean("sm_clock_mhz"), gpu.now.sm_clock_max_mhz
        if clock is None or not top:
            continue
        known = True
        if 100.0 * clock / top < share_pct:
            why = [t.name for t in gpu.now.throttle or () if t.active and t.name != "idle"]
            because = f" ({', '.join(why)})" if why else ""
            low.append(f"{gpu.subject.label}: SM clock {clock:.0f} of {top:.0f} MHz{because}")
    return tuple(low), ("SM clocks are at their maximum",) if known and not low else ()
