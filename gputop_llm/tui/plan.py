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


def left_width(width: int) -> int:
    """How wide the GPU panel is."""
    return (width - GAP) // 2 if width >= TWO_COLUMNS else width


def gpu_sizes(gpus: int, no_gpus: int) -> tuple[int, int, int]:
    """Lines that the GPU panel needs, does well with, and can use, its title included.

    `no_gpus` are those that say why there is none.
    """
    if gpus == 0:
        return 2, no_gpus, no_gpus
    if gpus == 1:
        return 5, 8, 37
    return min(gpus, 2) + 1, gpus + 1, 4 * gpus + 1


def plan_overview(
    width: int,
    height: int,
    gpus: int,
    processes: int,
    engine_lines: int | None = None,
    symptoms: tuple[int, int] = (0, 2),
    no_gpus: int = 2,
) -> Plan:
    """Places the panels between the header (line 0) and the status line (the last).

    `engine_lines` is what the engine panel needs when no engine is attached, so that others get its room.
    `symptoms` are the lines that their panel must have, and can use; `no_gpus` those that the GPU panel uses to say why
    there are none.

    Panels without room are not in the plan.
    """
    body = height - 2
    if width >= TWO_COLUMNS:
        return _two_columns(width, body, gpu_sizes(gpus, no_gpus)[2], processes, symptoms[1])
    names = ("gpus", "engine", "host", "symptoms")
    heights = dict(zip(names, _share(body, gpus, processes, engine_lines, symptoms, no_gpus), strict=True))
    plan: Plan = {}
    y = 1
    for name in names:
        if heights[name]:
            plan[name] = Rect(0, y, width, heights[name])
            y += heights[name]
    return plan


def _two_columns(width: int, body: int, gpu: int, processes: int, useful: int) -> Plan:
    left = left_width(width)
    right_x = left + GAP
    host = min(2 + max(processes, 1), max(3, body // 5))
    symptoms = max(3, body // 8, min(useful, body // 3))
    gpu = min(body - host, gpu)
    return {
        "gpus": Rect(0, 1, left, gpu),
        "host": Rect(0, 1 + gpu, left, body - gpu),
        "engine": Rect(right_x, 1, width - right_x, body - symptoms),
        "symptoms": Rect(right_x, 1 + body - symptoms, width - right_x, symptoms),
    }


def _share(
    body: int, gpus: int, processes: int, engine_lines: int | None, wanted: tuple[int, int], no_gpus: int
) -> tuple[int, int, int, int]:
    """Heights of GPU, engine, host and symptoms panels, which add up to `body`."""
    needed, well, useful = gpu_sizes(gpus, no_gpus)
    most = body if engine_lines is None else engine_lines
    must, use = wanted
    # What is wrong comes first: the panel's title alone names the worst.
    symptoms = min(must, 1)
    engine = min(body - symptoms, most, 5)
    gpu, host = min(needed, body - symptoms - engine), 0
    left = body - symptoms - gpu - engine

    def grow(have: int, want: int) -> int:
        nonlocal left
        more = max(0, min(left, want - have))
        left -= more
        return have + more

    # First what must be seen at 80×24, then what is good to see, then taller histories.
    engine = grow(engine, min(most, 7))
    host = grow(host, 2) if left >= 2 else host
    symptoms = grow(symptoms, min(must, 2))
    gpu = grow(gpu, well)
    host = grow(host, 3 if processes else 2) if must else host
    symptoms = grow(symptoms, must)
    engine = grow(engine, min(most, 9))
    host = grow(host, 3 if processes else 2)
    symptoms = grow(symptoms, 1)
    symptoms = grow(symptoms, 2)
    host = grow(host, min(2 + processes, 5))
    engine = grow(engine, min(most, 10))
    gpu = grow(gpu, 17 if gpus == 1 else 2 * gpus + 1)
    symptoms = grow(symptoms, max(4, use))
    engine = grow(engine, min(most, 22))
    gpu = grow(gpu, useful)
    # All meters, or all GPUs, grow by a row together: a part of that is of no use.
    spare = (gpu - 5) % 4 if gpus == 1 and gpu > 9 else (gpu - 1) % gpus if gpus > 1 and gpu > gpus else 0
    left += spare
    gpu -= spare
    if engine_lines is None:
        engine += left
    else:
        symptoms += left
    return gpu, engine, host, symptoms
