"""`gputop-llm demo`: the full-screen monitor of a simulated node."""

from __future__ import annotations

from argparse import Namespace

from gputop_llm.commands import output, tui
from gputop_llm.demo.choice import check_scenario
from gputop_llm.errors import ExitCode


def run(arguments: Namespace) -> int:
    """Runs the monitor on a simulated node, or lists the scenarios; returns the exit code.

    Raises:
        UsageError: there is no such scenario, or no terminal.
    """
    if arguments.list:
        from gputop_llm.demo.scenarios import listing

        output.write_text(listing())
        return ExitCode.OK
    check_scenario(arguments.demo)
    return tui.run(arguments, arguments.demo)
