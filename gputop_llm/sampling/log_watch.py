"""The logs of the engines of this node: each read on a thread of its own, for a while after the engine's end too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from gputop_llm.clock import Clock
from gputop_llm.model import EngineLog, Target, TargetLog
from gputop_llm.sampling.poller import Poller
from gputop_llm.sources.base import Source

MAX_LOGS = 8
# The last words of an engine may be written when its processes are gone already; the journal is asked every 20 s.
LAST_WORDS_S = 25.0
KEPT_S = 900.0


class LogSource(Source[EngineLog], Protocol):
    """The log of one target, whose newest state it is told."""

    target: Target


@dataclass(slots=True)
class _Watched:
    source: LogSource
    poller: Poller[EngineLog]
    gone_at_s: float | None = None
    stopped: bool = False


class LogWatch:
    """Reads the log of each engine that has processes here; `parts` are for frames. Safe for several threads.

    Args:
        make: the source of a target's log; None where nobody looks for logs.
        period_s: how often a log is looked at.
        clock: time, for tests.
    """

    def __init__(self, make: Callable[[Target], LogSource] | None, period_s: float, clock: Clock) -> None:
        self._make = make
        self._period_s = period_s
        self._clock = clock
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._closed = False

    def look(self, targets: Iterable[Target], focus: str | None) -> None:
        """Starts to read the logs of new engines, and leaves those of engines that are gone. Never waits.

        Args:
            focus: the key of the attached target: never left out, whatever it is.
        """
        if self._make is None:
            return
        wanted = [t for t in targets if t.pids and (t.engine != "cuda" or t.key == focus)]
        wanted.sort(key=lambda target: target.key != focus)
        with self._lock:
            if self._closed:
                return
            self._leave({target.key for target in wanted})
            for target in wanted:
                self._watch(target)

    def parts(self) -> tuple[TargetLog, ...]:
        """Each log as it is now."""
        with self._lock:
            return tuple(TargetLog(key, one.poller.part()) for key, one in self._watched.items())

    def pollers(self) -> list[Poller[EngineLog]]:
        """Those that still read."""
        with self._lock:
            return [one.poller for one in self._watched.values() if not one.stopped]

    def close(self) -> None:
        """Ends all reading without waiting for the end."""
        with self._lock:
            self._closed = True
            for one in self._watched.values():
                one.poller.ask_to_stop()

    def _watch(self, target: Target) -> None:
        known = self._watched.get(target.key)
        if known is not None and not known.stopped:
            known.source.target, known.gone_at_s = target, None
            return
        if sum(one.gone_at_s is None for one in self._watched.values()) >= MAX_LOGS or self._make is None:
            return
        source = self._make(target)
        poller = Poller(source, self._period_s, self._clock)
        self._watched[target.key] = _Watched(source, poller)
        poller.start()

    def _leave(self, there: set[str]) -> None:
        now = self._clock.mono()
        for key, one in list(self._watched.items()):
            if key in there:
                continue
            if one.gone_at_s is None:
                one.gone_at_s = now
            gone_s = now - one.gone_at_s
            if gone_s >= LAST_WORDS_S and not one.stopped:
                one.stopped = True
                one.poller.ask_to_stop()
            # Each restart leaves one.
            if gone_s >= KEPT_S or len(self._watched) > 2 * MAX_LOGS:
                one.poller.ask_to_stop()
                del self._watched[key]
