"""The HTTP address of an engine whose command line doesn't tell it.

An engine listens on twenty ports and more; only those of the processes that may
serve HTTP are asked, few at a time, and those that didn't answer are asked again
after longer and longer pauses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from gputop_llm.clock import Clock
from gputop_llm.sources.launch import base_url
from gputop_llm.sources.listen import listening
from gputop_llm.sources.process_table import Process
from gputop_llm.sources.procfs import ProcFs

FIRST_RETRY_S = 5.0
LAST_RETRY_S = 300.0
LIST_EVERY_S = 6.0
MAX_PROBES = 6

Place = tuple[str, int]


@dataclass(slots=True)
class _Known:
    """What is known of one process: the URL that answered, or when to ask which address again."""

    url: str | None = None
    list_at_s: float = 0.0
    silent: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)


class PortFinder:
    """Finds and remembers which listening socket answers as an engine.

    Args:
        probe: says whether the /metrics of a base URL answers as an engine's, within bounded time.
        stop: no further probe is begun once it is set.
        places: where a process may be asked; raises OSError when that can't be seen.
        leads_to: says whether such a place is that process's indeed, within bounded time.
    """

    def __init__(
        self,
        proc: ProcFs,
        probe: Callable[[str], bool],
        clock: Clock,
        stop: threading.Event,
        places: Callable[[ProcFs, int], list[Place]] = listening,
        leads_to: Callable[[ProcFs, int, Place], bool] = lambda *_: True,
    ) -> None:
        self._proc = proc
        self._probe = probe
        self._clock = clock
        self._stop = stop
        self._places = places
        self._leads_to = leads_to
        self._known: dict[tuple[int, int], _Known] = {}

    def url(self, processes: Sequence[Process]) -> str | None:
        """The first URL that answers, of any of the processes; None while there is none."""
        for process in processes:
            known = self._known.setdefault((process.pid, process.start_ticks), _Known())
            if known.url is None and self._clock.mono() >= known.list_at_s:
                known.list_at_s = self._clock.mono() + LIST_EVERY_S
                self._ask(process.pid, known)
            if known.url is not None:
                return known.url
        return None

    def forget_all_but(self, alive: Collection[tuple[int, int]]) -> None:
        """Drops what is known of processes other than these (PID, start)."""
        self._known = {key: known for key, known in self._known.items() if key in alive}

    def _ask(self, pid: int, known: _Known) -> None:
        try:
            places = self._places(self._proc, pid)
        except OSError:
            return
        probes = 0
        for place in places:
            now_s = self._clock.mono()
            again_s, pause_s = known.silent.get(place, (0.0, FIRST_RETRY_S))
            if now_s < again_s:
                continue
            if probes == MAX_PROBES or self._stop.is_set():
                known.list_at_s = 0.0
                return
            probes += 1
            url = base_url(*place)
            if self._leads_to(self._proc, pid, place) and self._probe(url):
                known.url = url
                return
            known.silent[place] = (self._clock.mono() + pause_s, min(2 * pause_s, LAST_RETRY_S))
