"""Takes a window of torch.profiler on demand: answers each rank's next question, and takes in what it writes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gputop_llm.capture import traces_undo
from gputop_llm.capture.endpoint.files import Traces
from gputop_llm.capture.endpoint.kinds import Call, Endpoint
from gputop_llm.capture.guards import Guards
from gputop_llm.capture.kineto.daemon import ASKS_EVERY_S, WARM_UP_S, Daemon, Order
from gputop_llm.capture.kineto_daemon_way import LONGEST_S, OPTIONS, look
from gputop_llm.capture.plan import PlannedRank
from gputop_llm.capture.preflight import Refused, check_room, check_ways
from gputop_llm.capture.torch_files import rank_facts, take_in
from gputop_llm.capture.way import Recorded, Setting
from gputop_llm.errors import GputopError

FOLDER = "/tmp"
#: Each rank must have asked by then; the start comes so much later that it may have had to ask once more (daemon.py),
#: and its warm-up is over.
ASKED_S, LEAD_S = ASKS_EVERY_S + 1.0, ASKS_EVERY_S + WARM_UP_S + 1.5
#: Kineto's loop looks once a second; then it sorts and writes.
_WRITTEN_S = 60.0
_STILL_S, _TICK_S = 0.3, 0.05
_PID = re.compile(r"_(\d+)\.json$")
_NO_CALL = Call("")


class DaemonTaker:
    """One window of torch.profiler on demand in all processes of a plan."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._tag = f"gputop-llm-{os.urandom(8).hex()}"
        self._traces: dict[int, Traces] = {}
        self._daemon: Daemon | None = None
        self._sizes: dict[int, int] = {}
        self._trouble: str | None = None
        self._given = False
        self._asked_ms: float | None = None
        self.starts_ns: int | None = None

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def prepare(self) -> None:
        if self._plan.window_s > LONGEST_S:
            raise Refused(
                "cannot capture",
                f"a window of torch.profiler is at most {LONGEST_S:g} s long, got {self._plan.window_s:g}",
                "give a shorter --seconds",
            )
        check_room(self._plan)
        check_ways(self._plan, look)

    def begin(self) -> None:
        plan, setting = self._plan, self._setting
        setting.deadline(ASKED_S + LEAD_S + 10.0)
        setting.tell("start", f"waiting to be asked, which each process does every {ASKS_EVERY_S:g} s")
        self._traces = {rank.number: Traces(rank.pid, self._place(rank)) for rank in plan.ranks}
        now = time.time()
        start_s = now + ASKED_S + LEAD_S
        options: Mapping[str, Any] = {**OPTIONS, **plan.options}
        what = {name: bool(options[name]) for name in OPTIONS}
        orders = {
            rank.pid: Order(f"{FOLDER}/{self._tag_of(rank)}.json", start_s, plan.window_s, **what)
            for rank in plan.ranks
        }
        setting.undo(tuple(traces_undo.step(rank.pid, self._place(rank), plan.window_s) for rank in plan.ranks))
        began, self._daemon = time.monotonic(), Daemon(orders)
        try:
            while len(self._daemon.given) < len(orders) and time.monotonic() - began < ASKED_S:
                if setting.cancelled() and not self._daemon.given:
                    return
                self._daemon.answer(_TICK_S)
        finally:
            self._given = bool(self._daemon.given)
        self._asked_ms = (time.monotonic() - began) * 1000
        deaf = [rank.pid for rank in plan.ranks if rank.pid not in self._daemon.given]
        if not self._given:
            raise Refused(
                "cannot capture",
                f"PID {deaf[0]} did not ask for orders within {ASKED_S:g} s",
                "torch before 2.7 does so only once its profiler was used; take another route",
            )
        if deaf:
            self._trouble = f"PID {', '.join(map(str, deaf))} did not ask for orders within {ASKED_S:g} s"
        self.starts_ns = time.monotonic_ns() + int((start_s - time.time()) * 1e9)

    def follow(self) -> Recorded:
        plan, setting = self._plan, self._setting
        assert self.starts_ns is not None
        setting.deadline(LEAD_S + ASKED_S + plan.window_s + _WRITTEN_S + 10.0)
        guards = Guards(plan, setting.folder.inside, setting.samples)
        cancelled = False
        give_up_ns = self.starts_ns + int((plan.window_s + _WRITTEN_S) * 1e9)
        while not self._written() and time.monotonic_ns() < give_up_ns:
            since_s = (time.monotonic_ns() - self.starts_ns) / 1e9
            # The name is held: a question that fails is asked again for 10 s, and the order is read after it alone.
            if self._daemon is not None:
                self._daemon.answer(_TICK_S)
            setting.tell_recording(min(1.0, max(0.0, since_s / plan.window_s)), self.bytes)
            # What was ordered takes place: a cancel only ends our interest in it.
            cancelled = cancelled or setting.cancelled()
            if (trouble := guards.trouble(0, min(since_s, plan.window_s))) is not None:
                return Recorded(trouble=trouble)
        return Recorded(cancelled)

    def stop(self) -> str | None:
        setting = self._setting
        if self._daemon is not None:
            self._daemon.close()
        for rank in self._plan.ranks:
            traces = self._traces[rank.number]
            found = traces.found()
            setting.deadline(_WRITTEN_S + 20.0)
            if not found:
                self._trouble = self._trouble or f"PID {rank.pid} wrote no trace"
                continue
            try:
                fd = traces.open(found[0].name)
                try:
                    self._sizes[rank.number] = take_in(fd, rank, setting.folder, self._plan.max_bytes)
                finally:
                    os.close(fd)
            except (GputopError, OSError) as failure:
                self._trouble = failure.sentence() if isinstance(failure, GputopError) else str(failure)
            traces.remove()
        if self._sizes:
            setting.undo(())
            self._given = False
        return self._trouble

    def recorded(self) -> bool:
        return bool(self._sizes)

    def facts(self) -> dict[str, Any]:
        ranks = [rank_facts(rank, "daemon", self._sizes.get(rank.number)) for rank in self._plan.ranks]
        return {"ranks": ranks, "asked_ms": self._asked_ms}

    def close(self) -> None:
        if self._daemon is not None:
            with suppress(OSError):
                self._daemon.close()
        if self._given:
            self._given = False
            for traces in self._traces.values():
                traces.remove()

    def _tag_of(self, rank: PlannedRank) -> str:
        return f"{self._tag}-r{rank.number}"

    def _place(self, rank: PlannedRank) -> Endpoint:
        """Where a rank writes; there is nothing to ask over HTTP."""
        return Endpoint(
            "torch", FOLDER, owned=False, tag=f"{self._tag_of(rank)}_", start=_NO_CALL, stop=_NO_CALL,
            ends_itself=True, stop_after=False, probe=None, rank=_PID,
        )  # fmt: skip

    def _written(self) -> bool:
        """Whether each rank that has its order has its trace; it gets its name when it is whole."""
        given = self._daemon.given if self._daemon is not None else set()
        return all(self._traces[rank.number].found() for rank in self._plan.ranks if rank.pid in given)
