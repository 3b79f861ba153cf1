"""Takes a window of an nsys that waits for a range: begins and ends that from within one process of the target."""

from __future__ import annotations

import time
from typing import Any

from gputop_llm.capture.kineto.talk import Agent, Wanted, reach
from gputop_llm.capture.nsys import gated_way
from gputop_llm.capture.nsys.collection import Collection
from gputop_llm.capture.nsys.session_taker import NOTHING_SEEN, session_for
from gputop_llm.capture.nsys.state import ARMED
from gputop_llm.capture.nsys.tool import Tool
from gputop_llm.capture.nsys.window import WindowTaker
from gputop_llm.capture.preflight import Refused, check_room, check_ways
from gputop_llm.capture.way import Setting
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

_INJECT_S, _HELLO_S = 5.0, 10.0
#: nsys turns its collection on within the call, and flushes within the one that ends it.
_STARTED_S, _ENDED_S = 10.0, 15.0
_TICK_S = 0.05


class GatedTaker(WindowTaker):
    """One window between cudaProfilerStart and cudaProfilerStop."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, NOTHING_SEEN)
        self._agent: Agent | None = None
        self._armed = False

    def prepare(self) -> None:
        plan, proc = self.setting.plan, ProcFs()
        if plan.window_s > gated_way.LONGEST_S:
            why = f"such a window is at most {gated_way.LONGEST_S:g} s long, got {plan.window_s:g}"
            raise Refused("cannot capture", why, "give a shorter --seconds, or take --route nsys-session")
        check_room(plan)
        check_ways(plan, gated_way.look, proc)
        found, session = session_for(plan, proc)
        self._armed = session.state == ARMED
        options = (
            ("--session", session.id),
            ("--capture-range", gated_way.RANGE),
            ("--capture-range-end", gated_way.REPEAT),
            ("--sample", "none"),
            ("--cpuctxsw", "none"),
        )
        self.data = found.data
        self.collection = Collection(Tool(found.tool), session.id, self.setting.folder, options, theirs=self._armed)

    def begin(self) -> None:
        plan, setting, collection = self.setting.plan, self.setting, self.collection
        assert collection is not None
        if not self._armed:
            super().begin()
            self._starts_ns = None
        rank = plan.ranks[0]
        setting.deadline(_INJECT_S + _HELLO_S + _STARTED_S + 10.0)
        setting.tell("inject", f"PID {rank.pid} ({rank.title})")
        self._agent = agent = reach(rank.pid, rank.start_ticks, Wanted(range=True), _INJECT_S)
        self._heard("hello", _HELLO_S)
        if setting.cancelled():
            return
        agent.begin(time.monotonic_ns(), int(plan.window_s * 1e9))
        # Should this process die now, the range ends by itself, and its report is to be had.
        self._going = True
        setting.undo([collection.step])
        try:
            self._heard("started", _STARTED_S)
        except GputopError:
            # Without a range there is nothing to end, and who waits for one may wait on.
            if self._armed and agent.trouble is not None:
                self._going = False
                setting.undo([])
            raise
        self._starts_ns = time.monotonic_ns()

    def stop(self) -> str | None:
        agent = self._agent
        if agent is not None:
            self.setting.deadline(_ENDED_S + 10.0)
            agent.stop()
            until = time.monotonic() + _ENDED_S
            while not (agent.over or "ended" in agent.said) and time.monotonic() < until:
                agent.hear(_TICK_S)
            agent.close()
        return super().stop()

    def facts(self) -> dict[str, Any]:
        agent = self._agent
        assert agent is not None
        told = {"pid": agent.pid, **agent.details, "ending_ms": agent.number("ended", "ending_ms")}
        return {**super().facts(), "range": told}

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()
        super().close()

    def _heard(self, word: str, within_s: float) -> None:
        """Waits for a word of the agent.

        Raises:
            GputopError: it doesn't come.
        """
        agent = self._agent
        assert agent is not None
        until = time.monotonic() + within_s
        while word not in agent.said and not agent.over and time.monotonic() < until:
            if self.setting.cancelled() and word == "hello":
                return
            agent.hear(_TICK_S)
        if agent.trouble is not None:
            raise Refused("cannot capture", f"{agent.trouble} (PID {agent.pid})")
        if word not in agent.said:
            why = "ended without a word" if agent.gone else f"did not get so far within {within_s:g} s; it gives up"
            raise GputopError("cannot capture", f"the agent in PID {agent.pid} {why}")
