"""Consecutive readings are nearly the same: what is equal in both is kept once.

Two minutes of readings are kept for the rules. Most of what a reading holds (limits, names, reasons why something
is missing) never changes, and is made anew by each poll.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_PLAIN = frozenset({float, int, str})
_NAMES: dict[type, tuple[str, ...]] = {}


def shared(new: T, old: object) -> T:
    """A reading equal to `new` that has the parts of `old` where those are equal.

    It is never `old` itself, however alike they are: two readings stay two. Mappings and dataclasses are taken
    not to change any more. What is no dataclass, or not of one kind with `old`, comes back as it is.
    """
    if type(new) is not type(old) or not is_dataclass(new):
        return new
    made: T = _built(new, old, {})
    return made


def _built(new: Any, old: Any, known: dict[int, Any]) -> Any:
    cls: Any = type(new)
    return cls(*(_part(getattr(new, name), getattr(old, name), known) for name in _names(cls)))


def _part(new: Any, old: Any, known: dict[int, Any]) -> Any:
    if new is old or new is None or old is None:
        return new
    cls = type(new)
    if cls is not type(old):
        return new
    if cls in _PLAIN:
        return old if new == old else new
    found = known.get(id(new))
    if found is None:
        # One object in several places of a reading stays one.
        found = known[id(new)] = _whole(cls, new, old, known)
    return found


def _whole(cls: Any, new: Any, old: Any, known: dict[int, Any]) -> Any:
    if cls is tuple:
        if not new:
            return old if not old else new
        if type(new[0]) in _PLAIN and new == old:
            return old
        parts = (*map(_part, new, old, [known] * len(new)), *new[len(old) :])
        return old if len(parts) == len(old) and _same(parts, old) else parts
    if cls is dict:
        if new == old:
            return old
        return {name: _part(value, old.get(name), known) for name, value in new.items()}
    if is_dataclass(cls):
        made = _built(new, old, known)
        names = _names(cls)
        return old if all(getattr(made, name) is getattr(old, name) for name in names) else made
    return new


def _same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


def _names(cls: Any) -> tuple[str, ...]:
    names = _NAMES.get(cls)
    if names is None:
        names = _NAMES[cls] = tuple(field.name for field in fields(cls))
    return names
