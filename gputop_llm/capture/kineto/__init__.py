"""Windows of torch.profiler inside a running process, by its low-level calls on a thread of ours."""

from __future__ import annotations

from pathlib import Path

from gputop_llm.errors import GputopError

RUNNER = "libgputop_runner.so"


def runner_bytes() -> bytes:
    """The library that runs the agent in a target, whole.

    Raises:
        GputopError: this installation has none.
    """
    path = Path(__file__).with_name(RUNNER)
    if not path.is_file():
        raise GputopError(
            "this installation can't run torch.profiler inside a process",
            "it was built without its native library (Linux on x86-64 and a C compiler are needed)",
            "install a wheel for linux x86_64, or gcc and then gputop-llm again",
        )
    return path.read_bytes()


def agent_source() -> bytes:
    """The agent's source as it is run in a target.

    Raises:
        OSError: it can't be read.
    """
    return Path(__file__).with_name("agent.py").read_bytes()
