"""The causes of idle time, and the time of many gaps by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gputop_llm.timeline.model import I32, I64, U8
from gputop_llm.verdict.coverage import Mask


class Cause(IntEnum):
    """What the submitting thread was doing, in the order of precedence; SUBMITTED: it was done.

    RANK and NO_REQUEST are what the record proves that it waited for (`waited_for`).
    """

    SYNC = 0
    ALLOC = 1
    LAUNCH = 2
    RANK = 3
    NO_REQUEST = 4
    OS_BLOCKED = 5
    FRAMEWORK = 6
    HOST_CODE = 7
    UNATTRIBUTED = 8
    SUBMITTED = 9


CAUSE_LABELS = {
    Cause.SYNC: "blocked in a synchronising call",
    Cause.ALLOC: "in an allocator call",
    Cause.LAUNCH: "inside launch and copy calls",
    Cause.RANK: "waiting for another rank",
    Cause.NO_REQUEST: "no request in flight",
    Cause.OS_BLOCKED: "blocked by the OS",
    Cause.FRAMEWORK: "inside framework operators",
    Cause.HOST_CODE: "Python or other host code",
    Cause.UNATTRIBUTED: "host, unattributed",
    Cause.SUBMITTED: "submitted, not yet begun by the device",
}


@dataclass(frozen=True)
class ByCause:
    """The time of `count` gaps by cause, kept only where there is any: most gaps have one or two causes.

    `parts` holds for a cause the positions of the gaps that have it, ascending, and its time in each (ns).
    """

    count: int
    parts: Mapping[Cause, tuple[I32, I64]]

    def total(self, chosen: Mask | None = None) -> dict[Cause, int]:
        """The time of all gaps, or of the chosen ones, by cause (ns)."""
        found = dict.fromkeys(Cause, 0)
        for cause, (rows, ns) in self.parts.items():
            found[cause] = int((ns if chosen is None else ns[chosen[rows]]).sum(dtype=np.int64))
        return found

    def of(self, cause: Cause) -> I64:
        """One cause's time in each gap (ns)."""
        found = np.zeros(self.count, dtype=np.int64)
        if cause in self.parts:
            rows, ns = self.parts[cause]
            found[rows] = ns
        return found

    def dominant(self) -> U8:
        """The cause that holds the largest part of each gap; the first of equal ones."""
        found = np.zeros(self.count, dtype=np.uint8)
        most = np.zeros(self.count, dtype=np.int64)
        for cause in sorted(self.parts):
            rows, ns = self.parts[cause]
            more = ns > most[rows]
            found[rows[more]], most[rows[more]] = cause, ns[more]
        return found


class Collected:
    """Times by cause of successive gaps, on the way to a `ByCause`."""

    def __init__(self) -> None:
        self._count = 0
        self._parts: dict[Cause, list[tuple[I32, I64 | I32]]] = {}

    def add(self, by_cause: I64) -> None:
        """The next gaps: one row each, one column for each cause (ns)."""
        narrow = np.int32 if by_cause.max(initial=0) < 1 << 31 else np.int64
        for cause in Cause:
            rows = np.flatnonzero(by_cause[:, cause])
            if len(rows):
                times = by_cause[rows, cause].astype(narrow)
                self._parts.setdefault(cause, []).append(((rows + self._count).astype(np.int32), times))
        self._count += len(by_cause)

    def done(self) -> ByCause:
        """All of them."""
        joined = {
            cause: (np.concatenate([rows for rows, _ in pieces]), np.concatenate([ns for _, ns in pieces]))
            for cause, pieces in self._parts.items()
        }
        return ByCause(self._count, joined)
