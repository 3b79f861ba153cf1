"""Watches over one worker: ends it when it overruns its deadline, and settles what it leaves when it dies.

Run by the worker before it touches anything, as a process of its own, with the capture's folder and name as arguments,
and a handle of the worker (pidfd) as a third where the kernel has such. The worker writes lines to its standard input:
`deadline SECONDS` (from now; the last one counts), `undo JSON` (the steps that end what doesn't end by itself; the last
ones count) and, in the end, `done`. The end of that input without `done` is the
worker's death. Only the worker is ever killed, by a handle that can't come to mean another process, and never the
target: what runs in there ends when its pipes break, or by the steps.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.undo import Step, undo

#: Between asking the worker to end and killing it.
GRACE_S = 5.0
_FIRST_DEADLINE_S = 30.0
_OVERRAN = "the capture's own process overran its deadline and was ended"
_DIED = "the capture's own process died"


def main() -> None:
    """Runs until the worker is done, or is no more."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = CaptureFolder(Path(sys.argv[1]), sys.argv[2])
    worker = int(sys.argv[3]) if len(sys.argv) > 3 else None
    os.write(1, b"armed\n")
    steps: list[Step] = []
    if (why := _watch(worker, steps)) is not None:
        failed = undo(steps)
        with suppress(OSError):
            folder.settle("; ".join((why, *failed)))


def _watch(worker: int | None, steps: list[Step]) -> str | None:
    """Why the worker's work is to be settled, and in `steps` how; None when it did so itself."""
    until = time.monotonic() + _FIRST_DEADLINE_S
    rest = b""
    asked = overran = False
    while True:
        if select.select([0], [], [], max(0.0, until - time.monotonic()))[0]:
            more = os.read(0, 4096)
            if not more:
                return _OVERRAN if overran else _DIED
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                word, _, value = line.partition(b" ")
                if word == b"done":
                    return None
                if word == b"deadline" and not asked:
                    until = time.monotonic() + float(value)
                if word == b"undo":
                    steps[:] = json.loads(value)
        elif worker is None or overran:
            # It can't be ended, or is in a call that nothing ends: its work goes to whoever looks for leftovers.
            return None
        else:
            overran = asked
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL if asked else signal.SIGTERM)
            asked = True
            until = time.monotonic() + GRACE_S


if __name__ == "__main__":
    main()
