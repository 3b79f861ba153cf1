"""What the attached engine's own log says: the newest signals first, then those of its start."""

from __future__ import annotations

from gputop_llm.model import Frame, LogSignal
from gputop_llm.model.log import of_start
from gputop_llm.model.symptom import Severity
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Line, pad, rule, wrapped
from gputop_llm.units import DASH, size, uptime

_AGE, _KIND = 14, 16
_MOST = 8


def log_lines(frame: Frame, width: int) -> list[Line]:
    """The section "Log"; nothing where nobody looks for the log."""
    part = frame.log_of(frame.focus)
    if part is None:
        return []
    lines = [rule([("Log", "title")], width)]
    if part.error is not None:
        lines += wrapped(f"▲ {printable(part.error)}", width, "warn")
    log = part.value
    if log is None:
        return lines if part.error is not None else [*lines, [("not read yet", "dim")]]
    if log.places:
        unread = f"; {size(log.unread_bytes)} between its start and now were not read" if log.unread_bytes else ""
        lines += wrapped(f"{', '.join(map(printable, log.places))}{unread}", width, "dim")
    if log.problem is not None:
        lines += wrapped(f"{'' if log.places else 'out of reach: '}{printable(log.problem)}", width, "dim")
    later = [signal for signal in log.signals if not of_start(signal)]
    for signal in reversed(later[-_MOST:]):
        lines += _signal(signal, frame.at_s, width)
    if len(later) > _MOST:
        lines.append([(f"… and {len(later) - _MOST} older ones (snapshot --json has all)", "dim")])
    for signal in filter(of_start, log.signals):
        lines += _signal(signal, frame.at_s, width)
    if log.ageless is not None:
        lines += wrapped(log.ageless, width, "dim")
    if log.places and log.problem is None and not log.signals:
        lines.append([("nothing of note in it so far", "dim")])
    return lines


def _signal(signal: LogSignal, now_s: float, width: int) -> list[Line]:
    age = DASH if signal.at_s is None else f"{'~' if signal.at_from == 'read' else ''}{uptime(now_s - signal.at_s)} ago"
    role = "" if signal.severity is Severity.NOTE else "warn"
    where = "" if signal.where is None else f" ({printable(signal.where)})"
    times = f" ×{signal.count}" if signal.count > 1 else ""
    rows = wrapped(f"{printable(signal.text)}{where}{times}", max(width - _AGE - _KIND, 10)) or [[("", "")]]
    mark = "▲ " if role else ""
    head: Line = [
        (pad(age, _AGE), "dim"),
        (pad(f"{mark}{signal.kind.replace('-', ' ')}", _KIND), role or "dim"),
    ]
    return [[*(head if at == 0 else [(" " * (_AGE + _KIND), "")]), *row] for at, row in enumerate(rows)]
