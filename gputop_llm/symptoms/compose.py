"""One root, not ten alarms: which symptom explains which others.

An edge says "A makes B": while A is raised on the same engine (or its GPUs, or the
node), B is shown below A. Edges are few and causal; a coincidence is no edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gputop_llm.model.symptom import Severity, Symptom

# Cause → what follows from it. Written as a table so that a reader can check it against the bottleneck map.
EXPLAINS: Mapping[str, frozenset[str]] = {
    rule: frozenset(effects)
    for rule, effects in {
        "gpu-fault": ("stalled", "metrics-stale", "errors-rising", "gpu-starved", "hw-slowdown", "comm-bound"),
        "stalled": (
            "kv-pressure",
            "queue-growing",
            "scheduler-capped",
            "ttft-high",
            "tpot-high",
            "gpu-busy-not-working",
            "gpu-starved",
            "host-bound",
            "comm-bound",
            "errors-rising",
            "metrics-stale",
            "rank-imbalance",
        ),
        "cpu-throttled": (
            "host-bound",
            "gpu-starved",
            "gpu-busy-not-working",
            "tpot-high",
            "ttft-high",
            "metrics-stale",
        ),
        "host-bound": ("gpu-starved", "gpu-busy-not-working", "tpot-high", "ttft-high", "queue-growing"),
        "noisy-neighbour": ("memory-spike", "tpot-high", "ttft-high", "power-capped", "thermal-throttled"),
        "power-capped": ("tpot-high", "ttft-high", "compute-bound"),
        "thermal-throttled": ("tpot-high", "ttft-high", "compute-bound"),
        "hw-slowdown": ("tpot-high", "ttft-high", "compute-bound"),
        "link-degraded": ("comm-bound", "copy-bound", "tpot-high"),
        # The rank that comes last idles, and worker processes spin while they wait for their GPU.
        "comm-bound": ("gpu-busy-not-working", "gpu-starved", "host-bound", "copy-bound", "tpot-high", "ttft-high"),
        "copy-bound": ("gpu-busy-not-working", "tpot-high", "ttft-high"),
        "gpu-starved": ("tpot-high", "ttft-high", "queue-growing"),
        "kv-pressure": ("queue-growing", "ttft-high", "tpot-high", "errors-rising"),
        "scheduler-capped": ("queue-growing", "ttft-high"),
        "rank-imbalance": ("kv-pressure", "scheduler-capped", "queue-growing", "ttft-high", "tpot-high"),
        "prefix-cache-cold": ("queue-growing", "ttft-high", "compute-bound"),
        "spec-decode-weak": ("tpot-high",),
        "queue-growing": ("ttft-high", "errors-rising"),
        "ttft-high": ("errors-rising",),
        # A page that says nothing says that nothing runs.
        "metrics-stale": ("underloaded",),
        "gpu-busy-not-working": ("tpot-high",),
        "bandwidth-bound": ("tpot-high",),
        "compute-bound": ("ttft-high", "tpot-high"),
    }.items()
}

# Notes that tell what the limit is: what it limits may be bad. Any other note says that something is as it always was,
# which explains no change.
LIMITS = frozenset({"bandwidth-bound", "compute-bound"})

# What follows → its causes, in the order of the table.
_CAUSES: Mapping[str, tuple[str, ...]] = {
    effect: tuple(cause for cause, effects in EXPLAINS.items() if effect in effects)
    for effect in {effect for effects in EXPLAINS.values() for effect in effects}
}


def compose(raised: Iterable[Symptom], scopes: Mapping[str, frozenset[str]]) -> tuple[Symptom, ...]:
    """Groups what is raised: each root, worst first, followed by what it explains.

    Args:
        raised: what the state machine says.
        scopes: subject key → the keys of the engines it belongs to ("gpu:0" → {"engine:…"});
            two symptoms can only be related when they share an engine, or one is the node's.
    """
    return Composer().compose(raised, scopes)


class Composer:
    """As `compose`, and works the order out anew only where something that decides it has changed."""

    def __init__(self) -> None:
        self._decides: object = None
        self._order: list[tuple[str, str | None]] = []
        self._placed: dict[str, tuple[Symptom, Symptom]] = {}

    def compose(self, raised: Iterable[Symptom], scopes: Mapping[str, frozenset[str]]) -> tuple[Symptom, ...]:
        """See `compose`."""
        by_key = {s.key: s for s in raised}
        decides = (
            [(key, s.severity, s.since_s) for key, s in by_key.items()],
            {s: scopes.get(s) for s in _subjects(by_key)},
        )
        if decides != self._decides:
            self._decides, self._order = decides, _arranged(list(by_key.values()), scopes)
        placed, self._placed = self._placed, {}
        for key, root in self._order:
            symptom, before = by_key[key], placed.get(key)
            if before is None or before[0] is not symptom or before[1].root != root:
                before = symptom, symptom if root is None else replace(symptom, root=root)
            self._placed[key] = before
        return tuple(symptom for _, symptom in self._placed.values())


def _subjects(by_key: Mapping[str, Symptom]) -> set[str]:
    return {symptom.subject.key for symptom in by_key.values()}


def _arranged(symptoms: list[Symptom], scopes: Mapping[str, frozenset[str]]) -> list[tuple[str, str | None]]:
    """(key, key of its root or None) in the order to show."""
    by_id: dict[str, list[Symptom]] = {}
    for symptom in symptoms:
        by_id.setdefault(symptom.id, []).append(symptom)
    parent = {s.key: _parent(s, by_id, scopes) for s in symptoms}
    by_key = {s.key: s for s in symptoms}
    roots = {key: _root(key, parent) for key in parent}
    members: dict[str, list[Symptom]] = {}
    for key, root in roots.items():
        members.setdefault(root, []).append(by_key[key])
    ordered: list[tuple[str, str | None]] = []
    for root in sorted(members, key=lambda r: _rank(by_key[r], members[r])):
        ordered.append((root, None))
        below = sorted((s for s in members[root] if s.key != root), key=lambda s: _rank(s, [s]))
        ordered.extend((s.key, root) for s in below)
    return ordered


def _parent(symptom: Symptom, by_id: Mapping[str, list[Symptom]], scopes: Mapping[str, frozenset[str]]) -> str | None:
    explaining = [
        other
        for cause in _CAUSES.get(symptom.id, ())
        for other in by_id.get(cause, ())
        if (other.severity > Severity.NOTE or other.id in LIMITS) and _related(symptom, other, scopes)
    ]
    if not explaining:
        return None
    # The most specific explanation: one that is itself explained by another candidate is nearer.
    explaining.sort(key=lambda o: (sum(o.id in EXPLAINS.get(e.id, ()) for e in explaining), o.severity), reverse=True)
    return explaining[0].key


def _related(one: Symptom, other: Symptom, scopes: Mapping[str, frozenset[str]]) -> bool:
    a, b = scopes.get(one.subject.key), scopes.get(other.subject.key)
    return a is None or b is None or bool(a & b)


def _root(key: str, parent: Mapping[str, str | None]) -> str:
    seen = {key}
    while (above := parent[key]) is not None and above not in seen:
        seen.add(above)
        key = above
    return key


def _rank(symptom: Symptom, group: list[Symptom]) -> tuple[int, int, float, str]:
    """Sort key: groups by their worst member, then the longest-lasting."""
    worst = max((s.severity for s in group), default=Severity.NOTE)
    return (-worst, -symptom.severity, symptom.since_s or 0.0, symptom.key)
