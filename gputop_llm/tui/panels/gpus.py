"""The overview's GPU panel: one GPU in full, several in rows, or why there is none."""

from __future__ import annotations

from gputop_llm.model import Frame
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, rule, wrapped
from gputop_llm.tui.panels.gpu_one import one_gpu
from gputop_llm.tui.panels.gpu_rows import many_gpus
from gputop_llm.tui.trails import Trails


def gpu_panel(frame: Frame, trails: Trails, width: int, height: int) -> Block:
    """What NVML calls utilisation beside what the chip really does, in `height` lines."""
    node = frame.gpus.value
    if node is None or node.problem is not None or not node.gpus:
        return Block(no_gpus(frame, width)[:height])
    if len(node.gpus) == 1:
        return one_gpu(frame, node.gpus[0], trails, width, height)
    return many_gpus(frame, node.gpus, trails, width, height)


def no_gpus(frame: Frame, width: int) -> list[Line]:
    """Why there are no GPUs to show."""
    node = frame.gpus.value
    trouble = node.problem if node is not None else frame.gpus.error
    if trouble is not None:
        text, role = f"▲ {printable(trouble)}", "warn"
    elif node is not None:
        text, role = "the driver knows no GPU", "dim"
    else:
        text, role = "reading the GPUs …", "dim"
    return [rule([("GPU", "title")], width), *wrapped(text, width, role)]
