"""Whether the engine is back at its own pace after a window."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from gputop_llm.capture.engine_watch import EngineSample

#: What a rate must have come back to: the mean before, less this, or less twice its noise where that is more.
_LESS_PCT = 10.0
#: Over how long the rate afterwards is taken: one step between two answers says little.
_OVER_S = 2.0


def recovered(samples: Sequence[EngineSample], began_ns: int, ended_ns: int) -> bool | None:
    """Whether the token rate of the newest `_OVER_S` seconds, all after the window, is what it was before it.

    None where that can't be told: no counter, nothing known from before, or idle then.

    Args:
        samples: oldest first.
        began_ns, ended_ns: CLOCK_MONOTONIC when the target was first touched, and when the last client had ended.
    """
    before = _rates([s for s in samples if s.mono_ns <= began_ns])
    if not before or statistics.fmean(before) <= 0:
        return None
    after = [s for s in samples if s.mono_ns > ended_ns and s.generation_tokens is not None]
    newest = [s for s in after if after[-1].mono_ns - s.mono_ns <= (_OVER_S + 0.6) * 1e9]
    if not newest or newest[-1].mono_ns - newest[0].mono_ns < _OVER_S * 1e9:
        return False
    mean = statistics.fmean(before)
    noise = 2 * statistics.stdev(before) if len(before) > 2 else 0.0
    (rate,) = _rates([newest[0], newest[-1]]) or [0.0]
    return rate >= mean - max(noise, mean * _LESS_PCT / 100)


def _rates(samples: Sequence[EngineSample]) -> list[float]:
    """Tokens per second between each two answers; none across a restart."""
    known = [(s.mono_ns, s.generation_tokens) for s in samples if s.generation_tokens is not None]
    return [
        (tokens - before) * 1e9 / (at - earlier)
        for (earlier, before), (at, tokens) in pairwise(known)
        if at > earlier and tokens >= before
    ]
