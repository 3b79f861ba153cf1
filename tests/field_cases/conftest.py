"""Machines of field cases; a session's pollers have no threads here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from gputop_llm.sampling.poller import Poller
from tests.field_cases.machine import Machine


@pytest.fixture(autouse=True)
def _fixed_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Iterator[Callable[..., Machine]]:
    """`machine(7, pid_namespace=…)` makes a machine; all are closed at the end."""
    monkeypatch.setattr(Poller, "start", lambda _self: None)
    made: list[Machine] = []

    def make(number: int, **given) -> Machine:
        made.append(Machine(number, tmp_path / str(len(made)), **given))
        return made[-1]

    yield make
    for one in made:
        one.close()
