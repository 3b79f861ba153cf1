"""What a rule may look at: the newest frames, arranged by engine and by GPU.

Made anew each tick. Everything here is a lookup, a mean or a difference; no thresholds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from operator import attrgetter, is_not, itemgetter
from typing import Any, TypeVar

from gputop_llm.model import EngineFrame, EngineLive, Frame, Gpu, GpuNode, Host, ProcessLoad, Target
from gputop_llm.model.symptom import Subject
from gputop_llm.symptoms.names import TargetNames, engine_key
from gputop_llm.symptoms.timeline import Timeline

# Means of noisy momentary readings (NVML, GPM) are over this long.
MEAN_S = 10.0
# A source that has been silent for longer says nothing about now.
STALE_S = 15.0
_IS_KNOWN = partial(is_not, None)
_T = TypeVar("_T")

Baseline = Callable[["EngineView", EngineLive, str], float | None]


def no_baseline(_engine: EngineView, _live: EngineLive, _metric: str) -> float | None:
    """A baseline that knows nothing yet."""
    return None


class GpuView:
    """One GPU over the kept frames."""

    def __init__(
        self, newest: Gpu, past: Sequence[tuple[float, Gpu]], kept: dict[str, dict[float, Any]] | None = None
    ) -> None:
        self.now = newest
        self._kept = {} if kept is None else kept
        self.index = newest.index
        self.past = past
        self.subject = Subject(f"gpu:{newest.index}", f"GPU {newest.index}")
        self._means: dict[tuple[str, float], float | None] = {}
        self._readings: dict[float, Sequence[tuple[float, Gpu]]] = {}
        self.memo: dict[Any, Any] = {}
        """What several rules work out of it; as everything here, for one tick."""

    def instance(self, gpu_instance: int) -> Subject:
        """One MIG instance of the GPU."""
        return Subject(f"{self.subject.key}/mig:{gpu_instance}", f"{self.subject.label} MIG instance {gpu_instance}")

    def get(self, name: str) -> float | None:
        """The newest value of a field of Gpu, or of Gpm as "gpm.<field>"."""
        return _field(self.now, name)

    def mean(self, name: str, over_s: float = MEAN_S) -> float | None:
        """The mean of a field's known values over the newest `over_s` seconds; None when it is unknown now."""
        key = (name, over_s)
        try:
            return self._means[key]
        except KeyError:
            found = self._means[key] = None if self.get(name) is None else mean_of(self._known(name, over_s))
            return found

    def _known(self, name: str, over_s: float) -> list[float]:
        if name.startswith("gpm."):
            return known(map(_reader(name[4:]), self._each_of(over_s, "gpm")))
        return known(map(_reader(name), self._each_of(over_s, "gpu")))

    def _each_of(self, over_s: float, what: str) -> list[Any]:
        """The readings without their times, or what GPM says in them."""
        found: list[Any] | None = self.memo.get((what, over_s))
        if found is None:
            gpus = [gpu for _, gpu in self.readings(over_s)]
            found = self.memo[what, over_s] = gpus if what == "gpu" else known([gpu.gpm for gpu in gpus])
        return found

    def values(self, name: str, over_s: float) -> Iterator[tuple[float, float | None]]:
        """(monotonic time, value) of a field over the newest `over_s` seconds, oldest first."""
        readings = self.readings(over_s)
        if name.startswith("gpm."):
            of_gpm = _reader(name[4:])
            return ((at, None if gpu.gpm is None else of_gpm(gpu.gpm)) for at, gpu in readings)
        read = _reader(name)
        return ((at, read(gpu)) for at, gpu in readings)

    def readings(self, over_s: float = MEAN_S) -> Sequence[tuple[float, Gpu]]:
        """(monotonic time, reading) over the newest `over_s` seconds, oldest first."""
        found = self._readings.get(over_s)
        if found is None:
            first = bisect_left(self.past, self.past[-1][0] - over_s, key=itemgetter(0)) if self.past else 0
            found = self._readings[over_s] = self.past[first:]
        return found

    def each(self, what: str, make: Callable[[Gpu], Any], over_s: float = MEAN_S) -> list[Any]:
        """What `make` makes of each of the `readings` over the newest `over_s` seconds, oldest first.

        Made once for each reading, and kept from tick to tick under the name `what`, which stands for `make`.
        """
        readings, known = self.readings(over_s), self._kept.setdefault(what, {})
        if len(known) > 2 * len(readings) + 2:
            times = {at for at, _ in readings}
            for at in [at for at in known if at not in times]:
                del known[at]
        for at, gpu in reversed(readings):
            if at in known:
                break
            known[at] = make(gpu)
        try:
            return [known[at] for at, _ in readings]
        except KeyError:
            return [known[at] if at in known else known.setdefault(at, make(gpu)) for at, gpu in readings]

    def missing(self, name: str) -> str:
        """Why a field is unknown."""
        return self.now.missing.get(name) or self.now.missing.get(name.split(".")[0]) or "not known on this GPU"


