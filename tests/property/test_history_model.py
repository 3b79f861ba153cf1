"""The ring buffers against a dictionary that forgets nothing."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model import Frame, GpuNode, Host, Part
from gputop_llm.sampling.history import History
from tests.support.fake_sources import a_gpu

UTIL, CPU = "gpu.0.util_pct", "host.cpu_pct"
# What single precision holds exactly, so that equality can be asked for.
values = st.none() | st.integers(0, 100).map(float)
steps = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.0, 1.001, 2.0, 3.0, 7.0, 30.0])
ticks = st.lists(st.tuples(steps, st.sampled_from([0.25, 1.0, 3.0]), values, values, st.booleans()), max_size=60)


class Naive:
    """Every value ever, by name and slot."""

    def __init__(self, points: int) -> None:
        self.points = points
        self.slots: dict[str, dict[int, float | None]] = {}
        self.now: int | None = None

    def append(self, mono_s: float, period_s: float, row: dict[str, float | None]) -> None:
        slot = math.floor(mono_s)
        first = slot
        if self.now is not None and slot - self.now <= min(self.points, max(2, math.ceil(1.5 * period_s))):
            first = min(slot, self.now + 1)
        self.now = slot
        for name, value in row.items():
            for covered in range(first, slot + 1):
                self.slots.setdefault(name, {})[covered] = value

    def series(self, name: str, points: int) -> list[float | None]:
        if self.now is None:
            return [None] * points
        return [self.slots.get(name, {}).get(s) for s in range(self.now - points + 1, self.now + 1)]


@given(ticks=ticks, points=st.integers(1, 12), asked=st.integers(1, 20), start=st.integers(0, 30))
def test_series_are_what_a_store_without_bounds_would_say(ticks, points, asked, start):
    history, naive = History(points=points), Naive(points)
    now = float(start)
    for step, period_s, util, cpu, with_host in ticks:
        now += step
        host = Host(cpu_pct=cpu) if with_host else None
        history.append(
            Frame(
                seq=0,
                at_s=now,
                mono_s=now,
                period_s=period_s,
                gpus=Part(value=GpuNode(gpus=(a_gpu(0, util_pct=util),))),
                host=Part(value=host),
                targets=Part(),
            )
        )
        naive.append(now, period_s, {UTIL: util, **({CPU: cpu} if with_host else {})})
    asked = min(asked, points)
    assert history.series(UTIL, asked) == naive.series(UTIL, asked)
    assert history.series(CPU, asked) == naive.series(CPU, asked)
