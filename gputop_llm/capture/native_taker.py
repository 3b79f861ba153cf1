"""Takes a native window: reaches the client of every rank, starts them together, collects what they send."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from gputop_llm.capture import clients, native, recording
from gputop_llm.capture.clients import Reached
from gputop_llm.capture.guards import Guards
from gputop_llm.capture.preflight import check
from gputop_llm.capture.way import Recorded, Setting
from gputop_llm.capture.window import Window
from gputop_llm.errors import GputopError
from gputop_llm.timeline.native_format import Kinds

#: For one process.
_INJECT_S = 5.0
_HELLO_MORE_S = 5.0


class NativeTaker:
    """One native window in all processes of a plan."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._prepared: dict[int, Reached] = {}
        self._reached: list[Reached] = []
        self._window: Window | None = None

    @property
    def starts_ns(self) -> int | None:
        return self._window.starts_ns if self._window is not None else None

    @property
    def bytes(self) -> int:
        return self._window.bytes if self._window is not None else 0

    def prepare(self) -> None:
        found = {rank.pid: clients.reach_prepared(rank) for rank in self._plan.ranks}
        self._prepared = {pid: one for pid, one in found.items() if one is not None}
        check(self._plan, set(self._prepared))

    def begin(self) -> None:
        plan, setting = self._plan, self._setting
        until = time.monotonic() + native.REACH_WITHIN_S
        for number, rank in enumerate(plan.ranks):
            if setting.cancelled():
                return
            setting.deadline(_INJECT_S + 10.0)
            setting.tell("inject", f"PID {rank.pid} ({rank.title})")
            if rank.pid in self._prepared:
                self._reached.append(self._prepared.pop(rank.pid))
                continue
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise GputopError(
                    "cannot capture",
                    f"only {number} of {len(plan.ranks)} processes were reached within {native.REACH_WITHIN_S:g} s",
                    "try again when the node is less busy",
                )
            self._reached.append(clients.inject(rank, min(_INJECT_S, left_s)))
        channels = [(rank.file, one.channel) for rank, one in zip(plan.ranks, self._reached, strict=True)]
        kinds = Kinds(sum(Kinds[name.upper()] for name in plan.kinds))
        self._window = Window(channels, setting.folder, kinds, int(plan.window_s * 1e9), plan.max_bytes)
        setting.tell("start", "waiting for the clients")
        setting.deadline(recording.HELLO_WITHIN_S + _HELLO_MORE_S)
        recording.greet(self._window, setting.cancelled)

    def follow(self) -> Recorded:
        plan, setting, window = self._plan, self._setting, self._window
        assert window is not None
        setting.deadline(recording.deadline_s(plan))
        guards = Guards(plan, setting.folder.inside, setting.samples)
        return recording.record(
            window, plan, guards, setting.cancelled, lambda now: setting.tell_recording(now.share, now.bytes)
        )

    def stop(self) -> None:
        if self._window is not None:
            self._window.put_away()

    def recorded(self) -> bool:
        return self._window is not None and any(member.stream.started_ns for member in self._window.members)

    def facts(self) -> dict[str, Any]:
        count = len(self._window.members) if self._window is not None else 0
        return {"ranks": [self._rank_facts(position) for position in range(count)]}

    def close(self) -> None:
        if self._window is not None:
            self._window.put_away()
            return
        for one in (*self._reached, *self._prepared.values()):
            for fd in {one.channel.commands, one.channel.records}:
                with suppress(OSError):
                    os.close(fd)

    def _rank_facts(self, position: int) -> dict[str, Any]:
        assert self._window is not None
        member, reached = self._window.members[position], self._reached[position]
        stream = member.stream
        rank = self._plan.ranks[position]
        return {
            "file": member.name,
            "pid": rank.pid,
            "rank": rank.rank,
            "reached_by": reached.how,
            **reached.details,
            "bytes": stream.bytes,
            "whole": stream.end is not None,
            "cupti_version": stream.hello.cupti_version if stream.hello else None,
            "cupti_library": stream.hello.library if stream.hello else None,
            "enabling_ms": stream.enabling_ns / 1e6 if stream.enabling_ns is not None else None,
            "ending_ms": stream.end.took_ns / 1e6 if stream.end else None,
            "end_reason": stream.end.reason if stream.end else None,
            "dropped": stream.end.dropped if stream.end else None,
        }
