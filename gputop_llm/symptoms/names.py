"""What the targets of a node are called, so that each is told from the others."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from gputop_llm.model import Target
from gputop_llm.model.symptom import Subject

_HERE = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})


class TargetNames:
    """Targets as subjects of symptoms; those that serve the same model are told apart by their place.

    Args:
        targets: those that are there now.
    """

    def __init__(self, targets: Iterable[Target]) -> None:
        self._keys: dict[str, set[str]] = {}
        for target in targets:
            self._keys.setdefault(_name(target), set()).add(target.key)

    def subject(self, target: Target) -> Subject:
        """A target, scraped or not, there or gone."""
        name = _name(target)
        twins = self._keys.get(name, set()) - {target.key}
        return Subject(engine_key(target), f"{name} {_place(target)}" if twins else name)


def engine_key(target: Target) -> str:
    """The key of the target as a subject."""
    return f"engine:{target.key}"


def _name(target: Target) -> str:
    if target.engine == "unknown":
        # Only its page tells what it is; a user knows it by the address that was given.
        return f"engine {_place(target)}"
    return f"{target.engine} {target.model or ''}".strip()


def _place(target: Target) -> str:
    """Its address (":8001" on this host), else its PID."""
    if not target.urls:
        return f"(PID {target.root_pid})" if target.root_pid is not None else f"({target.key})"
    parts = urlsplit(target.urls[0])
    return f"at :{parts.port}" if parts.port and parts.hostname in _HERE else f"at {parts.netloc}"
