"""Where the present run begins in a file that several runs of an engine were appended to, by the stamps of lines."""

from __future__ import annotations

from collections.abc import Callable

from gputop_llm.sources.engine_log_stamps import LogClock, Stamp, stamp_of
from gputop_llm.sources.engine_log_text import unwrapped

# A file is looked at in so many places at most: enough for any size.
_PROBES = 40
_NEAR_BYTES = 8 << 10
_LAST_STAMP_WITHIN = 8
# Stamps without a fraction, and a clock that was set.
EARLIER_S = 5.0


def stamp_in(line: bytes, near_s: float) -> Stamp | None:
    """The stamp of a raw line, that of a container's runtime first."""
    text, stamped = unwrapped(line)
    return stamp_of(stamped or text[:200].decode("latin-1"), near_s)


def beginning(
    probe: Callable[[int], bytes], size: int, written_s: float, started_s: float | None, clock: LogClock
) -> int:
    """The offset at or shortly before which the lines of this run begin; 0 where it can't be told.

    Args:
        probe: a few KiB of the file from an offset on.
        written_s: when it was written to last.
        started_s: when the run began, wall time.
        clock: learns the zone of the file's stamps.
    """

    def first_s(offset: int) -> float | None:
        return next((at for stamp in stamps(offset) if (at := clock.at_s(stamp)) is not None), None)

    def stamps(offset: int) -> list[Stamp]:
        lines = probe(offset).split(b"\n")[1 if offset else 0 :]
        return [stamp for line in lines if (stamp := stamp_in(line, written_s)) is not None]

    # What an engine writes last, a traceback or a progress bar, may have no stamp.
    ends = (stamps(max(0, size - near * _NEAR_BYTES)) for near in range(1, 1 + _LAST_STAMP_WITHIN))
    newest = next(filter(None, ends), [])
    if newest:
        clock.learn(newest[-1], written_s)
    if started_s is None:
        return 0
    ours_s = started_s - EARLIER_S
    at_s = first_s(0)
    if at_s is None or at_s >= ours_s:
        return 0
    low, high = 0, size
    for _ in range(_PROBES):
        if high - low <= _NEAR_BYTES:
            break
        middle = (low + high) // 2
        at_s = first_s(middle)
        low, high = (middle, high) if at_s is not None and at_s < ours_s else (low, middle)
    return low
