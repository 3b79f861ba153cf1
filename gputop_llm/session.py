"""The engine room: wires sources to pollers, makes a frame each tick, follows the target.

It is the only object that the TUI and the headless commands know. It runs the
same for a real node, the demo, and (later) a replay: only `Sources` differs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop_llm.captures import CaptureRoute, Captures
from gputop_llm.clock import Clock, SystemClock
from gputop_llm.config import Config
from gputop_llm.diagnosis import Diagnosis
from gputop_llm.errors import GputopError
from gputop_llm.follow import Follower, key_may_go_to
from gputop_llm.model import (
    EngineReading,
    Frame,
    GpuNode,
    Host,
    Part,
    Target,
    TargetList,
    TargetProcess,
)
from gputop_llm.model.symptom import SymptomReport
from gputop_llm.redact import public_url
from gputop_llm.sampling.history import History
from gputop_llm.sampling.log_watch import LogSource, LogWatch
from gputop_llm.sampling.poller import Poller
from gputop_llm.sampling.scraping import ScrapedEngine
from gputop_llm.served import ServedModels
from gputop_llm.sources.base import Source
from gputop_llm.sources.one_model import OneModel
from gputop_llm.sources.pages import PagesSource
from gputop_llm.sources.unusable import Unusable

if TYPE_CHECKING:
    from gputop_llm.modelmath import ServedModel

log = logging.getLogger(__name__)

DISCOVERY_PERIOD_S = 3.0
MAX_ENGINES = 8
MAX_WATCHED = 64
EVENT_SHOWN_S = 30.0
FIRST_FRAME_S = 0.3
# The first frames are judged by then, whatever has not answered yet.
JUDGED_FROM_S = 1.0
# `stop` returns within a second, hung sources or not.
STOP_S = 0.8
# What is always left for storing what was learnt.
LAST_S = 0.15


@dataclass(frozen=True, slots=True)
class Sources:
    """How to make each source of this node.

    `model` says what an engine serves and may take for ever. `simulated` is the label of a demo, else None.
    `captures` makes the way of taking captures; None where they can't be taken.
    `strangers` are the metrics of other users' engines, asked without the API key; None where there is no key.
    `logs` reads the log of a target; None where nobody looks for logs.
    """

    gpus: Callable[[], Source[GpuNode]]
    discovery: Callable[[Callable[[], GpuNode | None]], Source[TargetList]]
    host: Callable[[Callable[[], tuple[TargetProcess, ...]]], Source[Host]]
    metrics: Callable[[str], Source[EngineReading]]
    model: Callable[[Target], ServedModel] | None = None
    simulated: str | None = None
    strangers: Callable[[str], Source[EngineReading]] | None = None
    captures: Callable[[], CaptureRoute] | None = None
    logs: Callable[[Target], LogSource] | None = None


class _Event(NamedTuple):
    """Something that happened, by wall time and by a clock that nobody sets."""

    at_s: float
    at_mono_s: float
    text: str


class Session:
    """Watches one node until `stop()`.

    Args:
        config: what the user asked for.
        sources: how to reach the node.
        clock: time, for tests.

    Raises:
        UsageError: a threshold, command or webhook of the settings can't be used.

    `history` may be read at any time from any thread.
    """

    def __init__(self, config: Config, sources: Sources, clock: Clock | None = None) -> None:
        self.config = config
        self.sources = sources
        self.clock = clock or SystemClock()
        self.history = History()
        self._served = ServedModels(sources.model, config, self.history, self.clock)
        self._diagnosis = Diagnosis(config, self.history, sources.simulated)
        self.captures = Captures(sources.captures, self.history.frames, self.clock.wall)
        self.period_s = config.period_s
        self._follower = Follower(config)
        self._logs = LogWatch(sources.logs, config.period_s, self.clock)
        self._events: deque[_Event] = deque(maxlen=100)
        self._engines: dict[str, ScrapedEngine] = {}
        self._latest: Frame | None = None
        self._seq = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._judging = False
        self._first_at_mono_s: float | None = None
        self._on_frame: Callable[[Frame], None] | None = None
        self._watched_pids: set[int | None] = set()
        self._host_polls_before = 0
        self._gpus_known = False
        self._gpus: Poller[GpuNode] = Poller(sources.gpus(), self.period_s, self.clock, self._gpus_polled)
        self._discovery: Poller[TargetList] = Poller(
            sources.discovery(self._newest_gpus), DISCOVERY_PERIOD_S, self.clock, self._discovered
        )
        self._host: Poller[Host] = Poller(sources.host(self._watched), self.period_s, self.clock, self._first_poll)
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)

    # -- control -----------------------------------------------------------

    def start(self, on_frame: Callable[[Frame], None] | None = None) -> None:
        """Starts polling. `on_frame` is called with each frame from the session's own thread."""
        self._on_frame = on_frame
        for poller in self._pollers():
            poller.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends all polling. Safe to call twice."""
        with self._lock:
            self._stopping = True
        self._wake.set()
        self._logs.close()
        pollers = self._pollers()
        for poller in pollers:
            poller.ask_to_stop()
        # Real time, whatever clock the frames use: it is threads that are waited for.
        until = time.monotonic() + STOP_S
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)
        for poller in pollers:
            poller.stop(wait_s=max(0.0, until - time.monotonic()))
        self.captures.close(LAST_S)
        self._diagnosis.close(max(LAST_S, until - time.monotonic()))

    def attach(self, key: str) -> None:
        """Makes a target of the newest frame the focus, and follows it through restarts."""
        with self._lock:
            target = next((t for t in self._targets() if t.key == key), None)
            if target is None:
                return
            self._follower.choose(target)
            stale = self._sync_engines()
        for engine in stale:
            engine.poller.ask_to_stop()
        self._watch_closely()
        self._wake.set()

    def set_period(self, period_s: float) -> None:
        """Polls and ticks every `period_s` seconds from now on."""
        self.period_s = period_s
        for poller in self._pollers():
            if poller is not self._discovery:
                poller.set_period(period_s)
        self._wake.set()

    @property
    def latest(self) -> Frame | None:
        """The newest frame, None before the first tick."""
        return self._latest

    @property
    def events(self) -> tuple[tuple[float, str], ...]:
        """What happened (attached, exited, came back), oldest first, each with its wall time."""
        with self._lock:
            return tuple((event.at_s, event.text) for event in self._events)

    def settled(self, polls: int = 2) -> bool:
        """True when every source has been polled `polls` times, or has failed to answer.

        The host's polls count from when the processes to watch were known; of discovery one is enough.
        """
        for poller in self._pollers():
            part = poller.part()
            wanted = polls
            if poller is self._discovery:
                wanted = 1
            elif poller is self._host:
                wanted += self._host_polls_before
            if part.error is None and part.polls < wanted:
                return False
        with self._lock:
            return all(self._engine_key(target) in self._engines for target in self._wanted_engines())

    def _pollers(self) -> list[Poller[Any]]:
        with self._lock:
            engines = [engine.poller for engine in self._engines.values()]
        return [self._gpus, self._discovery, self._host, *engines, *self._logs.pollers()]

    # -- ticking -----------------------------------------------------------

    def _run(self) -> None:
        due = self.clock.mono() + FIRST_FRAME_S
        while not self._stopping:
            self._wake.wait(max(0.0, due - self.clock.mono()))
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.tick()
            except Exception:  # one frame that can't be made must not be the last one
                log.exception("a frame was lost")
            due = self.clock.mono() + self.period_s

    def tick(self) -> Frame:
        """Makes one frame of the newest parts, and hands it on."""
        with self._lock:
            self._seq += 1
            targets = self._shown_targets()
            now = self.clock.mono()
            frame = Frame(
                seq=self._seq,
                at_s=self.clock.wall(),
                mono_s=now,
                period_s=self.period_s,
                gpus=self._shown_gpus(),
                host=self._host.part(),
                targets=targets,
                engines=tuple(e.frame() for e in self._engines.values()),
                focus=self._follower.focus,
                simulated=self.sources.simulated,
                logs=self._logs.parts(),
                notes=tuple(event.text for event in self._events if now - event.at_mono_s < EVENT_SHOWN_S),
                # Until they judge, the rules have nothing to say; None is what a failure of theirs looks like.
                symptoms=SymptomReport(),
            )
        judging = self._time_to_judge(now)
        if judging:
            frame = self._served.limits(frame)
        self.history.append(frame)
        if judging:
            frame = self._diagnosis.of(replace(frame, symptoms=None))
        self._latest = frame
        self.captures.frame(frame)
        if self._on_frame is not None:
            self._on_frame(frame)
        return frame

    def _time_to_judge(self, now_mono_s: float) -> bool:
        """Whether frames are judged, against limits and by the rules.

        The first frames are to be on the screen at once, and say little before there are rates; loading what
        judges them takes as long as all else that a session imports.
        """
        if not self._judging:
            if self._first_at_mono_s is None:
                self._first_at_mono_s = now_mono_s
            self._judging = now_mono_s - self._first_at_mono_s >= JUDGED_FROM_S or (self._seq > 1 and self.settled())
            if self._judging:
                with self._lock:
                    targets = self._targets()
                self._served.look(targets)
        return self._judging

    def _shown_gpus(self) -> Part[GpuNode]:
        part = self._gpus.part()
        if self.config.gpu is None or part.value is None:
            return part
        shown = tuple(g for g in part.value.gpus if g.index == self.config.gpu)
        return replace(part, value=replace(part.value, gpus=shown))

    def _shown_targets(self) -> Part[TargetList]:
        part = self._discovery.part()
        if part.value is None and part.error and self.config.url and not self._engines:
            # The user said where to look: that must not wait for a look around that never ends.
            self._follow()
        if part.value is None and not self._engines:
            return part
        found = part.value or TargetList()
        return replace(part, value=replace(found, targets=self._targets()))

    # -- following ---------------------------------------------------------

    def _first_poll(self, _value: object) -> None:
        """The first reading of a source is worth a frame at once."""
        if self._seq < 4:
            self._wake.set()

    def _gpus_polled(self, node: GpuNode | None) -> None:
        if node is not None and node.gpus and not self._gpus_known:
            # What discovery found before this had no GPUs, and CUDA processes are found only by them.
            self._gpus_known = True
            self._discovery.hurry()
        self._first_poll(node)

    def _newest_gpus(self) -> GpuNode | None:
        return self._gpus.part().value

    def _targets(self) -> tuple[Target, ...]:
        found = self._discovery.part().value
        return self._follower.with_url_target(found.targets if found else ())

    def _watched(self) -> tuple[TargetProcess, ...]:
        """Processes whose CPU is read: the focus, or all engines while nothing is in focus."""
        with self._lock:
            targets = self._targets()
            focus = self._follower.focus
        watched = [t for t in targets if t.key == focus] or [t for t in targets if t.engine != "cuda"]
        return tuple(p for t in watched for p in t.processes if p.pid is not None)[:MAX_WATCHED]

    def _discovered(self, _found: TargetList | None) -> None:
        with self._lock:
            stale = self._follow()
            targets, focus = self._targets(), self._follower.focus
        self._logs.look(targets, focus)
        for engine in stale:
            engine.poller.ask_to_stop()
        if self._judging:
            self._served.look(targets)
        self._watch_closely()
        self._first_poll(None)

    def _follow(self) -> list[ScrapedEngine]:
        for text in self._follower.update(self._targets()):
            self._events.append(_Event(self.clock.wall(), self.clock.mono(), text))
        return self._sync_engines()

    def _watch_closely(self) -> None:
        """New processes to watch are worth two early readings of the host."""
        watched = {p.pid for p in self._watched()}
        if watched != self._watched_pids:
            self._watched_pids = watched
            self._host_polls_before = self._host.part().polls
            self._host.hurry()

    def _wanted_engines(self) -> list[Target]:
        with_url = [target for target in self._targets() if target.urls]
        # The attached one is never the one that is left out.
        with_url.sort(key=lambda target: target.key != self._follower.focus)
        return with_url[:MAX_ENGINES]

    @staticmethod
    def _engine_key(target: Target) -> str:
        return " ".join((target.key, *target.urls))

    def _metrics(self, target: Target) -> Source[EngineReading]:
        sources = {url: self._page(target, url) for url in target.urls}
        return PagesSource(sources) if len(sources) > 1 else sources[target.urls[0]]

    def _page(self, target: Target, url: str) -> Source[EngineReading]:
        if self.sources.strangers is not None and not key_may_go_to(target, self.config):
            return self.sources.strangers(url)
        # Targets know the user's URL as it may be shown; the token in it is needed to ask.
        given = self.config.url
        try:
            page = self.sources.metrics(given if given and url == public_url(given) else url)
            return page if self.config.model is None else OneModel(page, self.config.model)
        except GputopError as failure:
            return Unusable(url, failure)

    def _sync_engines(self) -> list[ScrapedEngine]:
        if self._stopping:
            return []
        wanted = {self._engine_key(target): target for target in self._wanted_engines()}
        for key, target in wanted.items():
            if key not in self._engines:
                engine = ScrapedEngine(target, target.urls[0], self._metrics(target), self.config, self.clock)
                engine.poller.set_period(self.period_s)
                engine.poller.start()
                self._engines[key] = engine
        return [self._engines.pop(key) for key in list(self._engines) if key not in wanted]
