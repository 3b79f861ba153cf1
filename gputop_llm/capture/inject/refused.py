"""Why nothing is injected into a process."""

from __future__ import annotations

from gputop_llm.errors import GputopError


class InjectionRefused(GputopError):
    """A process is not touched, or not any further. It goes on as before.

    Args:
        why: the reason, as a clause.
        todo: the one thing that would lift it.
    """

    def __init__(self, why: str, todo: str) -> None:
        super().__init__("cannot record inside the process", why, todo)


class NotBorrowed(InjectionRefused):
    """No thread of it can be borrowed, and nothing was done to it: a way that borrows none may be open."""


def unread_filter() -> InjectionRefused:
    """The refusal of a process whose seccomp filter, for all that is known, would kill it for our system calls."""
    return InjectionRefused(
        "it has a seccomp filter that can't be read from here, which might kill it for a system call of ours",
        "run gputop-llm as root on the host (sudo), or start the server by `gputop-llm run -- COMMAND`",
    )
