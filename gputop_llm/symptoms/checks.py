"""What a rule answers, and how answers combine.

A condition is RAISED, CLEAR, between the two (hysteresis: nothing changes), or
UNKNOWN. A rule says one `Check` per subject; the state machine makes symptoms of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from gputop_llm.model.symptom import Subject, Symptom
from gputop_llm.symptoms.limits import Limits


class State(Enum):
    """Where a condition stands."""

    RAISED = "raised"
    BETWEEN = "between"
    CLEAR = "clear"
    UNKNOWN = "unknown"


class Check(NamedTuple):
    """One rule's answer on one subject at one tick.

    `needs` says what an UNKNOWN would need. `make` builds the symptom with its evidence; it
    is called only while the symptom is shown. `certain`: it was seen, not inferred from a rate or a wait, and so is
    as true of an engine that warms up.
    """

    rule: str
    subject: Subject
    state: State
    needs: str = ""
    make: Callable[[], Symptom] | None = None
    certain: bool = False


def judged(
    rule: str,
    subject: Subject,
    state: State,
    needs: str | Callable[[], str],
    make: Callable[[], Symptom],
    certain: bool = False,
) -> Check:
    """A check whose evidence is gathered only while the condition holds: what is shown until it clears is what held.

    And what it needs is put in words only while it is unknown, where `needs` is to be called for that.
    """
    if state is State.UNKNOWN:
        return Check(rule, subject, state, needs() if callable(needs) else needs)
    return Check(rule, subject, state, "", None if state is State.CLEAR else make, certain)


def over(value: float | None, limits: Limits, name: str) -> State:
    """Whether a value is over its threshold."""
    if value is None:
        return State.UNKNOWN
    if value > limits.value(name):
        return State.RAISED
    return State.CLEAR if value <= limits.clear(name) else State.BETWEEN


def at_least(value: float | None, limits: Limits, name: str) -> State:
    """Whether a value has reached its threshold."""
    if value is None:
        return State.UNKNOWN
    if value >= limits.value(name):
        return State.RAISED
    return State.CLEAR if value < limits.clear(name) else State.BETWEEN


def under(value: float | None, limits: Limits, name: str) -> State:
    """Whether a value is under its threshold."""
    if value is None:
        return State.UNKNOWN
    if value < limits.value(name):
        return State.RAISED
    return State.CLEAR if value >= limits.clear(name) else State.BETWEEN


def is_true(condition: bool | None) -> State:
    """A condition without hysteresis; None is unknown."""
    if condition is None:
        return State.UNKNOWN
    return State.RAISED if condition else State.CLEAR


def at_every_reading(held: Sequence[bool]) -> State:
    """Whether something held at every reading; it is gone when it held at no more than half of them."""
    if not held:
        return State.UNKNOWN
    count = sum(held)
    if count == len(held):
        return State.RAISED
    return State.CLEAR if 2 * count <= len(held) else State.BETWEEN


def all_of(*states: State) -> State:
    """Holds when all hold; gone when one is gone, whatever the others (also unknown ones) say."""
    if State.CLEAR in states:
        return State.CLEAR
    if State.UNKNOWN in states:
        return State.UNKNOWN
    return State.BETWEEN if State.BETWEEN in states else State.RAISED


def all_in_turn(*conditions: Callable[[], State]) -> State:
    """As `all_of`, but asks no further once one is gone: put what is cheap to ask first."""
    found = State.RAISED
    for condition in conditions:
        state = condition()
        if state is State.CLEAR:
            return state
        if state is State.UNKNOWN or found is State.RAISED:
            found = state
    return found


def any_of(*states: State) -> State:
    """Holds when one holds; gone only when all are gone; unknown when none holds and one is unknown."""
    if State.RAISED in states:
        return State.RAISED
    if State.UNKNOWN in states:
        return State.UNKNOWN
    return State.BETWEEN if State.BETWEEN in states else State.CLEAR
