"""From checks to symptoms: a condition must hold for a while, and be gone for a while.

Between a threshold and its clear value nothing changes, so noise around either makes nothing flap. What is raised gets
worse at once, and better only when it was no worse for the time that it would take to be cleared.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gputop_llm.model.symptom import CantTell, Subject, Symptom
from gputop_llm.symptoms.checks import Check, State
from gputop_llm.symptoms.limits import Limits

log = logging.getLogger(__name__)

# Evidence of so many symptoms is gathered per tick, of those first whose evidence is oldest: on a node where everything
# is wrong each is renewed every few ticks, and a tick costs no more for it. Of a dozen nobody reads each at once.
REMADE, REMADE_OF_MANY, MANY = 3, 2, 12

# A subject or input that vanishes ends its symptom after this time, even if nothing ever said "clear".
FORGET_S = 30.0
NO_SCOPES: Mapping[str, frozenset[str]] = {}


@dataclass(slots=True)
class _Track:
    """One rule on one subject. Times are monotonic seconds, `since_s` wall time.

    `engines` are those that the subject belongs to, or last belonged to.
    """

    subject: Subject
    engines: frozenset[str] = frozenset()
    active: bool = False
    held_since: float | None = None
    clear_since: float | None = None
    since_s: float | None = None
    last_known: float = 0.0
    shown: Symptom | None = None
    made_at: float = 0.0
    severe_at: float = 0.0


class SymptomState:
    """Keeps what is raised. `update` once per tick, with times from the frame.

    Args:
        limits: for each rule's hold and clear times.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._pending: list[tuple[Check, _Track]] = []
        self._failed: set[str] = set()

    def update(
        self,
        checks: Iterable[Check],
        mono_s: float,
        wall_s: float,
        scopes: Mapping[str, frozenset[str]] = NO_SCOPES,
        gone: Collection[str] = (),
    ) -> tuple[list[Symptom], list[CantTell]]:
        """Takes one tick's checks; returns what is raised now, and what can't be told.

        Args:
            scopes: subject key → keys of the engines that it belongs to.
            gone: keys of engines that have ended: what no rule says of them or their GPUs any more ends with them.
        """
        cant_tell: list[CantTell] = []
        raised: list[Symptom] = []
        seen: set[tuple[str, str]] = set()
        active: list[tuple[Check, _Track]] = []
        self._pending = []
        for check in checks:
            key, state = (check.rule, check.subject.key), check.state
            if state is State.UNKNOWN:
                cant_tell.append(CantTell(check.rule, check.subject, check.needs))
            track = self._tracks.get(key)
            if track is None:
                if state is State.CLEAR or state is State.UNKNOWN:
                    continue
                track = self._tracks[key] = _Track(check.subject)
            seen.add(key)
            track.engines = scopes.get(check.subject.key) or track.engines
            self._step(track, check, mono_s, wall_s)
            if track.active:
                active.append((check, track))
            elif track.held_since is not None:
                self._pending.append((check, track))
        self._renew(active, mono_s)
        raised += [track.shown for _, track in active if track.shown is not None]
        for key, track in list(self._tracks.items()):
            quiet = not track.active and track.held_since is None
            ended = bool(gone) and key not in seen and bool(track.engines) and track.engines <= set(gone)
            if quiet or ended or mono_s - track.last_known > FORGET_S:
                del self._tracks[key]
            elif key not in seen and track.active and track.shown is not None:
                raised.append(track.shown)
        return raised, cant_tell

    def _renew(self, active: list[tuple[Check, _Track]], mono_s: float) -> None:
        """Gathers the evidence of what is new, and of what has not been renewed for longest."""
        new = sum(track.shown is None for _, track in active)
        oldest = sorted(active, key=lambda pair: (pair[1].shown is not None, pair[1].made_at))
        for check, track in oldest[: max(REMADE if len(active) < MANY else REMADE_OF_MANY, new)]:
            made = self._made(check, track)
            if made is not None:
                track.shown = self._as_severe(made, track, mono_s)
            track.made_at = mono_s

    def _as_severe(self, made: Symptom, track: _Track, mono_s: float) -> Symptom:
        """The symptom, for a while no less severe than before."""
        before = track.shown
        clear_s = self._limits.hold(made.id)[1]
        if before is not None and made.severity < before.severity and mono_s - track.severe_at < clear_s:
            return replace(made, severity=before.severity)
        track.severe_at = mono_s
        return made

    def pending(self) -> tuple[Symptom, ...]:
        """What holds, but not yet for long enough to be raised."""
        return tuple(made for check, track in self._pending if (made := self._made(check, track)) is not None)

    def suspected(self) -> Iterator[tuple[str, str]]:
        """(rule, subject key) of each condition that holds, raised or not yet."""
        return (key for key, track in self._tracks.items() if track.active or track.held_since is not None)

    def _made(self, check: Check, track: _Track) -> Symptom | None:
        """The symptom with its evidence; None when the rule has a bug there, which must stop no other."""
        if check.make is None:
            return None
        try:
            return replace(check.make(), since_s=track.since_s)
        except Exception:  # as above
            if check.rule not in self._failed:
                self._failed.add(check.rule)
                log.exception("the evidence of %s could not be gathered", check.rule)
            return None

    def _step(self, track: _Track, check: Check, mono_s: float, wall_s: float) -> None:
        for_s, clear_s = self._limits.hold(check.rule)
        if check.state is State.UNKNOWN:
            return
        track.last_known = mono_s
        if check.state is State.RAISED:
            track.clear_since = None
            if track.held_since is None:
                track.held_since, track.since_s = mono_s, wall_s
            if mono_s - track.held_since >= for_s:
                track.active = True
        elif check.state is State.BETWEEN:
            track.clear_since = None
        else:
            if not track.active:
                track.held_since = None
                return
            if track.clear_since is None:
                track.clear_since = mono_s
            if mono_s - track.clear_since >= clear_s:
                track.active, track.held_since, track.clear_since, track.shown = False, None, None, None
