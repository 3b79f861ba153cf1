"""The client that records inside a target: its library, and the way to one that was there from the start."""

from __future__ import annotations

from pathlib import Path

from gputop_llm.capture.native.prepared import PreparedChannel, connect_prepared, is_prepared
from gputop_llm.errors import GputopError

__all__ = [
    "COMMAND_WAIT_S",
    "LIBRARY",
    "REACH_WITHIN_S",
    "PreparedChannel",
    "connect_prepared",
    "is_prepared",
    "library_bytes",
    "library_path",
]

#: How long a client waits for its command (window.c).
COMMAND_WAIT_S = 60.0
#: How long reaching the clients of all ranks may take: the first one waits meanwhile, and what comes before and after
#: (the engine's pace, the greetings) must fit into its wait, too.
REACH_WITHIN_S = 25.0

LIBRARY = "libgputop_client.so"


def library_path() -> Path:
    """Where this installation has the client's library.

    Raises:
        GputopError: it has none.
    """
    path = Path(__file__).with_name(LIBRARY)
    if not path.is_file():
        raise GputopError(
            "this installation can't record inside a process",
            "it was built without the client's library (Linux on x86-64 and a C compiler are needed)",
            "install a wheel for linux x86_64, or gcc and then gputop-llm again",
        )
    return path


def library_bytes() -> bytes:
    """The client's library, whole.

    Raises:
        GputopError: this installation has none.
    """
    return library_path().read_bytes()
