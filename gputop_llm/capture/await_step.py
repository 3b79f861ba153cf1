"""Waiting for a prefill or a decode step, by what the engine's metrics page says at most twice a second.

A page is that coarse: the window begins within a second of the step that it tells of, and the verdict says which phases
it really caught.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gputop_llm.capture.engine_watch import EngineSample
from gputop_llm.errors import UsageError

STAGES = ("prefill", "decode")
LONGEST_WAIT_S = 60.0
_TICK_S = 0.05


def stage_of(value: object) -> str | None:
    """The stage that an option names.

    Raises:
        UsageError: it names none.
    """
    if value is None or value in STAGES:
        return None if value is None else str(value)
    raise UsageError(f"there is no stage {value!r}", todo=f"name one of {', '.join(STAGES)}")


def await_step(
    stage: str,
    samples: Callable[[], Sequence[EngineSample]],
    cancelled: Callable[[], bool],
    longest_s: float = LONGEST_WAIT_S,
) -> bool:
    """Waits until the engine's newest answer tells of such a step; false when that wasn't in time, or cancelled."""
    began = time.monotonic_ns()
    while time.monotonic_ns() - began < longest_s * 1e9 and not cancelled():
        if tells_of(stage, [sample for sample in samples() if sample.mono_ns >= began - 1e9]):
            return True
        time.sleep(_TICK_S)
    return False


def tells_of(stage: str, samples: Sequence[EngineSample]) -> bool:
    """Whether the newest of these answers tells of a step of that stage; oldest first.

    Decode: tokens came since the answer before, and requests run. Prefill: requests wait, or more of them run than
    before.
    """
    if len(samples) < 2:
        return False
    before, now = samples[-2:]
    if stage == "decode":
        moved = None not in (before.generation_tokens, now.generation_tokens) and (
            (now.generation_tokens or 0) > (before.generation_tokens or 0)
        )
        return bool(now.running) and moved
    if now.waiting:
        return True
    return None not in (before.running, now.running) and (now.running or 0) > (before.running or 0)