class LoadView:
    """One process of an engine over the newest `MEAN_S` seconds."""

    def __init__(self, newest: ProcessLoad, recent: Sequence[ProcessLoad]) -> None:
        self.now = newest
        self.recent = recent
        self.memo: dict[Any, Any] = {}

    def mean(self, read: Callable[[ProcessLoad], float | None]) -> float | None:
        """The mean of what `read` finds; None when it is unknown now."""
        if read(self.now) is None:
            return None
        return mean_of(known(map(read, self.recent)))


@dataclass(frozen=True)
class EngineView:
    """One engine endpoint over the kept frames.

    `restarted_mono_s` is when its counters last began anew within the kept time.
    """

    frame: EngineFrame
    target: Target | None
    gpus: tuple[GpuView, ...]
    processes: tuple[ProcessLoad, ...]
    past: Sequence[tuple[float, EngineFrame]]
    subject: Subject
    baseline: Baseline = field(default=no_baseline)
    loads: tuple[LoadView, ...] = ()
    restarted_mono_s: float | None = None
    _means: dict[tuple[str, float], float | None] = field(default_factory=dict, repr=False, compare=False)
    _totals: dict[float, tuple[list[float], list[EngineLive]]] = field(default_factory=dict, repr=False, compare=False)
    _values: dict[tuple[str, float], list[tuple[float, float]]] = field(default_factory=dict, repr=False, compare=False)
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def live(self) -> EngineLive | None:
        """All models and ranks together, over the newest window; None before the first scrape."""
        return self.frame.window.total if self.frame.window else None

    @property
    def models(self) -> tuple[EngineLive, ...]:
        """One entry per model."""
        return self.frame.window.models if self.frame.window else ()

    @property
    def ranks(self) -> tuple[EngineLive, ...]:
        """One entry per model and data-parallel rank."""
        return self.frame.window.ranks if self.frame.window else ()

    @property
    def kind(self) -> str:
        """The engine's name ("vllm"), as the page tells it, else as its processes do."""
        reading = self.frame.scrape.value
        return reading.engine if reading else (self.target.engine if self.target else "unknown")

    def scrapes(self, over_s: float = math.inf) -> Iterator[tuple[float, EngineFrame]]:
        """(monotonic time of the scrape, a frame that shows it) over the newest `over_s` seconds, newest first."""
        seen: float | None = None
        oldest = self.past[-1][0] - over_s if self.past else 0.0
        for at, frame in reversed(self.past):
            if at < oldest:
                return
            scraped = frame.scrape.at_mono_s
            # Two frames may show one scrape; it is one observation.
            if scraped is not None and scraped != seen:
                seen = scraped
                yield scraped, frame

    def values(self, name: str, over_s: float) -> Sequence[tuple[float, float]]:
        """(monotonic time of the scrape, value) of a field of EngineLive's total, oldest first, known values only."""
        found = self._values.get((name, over_s))
        if found is not None:
            return found
        totals = self._totals.get(over_s)
        if totals is None:
            past = [(at, frame.window.total) for at, frame in self.scrapes(over_s) if frame.window][::-1]
            totals = self._totals[over_s] = [at for at, _ in past], [total for _, total in past]
        times, lives = totals
        found = [pair for pair in zip(times, map(_reader(name), lives), strict=True) if pair[1] is not None]
        self._values[name, over_s] = found
        return found

    def mean(self, name: str, over_s: float = MEAN_S) -> float | None:
        """The mean of a field's known values over the newest `over_s` seconds."""
        key = (name, over_s)
        if key not in self._means:
            self._means[key] = mean_of([v for _, v in self.values(name, over_s)])
        return self._means[key]

    def model_subject(self, live: EngineLive) -> Subject:
        """The engine, or the model on it where it serves several."""
        if live.model is None or len(self.models) < 2:
            return self.subject
        return Subject(f"{self.subject.key}/model:{live.model}", f"{self.subject.label}, model {live.model}")

    def rank_subject(self, rank: str | None) -> Subject:
        """One data-parallel rank of the engine."""
        return Subject(f"{self.subject.key}/rank:{rank}", f"{self.subject.label}, DP rank {rank}")

    def series(self, name: str) -> str:
        """The history series of a figure of this engine."""
        return f"engine.{self.frame.target_key}.{name}"


