"""The one interface of every source."""

from __future__ import annotations

from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Something that can be asked for a reading again and again.

    A source is polled from one thread of its own. It keeps what it needs between
    polls to turn counters into rates, and reports a field that fails as None with
    a reason; only when nothing at all can be read does `poll` raise `SourceError`.
    """

    name: str
    deadline_s: float

    def poll(self) -> T_co:
        """Takes one reading.

        Raises:
            SourceError: nothing could be read; the sentence is shown to the user.
        """
        ...

    def abort(self) -> None:
        """Asks a poll that outlasts `deadline_s` to give up; called from another thread.

        May do nothing where a call can't be interrupted (a hung driver).
        """
        ...

    def close(self) -> None:
        """Lets go of everything. Called once, after the last poll has ended or was given up."""
        ...
