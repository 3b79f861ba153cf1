"""Scenarios of an engine's life: it stands still, starts anew, or says nothing."""

from __future__ import annotations

from typing import Any

from gputop_llm.demo.cause import Page
from gputop_llm.demo.causes import EVERY_S, FROM_S, near_miss, raising
from gputop_llm.demo.pace import Pace
from gputop_llm.demo.sensors import asleep, ended, hot, idle, orphaned, without_worker
from gputop_llm.demo.traffic import CHAT

_STANDS = Pace(stands=True)
_SPINS = Pace(stands=True, spins=True)
# What waits at the end of a standstill should be served soon.
_STANDSTILL: dict[str, Any] = {"gpus": 2, "when": (20.0, 50.0), "streams": (CHAT.at((0.0, 2.0)),), "lingers_s": 40.0}
# Nobody answers until it is started anew; then it is young for two minutes.
_AGAIN: dict[str, Any] = {
    "page": Page.GONE,
    "pace": _STANDS,
    "every_s": 300.0,
    "restart_after": True,
    "lingers_s": 150.0,
    "also": ("warming-up",),
}

SCENARIOS = (
    raising(
        "stalled",
        "one of two ranks never comes to the collective: the GPUs read 100 % busy, no token comes out",
        **_STANDSTILL,
        pace=_SPINS,
    ),
    near_miss(
        "stalled",
        "no token comes out for 7.5 s, then the engine goes on",
        gpus=2,
        when=(20.0, 27.5),
        streams=(CHAT.at((0.0, 2.0), (19.0, 0.0), (27.5, 2.0), every_s=EVERY_S),),
        pace=_SPINS,
    ),
    raising(
        "stalled",
        "the engine waits for a lock: no GPU works, no process uses its CPU, no token comes out",
        variant="deadlock",
        **_STANDSTILL,
        pace=_STANDS,
        readings=(asleep("engine-core", "worker"),),
    ),
    raising(
        "stalled",
        "a worker was stopped (state T): the other one spins, no token comes out",
        variant="frozen",
        **_STANDSTILL,
        pace=_SPINS,
        readings=(asleep("worker", rank="TP1", state="T"), idle(1)),
    ),
    raising(
        "stalled",
        "a worker was killed: the other one spins, no token comes out, until the engine is started anew",
        variant="dead-worker",
        **{**_STANDSTILL, "lingers_s": 150.0},
        every_s=300.0,
        pace=_SPINS,
        readings=(without_worker("TP1"), idle(1)),
        restart_after=True,
        also=("warming-up",),
    ),
    raising(
        "stalled",
        "the API server takes nothing that the engine made: its thread has no time left, the engine and its GPUs idle",
        variant="front-end",
        **_STANDSTILL,
        pace=_STANDS,
        readings=(asleep("engine-core", "worker"), hot("api-server")),
    ),
    raising(
        "stalled",
        "the engine ends with requests running, and is started anew 45 s later",
        variant="ended",
        **_AGAIN,
        readings=(ended(), idle(None)),
    ),
    raising(
        "stalled",
        "the API server was killed: the engine core lives on and holds its memory, until all is started anew",
        variant="orphan",
        **_AGAIN,
        readings=(orphaned(), asleep("engine-core"), idle(None)),
    ),
    raising(
        "warming-up",
        "the engine is started anew: for two minutes it is too young to be judged",
        when=(FROM_S, 140.0),
        every_s=240.0,
        restart=True,
    ),
    near_miss("warming-up", "the engine was started a little more than two minutes ago", when=(0.0, 30.0), up_s=130.0),
    raising(
        "metrics-stale",
        "the engine answers its metrics page with status 500",
        page=Page.FAILS,
    ),
    near_miss(
        "metrics-stale",
        "the engine answers its metrics page with status 500 for 6 s",
        when=(20.0, 26.0),
        page=Page.FAILS,
    ),
    raising(
        "metrics-stale",
        "the engine does not answer on its metrics page",
        variant="hangs",
        page=Page.HANGS,
        lingers_s=30.0,
    ),
    raising(
        "metrics-stale",
        "the engine takes 3 s for its metrics page",
        variant="slow",
        page=Page.SLOW,
        shows_s=30.0,
        lingers_s=30.0,
    ),
    raising(
        "metrics-stale",
        "the metrics page says what it said when the engine started, while the GPU works",
        variant="stands",
        when=(0.0, 65.0),
        shows_s=40.0,
        lingers_s=30.0,
        page=Page.STANDS,
    ),
)
