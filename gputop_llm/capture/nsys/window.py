"""A window of nsys, whatever it collects: started, followed under guards, stopped, made a record."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gputop_llm.capture.guards import LATE_S, Guards, disk_at, disk_full
from gputop_llm.capture.nsys.collection import EXPORT_WITHIN_S, RECORD, STOP_WITHIN_S, Collection
from gputop_llm.capture.nsys.found import collected_bytes, data_of
from gputop_llm.capture.nsys.tool import START_WITHIN_S
from gputop_llm.capture.way import Recorded, Setting
from gputop_llm.errors import GputopError

_TICK_S = 0.05
#: The report is written and read again: some 3 % of the window's bytes a second.
_STOPPING_S = STOP_WITHIN_S + EXPORT_WITHIN_S + 60.0


class WindowTaker:
    """One window of nsys; what it is of is found out by `prepare`, which sets `collection` and `data`.

    Args:
        nothing_seen: said of a record without any event, a clause.
    """

    def __init__(self, setting: Setting, nothing_seen: str) -> None:
        self.setting = setting
        self.collection: Collection | None = None
        #: Where nsys keeps what it has collected so far; None where that isn't known.
        self.data: Path | None = None
        self._nothing_seen = nothing_seen
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

    def begin(self) -> None:
        setting, collection = self.setting, self.collection
        assert collection is not None
        setting.tell("start", f"nsys start, session {collection.session}")
        setting.deadline(2 * START_WITHIN_S)
        # Said first: whatever happens while it starts, it is to be stopped.
        setting.undo([collection.step])
        self._going = True
        began = time.monotonic()
        collection.start()
        self._took["start_ms"] = (time.monotonic() - began) * 1e3
        if self.data is None and (session := collection.tool.session(collection.session)) is not None:
            self.data = data_of(session.id, os.environ)
        self._starts_ns = time.monotonic_ns()

    def follow(self) -> Recorded:
        setting = self.setting
        plan = setting.plan
        assert self._starts_ns is not None
        setting.deadline(plan.window_s + LATE_S + 10.0)
        guards = Guards(plan, setting.folder.inside, setting.samples)
        while True:
            since_s = (time.monotonic_ns() - self._starts_ns) / 1e9
            if since_s >= plan.window_s:
                return Recorded()
            self._bytes = collected_bytes(self.data) if self.data is not None else 0
            setting.tell_recording(since_s / plan.window_s, self._bytes)
            if setting.cancelled():
                return Recorded(cancelled=True)
            if (trouble := guards.trouble(self._bytes, since_s) or self._room()) is not None:
                return Recorded(trouble=trouble)
            time.sleep(min(_TICK_S, max(0.0, plan.window_s - since_s)))

    def _room(self) -> str | None:
        """Why there is too little where nsys collects, which may be another disk than the captures'."""
        if self.data is None:
            return None
        try:
            full = disk_full(disk_at(self.data))
        except OSError:
            return None
        return f"the disk where nsys collects is nearly full: {full}" if full else None

    def stop(self) -> str | None:
        collection = self.collection
        assert collection is not None
        self.setting.deadline(_STOPPING_S)
        self.setting.tell("finishing", "nsys writes its report")
        began = time.monotonic()
        # Whether it comes to a report or not, a second stop would not help.
        self._going = False
        failure = None
        try:
            collection.stop()
        except GputopError as failed:
            failure = failed
        self._took["stop_ms"] = (time.monotonic() - began) * 1e3
        still = True
        with suppress(GputopError):
            still = collection.goes_on()
        collection.remove()
        if not still:
            self.setting.undo([])
        if failure is not None:
            # Nothing else of ours will end it.
            end_it = f"it may collect on: {collection.tool.path} stop --session={collection.session} ends that"
            raise GputopError(failure.what, failure.why, end_it if still else failure.todo)
        return None if collection.events else self._nothing_seen

    def recorded(self) -> bool:
        return self.collection is not None and self.collection.whole

    def facts(self) -> dict[str, Any]:
        collection = self.collection
        assert collection is not None
        return {
            "ranks": [{"file": RECORD, "pid": rank.pid, "rank": rank.rank} for rank in self.setting.plan.ranks],
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
        if self._going and self.collection is not None:
            with suppress(Exception):
                self.stop()
        if self.collection is not None:
            self.collection.remove()
