"""What an engine's own log says that is worth an on-call engineer's look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gputop_llm.model.symptom import Severity


@dataclass(frozen=True, slots=True)
class LogSignal:
    """One line of a log, or a traceback folded into its exception line; lines that differ in numbers only are one.

    `kind`: of the start "kv-pool", "memory", "loading", "graphs" or "start"; else "out-of-memory", "nccl", "cuda",
    "died" (a process of the engine), "exception" (a traceback), "engine-dead" (what follows from another failure),
    "preemption" or "slow".
    `text` is the newest such line without its prefix: printable, secrets blanked, cut. `where` is the innermost
    frame of a traceback ("core.py:1702 in step").
    `at_s` (wall) is when it was written last, by its own stamp or that of the line before it; with `at_from`
    "read" when it was seen, at most one look later. None: nothing tells. `count` is how many there were in what was
    read.
    """

    kind: str
    severity: Severity
    text: str
    at_s: float | None
    at_from: str = "line"
    where: str | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What was read of the log of one target: of its start, of its newest part, and from then on.

    `places` are what is read ("/var/log/vllm.log", "journald"). `problem` is why nothing is: then it is empty.
    `signals` are in the order they were written. `unread_bytes` lay between what was read.
    """

    places: tuple[str, ...] = ()
    problem: str | None = None
    signals: tuple[LogSignal, ...] = ()
    unread_bytes: int = 0

    @property
    def ageless(self) -> str | None:
        """Why some of the lines have no age; None if all have one."""
        if all(signal.at_s is not None for signal in self.signals):
            return None
        return "age –: no time on or before the line, and it was there when the log was first read"


START = frozenset(("kv-pool", "memory", "loading", "graphs", "start"))
# What tells more of why an engine failed stands first.
FAILURES = ("out-of-memory", "nccl", "cuda", "died", "exception", "engine-dead")
# Failures that follow from one another are written within this time.
_TOGETHER_S = 60.0


def of_start(signal: LogSignal) -> bool:
    """Whether it tells of the engine's start, and of nothing wrong."""
    return signal.kind in START


def root_error(signals: Iterable[LogSignal]) -> LogSignal | None:
    """Of the failures written last, the one that says most about the cause; None without any."""
    errors = [signal for signal in signals if signal.kind in FAILURES]
    if not errors:
        return None
    newest_s = errors[-1].at_s
    last = [e for e in errors if e.at_s is None or newest_s is None or newest_s - e.at_s <= _TOGETHER_S]
    return min(reversed(last), key=lambda signal: FAILURES.index(signal.kind))
