"""How fast an engine went before, during and after a capture: what the capture cost is read from this."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.model.engine import Histogram


@dataclass(frozen=True, slots=True)
class PaceSample:
    """One answer of the engine. None is unknown.

    Args:
        at_ns: CLOCK_MONOTONIC when the answer had come.
        tokens: generated so far, cumulative.
        running: requests.
        itl: the cumulative histogram of inter-token times, seconds.
        started_s: when the engine's counters began, by the wall clock.
    """

    at_ns: int
    tokens: float | None = None
    running: float | None = None
    itl: Histogram | None = None
    started_s: float | None = None


@dataclass(frozen=True, slots=True)
class EnginePace:
    """The answers around one capture, oldest first.

    `began_ns` and `ended_ns` (CLOCK_MONOTONIC) are when the target was first touched and when the last client had
    ended; `recovered` is whether whoever took it saw the engine back at its pace (None: it could not be told).
    """

    samples: tuple[PaceSample, ...]
    began_ns: int
    ended_ns: int
    recovered: bool | None = None

    @property
    def fewest_running(self) -> float | None:
        """The fewest requests that ran at any answer from the last before the capture to the first after it.

        None where an answer lacks it, or none came before or after.
        """
        before = [s for s in self.samples if s.at_ns <= self.began_ns]
        after = [s for s in self.samples if s.at_ns >= self.ended_ns]
        if not before or not after:
            return None
        running = [s.running for s in self.samples if before[-1].at_ns <= s.at_ns <= after[0].at_ns]
        known = [one for one in running if one is not None]
        return min(known) if len(known) == len(running) else None
