"""The same thread of several processes side by side: what is the same, and who stands elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gputop_llm.model.stacks import Call, Compared, ProcessStacks, ThreadStack, Variant

#: Threads are numbered as they are made: "Thread-2 (run)" of one rank may be "Thread-3 (run)" of another.
_NUMBERED = re.compile(r"^Thread-\d+ \((.+)\)$|^(.*?)[-_ ]?\d+$")
_MOST_NAMED = 4
_MOST_PLACES = 3


def kind_of(name: str) -> str:
    """A thread's name without its number."""
    found = _NUMBERED.match(name)
    return (found[1] or found[2] or name) if found is not None else name


def compared(processes: Sequence[ProcessStacks], roles: Mapping[int, str]) -> tuple[Compared, ...]:
    """Each kind of thread that processes of one role have, those first in which they differ most.

    Args:
        roles: by PID; only processes of the same role are compared, and only where there are at least two.
    """
    found: list[Compared] = []
    readable = [one for one in processes if one.unreadable is None]
    for role in dict.fromkeys(roles[one.pid] for one in readable):
        ranks = [one for one in readable if roles[one.pid] == role]
        if len(ranks) > 1:
            found += _of_role(role, ranks)
    return tuple(sorted(found, key=lambda kind: (kind.same, kind.name != "MainThread", kind.name)))


def _of_role(role: str, ranks: Sequence[ProcessStacks]) -> Iterator[Compared]:
    by_kind: dict[str, dict[int, list[ThreadStack]]] = {}
    for one in ranks:
        for thread in one.threads:
            by_kind.setdefault(kind_of(thread.name), {}).setdefault(one.pid, []).append(thread)
    for kind, having in by_kind.items():
        yield _kind(kind, role, ranks, having)


def _kind(kind: str, role: str, ranks: Sequence[ProcessStacks], having: Mapping[int, list[ThreadStack]]) -> Compared:
    """Ranks that have several threads of the kind are compared by all of their stacks together."""
    groups: dict[tuple[tuple[Call, ...], ...], list[ProcessStacks]] = {}
    for one in ranks:
        if one.pid in having:
            stacks = tuple(sorted((t.calls for t in having[one.pid]), key=lambda calls: [c.words() for c in calls]))
            groups.setdefault(stacks, []).append(one)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    majority = len(ordered[0][1]) * 2 > len(ranks)
    common = ordered[0][0]
    variants = []
    for at, (stacks, members) in enumerate(ordered):
        calls, apart = _where(stacks, common)
        variants.append(
            Variant(
                labels=tuple(one.label for one in members),
                calls=calls,
                differs_at=apart if at and majority else None,
                moved=sum(any(t.moved for t in having[one.pid]) for one in members),
                active=sum(any(t.active for t in having[one.pid]) for one in members),
            )
        )
    missing = tuple(one.label for one in ranks if one.pid not in having)
    return Compared(kind, role, tuple(variants), majority, missing)


def _where(stacks: tuple[tuple[Call, ...], ...], common: tuple[tuple[Call, ...], ...]) -> tuple[tuple[Call, ...], int]:
    """The stack that stands for several threads (the first that the majority hasn't), and where they part."""
    others = list(common)
    own = []
    for calls in stacks:
        if calls in others:
            others.remove(calls)
        else:
            own.append(calls)
    calls = own[0] if own else stacks[0]
    beside = others[0] if own and others else common[0]
    return calls, shared_calls(calls, beside)


def shared_calls(one: Sequence[Call], other: Sequence[Call]) -> int:
    """How many frames two stacks have in common, from the outermost on; both are innermost first."""
    count = 0
    for mine, its in zip(reversed(one), reversed(other), strict=False):
        if mine != its:
            break
        count += 1
    return count


def headline(processes: Sequence[ProcessStacks], kinds: Sequence[Compared]) -> str:
    """Who differs, in a sentence."""
    readable = [one for one in processes if one.unreadable is None]
    if not readable:
        first = next((one.unreadable for one in processes if one.unreadable is not None), None)
        return f"no stack could be read: {first.why}" if first is not None else "there is no process"
    if not kinds:
        return _alone(readable)
    # What all wait for is where the main threads stand: that comes first, others only where those agree.
    differing = [kind for kind in kinds if not kind.same]
    main = [kind for kind in differing if kind.name == "MainThread"]
    if not differing:
        return _all_alike(kinds)
    kind = (main or differing)[0]
    return _differs(kind)


def _differs(kind: Compared) -> str:
    if kind.missing and len(kind.variants) == 1:
        return f"{_named(kind.missing)} {'have' if len(kind.missing) > 1 else 'has'} no thread {kind.name}, others do"
    first, *others = kind.variants
    if not kind.majority:
        count = len(kind.variants)
        if count <= _MOST_PLACES:
            places = ", ".join(f"{_named(one.labels)} in {_top(one)}" for one in kind.variants)
            return f"{kind.name}: {places}"
        return f"{kind.name}: the {sum(len(v.labels) for v in kind.variants)} processes stand at {count} places"
    said = [f"{_named(other.labels)} in {_top(other)}" for other in others[:2]]
    more = f", and {len(others) - 2} more" if len(others) > 2 else ""
    return f"{' and '.join(said)}{more}; the other {len(first.labels)} in {_top(first)} ({kind.name})"


def _all_alike(kinds: Sequence[Compared]) -> str:
    main = next((kind for kind in kinds if kind.name == "MainThread"), kinds[0])
    variant = main.variants[0]
    still = "" if variant.moved else ", and did not move between two looks"
    return f"all {len(variant.labels)} stand at the same place: {_top(variant)} ({main.name}){still}"


def _alone(readable: Sequence[ProcessStacks]) -> str:
    one = readable[0]
    main = next((t for t in one.threads if t.name == "MainThread"), None)
    if main is None or not main.calls:
        return f"{one.label} has {len(one.threads)} Python threads"
    did = {True: "it moved between two looks", False: "it did not move between two looks"}.get(main.moved or False)
    looked = "" if main.moved is None else f"; {did}"
    return f"MainThread of {one.label} is in {main.calls[0].words()}{looked}"


def _named(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:_MOST_NAMED])
    return f"{shown} and {len(labels) - _MOST_NAMED} more" if len(labels) > _MOST_NAMED else shown


def _top(variant: Variant) -> str:
    return variant.calls[0].words() if variant.calls else "no Python code"
