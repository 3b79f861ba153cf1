"""What failed, why, what to do: the only kind of failure a user sees.

Every failure that the program expects is a `GputopError`. It reads as one
sentence and knows the exit code of a headless command that ends with it.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every headless command (documented in docs/headless.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOTHING_FOUND = 3
    PARTIAL = 4


class GputopError(Exception):
    """A failure told as what failed, why, and what to do.

    Args:
        what: what failed, as a clause ("cannot read http://…/metrics").
        why: the reason, as a clause ("the server answered 401").
        todo: what the reader can do now; empty when nothing can be done.
    """

    exit_code: int = ExitCode.FAILED

    def __init__(self, what: str, why: str = "", todo: str = "") -> None:
        self.what = what
        self.why = why
        self.todo = todo
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """The failure as one line: `what: why; todo`."""
        text = self.what
        if self.why:
            text += f": {self.why}"
        if self.todo:
            text += f"; {self.todo}"
        return text


class UsageError(GputopError):
    """The command line, environment or config file asks for something impossible."""

    exit_code = ExitCode.USAGE


class NothingFound(GputopError):
    """There is no such target, GPU or engine."""

    exit_code = ExitCode.NOTHING_FOUND


class SourceError(GputopError):
    """One source of readings failed; the others go on."""

    exit_code = ExitCode.PARTIAL
