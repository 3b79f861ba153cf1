"""The overview's GPU panel: one GPU in full, several in rows, or why there is none."""

from __future__ import annotations

from gputop_llm.model import Frame
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, fit, rule, wrapped
from gputop_llm.tui.panels.common import elsewhere, stepped_back
from gputop_llm.tui.panels.gpu_one import one_gpu
from gputop_llm.tui.panels.gpu_rows import many_gpus
from gputop_llm.tui.trails import Trails


def gpu_panel(frame: Frame, trails: Trails, width: int, height: int) -> Block:
    """What NVML calls utilisation beside what the chip really does, in `height` lines."""
    node = frame.gpus.value
    if node is None or node.problem is not None or not node.gpus:
        return Block(no_gpus(frame, width)[:height])
    words = elsewhere(frame)
    rows = height if words is None else height - 1
    if len(node.gpus) == 1:
        block = one_gpu(frame, node.gpus[0], trails, width, rows)
    else:
        block = many_gpus(frame, node.gpus, trails, width, rows)
    block = Block(stepped_back(block.lines, frame.gpus), block.keys)
    if words is None:
        return block
    told = fit([(f"▲ GPUs {words}", "warn")], width)
    return Block([told, *block.lines], {at + 1: key for at, key in block.keys.items()})


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
