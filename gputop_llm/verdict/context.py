"""What several analyses of one capture share, worked out once, when first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gputop_llm.model.finding import Fact
from gputop_llm.printable import printable
from gputop_llm.timeline.model import I32, U8, Kind, Timeline
from gputop_llm.verdict import blind as blinds
from gputop_llm.verdict import coverage as coverages
from gputop_llm.verdict import distortion as distortions
from gputop_llm.verdict import idle as idles
from gputop_llm.verdict.apis import Api, uses
from gputop_llm.verdict.coverage import DeviceCoverage, Intervals
from gputop_llm.verdict.distortion import Distortion
from gputop_llm.verdict.engine import engine_of
from gputop_llm.verdict.grouped import families
from gputop_llm.verdict.idle import Idle
from gputop_llm.verdict.waited_for import WaitedFor

if TYPE_CHECKING:
    from gputop_llm.verdict.step_marks import Marks

#: Replays that were launched this close to the window's end need not have left a record.
_TAIL_NS = 100_000_000
#: An error below this many points is given, but not explained each time.
_WORTH_A_NOTE_PCT = 3.0


class Context:
    """One capture with what its analyses share. Nothing in it changes.

    `no_request` are times (starts and ends, ns of the timeline's clock, in any order) in which no engine of the capture
    had a request in flight, where whoever took it knows that: a live count of running requests that was 0 at both ends
    and at which none was taken in between. None: not known beyond what the record tells.
    """

    def __init__(self, timeline: Timeline, no_request: Intervals | None = None) -> None:
        self.timeline = timeline
        self._no_request = no_request

    @property
    def no_request_known(self) -> bool:
        """Whether the times without a request in flight were given, not read from the record."""
        return self._no_request is not None

    @cached_property
    def uses(self) -> U8:
        """The use (`apis.Api`) of each row of `timeline.calls`."""
        return uses(self.timeline)

    @cached_property
    def families(self) -> U8:
        """The family of each row of `timeline.ops`, as a position in `grouped.FAMILIES`."""
        return families(self.timeline)

    @cached_property
    def coverage(self) -> tuple[DeviceCoverage, ...]:
        """Each device with activity in the window, by number."""
        return tuple(c for c in coverages.coverage(self.timeline) if c.busy_ns)

    @cached_property
    def idle(self) -> dict[int, Idle]:
        """Idle time by device number."""
        waited_for = WaitedFor(self, self._no_request)
        return {c.device: idles.idle(self.timeline, c, self.uses, waited_for) for c in self.coverage}

    @property
    def main(self) -> DeviceCoverage | None:
        """The device that did most; None if none did anything."""
        return max(self.coverage, key=lambda c: c.busy_ns, default=None)

    @cached_property
    def distortion(self) -> Distortion | None:
        """What node-level records of graph replays do to the figures; None if there are none."""
        return distortions.distortion(self.timeline, self.uses)

    def idle_error_pct(self, device: int) -> float | None:
        """By how many points of the window an idle share of a device may read too high; None where that is not known.

        It is so where graph replays were recorded node by node.
        """
        covered = next(one for one in self.coverage if one.device == device)
        return self.distortion.low_by_pct(covered.busy_pct) if self.distortion else None

    @cached_property
    def engine(self) -> str | None:
        """ "vllm", "sglang" or "trtllm", where the capture tells."""
        return engine_of(self.timeline)

    @cached_property
    def submitters(self) -> dict[int, I32]:
        """The threads that launch onto each device, the busiest first; none where launches are unknown."""
        timeline = self.timeline
        found = {}
        for covered in self.coverage:
            rows = (timeline.ops.device == covered.device) & (timeline.ops.launch >= 0)
            issued = np.bincount(timeline.calls.thread[timeline.ops.launch[rows]], minlength=1)
            threads = np.argsort(-issued, kind="stable")
            found[covered.device] = threads[: int((issued > 0).sum())].astype(np.int32)
        return found

    @cached_property
    def marks(self) -> dict[int, Marks]:
        """The steps on each device where they can be found, with their phases (inferred where nothing tells)."""
        # Not above: they are built on this class.
        from gputop_llm.verdict.step_marks import marks
        from gputop_llm.verdict.step_phases import with_phases

        found = {c.device: marks(self, c.device) for c in self.coverage}
        return {device: with_phases(self, steps) for device, steps in found.items() if steps is not None}

    @cached_property
    def first_op(self) -> I32:
        """For each row of `timeline.calls` the first device row that it launched, -1 for none."""
        ops = self.timeline.ops
        first = np.full(len(self.timeline.calls), -1, dtype=np.int32)
        rows = np.flatnonzero(ops.launch >= 0)[::-1]
        # Rows are in time order and the last assignment holds: the earliest.
        first[ops.launch[rows]] = rows
        return first

    @cached_property
    def unseen_replays(self) -> int:
        """Graph launches in the window whose work is not in the record: the device then reads too idle.

        nsys up to 2023.4 drops replays from its export, and so does any recorder that lost them.
        """
        timeline = self.timeline
        launched = (self.uses == Api.GRAPH_LAUNCH) & (timeline.calls.start >= timeline.start)
        launched &= timeline.calls.end < timeline.end - min(_TAIL_NS, timeline.window_ns // 10)
        unseen = int((launched & (self.first_op < 0)).sum())
        if unseen and len(timeline.ops) and bool((timeline.ops.kind == Kind.GRAPH).any()):
            # Older replays may be recorded without a correlation.
            unlinked = int(((timeline.ops.kind == Kind.GRAPH) & (timeline.ops.launch < 0)).sum())
            return max(0, unseen - unlinked)
        return unseen

    @cached_property
    def blind(self) -> blinds.Blind | None:
        """Why idle time can't be judged: work that the record lacks, or times that cannot be. None: nothing known."""
        return blinds.blind(self.timeline, self.uses, self.first_op, self.unseen_replays)

    def device_label(self, number: int) -> str:
        """How a device is named to a reader: "GPU 0"."""
        return f"GPU {number}"

    def subject(self, number: int) -> str | None:
        """The subject of a finding about one device: None if it is the only one."""
        return self.device_label(number) if len(self.coverage) > 1 else None

    def thread_label(self, thread: int) -> str:
        """How a thread is named to a reader."""
        if thread < 0:
            return "an unknown thread"
        described = self.timeline.threads[thread]
        name = printable(described.name, 60) if described.name else "thread"
        known = described.tid is not None and str(described.tid) not in name
        return f"{name} ({described.tid})" if known else name

    def busy_facts(self, covered: DeviceCoverage) -> tuple[Fact, ...]:
        """How busy a device was: of the window, and from its first to its last activity."""
        low_by = self.distortion.low_by_pct(covered.busy_pct) if self.distortion else None
        low_by_active = self.distortion.low_by_pct(covered.active_pct) if self.distortion else None
        rows = f"{sum(covered.counts.values()):,} device rows"
        label = self.device_label(covered.device) if len(self.coverage) > 1 else "GPU"
        note = self.distortion.text if self.distortion and low_by and low_by >= _WORTH_A_NOTE_PCT else None
        return (
            Fact(f"{label} busy", covered.busy_pct, "%", "|∪ device activity| ÷ window", rows, note, low_by),
            Fact(
                f"{label} busy, first to last activity",
                covered.active_pct,
                "%",
                "|∪ device activity| ÷ (last end − first start)",
                rows,
                None,
                low_by_active,
            ),
        )
