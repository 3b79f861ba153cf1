"""A recording of Python stacks as a table: which functions ran, by themselves and with what they called, per thread."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gputop_llm.capture import process
from gputop_llm.capture.stacks import pyspy
from gputop_llm.capture.stacks.looking import Seen
from gputop_llm.capture.stacks.refused import situation, unreadable, zombie
from gputop_llm.errors import GputopError
from gputop_llm.model.stacks import Flame, FlameRow, FlameThread, Unreadable
from gputop_llm.ncu.child import ended_by_signals

RATE_HZ = 50
#: Beyond its time: it reads symbols first, and falls behind on a busy node.
_LATE_S = 20.0
_MOST_BYTES = 64 << 20
_MOST_ROWS = 40
_MOST_THREADS = 64
_THREAD = re.compile(r"^thread \((\d+)\): (.*)$", re.DOTALL)
_LINE = re.compile(r"^(.*) \((.*?)(?::\d+)?\)$", re.DOTALL)
_COUNTS = re.compile(r"Samples: (\d+) Errors: (\d+)")
_BEHIND = re.compile(r"([\d.]+)s behind in sampling")


def record(processes: Sequence[Seen], seconds: float, rate_hz: int = RATE_HZ) -> tuple[Flame, ...]:
    """Samples all processes at once for that long (whole seconds); none of them is stopped.

    Raises:
        GputopError: py-spy isn't there.
        KeyboardInterrupt: Ctrl-C, or what else ends this process; nothing is sampled any more by then.
    """
    ended = threading.Event()
    with ended_by_signals(), ThreadPoolExecutor(len(processes)) as pool:
        try:
            return tuple(pool.map(lambda one: _recorded(one, seconds, rate_hz, ended.is_set), processes))
        except BaseException:
            # The pool waits for its threads.
            ended.set()
            raise


def _recorded(seen: Seen, seconds: float, rate_hz: int, unwanted: Callable[[], bool]) -> Flame:
    empty = Flame(seen.pid, seen.title, seen.rank, seconds, rate_hz)
    if (ended := zombie(seen.pid)) is not None:
        return replace(empty, unreadable=ended)
    recording = pyspy.Recording(_MOST_BYTES)
    try:
        argv = recording.argv(seen.pid, seconds, rate_hz, "raw", idle=False)
        done = process.ran(argv, seconds + _LATE_S, unwanted=unwanted, pass_fds=[recording.fd])
        if done.code != 0:
            said = done.err.decode("utf-8", "replace")
            return replace(empty, unreadable=unreadable(said, done.code is not None, situation(seen.pid)))
        data = recording.read()
    finally:
        recording.close()
    said = (done.out + done.err).decode("utf-8", "replace")
    try:
        threads = table(data.decode("utf-8", "replace"))
    except ValueError as error:
        return replace(empty, unreadable=Unreadable(f"py-spy's recording makes no sense ({error})"))
    counts, behind = _COUNTS.search(said), _BEHIND.findall(said)
    return replace(
        empty,
        samples=sum(thread.samples for thread in threads),
        errors=int(counts[2]) if counts is not None else 0,
        threads=threads[:_MOST_THREADS],
        cpu_s=done.cpu_s,
        behind_s=max(map(float, behind), default=None),
    )


def table(raw: str) -> tuple[FlameThread, ...]:
    """Functions by thread, from py-spy's raw form: "thread (TID): NAME;outermost;…;innermost COUNT" in each line.

    Args:
        raw: lines that are none are left out.

    Raises:
        ValueError: no line is one.
    """
    own: dict[str, Counter[tuple[str, str]]] = {}
    total: dict[str, Counter[tuple[str, str]]] = {}
    samples: Counter[str] = Counter()
    lines = 0
    for stack, count in _stacks(raw):
        lines += 1
        thread, functions = _split(stack)
        samples[thread] += count
        if functions:
            own.setdefault(thread, Counter())[functions[-1]] += count
        for function in set(functions):
            total.setdefault(thread, Counter())[function] += count
    if raw.strip() and not lines:
        raise ValueError("it holds no stacks")
    return tuple(
        FlameThread(
            thread,
            count,
            tuple(_rows(own.get(thread, Counter()), total.get(thread, Counter()), count)),
        )
        for thread, count in samples.most_common()
    )


def _rows(own: Counter[tuple[str, str]], total: Counter[tuple[str, str]], samples: int) -> Iterator[FlameRow]:
    best = sorted(total, key=lambda function: (-own[function], -total[function], function))
    for function in best[:_MOST_ROWS]:
        name, file = function
        yield FlameRow(
            name,
            file,
            own[function],
            total[function],
            100.0 * own[function] / samples,
            100.0 * total[function] / samples,
        )


def _stacks(raw: str) -> Iterator[tuple[str, int]]:
    for line in raw.split("\n"):
        stack, _, count = line.rpartition(" ")
        if stack and count.isascii() and count.isdigit() and len(count) < 12:
            yield stack, int(count)


def _split(stack: str) -> tuple[str, list[tuple[str, str]]]:
    """The thread, and its functions, outermost first, as (name, file)."""
    first, *rest = stack.split(";")
    if (found := _THREAD.match(first)) is None:
        return "all threads", [_function(part) for part in [first, *rest]]
    return pyspy.shown(f"{found[2]} ({found[1]})"), [_function(part) for part in rest]


def _function(part: str) -> tuple[str, str]:
    found = _LINE.match(part)
    return (pyspy.shown(found[1]), pyspy.shown(found[2])) if found is not None else (pyspy.shown(part), "")


def unreadable_of(flames: Sequence[Flame]) -> GputopError | None:
    """Why nothing could be recorded; None where something was."""
    if any(one.unreadable is None for one in flames) or not flames:
        return None
    first = flames[0].unreadable
    assert first is not None
    return GputopError("cannot record Python stacks", first.why, first.todo)
