"""What an injection gives: the two pipes of the client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Channel:
    """A client that serves now; whoever holds the descriptors closes them.

    Attributes:
        commands: descriptor to write commands to.
        records: descriptor to read the record from.
        took_ms: from the first look at the target until the client was called.
        stopped_ms: the longest time that a thread of the target was stopped; for a script in Python how long it
            ran, once read and compiled.
        reused: whether the library was there already, from an earlier window.
        thread: the thread that was borrowed, and the system call that it waited in; for a script in Python the main
            thread, and "Python".
    """

    commands: int
    records: int
    took_ms: float
    stopped_ms: float
    reused: bool
    thread: tuple[int, str]
