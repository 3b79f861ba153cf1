"""Asks NVML one thing at a time: a failing query costs its own field only, with the reason.

Remembers what is not supported, so that a query that can't succeed is not repeated on each tick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gputop_llm.clock import Clock
from gputop_llm.sources.nvml_errors import Implausible, code_of, failures, judge, lasts

RETRY_UNSUPPORTED_S = 300.0
ONCE = math.inf

Call = tuple[Any, ...]
"""The name of a pynvml function and its arguments after the handle; an argument that is a function is
called for its value (what is remembered of a call stays under the same name though the value moves)."""


@dataclass(slots=True)
class _Refusal:
    code: int | None
    reason: str
    until_s: float


class Asker:
    """Queries one device handle; what could not be answered is in `missing` until the next `begin`.

    Args:
        prefix: put before the field names in `missing` (for the instances of a MIG GPU).

    Raises:
        DriverGone, GpuLost: from `ask`, when the answer says that more than this field is gone.
    """

    def __init__(self, lib: ModuleType, handle: Any, clock: Clock, prefix: str = "") -> None:
        self.lib = lib
        self.failures = failures(lib)
        self.handle = handle
        self.clock = clock
        self.place: str | None = None
        self.missing: dict[str, str] = {}
        self.prefix = prefix
        self._now_s = clock.mono()
        self._refused: dict[Call, _Refusal] = {}
        self._kept: dict[Call, tuple[Any, float]] = {}
        self._codes: dict[str, int | None] = {}

    def begin(self) -> None:
        """Starts a tick: reasons are collected anew, and time stands still until the next."""
        self.missing = {}
        self._now_s = self.clock.mono()

    def lacks(self, field: str, reason: str) -> None:
        """Notes why a field is None on this tick."""
        self.missing[self.prefix + field] = reason

    def instead(self, field: str, value: float | None) -> float | None:
        """A value found in another way after all, which takes the reason back unless it is None too."""
        if value is not None:
            self.missing.pop(self.prefix + field, None)
        return value

    def code(self, field: str) -> int | None:
        """The NVML code with which the last `ask` for this field failed; None if it did not, or not by NVML."""
        return self._codes.get(field)

    def ask(
        self,
        fields: str | Sequence[str],
        *calls: Call,
        read: Callable[[Any], Any] = lambda answer: answer,
        every_s: float = 0.0,
        answers: Mapping[int, Any] | None = None,
    ) -> Any:
        """The first answer among `calls` after `read`, or None with the reason under each of `fields`.

        Args:
            read: turns the answer into the value; raises Implausible when it can't be a reading.
            every_s: an answer is good for this long (ONCE: until the driver is initialised again);
                a failure that may pass is tried again on the next tick all the same.
            answers: NVML codes that are an answer, and the value that they stand for.
        """
        names = (fields,) if isinstance(fields, str) else fields
        code: int | None = None
        reason = ""
        for call in calls:
            kept = self._kept.get(call)
            if kept is not None and self._now_s < kept[1]:
                return kept[0]
            refusal = self._refused.get(call)
            if refusal is not None and self._now_s < refusal.until_s:
                code, reason = refusal.code, refusal.reason
                continue
            try:
                arguments = [arg() if callable(arg) else arg for arg in call[1:]]
                value = read(getattr(self.lib, call[0])(self.handle, *arguments))
            except Implausible as error:
                code, reason = None, str(error)
            except self.failures as error:
                code = code_of(error)
                if code is not None and answers is not None and code in answers:
                    return answers[code]
                reason = self.judge(error)
                if lasts(error):
                    self._refused[call] = _Refusal(code, reason, self._now_s + RETRY_UNSUPPORTED_S)
            else:
                if every_s:
                    self._kept[call] = (value, self._now_s + every_s)
                for name in names:
                    self._codes[name] = None
                return value
        for name in names:
            self._codes[name] = code
            self.lacks(name, reason)
        return None

    def judge(self, error: Exception | int) -> str:
        """The reason for a failure, or a bare return code, that costs one field.

        Raises:
            DriverGone, GpuLost: it costs more than that.
        """
        return judge(error, self.place)


_NOT_AVAILABLE = frozenset({2**64 - 1, 2**32 - 1})


def known(answer: Any) -> int:
    """A count or size as NVML gave it.

    Raises:
        Implausible: it is NVML's "not available" (all bits set), or negative.
    """
    value = int(answer)
    if value in _NOT_AVAILABLE or value < 0:
        raise Implausible("the driver answers “not available”")
    return value


def percent(answer: Any) -> float:
    """A percentage from 0 to 100.

    Raises:
        Implausible: it is outside of that, or not a number.
    """
    value = float(answer)
    if not 0.0 <= value <= 100.0:
        raise Implausible(f"the driver answers {answer} %, which can't be")
    return value


def celsius(answer: Any) -> float:
    """A temperature in °C.

    Raises:
        Implausible: 0 °C or below, or beyond what silicon survives: not measured.
    """
    value = known(answer)
    if not 0 < value < 200:
        raise Implausible(f"the driver answers {value} °C, which can't be")
    return float(value)


def text(answer: Any) -> str:
    """A name; old versions of nvidia-ml-py give bytes."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
