"""Writing to standard output and error so that nothing hangs, breaks or is half told.

Standard output is data, standard error is for sentences.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable

# What a pipe takes at once when it is ready for writing (POSIX: PIPE_BUF).
_CHUNK = 512
_WAIT_S = 0.2


def write_text(text: str) -> None:
    """Writes all of it, at once.

    Raises:
        BrokenPipeError: nobody reads any more.
        GputopError: it can't be written (a full disk, a closed descriptor).
    """
    stream = sys.stdout
    if stream is None:
        raise _unwritable("it is closed")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(error.strerror or str(error)) from error


def write_line(line: str, stopped: Callable[[], bool]) -> None:
    """Writes one line of ASCII at once, unbuffered.

    A reader that stopped reading without closing can't hold the program: once `stopped()`
    is true, what the pipe doesn't take is not written.

    Raises:
        BrokenPipeError, GputopError: as for `write_text`.
    """
    if sys.stdout is None:
        raise _unwritable("it is closed")
    fd = sys.stdout.fileno()
    rest = memoryview(f"{line}\n".encode("ascii"))
    try:
        while rest:
            if select.select([], [fd], [], _WAIT_S)[1]:
                rest = rest[os.write(fd, rest[:_CHUNK]) :]
            elif stopped():
                return
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(error.strerror or str(error)) from error


def complain(sentences: Iterable[str]) -> None:
    """Writes each sentence as a line to standard error; where nobody can be told, nobody is."""
    if sys.stderr is None:
        return
    # On a full disk the exit code is what is left to tell.
    with suppress(OSError):
        for sentence in sentences:
            sys.stderr.write(f"{printable(sentence)}\n")


def _unwritable(why: str) -> GputopError:
    return GputopError("cannot write to standard output", why)
