"""What a verdict costs: time and memory of `gputop-llm verdict FILE --json`, each run a process of its own.

    python -m benchmarks.verdict [--runs 3] [--scale] [--markdown FILE] [--svg FILE] [--folder DIR]

Without `--scale`: a generated Nsight Systems export of 1 M kernels and 2 M API calls, one as large that mixes four
GPUs, processes and kinds of work, and a Kineto trace of 130 MB.
With it: exports of 0.1, 0.3, 1 and 3 M kernels with twice as many calls, which show whether cost grows with size.

Wall time, CPU time and peak memory (ru_maxrss) are the kernel's own account of each child, by wait4(2). The median of
the runs is given for times, the largest for memory. On a machine that does other work, CPU time is the figure to trust.
The kernel counts an executed program's memory from that of the process it was forked from: this one stays small.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KERNELS = 1_000_000
SCALE = (100_000, 300_000, 1_000_000, 3_000_000)
TRACE_BYTES = 130_000_000
#: To reach: seconds, and bytes where memory is bounded.
NSYS_TARGET = (6.0, 400e6)
KINETO_TARGET = (4.0, None)


#: By kind of capture: the file's name and what makes it.
_MADE = {
    "nsys": ("{}.sqlite", "big_nsys_sqlite(p, n, 2 * n)"),
    "mixed": ("{}-mixed.sqlite", "mixed_nsys_sqlite(p, n, 2 * n)"),
    "kineto": ("{}.json", "big_kineto_json(p, n)"),
}


class Cost(NamedTuple):
    """What some runs of one command took."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    code: int


class Row(NamedTuple):
    """One line of the table."""

    name: str
    file_bytes: int
    cost: Cost
    target: tuple[float, float | None] | None


def measure(command: Sequence[str], runs: int) -> Cost:
    """Median times and the largest peak of some runs."""
    results = [_once(command) for _ in range(runs)]
    return Cost(
        statistics.median(r.wall_s for r in results),
        statistics.median(r.cpu_s for r in results),
        max(r.peak_bytes for r in results),
        max(r.code for r in results),
    )


def _once(command: Sequence[str]) -> Cost:
    # Compiled modules are kept, as on a user's machine.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    began = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, used = os.wait4(child.pid, 0)
    wall_s = time.monotonic() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, child.returncode)


def generate(folder: Path, kind: str, amount: int) -> Path:
    """The file, made (in a process of its own) unless it is there."""
    name, call = _MADE[kind]
    path = folder / name.format(amount)
    if not path.exists():
        code = (
            "import sys, os; from pathlib import Path; from tests.support.synth_big import *;"
            f"p, n = Path(sys.argv[1] + '.part'), int(sys.argv[2]); {call}; os.rename(p, sys.argv[1])"
        )
        subprocess.run([sys.executable, "-c", code, str(path), str(amount)], check=True, cwd=ROOT)
    return path


def rows(folder: Path, scale: bool, runs: int) -> list[Row]:
    """Every case, measured."""
    cases = [("nsys", kernels) for kernels in (SCALE if scale else (KERNELS,))]
    cases += [] if scale else [("mixed", KERNELS), ("kineto", TRACE_BYTES)]
    found = []
    for kind, amount in cases:
        path = generate(folder, kind, amount)
        cost = measure([sys.executable, "-m", "gputop_llm", "verdict", str(path), "--json"], runs)
        if cost.code:
            raise SystemExit(f"the verdict of {path} ended with {cost.code}")
        if kind == "kineto":
            name = f"Kineto JSON, {amount / 1e6:.0f} MB"
        else:
            works = "kernels" if kind == "nsys" else "kernels, copies, memsets and graph nodes on 4 GPUs"
            name = f"nsys SQLite, {amount / 1e6:g} M {works}, {2 * amount / 1e6:g} M API calls"
        target = KINETO_TARGET if kind == "kineto" else NSYS_TARGET if amount == KERNELS else None
        found.append(Row(name, path.stat().st_size, cost, target))
        print(line(found[-1]), file=sys.stderr, flush=True)
    return found


