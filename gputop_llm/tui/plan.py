"""Where the overview's panels stand: how a terminal's lines are shared out, pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple

TWO_COLUMNS = 160
GAP = 2
MIN_WIDTH, MIN_HEIGHT = 40, 10


class Rect(NamedTuple):
    """Cells on the screen."""

    x: int
    y: int
    width: int
    height: int


Plan = dict[str, Rect]


def gpu_sizes(gpus: int) -> tuple[int, int, int]:
    """Lines that the GPU panel needs, does well with, and can use, its title included."""
    if gpus == 0:
        return 2, 2, 3
    if gpus == 1:
        return 5, 8, 37
    return min(gpus, 2) + 1, gpus + 1, 2 * gpus + 1


def plan_overview(width: int, height: int, gpus: int, processes: int) -> Plan:
    """Places the panels between the header (line 0) and the status line (the last).

    Panels without room are not in the plan.
    """
    body = height - 2
    if width >= TWO_COLUMNS:
        return _two_columns(width, body, gpus, processes)
    names = ("gpus", "engine", "host", "symptoms")
    heights = dict(zip(names, _share(body, gpus, processes), strict=True))
    plan: Plan = {}
    y = 1
    for name in names:
        if heights[name]:
            plan[name] = Rect(0, y, width, heights[name])
            y += heights[name]
    return plan


def _two_columns(width: int, body: int, gpus: int, processes: int) -> Plan:
    left = (width - GAP) // 2
    right_x = left + GAP
    host = min(2 + max(processes, 1), max(3, body // 5))
    symptoms = max(3, body // 8)
    return {
        "gpus": Rect(0, 1, left, body - host),
        "host": Rect(0, 1 + body - host, left, host),
        "engine": Rect(right_x, 1, width - right_x, body - symptoms),
        "symptoms": Rect(right_x, 1 + body - symptoms, width - right_x, symptoms),
    }


def _share(body: int, gpus: int, processes: int) -> tuple[int, int, int, int]:
    """Heights of GPU, engine, host and symptoms panels, which add up to `body`."""
    needed, well, useful = gpu_sizes(gpus)
    gpu, engine, host, symptoms = needed, 5, 0, 0
    left = body - gpu - engine
    if left < 0:
        return max(0, body - min(body, 5)), min(body, 5), 0, 0

    def grow(have: int, want: int) -> int:
        nonlocal left
        more = max(0, min(left, want - have))
        left -= more
        return have + more

    # First what must be seen at 80×24, then what is good to see, then taller histories.
    engine = grow(engine, 7)
    host = grow(host, 2)
    gpu = grow(gpu, well)
    engine = grow(engine, 9)
    host = grow(host, 3)
    symptoms = grow(symptoms, 1)
    symptoms = grow(symptoms, 2)
    host = grow(host, min(2 + processes, 5))
    engine = grow(engine, 10)
    if gpus > 1:
        gpu = grow(gpu, useful)
    else:
        gpu = grow(gpu, 17 if gpus else useful)
    symptoms = grow(symptoms, 4)
    engine = grow(engine, 22)
    gpu = grow(gpu, useful)
    engine += left
    return gpu, engine, host, symptoms
