"""Takes a window in the nsys session of a target."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from gputop_llm.capture.guards import LATE_S, Guards
from gputop_llm.capture.nsys.collection import EXPORT_WITHIN_S, RECORD, STOP_WITHIN_S, Collection
from gputop_llm.capture.nsys.found import Found, InTheWay, collected_bytes, session_of
from gputop_llm.capture.nsys.session_way import look
from gputop_llm.capture.nsys.tool import START_WITHIN_S, Session, Tool
from gputop_llm.capture.preflight import Refused, check_room, check_ways
from gputop_llm.capture.way import Recorded, Setting
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

_TICK_S = 0.05
_NOTHING_SEEN = (
    "nsys saw no event: the engine did nothing, or the processes that use the GPU are not traced (workers must be "
    "spawned, not forked)"
)
#: The report is written and read again: some 3 % of the window's bytes a second.
_STOPPING_S = STOP_WITHIN_S + EXPORT_WITHIN_S + 60.0


class SessionTaker:
    """One window in one session."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._found: Found | None = None
        self._collection: Collection | None = None
        self._going = False
        self._starts_ns: int | None = None
        self._bytes = 0
        self._took: dict[str, float] = {}

    @property
    def starts_ns(self) -> int | None:
        return self._starts_ns

    @property
    def bytes(self) -> int:
        return self._bytes

    def prepare(self) -> None:
        check_room(self._plan)
        proc = ProcFs()
        check_ways(self._plan, look, proc)
        self._found = found = self._session(proc)
        tool = Tool(found.tool)
        try:
            session = _the(tool, found.session)
        except GputopError as failure:
            raise Refused(failure.what, failure.why, failure.todo) from None
        self._collection = Collection(tool, session.id, self._setting.folder)

    def begin(self) -> None:
        setting, collection = self._setting, self._collection
        assert collection is not None
        setting.tell("start", f"nsys start, session {collection.session}")
        setting.deadline(2 * START_WITHIN_S)
        # Said first: whatever happens while it starts, it is to be stopped.
        setting.undo([collection.step])
        self._going = True
        began = time.monotonic()
        collection.start()
        self._took["start_ms"] = (time.monotonic() - began) * 1e3
        self._starts_ns = time.monotonic_ns()

    def follow(self) -> Recorded:
        plan, setting = self._plan, self._setting
        assert self._starts_ns is not None
        assert self._found is not None
        setting.deadline(plan.window_s + LATE_S + 10.0)
        guards = Guards(plan, setting.folder.inside, setting.samples)
        while True:
            since_s = (time.monotonic_ns() - self._starts_ns) / 1e9
            if since_s >= plan.window_s:
                return Recorded()
            self._bytes = collected_bytes(self._found.data)
            setting.tell_recording(since_s / plan.window_s, self._bytes)
            if setting.cancelled():
                return Recorded(cancelled=True)
            if (trouble := guards.trouble(self._bytes, since_s)) is not None:
                return Recorded(trouble=trouble)
            time.sleep(min(_TICK_S, max(0.0, plan.window_s - since_s)))

    def stop(self) -> str | None:
        collection = self._collection
        assert collection is not None
        self._setting.deadline(_STOPPING_S)
        self._setting.tell("finishing", "nsys writes its report")
        began = time.monotonic()
        # Whether it comes to a report or not, a second stop would not help.
        self._going = False
        try:
            collection.stop()
        finally:
            self._took["stop_ms"] = (time.monotonic() - began) * 1e3
            still = True
            with suppress(GputopError):
                now = collection.tool.session(collection.session)
                still = now is not None and now.collecting
            collection.remove()
            if not still:
                self._setting.undo([])
        return None if collection.events else _NOTHING_SEEN

    def recorded(self) -> bool:
        return self._collection is not None and self._collection.whole

    def facts(self) -> dict[str, Any]:
        collection = self._collection
        assert collection is not None
        return {
            "ranks": [{"file": RECORD, "pid": rank.pid, "rank": rank.rank} for rank in self._plan.ranks],
            "nsys": {
                "path": str(collection.tool.path),
                "version": collection.tool.version(),
                "session": collection.session,
                "collected_bytes": self._bytes,
                "export_bytes": collection.report_bytes,
                "events": collection.events,
                **self._took,
            },
        }

    def close(self) -> None:
        if self._going and self._collection is not None:
            with suppress(Exception):
                self.stop()
        if self._collection is not None:
            self._collection.remove()

    def _session(self, proc: ProcFs) -> Found:
        found = None
        for rank in self._plan.ranks:
            one = session_of(rank.pid, proc)
            if isinstance(one, InTheWay):
                raise Refused(f"cannot capture PID {rank.pid} ({rank.title})", one.why, one.opens)
            if found is not None and one != found:
                raise Refused("cannot capture", "the target's processes run in different nsys sessions", "name one PID")
            found = one
        assert found is not None
        return found


def _the(tool: Tool, wanted: str) -> Session:
    """The session, ready to collect.

    Raises:
        GputopError: it isn't there, or is busy.
    """
    sessions = tool.sessions()
    if not wanted:
        launched = [one for one in sessions if one.launched]
        if len(launched) != 1:
            raise GputopError(
                "cannot capture",
                f"the process doesn't say which of {len(launched)} nsys sessions it runs in",
                "use nsys yourself, or a newer one",
            )
        wanted = launched[0].id
    found = next((one for one in sessions if one.id == wanted), None)
    if found is None:
        raise GputopError(
            "cannot capture",
            f"nsys knows no session {wanted}: its agent has ended, or it is another user's",
            "start the server again, or run gputop-llm as the user of the server",
        )
    if found.collecting:
        raise GputopError(
            "cannot capture now",
            f"somebody else collects in the nsys session {found.name} (it is in state {found.state})",
            f"nsys stop --session={found.name} ends that",
        )
    return found
