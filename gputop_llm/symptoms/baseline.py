"""The healthy recent past of each engine's figures: what a rule compares with when there is no SLO.

One sample is taken per window, and becomes part of the past only when nothing disturbed the engine
for the whole of `QUARANTINE_S` after it. So an incident is never learnt, nor are the moments before it was noticed.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from gputop_llm.model import EngineLive
from gputop_llm.symptoms.past import BucketKey, Past, bucket_key, sample_of
from gputop_llm.symptoms.view import EngineView, NodeView

# Conditions in which an engine's latencies and rates are not its healthy ones. What describes how an engine works
# all the time (bandwidth-bound, host-bound, gpu-busy-not-working, …) is not among them: it has a healthy past too.
DISTURBING = frozenset(
    {
        "ttft-high",
        "tpot-high",
        "queue-growing",
        "scheduler-capped",
        "kv-pressure",
        "stalled",
        "warming-up",
        "metrics-stale",
        "errors-rising",
        "rank-imbalance",
        "cpu-throttled",
        "noisy-neighbour",
        "memory-spike",
        "power-capped",
        "thermal-throttled",
        "hw-slowdown",
        "gpu-fault",
    }
)

# A hit rate that fell is an incident. One that was never higher is how the engine always works: prompts that share
# nothing. Which of the two it is, `prefix-cache-cold.usual_pct` says by default.
FALLS, _FALLS_FROM_PCT = "prefix-cache-cold", 20.0

STEP_S = 10.0
"""Seconds between two samples; windows of this length then hardly overlap."""
QUARANTINE_S = 30.0
"""How long a sample must be followed by healthy time: a window of `STEP_S`, and 20 s for the rules to notice."""
MOST_PASTS = 16
# A page may name any number of models.
_MOST_MODELS = 4

_LOAD_S = 10.0
# Few requests finish in one window, so their mean lengths jump about.
_LENGTHS_S = 60.0


class PastKey(NamedTuple):
    """Whose past it is. It outlives the engine's process."""

    engine: str
    model: str
    hardware: str


@dataclass
class _Smooth:
    """An exponentially weighted mean over about `over_s` seconds."""

    over_s: float
    value: float | None = None
    at: float = 0.0

    def take(self, value: float | None, at: float) -> None:
        if value is None:
            return
        if self.value is None:
            self.value = value
        else:
            self.value += (1.0 - math.exp(-(at - self.at) / self.over_s)) * (value - self.value)
        self.at = at


@dataclass
class _Sample:
    at: float
    at_s: float
    key: BucketKey
    values: dict[str, float | None]


@dataclass
class _Stream:
    """One model on one endpoint while it is watched. Times are monotonic, but for `_Sample.at_s`.

    `load` is the bucket of the present load; None while idle.
    """

    key: PastKey
    undisturbed_since: float
    scraped: float | None = None
    load: BucketKey | None = None
    sampled: float = -math.inf
    running: _Smooth = field(default_factory=lambda: _Smooth(_LOAD_S))
    prompt: _Smooth = field(default_factory=lambda: _Smooth(_LENGTHS_S))
    output: _Smooth = field(default_factory=lambda: _Smooth(_LENGTHS_S))
    quarantine: deque[_Sample] = field(default_factory=deque)

    def disturb(self, now: float) -> None:
        self.quarantine.clear()
        self.undisturbed_since = now

    def take(self, live: EngineLive, at: float) -> None:
        """Takes notice of the load of a scrape."""
        self.scraped = at
        self.running.take(live.running, at)
        self.prompt.take(live.mean_prompt_tokens, at)
        self.output.take(live.mean_generation_tokens, at)
        busy = self.running.value is not None and self.running.value >= 0.5
        self.load = bucket_key(self.running.value or 0.0, self.prompt.value, self.output.value) if busy else None


