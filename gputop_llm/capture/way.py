"""What each way of capturing gives: how it looks before, what it says it will do, and the steps that the worker takes.

The worker does the same around every way: lock, watchdog, folder, the engine's pace before and after, verdict. Between
them it calls `prepare` → `begin` → `follow` → `stop`, and `close` from any state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gputop_llm.capture.undo import Step
from gputop_llm.model import Target
from gputop_llm.sources.procfs import ProcFs

if TYPE_CHECKING:
    from gputop_llm.capture.engine_watch import EngineSample
    from gputop_llm.capture.folder import CaptureFolder
    from gputop_llm.capture.plan import Plan
    from gputop_llm.capture.progress import Stage

State = Literal["open", "closed", "unbuilt"]

#: What any use of torch.profiler leaves in a process until that ends.
TORCH_STAYS = (
    "torch keeps its subscription to CUPTI, as after any use of torch.profiler; CUDA calls may stay slower, as after a "
    "native window (not measured)"
)


@dataclass(frozen=True, slots=True)
class Route:
    """One way into one process. `why` and `opens` are empty where it is open."""

    key: str
    title: str
    state: State
    why: str = ""
    opens: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A process that may be captured; `target` is whose it is, where that is known."""

    pid: int
    start_ticks: int
    proc: ProcFs
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a kind of capture costs a loaded engine.

    Args:
        silence_s: added to the longest time without a token; 0.0 for none.
        loss_pct: low and high of the token rate that is missing over `over_s` seconds around the window; None where
            that isn't known, or the rate's own noise hid it.
        measured: whether that was seen beside a loaded engine on a GPU; else it is a guess.
        seen: where it was measured, or what the guess is made of.
    """

    silence_s: float
    loss_pct: tuple[float, float] | None
    over_s: float
    seen: str
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """What must be known before saying yes, besides length and cost; clauses.

    Args:
        title: of the way, as `doctor` names it.
        what: it records.
        how: it does so, and what it does to which PIDs.
        stays: afterwards.
        ends: what ends it.
        written: what there is beside the folder's place and bound.
        costs: besides what its way costs; "": nothing.
    """

    title: str
    what: str
    how: str
    stays: str
    ends: str
    written: str = "nothing on the target's side"
    costs: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a window went: `cancelled`, or `trouble` that ended it early (a clause); neither: as planned."""

    cancelled: bool = False
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What the worker gives a taker.

    Args:
        plan: what was agreed to.
        folder: where records go (`open_record`, then `whole`); made already.
        order: url, api_key, ca_file: how the engine is asked; never to be written anywhere.
        samples: what the engine said so far, oldest first.
        cancelled: whether to end at once. To be looked at at least every 0.1 s.
        tell: a stage and the same as a clause.
        tell_recording: the share of the window, 0 to 1, and the bytes so far; as often as one likes.
        deadline: what is done from now on is to be over within so many seconds; else the watchdog ends the worker.
        undo: what the watchdog is to do if the worker dies from now on; replaces what was said before. Said before the
            step that needs undoing.
    """

    plan: Plan
    folder: CaptureFolder
    order: Mapping[str, Any]
    samples: Callable[[], Sequence[EngineSample]]
    cancelled: Callable[[], bool]
    tell: Callable[[Stage, str], None]
    tell_recording: Callable[[float | None, int], None]
    deadline: Callable[[float], None]
    undo: Callable[[Sequence[Step]], None]


class Taker(Protocol):
    """Takes one capture of one way; the worker calls its steps in this order, once each.

    `starts_ns` is CLOCK_MONOTONIC at the window's start, None before it. `bytes` is what was recorded so far.
    """

    @property
    def starts_ns(self) -> int | None: ...

    @property
    def bytes(self) -> int: ...

    def prepare(self) -> None:
        """Looks whether it may begin. Nothing is done to the target.

        Raises:
            Refused: something is in the way.
        """

    def begin(self) -> None:
        """Gets as far as the window's start; returns early when cancelled.

        Raises:
            Refused: it is not possible after all, and nothing is changed.
            GputopError: it can't begin.
        """

    def follow(self) -> Recorded:
        """Runs the window to its end, under guards.

        Raises:
            GputopError: nothing could be recorded.
        """

    def stop(self) -> str | None:
        """Ends what still goes on and puts whole records into the folder; a clause that says what of them is missing.

        Raises:
            GputopError: the record can't be had.
        """

    def recorded(self) -> bool:
        """Whether there is anything to keep."""

    def facts(self) -> dict[str, Any]:
        """What `capture.json` says of it: `ranks`, a list with file, pid and rank of each; and the way's own."""

    def close(self) -> None:
        """Lets go of everything, from any state; never raises."""


@dataclass(frozen=True)
class Way:
    """One way of capturing.

    Args:
        key: names it in plans and for `--route`.
        cost: expected.
        look: the routes by it into a process, as `doctor` lists them; cheap enough for a key press, nothing is done.
        words: of a plan.
        taker: for a plan; imports what it needs only then.
        chosen: whether it is taken where it is the best open one; else only when asked for by name.
        options: names of `Plan.options` that it knows, with their defaults.
    """

    key: str
    cost: Cost
    look: Callable[[Seen], tuple[Route, ...]]
    words: Callable[[Plan], Words]
    taker: Callable[[Setting], Taker]
    chosen: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
