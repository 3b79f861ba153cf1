"""What drawing a timeline costs: a million device rows on four streams, the whole window on 200 columns.

    python benchmarks/picture.py [--rows 1000000] [--times 20]

Measured in CPU time of the process: making the scene once, then each drawing (every key press makes one).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.model import Device, Origin, Process, Timeline
from gputop_llm.tui.panels.timeline_picture import picture
from gputop_llm.tui.panels.timeline_scene import scene
from gputop_llm.verdict.context import Context

TARGET_MS = 50.0
COLUMNS = 200


def made(rows: int) -> Timeline:
    """Kernels of 6 µs, one every 10 µs, on four streams by turns."""
    builder = TimelineBuilder()
    builder.devices.append(Device(0))
    builder.processes.append(Process(1))
    start = np.arange(rows, dtype=np.int64) * 10_000
    builder.ops.extend(
        start=start, end=start + 6_000, kind=0, device=0, stream=np.arange(rows, dtype=np.int64) % 4, process=0,
        name_id=builder.intern("kernel"), correlation=0, launch=-1, graph=-1, graph_node=-1, bytes=0, copy_kind=0,
        src_memory=0, dst_memory=0, grid=1, block=1,
    )  # fmt: skip
    return builder.build(Origin("native", ("x",)), 0, rows * 10_000)


def main() -> int:
    """Measures; 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20)
    arguments = parser.parse_args()
    timeline = made(arguments.rows)
    began = time.process_time()
    drawn = scene(Context(timeline))
    once_ms = 1e3 * (time.process_time() - began)
    took = []
    for _ in range(arguments.times):
        began = time.process_time()
        picture(drawn, 0, timeline.end, COLUMNS)
        took.append(1e3 * (time.process_time() - began))
    each_ms = statistics.median(took)
    print(f"{arguments.rows:,} rows: scene {once_ms:.0f} ms once; each drawing {each_ms:.1f} ms (≤ {TARGET_MS:.0f} ms)")
    return int(each_ms > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
