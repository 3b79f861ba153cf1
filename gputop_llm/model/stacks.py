"""The Python stacks of a target's processes, and how they differ from rank to rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One frame of a stack: a function, its file (short: "vllm/v1/engine/core.py"), and the line it is at."""

    function: str
    file: str
    line: int

    def words(self) -> str:
        """ "step (vllm/v1/engine/core.py:341)" """
        return f"{self.function} ({self.file}:{self.line})" if self.line else f"{self.function} ({self.file})"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One Python thread.

    Args:
        thread_id: as `pthread_self` says it; `tid` as the kernel does, None where that is not known.
        active: whether it was on a processor or ready for one; `owns_gil` whether it held the interpreter's lock.
        calls: innermost first.
        moved: whether it was elsewhere when looked at once more; None where it was seen but once.
    """

    thread_id: int
    tid: int | None
    name: str
    active: bool
    owns_gil: bool
    calls: tuple[Call, ...]
    moved: bool | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why the stacks of a process can't be read, and what to do."""

    why: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """All Python threads of one process, or why they can't be read.

    `took_s` is how long one look took, seconds; `looks` how many there were.
    """

    pid: int
    title: str
    rank: str | None = None
    threads: tuple[ThreadStack, ...] = ()
    unreadable: Unreadable | None = None
    took_s: float | None = None
    looks: int = 0

    @property
    def label(self) -> str:
        """What it is called beside others."""
        return self.rank or f"PID {self.pid}"


@dataclass(frozen=True, slots=True)
class Variant:
    """Processes whose thread of one name stands at the same place.

    Args:
        labels: of these processes, in their order.
        calls: their stack, innermost first, as the first of them has it.
        differs_at: how many frames, counted from the outermost, it has in common with the majority; None for that
            itself, and where there is none.
        moved, active: of how many of them.
    """

    labels: tuple[str, ...]
    calls: tuple[Call, ...]
    differs_at: int | None
    moved: int
    active: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One kind of thread in all processes of a role: by its name, without its number.

    Args:
        name: "MainThread", "process_input_sockets".
        role: of the processes, in words.
        variants: the largest first; a single one: all stand at the same place.
        majority: whether the first one holds more than half of the processes.
        missing: processes that have no such thread.
    """

    name: str
    role: str
    variants: tuple[Variant, ...]
    majority: bool
    missing: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether all processes stand at the same place."""
        return len(self.variants) == 1 and not self.missing


@dataclass(frozen=True, slots=True)
class StackReport:
    """The stacks of a target.

    Args:
        target: in words.
        at_s: wall time of the look.
        processes: each with its threads.
        compared: kinds of threads, those that differ first; empty with fewer than two processes of a role.
        headline: who differs, in a sentence.
    """

    target: str
    at_s: float
    processes: tuple[ProcessStacks, ...]
    compared: tuple[Compared, ...]
    headline: str


@dataclass(frozen=True, slots=True)
class FlameRow:
    """One function: samples in which it ran itself, and in which it was anywhere on the stack; shares of all, %."""

    function: str
    file: str
    self_samples: int
    total_samples: int
    self_pct: float
    total_pct: float


@dataclass(frozen=True, slots=True)
class FlameThread:
    """One thread of a recording: its samples and its functions, most own samples first."""

    name: str
    samples: int
    rows: tuple[FlameRow, ...]


@dataclass(frozen=True, slots=True)
class Flame:
    """What a recording of one process says.

    Args:
        seconds: asked for; `rate_hz` samples each second asked for.
        samples: stacks that were read; `errors` those that could not be.
        threads: the busiest first.
        unreadable: why there is none.
        cpu_s: processor time that the recording took, on this node, outside of the process; None if unknown.
        behind_s: how far the sampling fell behind its rate at most; None where it kept it.
    """

    pid: int
    title: str
    rank: str | None
    seconds: float
    rate_hz: int
    samples: int = 0
    errors: int = 0
    threads: tuple[FlameThread, ...] = ()
    unreadable: Unreadable | None = None
    cpu_s: float | None = None
    behind_s: float | None = None
