"""Takes a window by the engine's own profiler: asks it to begin, ends it, and takes in what it wrote."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from gputop_llm.capture import endpoint_undo, traces_undo
from gputop_llm.capture.await_step import LONGEST_WAIT_S, await_step, stage_of
from gputop_llm.capture.endpoint.ask import Address, Reply
from gputop_llm.capture.endpoint.files import Found, Traces
from gputop_llm.capture.endpoint.kinds import Call, Closed, Endpoint
from gputop_llm.capture.endpoint_way import planned
from gputop_llm.capture.guards import Guards, process_trouble
from gputop_llm.capture.kineto.traces import copy_trace
from gputop_llm.capture.plan import PlannedRank
from gputop_llm.capture.preflight import Refused, check_room
from gputop_llm.capture.torch_files import rank_facts, take_in
from gputop_llm.capture.way import Recorded, Setting
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

_ASK_S, _START_S = 5.0, 30.0
#: Writing the traces of a large model was seen to take minutes.
_STOP_S, _FILES_S = 180.0, 120.0
_CANCELLED_S = 8.0
#: A file that has not grown for so long is looked into; one that has no end yet is waited for longer.
_STILL_S, _GIVEN_UP_S = 0.3, 15.0
_TICK_S = 0.1


class EndpointTaker:
    """One window of an engine's own profiler."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._tag = f"gputop-llm-{os.urandom(8).hex()}"
        self._address: Address | None = None
        self._endpoint: Endpoint | None = None
        self._traces: Traces | None = None
        self._started = self._ended = False
        self._sizes: dict[int, int] = {}
        self._found_bytes = 0
        self._facts: dict[str, Any] = {}
        self._trouble: str | None = None
        self.starts_ns: int | None = None

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values()) or self._found_bytes

    def prepare(self) -> None:
        plan, proc = self._plan, ProcFs()
        check_room(plan)
        stage_of(plan.options.get("stage"))
        self._address = Address.of(self._setting.order)
        if self._address is None:
            raise Refused("cannot capture", "the engine's address is not known", "name it with --url")
        for rank in plan.ranks:
            if (trouble := process_trouble(rank, proc)) is not None:
                raise Refused("cannot capture", trouble, "try again when the engine serves")
        try:
            self._endpoint = endpoint = planned(plan, self._tag, proc)
        except Closed as closed:
            raise Refused(closed.what, closed.why, closed.todo) from None
        if endpoint.probe is None:
            return
        try:
            probed = self._address.ask("GET", endpoint.probe, None, _ASK_S)
        except GputopError as failure:
            raise Refused("cannot capture", failure.sentence()) from None
        # Made for POST alone, a GET of it is "method not allowed".
        if probed.status == 404:
            raise Refused(
                "cannot use the engine's own profiler",
                f"there is no {endpoint.probe} at {self._address.base} (404)",
                "the engine must be started with its profiler turned on; `gputop-llm doctor` says how",
            )

    def begin(self) -> None:
        setting, endpoint, address = self._setting, self._endpoint, self._address
        assert endpoint is not None
        assert address is not None
        stage = stage_of(self._plan.options.get("stage"))
        # SGLang tells stages apart itself.
        if stage is not None and endpoint.engine != "sglang":
            setting.deadline(LONGEST_WAIT_S + 10.0)
            setting.tell("start", f"waiting for a {stage} step")
            if not await_step(stage, setting.samples, setting.cancelled):
                if setting.cancelled():
                    return
                raise Refused("cannot capture", f"the engine told of no {stage} step within {LONGEST_WAIT_S:g} s")
        self._traces = Traces(self._plan.ranks[0].pid, endpoint)
        setting.deadline(_START_S + 10.0)
        setting.tell("start", "asking the engine to start its profiler")
        if setting.cancelled():
            return
        steps = [endpoint_undo.step(address, endpoint.stop.path)]
        if endpoint.owned or endpoint.tag:
            ranks = self._plan.ranks
            steps.append(traces_undo.step(ranks[0].pid, endpoint, self._plan.window_s, len(ranks)))
        setting.undo(steps)
        # Even a request without an answer may have started it.
        self._started = True
        reply = address.ask("POST", endpoint.start.path, endpoint.start.body, _START_S)
        if not reply.good or _says_no(reply):
            # An engine that says no has started nothing, and may be at somebody else's window.
            self._started = False
            setting.undo(())
            raise Refused(
                "the engine did not start its profiler",
                f"it answered {reply.status}{f': {reply.text}' if reply.text else ''}",
                _todo(reply),
            )
        self.starts_ns = time.monotonic_ns()

    def follow(self) -> Recorded:
        plan, setting, endpoint = self._plan, self._setting, self._endpoint
        assert endpoint is not None
        assert self.starts_ns is not None
        guards = Guards(plan, setting.folder.inside, setting.samples)
        setting.deadline(plan.window_s + 30.0)
        while True:
            since_s = (time.monotonic_ns() - self.starts_ns) / 1e9
            found = self._look()
            setting.tell_recording(min(1.0, since_s / plan.window_s), self.bytes)
            if setting.cancelled():
                return Recorded(cancelled=True)
            if (trouble := guards.trouble(self._found_bytes, since_s)) is not None:
                return Recorded(trouble=trouble)
            over = len(found) >= len(plan.ranks) if endpoint.ends_itself else since_s >= plan.window_s
            if over:
                return Recorded()
            time.sleep(_TICK_S)

    def stop(self) -> str | None:
        endpoint, setting, traces = self._endpoint, self._setting, self._traces
        assert endpoint is not None
        if traces is None or not self._started:
            return None
        there = len(self._look()) >= len(self._plan.ranks)
        if endpoint.stop_after or not there:
            self._end(_STOP_S)
        setting.deadline(_FILES_S + 30.0)
        setting.tell("finishing", "waiting for the engine to write its traces")
        found = self._settled(traces)
        self._take_in(found)
        setting.undo(())
        self._started = False
        if left := traces.remove():
            self._facts["left_in_target"] = {"folder": endpoint.folder, "files": list(left[:64])}
        if not self._sizes:
            nothing = f"the engine wrote no trace to {endpoint.folder}, whatever it answered"
            why = self._trouble if found and self._trouble else nothing
            raise GputopError("nothing was recorded", why, "see the engine's own log")
        return self._trouble

    def recorded(self) -> bool:
        return bool(self._sizes)

    def facts(self) -> dict[str, Any]:
        ranks = [rank_facts(rank, "endpoint", self._sizes.get(rank.number)) for rank in self._plan.ranks]
        return {"ranks": ranks, **self._facts}

    def close(self) -> None:
        if self._started:
            self._end(_ASK_S)
            self._started = False
            if self._traces is not None:
                self._traces.remove()

    def _end(self, within_s: float) -> None:
        """Asks the engine to end it; what it answers is noted and proves nothing."""
        if self._ended or self._address is None or self._endpoint is None:
            return
        self._ended = True
        self._setting.deadline(within_s + 20.0)
        self._setting.tell("finishing", "asking the engine to stop its profiler")
        began = time.monotonic()
        asking = threading.Thread(
            target=self._ask_to_end, args=(self._address, self._endpoint.stop, within_s), daemon=True
        )
        asking.start()
        while asking.is_alive():
            asking.join(_TICK_S)
            # The request is made; only its answer is not waited for any longer.
            if self._setting.cancelled() and time.monotonic() - began > _CANCELLED_S:
                break
        self._facts["stopping_ms"] = (time.monotonic() - began) * 1000

    def _ask_to_end(self, address: Address, stop: Call, within_s: float) -> None:
        try:
            self._facts["stop_status"] = address.ask("POST", stop.path, stop.body, within_s).status
        except GputopError as failure:
            self._facts["stop_error"] = failure.sentence()

    def _look(self) -> tuple[Found, ...]:
        found = self._traces.found() if self._traces is not None else ()
        self._found_bytes = sum(one.bytes for one in found)
        return found

    def _settled(self, traces: Traces) -> Sequence[Found]:
        """The traces once there is one of each rank and none grows any more; those there are when time is over."""
        until = time.monotonic() + _FILES_S
        seen: Sequence[Found] = ()
        since = time.monotonic()
        while time.monotonic() < until:
            now = self._look()
            if now != seen:
                seen, since = now, time.monotonic()
            still_s = time.monotonic() - since
            enough = len(now) >= len(self._plan.ranks) and still_s >= _STILL_S
            if enough and (still_s >= _GIVEN_UP_S or all(self._is_whole(traces, one) for one in now)):
                break
            # A cancelled window need not have come to anything.
            if self._setting.cancelled() and still_s >= 3.0:
                break
            time.sleep(_TICK_S)
        return traces.found()

    def _is_whole(self, traces: Traces, trace: Found) -> bool:
        """Whether a trace has its end: who writes it may only pause."""
        try:
            fd = traces.open(trace.name)
            try:
                copy_trace(fd, None, self._plan.max_bytes)
            finally:
                os.close(fd)
        except (GputopError, OSError):
            return False
        return True

    def _take_in(self, found: Sequence[Found]) -> None:
        assert self._traces is not None
        for rank, trace in zip(self._plan.ranks, _by_rank(self._plan.ranks, found), strict=True):
            if trace is None:
                self._trouble = f"there is no trace of rank {rank.number} (PID {rank.pid})"
                continue
            try:
                fd = self._traces.open(trace.name)
                try:
                    self._sizes[rank.number] = take_in(fd, rank, self._setting.folder, self._plan.max_bytes)
                finally:
                    os.close(fd)
            except (GputopError, OSError) as failure:
                self._trouble = failure.sentence() if isinstance(failure, GputopError) else str(failure)


def _by_rank(ranks: Sequence[PlannedRank], found: Sequence[Found]) -> list[Found | None]:
    """The trace of each rank: by the number in its name where those are the ranks' own, else in order."""
    numbers = [one.rank for one in found]
    if len(set(numbers)) == len(numbers) and set(numbers) <= {rank.number for rank in ranks}:
        by_number = {one.rank: one for one in found}
        return [by_number.get(rank.number) for rank in ranks]
    return [found[at] if at < len(found) else None for at in range(len(ranks))]


def _says_no(reply: Reply) -> bool:
    text = reply.text.lower()
    return "already in progress" in text or '"success": false' in text or '"success":false' in text


def _todo(reply: Reply) -> str:
    if reply.status in (401, 403):
        return "give its API key (SGLang with --admin-api-key: that one) in GPUTOP_LLM_API_KEY"
    if "already" in reply.text.lower() or reply.status == 409:
        return "wait until that window is over"
    return "see the engine's own log"
