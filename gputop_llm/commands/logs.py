"""The log file: opened when there is something to write, never larger than 2 MB, never on the screen."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import threading

from gputop_llm import paths

NO_HOME = "this user has no home directory (set HOME)"
_BYTES = 1_000_000


class LogFile(logging.Handler):
    """A rotating file in the user's state directory; a log that can't be written is no reason to fail.

    `lost` is true when the newest record could not be written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lost = False
        self._file: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._file is None:
                self._file = _open()
            self._file.emit(record)
            self.lost = False
        except OSError:
            self.lost = True


class _Rotating(logging.handlers.RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Tells of a full disk, which the class itself keeps to itself."""
        if isinstance(error := sys.exc_info()[1], OSError):
            raise error


def start(verbose: bool) -> LogFile:
    """Sends the program's log records, and what ends its threads, into the log file."""
    logger = logging.getLogger("gputop_llm")
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    log = next((handler for handler in logger.handlers if isinstance(handler, LogFile)), None)
    if log is None:
        log = LogFile()
        logger.addHandler(log)
    # A full disk or a lost terminal: nothing is to be written to standard error about that.
    logging.raiseExceptions = False
    threading.excepthook = _thread_ended
    return log


def record(failure: BaseException) -> str:
    """Writes a bug's traceback into the log; returns where to find it, as a clause."""
    log = start(verbose=False)
    logging.getLogger("gputop_llm").error("unexpected failure", exc_info=failure)
    path = paths.log_file()
    if path is None:
        return f"its details can't be kept: {NO_HOME}"
    return f"the details {'could not be written to' if log.lost else 'are in'} {path}"


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "?"
    logging.getLogger("gputop_llm").error("thread %s ended", name, exc_info=ended.exc_value)


def _open() -> logging.Handler:
    path = paths.log_file()
    if path is None:
        raise OSError(NO_HOME)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = _Rotating(path, maxBytes=_BYTES, backupCount=1, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"))
    # Command lines and addresses may be in it.
    os.chmod(path, 0o600)
    return file
