"""Lines of a log to what they say: known wordings, and tracebacks folded into one line each.

Whoever writes the log may write anything into it; what comes out is one bounded, printable line without secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gputop_llm.model.log import START, LogSignal
from gputop_llm.model.symptom import Severity
from gputop_llm.printable import printable
from gputop_llm.redact_argv import redact_text
from gputop_llm.sources.engine_log_text import messages_in
from gputop_llm.sources.engine_log_wording import TRACEBACK, body_of, hinted, wording_of

MOST_OF_START = 16
MOST = 24
TEXT = 300
# Lines of one traceback, and processes that write one at the same time.
_LONGEST = 300
_OPEN = 16

_FRAME = re.compile(r'\s*File "([^"]{1,1000})", line (\d{1,9}), in (\S{1,200})')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?:: \S.*)?$")
_ENDS_ON_PURPOSE = ("KeyboardInterrupt", "SystemExit", "asyncio.exceptions.CancelledError")
_DIGITS = re.compile(r"\d+")


@dataclass(slots=True)
class _Traceback:
    logged: bool
    lines: int = 0
    where: str | None = None


@dataclass(slots=True)
class _Kept:
    """The newest of lines that are alike, as it was written."""

    kind: str
    severity: Severity
    body: str
    where: str | None
    count: int
    position: int | None
    at_s: float | None = None
    at_from: str = "read"


class Signals:
    """What the lines of one log say so far, in bounded memory. `seen` counts the signals, repeated ones too."""

    def __init__(self) -> None:
        self.seen = 0
        self._kept: dict[str, _Kept] = {}
        self._open: dict[str, _Traceback] = {}

    def feed(self, lines: Iterable[bytes], when: Callable[[int], tuple[float | None, str]]) -> None:
        """Takes the next lines. Of thousands that are alike only the newest costs more than a look.

        Args:
            when: tells of the line at a position when it was written, and by what that is known ("line", "read").
        """
        for position, line in enumerate(lines):
            if self._open or hinted(line):
                text = line.decode("utf-8", "backslashreplace")
                if messages := messages_in(text):
                    self._messages(messages, position)
                else:
                    self._line(text, position)
        for kept in self._kept.values():
            if kept.position is not None:
                kept.at_s, kept.at_from = when(kept.position)
                kept.position = None

    def skip(self) -> None:
        """The next lines do not follow the last ones: no traceback goes on in them."""
        self._open.clear()

    @property
    def waiting(self) -> bool:
        """Whether lines without any known word matter too: a traceback has not ended."""
        return bool(self._open)

    def all(self) -> tuple[LogSignal, ...]:
        """What was found, in the order it was written (last)."""
        return tuple(
            LogSignal(
                kind=kept.kind,
                severity=kept.severity,
                text=printable(redact_text(kept.body), TEXT),
                at_s=kept.at_s,
                at_from=kept.at_from,
                where=None if kept.where is None else printable(kept.where, TEXT),
                count=kept.count,
            )
            for kept in self._kept.values()
        )

    def _messages(self, messages: Sequence[str], position: int) -> None:
        """Takes one line of JSON: its tracebacks begin and end in it, and else only the first line of each counts."""
        others, self._open = self._open, {}
        for message in messages:
            for at, text in enumerate(message.splitlines()):
                if at == 0 or self._open or text.endswith(TRACEBACK):
                    self._line(text, position)
        self._open = others

    def _line(self, text: str, position: int) -> None:
        source, logged, body = body_of(text)
        if body.startswith(("  | ", "  + ")):
            # A group of exceptions is drawn as a tree.
            body = body.lstrip(" |+")
        open_one = self._open.get(source)
        if body.endswith(TRACEBACK):
            if open_one is not None or len(self._open) < _OPEN:
                self._open[source] = _Traceback(logged)
            return
        if open_one is not None and self._continued(source, open_one, logged, body, position):
            return
        self._add(body, position, None, None)

    def _continued(self, source: str, open_one: _Traceback, logged: bool, body: str, position: int) -> bool:
        """Whether the line belongs to the traceback, as far as can be told."""
        open_one.lines += 1
        if open_one.lines > _LONGEST:
            del self._open[source]
            return False
        if (frame := _FRAME.match(body)) is not None:
            open_one.where = f"{frame[1].rpartition('/')[2]}:{frame[2]} in {frame[3]}"
            return True
        if not body.strip() or body[0].isspace():
            return True
        if (logged and not open_one.logged) or _EXCEPTION.match(body) is None:
            # Another process wrote in between.
            return False
        del self._open[source]
        severity = Severity.NOTE if body.startswith(_ENDS_ON_PURPOSE) else Severity.WARNING
        self._add(body, position, open_one.where, ("exception", severity))
        return True

    def _add(self, body: str, position: int, where: str | None, otherwise: tuple[str, Severity] | None) -> None:
        """Keeps a line that says something known, or that is something `otherwise`."""
        body = body.strip()
        key = _DIGITS.sub("#", body[:TEXT])
        before = self._kept.pop(key, None)
        if before is not None:
            before.body, before.position, before.where = body, position, where or before.where
            before.count += 1
            self._kept[key] = before
        else:
            known = wording_of(body) or otherwise
            if known is None:
                return
            self._kept[key] = _Kept(*known, body, where, 1, position)
            self._make_room(known[0] in START)
        self.seen += 1

    def _make_room(self, of_start: bool) -> None:
        alike = [key for key, kept in self._kept.items() if (kept.kind in START) == of_start]
        if len(alike) > (MOST_OF_START if of_start else MOST):
            # Of the start the first ones are kept: what comes later under such a name is a guess.
            del self._kept[alike[-1] if of_start else alike[0]]
