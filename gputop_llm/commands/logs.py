"""The log file: opened when there is something to write, never larger than 2 MB, never on the screen."""

from __future__ import annotations

import logging
import logging.handlers
import os
import threading

from gputop_llm import paths

_BYTES = 1_000_000


class LogFile(logging.Handler):
    """A rotating file in the user's state directory; a log that can't be written is no reason to fail."""

    def __init__(self) -> None:
        super().__init__()
        self._file: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._file is None:
                self._file = _open()
            self._file.emit(record)
        except OSError:
            self._file = logging.NullHandler()


def start(verbose: bool) -> None:
    """Sends the program's log records, and what ends its threads, into the log file."""
    logger = logging.getLogger("gputop_llm")
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    if not any(isinstance(handler, LogFile) for handler in logger.handlers):
        logger.addHandler(LogFile())
    # A full disk or a lost terminal: nothing is to be written to standard error about that.
    logging.raiseExceptions = False
    threading.excepthook = _thread_ended


def record(failure: BaseException) -> str:
    """Writes a bug's traceback into the log; returns where to find it, as a clause."""
    start(verbose=False)
    logging.getLogger("gputop_llm").error("unexpected failure", exc_info=failure)
    return f"the details are in {paths.log_file()}"


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "?"
    logging.getLogger("gputop_llm").error("thread %s ended", name, exc_info=ended.exc_value)


def _open() -> logging.Handler:
    path = paths.log_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = logging.handlers.RotatingFileHandler(path, maxBytes=_BYTES, backupCount=1, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"))
    # Command lines and addresses may be in it.
    os.chmod(path, 0o600)
    return file