class LearningBaseline:
    """Knows the healthy past of every engine that is watched. Called as a `Baseline`; not for several threads.

    Pure: time comes from the frames, and stored pasts are handed in by `adopt` and out by `changed`.
    """

    def __init__(self) -> None:
        self._pasts: dict[PastKey, Past] = {}
        self._streams: dict[tuple[str, str | None], _Stream] = {}
        self._wanted: list[PastKey] = []

    def __call__(self, engine: EngineView, live: EngineLive, metric: str) -> float | None:
        """The healthy median of a metric (see `past.METRICS`) at the present load; None while it isn't known."""
        if live.rank is not None and sum(rank.model == live.model for rank in engine.ranks) > 1:
            # Learnt of the whole: a rank has another load.
            return None
        stream = self._streams.get((engine.frame.target_key, live.model))
        past = self._pasts.get(stream.key) if stream else None
        if stream is None or past is None:
            return None
        return None if stream.load is None else past.median(stream.load, metric, live.generation_tokens_per_s)

    def follow(self, view: NodeView) -> None:
        """Takes notice of the newest load of each engine."""
        watched = set()
        for engine in view.engines:
            for live in engine.models[:_MOST_MODELS]:
                place = (engine.frame.target_key, live.model)
                watched.add(place)
                stream = self._stream(place, _key(engine, live), view.now.mono_s)
                at = engine.frame.scrape.at_mono_s
                if at is not None and at != stream.scraped:
                    stream.take(live, at)
        for place in self._streams.keys() - watched:
            del self._streams[place]

    def learn(self, view: NodeView, suspected: Mapping[str, Collection[str]]) -> None:
        """Takes a sample of each engine that nothing disturbs, and learns those that are out of quarantine."""
        now = view.now.mono_s
        for engine in view.engines:
            rules = suspected.get(engine.subject.key, ())
            disturbed = engine.frame.scrape.error is not None or any(rule in DISTURBING for rule in rules)
            for live in engine.models[:_MOST_MODELS]:
                stream = self._streams.get((engine.frame.target_key, live.model))
                if stream is None:
                    continue
                fell = FALLS in rules and self._usual_hit_pct(engine, live) >= _FALLS_FROM_PCT
                if disturbed or fell or live.restarted or live.window_s is None:
                    stream.disturb(now)
                    continue
                self._sample(stream, live, view)
                quarantine_s = max(QUARANTINE_S, live.window_s + QUARANTINE_S - STEP_S)
                while stream.quarantine and now - stream.quarantine[0].at >= quarantine_s:
                    sample = stream.quarantine.popleft()
                    self._pasts[stream.key].add(sample.key, sample.at_s, sample.values)

    def _usual_hit_pct(self, engine: EngineView, live: EngineLive) -> float:
        usual = self(engine, live, "prefix_hit_pct")
        return (live.prefix_hit_lifetime_pct or 0.0) if usual is None else usual

    def wanted(self) -> list[PastKey]:
        """Keys that have come into view since the last call: a stored past of them is welcome."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def adopt(self, key: tuple[str, str, str], plain: Any, now_s: float) -> None:
        """Takes the stored past of a `PastKey`, unless something has been learnt already.

        Raises:
            ValueError: it is none.
        """
        past = Past.from_plain(plain, now_s)
        whose = PastKey(*key)
        if whose in self._pasts and not self._pasts[whose].buckets:
            self._pasts[whose] = past

    def changed(self) -> dict[PastKey, list[dict[str, Any]]]:
        """The pasts that have learnt something since the last call, to be stored."""
        changed = {key: past for key, past in self._pasts.items() if past.changed}
        for past in changed.values():
            past.changed = False
        return {key: past.plain() for key, past in changed.items()}

    def _stream(self, place: tuple[str, str | None], key: PastKey, now: float) -> _Stream:
        stream = self._streams.get(place)
        if stream is None or stream.key != key:
            stream = self._streams[place] = _Stream(key, now)
            past = self._pasts.pop(key, None)
            if past is None:
                past = Past()
                self._wanted.append(key)
            # The newest last: the first is the one that is forgotten.
            self._pasts[key] = past
            in_use = {s.key for s in self._streams.values()}
            for old in [k for k in self._pasts if k not in in_use][: max(0, len(self._pasts) - MOST_PASTS)]:
                del self._pasts[old]
        return stream

    def _sample(self, stream: _Stream, live: EngineLive, view: NodeView) -> None:
        now, key = view.now.mono_s, stream.load
        step = max(STEP_S, live.window_s or 0.0)
        # A whole window must have passed since the disturbance: before that it shows in the figures.
        if key is None or now - stream.undisturbed_since < step or now - stream.sampled < step:
            return
        stream.sampled = now
        stream.quarantine.append(_Sample(now, view.now.at_s, key, sample_of(live)))


def _key(engine: EngineView, live: EngineLive) -> PastKey:
    target = engine.target
    hardware = _hardware(
        tuple(gpu.now.name for gpu in engine.gpus),
        target is not None and any(process.mig_instance is not None for process in target.processes),
    )
    model = live.model or (target.model if target else None) or ""
    # Without GPUs (on a CPU, or on another node) the address is all that tells one machine from another.
    return PastKey(engine.kind, model, hardware or f"at {engine.frame.url}")


@lru_cache(maxsize=64)
def _hardware(names: tuple[str | None, ...], mig: bool) -> str:
    kinds = Counter(name or "GPU" for name in names)
    return " + ".join(f"{count}x {name}" for name, count in sorted(kinds.items())) + (" (MIG)" if mig else "")
