"""The command line. Parses, then imports the one command that was asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from gputop_llm import __version__
from gputop_llm.arguments import capturing, programs, watching
from gputop_llm.arguments.shared import Parser, live
from gputop_llm.errors import ExitCode, GputopError

# As a shell counts a command that ended by Ctrl-C.
INTERRUPTED = 130

_EXIT_CODES = """\
exit codes: 0 fine; 1 failed; 2 wrong usage; 3 no GPU and no engine, or not the one asked for;
4 partial: something that should be readable was not (standard error says what)
`check` has its own: 0 fine or notes only; 1 warning; 2 critical; 3 can't tell, whatever the reason
"""
_CHECK_CANT_TELL = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. No traceback reaches the user."""
    # Whoever reads the code of `check` takes 1 and 2 for symptoms. What stands behind `run` is another program's.
    words = sys.argv[1:] if argv is None else argv
    is_check = next((word for word in words if word in ("check", "run", "kernel")), None) == "check"
    try:
        arguments = _program().parse_args(argv)
        return int(importlib.import_module(f"gputop_llm.commands.{arguments.command}").run(arguments))
    except SystemExit as end:  # --help and --version have been printed
        return _flushed(int(end.code or 0))
    except BrokenPipeError:
        return _flushed(ExitCode.OK)
    except KeyboardInterrupt:
        return INTERRUPTED
    except GputopError as failure:
        _complain(failure.sentence())
        return _CHECK_CANT_TELL if is_check else failure.exit_code
    except Exception as failure:  # noqa: BLE001 - the last place that can turn a bug into a sentence
        from gputop_llm.commands.logs import record

        _complain(f"gputop-llm failed: {type(failure).__name__}: {failure}; {record(failure)}")
        return _CHECK_CANT_TELL if is_check else ExitCode.FAILED


def _program() -> Parser:
    parser = Parser(
        prog="gputop-llm",
        description="Finds the LLM server that runs on this node and shows live what it, its GPUs and the\n"
        "host do. Attaches read-only. Without a command: the full-screen monitor.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gputop-llm {__version__}")
    live(parser)
    parser.set_defaults(command="tui")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    watching.add_snapshot(commands)
    watching.add_watch(commands)
    watching.add_check(commands)
    watching.add_gpus(commands)
    watching.add_demo(commands)
    capturing.add_verdict(commands)
    capturing.add_open(commands)
    programs.add_run(commands)
    programs.add_kernel(commands)
    programs.add_rerun(commands)
    capturing.add_capture(commands)
    capturing.add_stacks(commands)
    capturing.add_doctor(commands)
    programs.add_lab(commands)
    return parser


def _complain(sentence: str) -> None:
    from gputop_llm.commands.output import complain

    complain([sentence])


def _flushed(code: int) -> int:
    """The exit code, with nothing left that Python would write, and complain about, at its own end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
