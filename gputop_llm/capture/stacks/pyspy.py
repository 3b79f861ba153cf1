"""The py-spy that is installed with this program: where it is, how it is asked, what its answers hold.

It is only ever asked not to stop the target ("--nonblocking"): it reads the target's memory and nothing else, so
that it can be ended at any moment without a trace. In return a stack that changes while it is read may be torn.
"""

from __future__ import annotations

import json
import os
import sysconfig
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from gputop_llm.capture import process
from gputop_llm.errors import GputopError
from gputop_llm.model.stacks import Call, ThreadStack
from gputop_llm.printable import printable

#: A dump of 105 threads took 15 ms on a server's processor; the first one reads the interpreter's symbols from disk.
DUMP_WITHIN_S = 10.0
_MOST_THREADS = 4096
_MOST_CALLS = 512
_MOST_NAME = 160


@lru_cache(maxsize=1)
def program() -> str:
    """Its path.

    Raises:
        GputopError: it isn't installed.
    """
    found: list[Path] = []
    try:
        files = metadata.files("py-spy") or []
        found += [Path(str(file.locate())) for file in files if file.name == "py-spy"]
    except metadata.PackageNotFoundError:
        pass
    found.append(Path(sysconfig.get_path("scripts")) / "py-spy")
    for path in found:
        if path.is_file():
            return str(path.resolve())
    raise GputopError(
        "cannot read Python stacks", "py-spy, which reads them, is not installed", "python -m pip install py-spy"
    )


def dump(pid: int, within_s: float = DUMP_WITHIN_S) -> process.Ran:
    """One look at all Python threads of a process, which runs on meanwhile.

    Raises:
        GputopError: py-spy isn't there or can't be started.
    """
    return process.ran([program(), "dump", "--pid", str(pid), "--json", "--nonblocking"], within_s)


class Recording:
    """Where py-spy writes a recording: memory that is gone with the last process that has it, no file.

    Args:
        most_bytes: the most that is read of it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.fd = os.memfd_create("gputop-llm-stacks")

    def argv(self, pid: int, seconds: float, rate_hz: int, form: str, idle: bool) -> list[str]:
        """How it is asked for: each thread under its own name; with `idle` also those that wait.

        Raises:
            GputopError: py-spy isn't there.
        """
        return [
            program(), "record", "--pid", str(pid), "--duration", str(max(1, round(seconds))), "--rate", str(rate_hz),
            "--format", form, "--output", f"/proc/self/fd/{self.fd}", "--nonblocking", "--threads",
            *(["--idle"] if idle else []),
        ]  # fmt: skip

    def read(self) -> bytes:
        """All of it; empty while it isn't written.

        Raises:
            GputopError: it is too long.
        """
        size = os.fstat(self.fd).st_size
        if size > self._most_bytes:
            raise GputopError("cannot read the recording", f"it has {size >> 20} MiB", "record for a shorter time")
        return os.pread(self.fd, size, 0)

    def close(self) -> None:
        """Lets go of it."""
        os.close(self.fd)


def threads_of(answer: bytes) -> tuple[ThreadStack, ...]:
    """The threads of a dump in JSON. All names are made safe to show.

    Raises:
        ValueError: it is no dump.
    """
    told = json.loads(answer)
    if not isinstance(told, list):
        raise ValueError("no list of threads")
    return tuple(_thread(one) for one in told[:_MOST_THREADS] if isinstance(one, dict))


def _thread(told: dict[str, Any]) -> ThreadStack:
    frames = told.get("frames")
    calls = tuple(_call(one) for one in frames[:_MOST_CALLS] if isinstance(one, dict)) if type(frames) is list else ()
    return ThreadStack(
        thread_id=_number(told.get("thread_id")) or 0,
        tid=_number(told.get("os_thread_id")),
        name=shown(told.get("thread_name")) or "unnamed",
        active=told.get("active") is True,
        owns_gil=told.get("owns_gil") is True,
        calls=calls,
    )


def _call(told: dict[str, Any]) -> Call:
    return Call(
        shown(told.get("name")) or "?",
        shown(told.get("short_filename")) or shown(told.get("filename")) or "?",
        _number(told.get("line")) or 0,
    )


def shown(value: object) -> str:
    """A name from the target, safe to show; "" for what is no text."""
    return printable(value, _MOST_NAME) if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 64 else None