def line(row: Row) -> str:
    """One line of a Markdown table."""
    reach = "–"
    if row.target is not None:
        seconds, peak = row.target
        reach = f"≤ {seconds:g} s" + (f", ≤ {peak / 1e6:.0f} MB" if peak else "")
    cost = row.cost
    return (
        f"| {row.name} | {row.file_bytes / 1e6:.0f} MB | {cost.wall_s:.1f} s | {cost.cpu_s:.1f} s"
        f" | {cost.peak_bytes / 1e6:.0f} MB | {reach} |"
    )


def table(found: Sequence[Row]) -> str:
    """All lines, with a head."""
    head = "| capture | file | wall | CPU | peak memory | to reach |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(line(row) for row in found) + "\n"


def plot(kernels: Sequence[int], found: Sequence[Row]) -> str:
    """CPU time and peak memory against the number of kernels, as SVG; the straight lines join first and last."""
    panels = (
        ("CPU time (s)", [row.cost.cpu_s for row in found], "#1f77b4"),
        ("peak memory (MB)", [row.cost.peak_bytes / 1e6 for row in found], "#d62728"),
    )
    width, height, left, top = 300, 200, 60, 30
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 290" font-family="sans-serif" font-size="12">',
        '<rect width="780" height="290" fill="white"/>',
    ]
    for number, (title, values, colour) in enumerate(panels):
        x0, y0 = left + number * 390, top + height
        most = _round_up(max(values))
        points = [(x0 + width * k / max(kernels), y0 - height * v / most) for k, v in zip(kernels, values, strict=True)]
        out.append(f'<text x="{x0}" y="{top - 10}" font-weight="bold">{title}</text>')
        out.append(f'<path d="M{x0} {top}V{y0}H{x0 + width}" fill="none" stroke="black"/>')
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            y = y0 - height * share
            out.append(f'<text x="{x0 - 6}" y="{y + 4:.0f}" text-anchor="end">{most * share:g}</text>')
            out.append(f'<path d="M{x0} {y:.0f}h{width}" stroke="#dddddd"/>')
        for k, (x, _) in zip(kernels, points, strict=True):
            if k >= 300_000:
                out.append(f'<text x="{x:.0f}" y="{y0 + 16}" text-anchor="middle">{k / 1e6:g}</text>')
        out.append(f'<text x="{x0 + width / 2:.0f}" y="{y0 + 36}" text-anchor="middle">million kernels</text>')
        (xa, ya), (xb, yb) = points[0], points[-1]
        out.append(f'<path d="M{xa:.1f} {ya:.1f}L{xb:.1f} {yb:.1f}" stroke="#999999" stroke-dasharray="4 3"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
    return "\n".join([*out, "</svg>"]) + "\n"


def _round_up(value: float) -> float:
    """The next 1, 2, 4 or 8 times a power of ten."""
    size: float = 10 ** (len(str(int(value))) - 1)
    return next(step * size for step in (1, 2, 4, 8, 10) if step * size >= value)


def main() -> int:
    """Measures, and writes what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", action="store_true", help="0.1 to 3 M kernels")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--svg", type=Path, help="with --scale: draw the plot here")
    parser.add_argument("--folder", type=Path, help="keep the generated files here, and use those that are there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = rows(folder, arguments.scale, arguments.runs)
    print(table(found), end="")
    if arguments.markdown:
        arguments.markdown.write_text(table(found), encoding="utf-8")
    if arguments.svg and arguments.scale:
        arguments.svg.write_text(plot(SCALE, found), encoding="utf-8")
    missed = [
        row.name
        for row in found
        if row.target and (row.cost.wall_s > row.target[0] or row.cost.peak_bytes > (row.target[1] or float("inf")))
    ]
    for name in missed:
        print(f"missed: {name}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
