"""`gputop-llm run -- CMD`: starts a program so that it can be recorded later, without injecting anything then."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Sequence
from typing import NoReturn

from gputop_llm.capture.native import library_path
from gputop_llm.errors import GputopError, UsageError

_VARIABLE = "CUDA_INJECTION64_PATH"
# As a shell and env(1) count a command that can't be started.
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


class CannotStart(GputopError):
    """The program is not there, or can't be executed."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"cannot start {program}", (error.strerror or str(error)).lower())
        self.exit_code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def run(arguments: Namespace) -> int:
    """Becomes the program, or nsys's keeper of it: its input, output, signals and exit code are this process's."""
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise UsageError("run needs a command", todo="gputop-llm run -- vllm serve MODEL")
    if not arguments.nsys:
        _become(argv)
    from gputop_llm.commands.run_nsys import launch

    return launch(argv)


def _become(argv: Sequence[str]) -> NoReturn:
    """Replaces this process.

    Raises:
        UsageError: CUDA is told already to load something.
        GputopError: there is no library to load, or the program can't be started.
    """
    if os.environ.get(_VARIABLE):
        raise UsageError(
            f"{_VARIABLE} is set already, to {os.environ[_VARIABLE]}",
            "CUDA loads one library into a program, and another profiler has asked for it",
            f"unset {_VARIABLE}, or start the program as before",
        )
    environment = {**os.environ, _VARIABLE: str(library_path())}
    # Python ignores these; the program is to find them as it would have found them.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), environment)
    except OSError as error:
        raise CannotStart(argv[0], error) from error
