"""`gputop-llm watch --json`: one frame a line until stopped."""

from __future__ import annotations

import signal
import time
from argparse import Namespace

from gputop_llm.commands import output
from gputop_llm.commands.live import session_on, settings
from gputop_llm.commands.newest import Newest
from gputop_llm.commands.snapshot import PATIENCE_S
from gputop_llm.errors import ExitCode, UsageError
from gputop_llm.node import driver_here
from gputop_llm.report.jsonform import frame_line
from gputop_llm.report.outcome import judge


def run(arguments: Namespace) -> int:
    """Prints frames until SIGINT, SIGTERM, or nobody reads them; returns the exit code.

    Raises:
        UsageError: without --json, or when a setting can't be used.
    """
    if not arguments.json:
        raise UsageError("watch has one form only", todo="add --json; `gputop-llm` itself is for eyes")
    config = settings(arguments)
    newest = Newest()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, newest.stop)
    with session_on(config, arguments, arguments.demo) as session:
        session.start(newest.put)
        give_up = time.monotonic() + config.period_s + PATIENCE_S
        lines = 0
        # The first lines would be full of nulls: rates need two samples.
        settled = False
        while True:
            # Asked before the frame is taken, which may be older than what was found out last.
            settled = settled or session.settled() or time.monotonic() > give_up
            frame = newest.get()
            if frame is None:
                return ExitCode.OK
            if not settled:
                continue
            output.write_line(frame_line(frame), lambda: newest.stopped)
            lines += 1
            if lines == arguments.count:
                outcome = judge(frame, config, arguments.demo is None and driver_here())
                output.complain(outcome.sentences)
                return outcome.code
