"""What is true of a synthetic schedule, moment by moment in plain Python, with none of the program's arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from gputop_llm.timeline.model import Kind
from tests.support.synth import Op, Schedule, Span

Intervals = list[tuple[int, int]]
Spans = Sequence[tuple[int, int]]


def pieces(schedule: Schedule, edges: Iterable[int]) -> Intervals:
    """The window cut at the edges: within a piece nothing begins or ends."""
    cuts = sorted({schedule.start, schedule.end, *(e for e in edges if schedule.start < e < schedule.end)})
    return list(pairwise(cuts))


def covered(schedule: Schedule, chosen: Callable[[Op], bool]) -> Intervals:
    """The disjoint parts of the window in which some chosen work was running."""
    rows = [op for op in schedule.ops if chosen(op)]
    parts = pieces(schedule, [edge for op in rows for edge in (op.start, op.end)])
    return _merged([(a, b) for a, b in parts if any(op.start <= a and b <= op.end for op in rows)])


def busy(schedule: Schedule, device: int) -> Intervals:
    """When a device did anything."""
    return covered(schedule, lambda op: op.device == device)


def busy_ns(schedule: Schedule, device: int) -> int:
    return total(busy(schedule, device))


def gaps(schedule: Schedule, device: int) -> Intervals:
    """When a device did nothing."""
    at, found = schedule.start, []
    for a, b in [*busy(schedule, device), (schedule.end, schedule.end)]:
        if a > at:
            found.append((at, a))
        at = b
    return found


def overlapped_ns(schedule: Schedule, one: Callable[[Op], bool], other: Callable[[Op], bool]) -> int:
    """How long some chosen work ran while some other did (ns)."""
    first, second = covered(schedule, one), covered(schedule, other)
    return sum(max(0, min(b, d) - max(a, c)) for a, b in first for c, d in second)


def is_kernel(device: int) -> Callable[[Op], bool]:
    return lambda op: op.device == device and op.kind in (Kind.KERNEL, Kind.GRAPH)


def is_copy(device: int) -> Callable[[Op], bool]:
    return lambda op: op.device == device and op.kind is Kind.COPY


def idle_by_cause(schedule: Schedule, device: int, no_request: Spans = ()) -> dict[str, int]:
    """Idle time of a device by what the thread that launches the next work was doing (ns), see `gap_by_cause`."""
    found: Counter[str] = Counter()
    for low, high in gaps(schedule, device):
        found += Counter(gap_by_cause(schedule, device, low, high, no_request))
    return dict(found)


def gap_by_cause(schedule: Schedule, device: int, low: int, high: int, no_request: Spans = ()) -> dict[str, int]:
    """One gap's time by what the thread that launches the next work was doing (ns).

    Until that launch has returned, the first of: "sync", "alloc", "launch", "rank", "os", "framework" that the thread
    is in, else "host_code" if operators of the thread were recorded, else "unattributed". After it: "submitted". Work
    whose launch isn't recorded leaves its gap "unattributed". After the last work it is the thread that launched most.
    It is "rank" where the thread is kept by the OS while another device works, if both take part in collectives. In
    the disjoint times `no_request`, what would be "os", "host_code" or "unattributed" is "no_request".
    """
    later = [op for op in schedule.ops if op.device == device and op.start == high and op.end > high]
    if high < schedule.end and later:
        call = schedule.calls[later[0].call] if later[0].call is not None else None
        if call is None:
            return _host_time(schedule, None, device, low, high, no_request)
        thread, returned = call.thread, min(max(call.end, low), high)
    else:
        thread, returned = _busiest_thread(schedule, device), high
    found = Counter(_host_time(schedule, thread, device, low, returned, no_request))
    found["submitted"] += high - returned
    return dict(+found)


def _busiest_thread(schedule: Schedule, device: int) -> int | None:
    issued = Counter(
        schedule.calls[op.call].thread for op in schedule.ops if op.device == device and op.call is not None
    )
    return min(issued, key=lambda thread: (-issued[thread], thread)) if issued else None


def _host_time(
    schedule: Schedule, thread: int | None, device: int, low: int, high: int, no_request: Spans
) -> dict[str, int]:
    rows: list[tuple[str, Span]] = [(call.use, call) for call in schedule.calls if call.thread == thread]  # type: ignore[misc]
    rows += [("os", wait) for wait in schedule.waits if wait.thread == thread]
    rows += [("framework", op) for op in schedule.cpu_ops if op.thread == thread]
    rest = "host_code" if any(op.thread == thread for op in schedule.cpu_ops) else "unattributed"
    sharing = {op.device for op in schedule.ops if op.name.startswith("nccl")}
    others = covered(schedule, lambda op: op.device != device and op.device in sharing and device in sharing)
    times = [*((r.start, r.end) for _, r in rows), *no_request, *others]
    edges = sorted({low, high, *(e for time in times for e in time if low < e < high)})
    found: Counter[str] = Counter()
    for a, b in pairwise(edges):
        inside = {cause for cause, r in rows if r.start <= a and b <= r.end}
        order = ("sync", "alloc", "launch", "os", "framework")
        cause = next((cause for cause in order if cause in inside), rest)
        if cause == "os" and any(start <= a and b <= end for start, end in others):
            cause = "rank"
        without = any(start <= a and b <= end for start, end in no_request)
        found["no_request" if without and cause in ("os", rest) else cause] += b - a
    return dict(found)


def total(intervals: Intervals) -> int:
    return sum(b - a for a, b in intervals)


def _merged(parts: Intervals) -> Intervals:
    found: Intervals = []
    for a, b in parts:
        if found and found[-1][1] == a:
            found[-1] = (found[-1][0], b)
        else:
            found.append((a, b))
    return found
