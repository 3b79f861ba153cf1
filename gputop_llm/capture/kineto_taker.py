"""Takes a window of torch.profiler: runs the agent in every rank, starts them together, takes their traces in."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from gputop_llm.capture.await_step import await_step, stage_of
from gputop_llm.capture.guards import Guards
from gputop_llm.capture.kineto.talk import Agent, Wanted, reach
from gputop_llm.capture.kineto_way import LONGEST_S, look
from gputop_llm.capture.preflight import Refused, check_room, check_ways
from gputop_llm.capture.torch_files import rank_facts, take_in
from gputop_llm.capture.way import Recorded, Setting
from gputop_llm.errors import GputopError
from gputop_llm.printable import printable

_INJECT_S = 5.0
#: A busy interpreter hands its lock over within milliseconds; one that is stuck in a call, not at all.
_HELLO_S = 10.0
#: Between the order and the start: torch takes its buffers, 1 to 30 ms, and each rank needs its interpreter's lock.
_LEAD_NS = 200_000_000
#: A second of a loaded engine took torch about a second to sort, and as long to save.
_SAVED_S = 60.0
_COPY_S = 60.0
_TICK_S = 0.05


class KinetoTaker:
    """One window of torch.profiler in all processes of a plan."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._agents: list[Agent] = []
        self._sizes: dict[int, int] = {}
        self._trouble: str | None = None
        self.starts_ns: int | None = None

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def prepare(self) -> None:
        if self._plan.window_s > LONGEST_S:
            raise Refused(
                "cannot capture", f"a window of torch.profiler stalls the engine for longer the longer it is: at most "
                f"{LONGEST_S:g} s, got {self._plan.window_s:g}", "give a shorter --seconds",
            )  # fmt: skip
        stage_of(self._plan.options.get("stage"))
        check_room(self._plan)
        check_ways(self._plan, look)

    def begin(self) -> None:
        plan, setting = self._plan, self._setting
        wanted = Wanted(**{name: bool(plan.options.get(name)) for name in Wanted.__slots__})
        for rank in plan.ranks:
            if setting.cancelled():
                return
            setting.deadline(_INJECT_S + _HELLO_S + 10.0)
            setting.tell("inject", f"PID {rank.pid} ({rank.title})")
            agent = reach(rank.pid, rank.start_ticks, wanted, _INJECT_S)
            self._agents.append(agent)
            until = time.monotonic() + _HELLO_S
            while "hello" not in agent.said and not agent.over and time.monotonic() < until and not setting.cancelled():
                agent.hear(_TICK_S)
            if agent.trouble is not None:
                raise Refused("cannot capture", f"{agent.trouble} (PID {rank.pid})")
            if agent.gone and "hello" not in agent.said:
                raise GputopError("cannot capture", f"the agent in PID {rank.pid} ended without a word")
            if "hello" not in agent.said and not setting.cancelled():
                raise GputopError(
                    "cannot capture",
                    f"the agent in PID {rank.pid} did not get the interpreter's lock within {_HELLO_S:g} s; "
                    "it gives up by itself",
                    "some thread holds that lock without letting go: `gputop-llm doctor`, or stacks, show which",
                )
        self._await_stage()

    def _await_stage(self) -> None:
        stage = stage_of(self._plan.options.get("stage"))
        if stage is None or self._setting.cancelled():
            return
        # The agents wait for 30 s at most.
        longest_s = 25.0
        self._setting.deadline(longest_s + 10.0)
        self._setting.tell("start", f"waiting for a {stage} step")
        if not await_step(stage, self._setting.samples, self._setting.cancelled, longest_s) and not (
            self._setting.cancelled()
        ):
            raise Refused("cannot capture", f"the engine told of no {stage} step within {longest_s:g} s")

    def follow(self) -> Recorded:
        plan, setting = self._plan, self._setting
        setting.deadline(plan.window_s + _SAVED_S + 20.0)
        guards = Guards(plan, setting.folder.inside, setting.samples)
        self.starts_ns = time.monotonic_ns() + _LEAD_NS
        for agent in self._agents:
            agent.begin(self.starts_ns, int(plan.window_s * 1e9))
        cancelled, trouble = False, None
        give_up = time.monotonic() + plan.window_s + _LEAD_NS / 1e9 + _SAVED_S
        while not all(agent.over for agent in self._agents) and time.monotonic() < give_up:
            for agent in self._agents:
                agent.hear(_TICK_S / len(self._agents))
            since_s = (time.monotonic_ns() - self.starts_ns) / 1e9
            setting.tell_recording(min(1.0, max(0.0, since_s / plan.window_s)), self.bytes)
            if since_s > plan.window_s and setting.cancelled():
                # Torch sorts by now, which nothing ends; nobody waits for what comes of it.
                return Recorded(cancelled=True)
            if cancelled or trouble is not None:
                continue
            cancelled = setting.cancelled()
            # After the window torch sorts: the bound on its lateness is ours.
            trouble = guards.trouble(0, min(since_s, plan.window_s))
            if cancelled or trouble is not None:
                for agent in self._agents:
                    agent.stop()
                if not guards.all_there():
                    break
        return Recorded(cancelled and trouble is None, trouble or self._missing())

    def _missing(self) -> str | None:
        for agent in self._agents:
            if "saved" not in agent.said:
                return f"the agent in PID {agent.pid}: {agent.trouble or 'nothing came of it in time'}"
        return None

    def stop(self) -> str | None:
        setting = self._setting
        for rank, agent in zip(self._plan.ranks, self._agents, strict=False):
            if "saved" not in agent.said:
                agent.close()
                continue
            setting.deadline(_COPY_S + 20.0)
            setting.tell("finishing", f"taking the trace of PID {rank.pid} in")
            try:
                fd, _ = agent.open_trace()
                try:
                    self._sizes[rank.number] = take_in(fd, rank, setting.folder, self._plan.max_bytes)
                finally:
                    os.close(fd)
            except GputopError as failure:
                self._trouble = failure.sentence()
            finally:
                agent.close()
        return self._trouble

    def recorded(self) -> bool:
        return bool(self._sizes)

    def facts(self) -> dict[str, Any]:
        ranks = [
            {
                **rank_facts(rank, "injected", self._sizes.get(rank.number)),
                **agent.details,
                "torch": printable(str(agent.said.get("hello", {}).get("torch")), 60),
                "enabling_ms": agent.number("started", "preparing_ms"),
                "ending_ms": agent.number("ended", "ending_ms"),
                "saving_ms": agent.number("saved", "saving_ms"),
            }
            for rank, agent in zip(self._plan.ranks, self._agents, strict=False)
        ]
        return {"ranks": ranks}

    def close(self) -> None:
        for agent in self._agents:
            with suppress(OSError):
                agent.close()
