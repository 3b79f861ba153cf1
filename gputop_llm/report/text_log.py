"""What an engine's own log says, as text: the newest signals first, then those of its start."""

from __future__ import annotations

from gputop_llm.model import Frame, LogSignal, TargetLog
from gputop_llm.model.log import of_start
from gputop_llm.printable import printable
from gputop_llm.units import DASH, size, uptime

_MOST = 6


def log_lines(frame: Frame, one: TargetLog) -> list[str]:
    """The log of one target."""
    log = one.log.value
    if log is None:
        return []
    whose = _whose(frame, one.target_key)
    if not log.places:
        return [f"Engine's log{whose}  out of reach: {printable(log.problem or '')}"]
    unread = f" ({size(log.unread_bytes)} of it not read)" if log.unread_bytes else ""
    lines = [f"Engine's log{whose}  {', '.join(map(printable, log.places))}{unread}"]
    if log.problem is not None:
        lines.append(f"  {printable(log.problem)}")
    later = [signal for signal in log.signals if not of_start(signal)]
    lines += [_line(signal, frame.at_s) for signal in reversed(later[-_MOST:])]
    if len(later) > _MOST:
        lines.append(f"  … and {len(later) - _MOST} older ones (--json has all)")
    lines += [_line(signal, frame.at_s) for signal in log.signals if of_start(signal)]
    lines += [] if log.ageless is None else [f"  {log.ageless}"]
    return lines if log.signals or log.problem else [*lines, "  nothing of note in it so far"]


def _whose(frame: Frame, key: str) -> str:
    """Which engine's it is, where several are shown."""
    if frame.focus is not None or len(frame.logs) < 2:
        return ""
    targets = frame.targets.value.targets if frame.targets.value else ()
    pid = next((target.root_pid for target in targets if target.key == key), None)
    return f" of {printable(key) if pid is None else f'PID {pid}'}"


def _line(signal: LogSignal, now_s: float) -> str:
    age = DASH if signal.at_s is None else f"{'~' if signal.at_from == 'read' else ''}{uptime(now_s - signal.at_s)} ago"
    where = "" if signal.where is None else f" ({printable(signal.where)})"
    times = f" ×{signal.count}" if signal.count > 1 else ""
    return f"  {signal.severity.name.lower():8} {age:14} {signal.kind:13} {printable(signal.text)}{where}{times}"