@dataclass(frozen=True)
class NodeView:
    """The whole node at one tick, with the frames before it (oldest first, the newest is the last)."""

    frames: Sequence[Frame]
    baseline: Baseline = field(default=no_baseline)
    timeline: Timeline | None = None

    @cached_property
    def _timeline(self) -> Timeline:
        return self.timeline or Timeline().move(self.frames)

    @property
    def now(self) -> Frame:
        """The newest frame."""
        return self.frames[-1]

    @property
    def node(self) -> GpuNode | None:
        """The newest reading of all GPUs; None when it is older than `STALE_S`."""
        return None if (self.now.gpus.age_s or 0.0) > STALE_S else self.now.gpus.value

    @property
    def host(self) -> Host | None:
        """The newest reading of the host; None when it is older than `STALE_S`."""
        return None if (self.now.host.age_s or 0.0) > STALE_S else self.now.host.value

    @cached_property
    def users(self) -> dict[int, tuple[EngineView, ...]]:
        """The engines on each GPU by its index; GPUs that no engine uses are not in it."""
        users: dict[int, tuple[EngineView, ...]] = {}
        for engine in self.engines:
            for gpu in engine.gpus:
                users[gpu.index] = (*users.get(gpu.index, ()), engine)
        return users

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """The readings of the host in the newest `MEAN_S` seconds, oldest first."""
        found: list[Host] = []
        for frame in reversed(self.frames):
            if self.now.mono_s - frame.mono_s > MEAN_S:
                break
            if frame.host.value is not None and not (found and found[-1] is frame.host.value):
                found.append(frame.host.value)
        return tuple(reversed(found))

    @cached_property
    def gpus(self) -> dict[int, GpuView]:
        """GPUs by index."""
        past = self._timeline.gpus
        newest = self.node.gpus if self.node else ()
        kept = self._timeline.kept
        return {g.index: GpuView(g, past.get(g.index, ()), kept.setdefault(g.index, {})) for g in newest}

    @cached_property
    def engines(self) -> tuple[EngineView, ...]:
        """Engines that are scraped."""
        targets = {t.key: t for t in (self.now.targets.value.targets if self.now.targets.value else ())}
        loads = self._loads()
        views = []
        for frame in self.now.engines:
            target = targets.get(frame.target_key)
            views.append(
                EngineView(
                    frame=frame,
                    target=target,
                    gpus=tuple(self.gpus[i] for i in (target.gpus if target else ()) if i in self.gpus),
                    processes=tuple(loads[p].now for p in (target.pids if target else ()) if p in loads),
                    past=self._timeline.engines[frame.target_key],
                    subject=self._engine_subject(target, frame),
                    baseline=self.baseline,
                    loads=tuple(loads[p] for p in (target.pids if target else ()) if p in loads),
                    restarted_mono_s=self._timeline.restarts.get(frame.target_key),
                )
            )
        return tuple(views)

    @cached_property
    def ended(self) -> tuple[EngineView, ...]:
        """Engines of the kept frames that are no target any more, each as it was seen last."""
        if self.now.targets.value is None:
            return ()
        there = {t.key for t in self.now.targets.value.targets} | {e.target_key for e in self.now.engines}
        views = []
        for key in sorted(self._timeline.engines.keys() - there):
            past = self._timeline.engines[key]
            target = next((t for t in self.past_targets if t.key == key), None)
            subject = self._engine_subject(target, past[-1][1])
            restarted = self._timeline.restarts.get(key)
            views.append(
                EngineView(past[-1][1], target, (), (), past, subject, self.baseline, restarted_mono_s=restarted)
            )
        return tuple(views)

    @property
    def past_targets(self) -> Iterator[Target]:
        """The targets of the kept frames, newest first, those of the newest frame too."""
        seen: tuple[Target, ...] = ()
        for frame in reversed(self.frames):
            found = frame.targets.value
            # A look around is shown by several frames.
            if found is not None and found.targets is not seen:
                seen = found.targets
                yield from seen

    @cached_property
    def names(self) -> TargetNames:
        """What targets are called."""
        return TargetNames(self.now.targets.value.targets if self.now.targets.value else ())

    def _engine_subject(self, target: Target | None, frame: EngineFrame) -> Subject:
        return self.names.subject(target) if target else Subject(f"engine:{frame.target_key}", frame.url)

    def _loads(self) -> dict[int, LoadView]:
        """The watched processes by PID."""
        if self.host is None:
            return {}
        recent: dict[int, list[ProcessLoad]] = {}
        for host in self.hosts:
            for load in host.processes:
                recent.setdefault(load.pid, []).append(load)
        return {load.pid: LoadView(load, recent.get(load.pid, [load])) for load in self.host.processes}

    @cached_property
    def scopes(self) -> dict[str, frozenset[str]]:
        """Which engines each GPU belongs to, for grouping; engines belong to themselves. The node is not in it."""
        of_gpu: dict[str, set[str]] = {g.subject.key: set() for g in self.gpus.values()}
        for engine in self.engines:
            for gpu in engine.gpus:
                of_gpu[gpu.subject.key].add(engine.subject.key)
        scopes = {key: frozenset(engines) for key, engines in of_gpu.items()}
        for engine in self.engines:
            scopes[engine.subject.key] = frozenset({engine.subject.key})
            for model in engine.models:
                scopes[engine.model_subject(model).key] = frozenset({engine.subject.key})
            for rank in engine.ranks:
                scopes[engine.rank_subject(rank.rank).key] = frozenset({engine.subject.key})
            for process in engine.target.processes if engine.target else ():
                for gpu in engine.gpus:
                    if process.mig_instance is not None and gpu.index in process.gpus:
                        scopes[gpu.instance(process.mig_instance).key] = frozenset({engine.subject.key})
        others = [e.subject.key for e in self.ended]
        others += [engine_key(t) for t in (self.now.targets.value.targets if self.now.targets.value else ())]
        for key in others:
            scopes.setdefault(key, frozenset({key}))
        return scopes


@cache
def _reader(name: str) -> Callable[[Any], Any]:
    return attrgetter(name)


def known(values: Iterable[_T | None]) -> list[_T]:
    """Those that are known; without a step of the interpreter for each, since rules ask for thousands."""
    return list(filter(_IS_KNOWN, values))  # type: ignore[arg-type]


def mean_of(known: Sequence[float]) -> float | None:
    """The mean of a few values, None of none; several times as fast as statistics.fmean, which rules ask too often."""
    return sum(known) / len(known) if known else None


def _field(gpu: Gpu, name: str) -> float | None:
    if name.startswith("gpm."):
        return None if gpu.gpm is None else getattr(gpu.gpm, name[4:])
    value: float | None = getattr(gpu, name)
    return value
