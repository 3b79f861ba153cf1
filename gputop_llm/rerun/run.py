"""Runs a script that was written, within a time, and reads what it printed; and what that cost a server beside it."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_llm.capture.engine_watch import EngineSample
from gputop_llm.config import ENV_PREFIX
from gputop_llm.errors import GputopError
from gputop_llm.ncu import child
from gputop_llm.printable import printable
from gputop_llm.rerun.place import Chosen, Python

#: Loading torch takes a minute from a cold disk, and each case up to a second.
WITHIN_S = 240.0
#: The script ends itself so much later: for when whoever started it was killed.
_GRACE_S = 10.0
_MOST_BYTES = 16 << 20
#: What another Python's program must not inherit.
_NOT_FOR_IT = re.compile(rf"{ENV_PREFIX}\w+|PYTHON\w+|VIRTUAL_ENV|LD_PRELOAD|CUDA_INJECTION64_PATH")


@dataclass(frozen=True, slots=True)
class ServerCost:
    """Tokens per second of the engine before, during and after; None where it can't be told."""

    before: float | None
    during: float | None
    after: float | None


def environment(gpu: Chosen, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the script's process gets: that one GPU and nothing that is this program's own."""
    kept = {name: value for name, value in own.items() if not _NOT_FOR_IT.fullmatch(name)}
    return {
        **kept,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": gpu.uuid or str(gpu.index),
        # Under MPS a fault of one client ends the work of all: where its daemon can't be found, CUDA does without.
        "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
    }


def ended_within(seconds: float) -> tuple[str, str]:
    """What a script gets so that it ends also when nobody is left to end it."""
    return "--within", str(round(seconds + _GRACE_S))


def run_script(
    python: Python,
    script: Path,
    variables: Mapping[str, str],
    arguments: Sequence[str] = (),
    within_s: float = WITHIN_S,
    cancelled: Callable[[], bool] = lambda: False,
) -> Mapping[str, Any]:
    """What the script printed.

    Args:
        variables: its whole environment.

    Raises:
        GputopError: it can't be started, failed, took too long, or printed something else.
        KeyboardInterrupt: Ctrl-C, or `cancelled`; nothing of it runs by then.
    """
    with tempfile.TemporaryFile() as output:
        argv = [python.path, str(script.absolute()), *ended_within(within_s), *arguments]
        ended = child.run(argv, output, within_s, Path("/"), variables, cancelled)
        output.seek(0)
        text = output.read(_MOST_BYTES).decode("utf-8", "replace")
    last = printable(next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing"), 300)
    if ended.code is None:
        raise GputopError("the re-run was ended", f"it took longer than {within_s:g} s", "run the script by hand")
    if ended.code != 0:
        raise GputopError("the re-run failed", last, f"run it by hand: {python.path} {script}")
    # Libraries print what they like before and after it.
    found = re.search(r"^\{\n.*^\}$", text, re.MULTILINE | re.DOTALL)
    try:
        told = json.loads(found[0]) if found else None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise GputopError("cannot read what the script printed", last)
    return told


def server_cost(samples: Sequence[EngineSample], began_ns: int, ended_ns: int) -> ServerCost:
    """What the engine's counter of tokens says of a time in which something else ran.

    Args:
        samples: of one engine.
        began_ns, ended_ns: CLOCK_MONOTONIC.
    """
    samples = sorted({one.mono_ns: one for one in samples}.values(), key=lambda one: one.mono_ns)
    before = [one for one in samples if one.mono_ns <= began_ns]
    after = [one for one in samples if one.mono_ns >= ended_ns]
    during = [*before[-1:], *(one for one in samples if began_ns < one.mono_ns < ended_ns), *after[:1]]
    return ServerCost(_rate(before), _rate(during), _rate(after))


def _rate(samples: Sequence[EngineSample]) -> float | None:
    """Tokens per second from the first to the last; None if there are no two, or the counter was set back."""
    counted = [one for one in samples if one.generation_tokens is not None]
    if len(counted) < 2 or counted[-1].mono_ns <= counted[0].mono_ns:
        return None
    first, last = counted[0].generation_tokens, counted[-1].generation_tokens
    assert first is not None
    assert last is not None
    return (last - first) / (counted[-1].mono_ns - counted[0].mono_ns) * 1e9 if last >= first else None
