"""The accuracy benchmark: every case of the lab and its twin through the product, and other tools on the same files.

    python -m benchmarks.accuracy run [--device cuda|cpu] [--python PYTHON] [--minutes M] [--case C]… [--route R]…
    python -m benchmarks.accuracy table [--device cuda|cpu]

`run` goes on where it was left: a job (a case, its twin or not, a route, a commit) that has a result isn't run again,
and none is begun that doesn't fit into the minutes left. PYTHON is one that has PyTorch. docs/lab.md explains the rest.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.accuracy.results import ROOT, ROUTES, Results, all_jobs, commit_here
from benchmarks.accuracy.routes import TAKES_S, Setting, take
from benchmarks.accuracy.serving import RouteFailed
from benchmarks.accuracy.table import markdown
from gputop_llm.lab import CASES


def main() -> int:
    """Runs jobs, or prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    run, table = commands.add_parser("run"), commands.add_parser("table")
    for command in (run, table):
        command.add_argument("--device", choices=tuple(ROUTES), default="cuda")
        command.add_argument("--folder", type=Path, default=ROOT / "benchmarks/accuracy/results")
        command.add_argument("--commit", default=None, help="default: the one that is checked out")
    run.add_argument("--python", default=sys.executable, help="one that has PyTorch")
    run.add_argument("--minutes", type=float, default=60.0)
    run.add_argument("--case", action="append", default=[], choices=tuple(CASES))
    run.add_argument("--route", action="append", default=[])
    run.add_argument("--retry", action="store_true", help="also what failed before")
    asked = parser.parse_args()
    results = Results(asked.folder, asked.commit or commit_here(), asked.device)
    if asked.what == "table":
        print(markdown(results))
        return 0
    jobs = all_jobs(asked.device, asked.case, asked.route)
    end = time.monotonic() + 60.0 * asked.minutes
    setting = Setting(asked.python, asked.device, results)
    for job in results.left(jobs, asked.retry):
        if time.monotonic() + TAKES_S[job.route] > end:
            continue
        began = time.monotonic()
        try:
            found = take(job, setting)
        except RouteFailed as failure:
            found = {"failed": str(failure)}
        results.put(job, {**found, "took_s": round(time.monotonic() - began, 1)})
        print(f"{job.file.removesuffix('.json')}: {found.get('failed') or 'done'}", file=sys.stderr, flush=True)
    print(f"{len(jobs) - len(results.left(jobs, False))} of {len(jobs)} jobs have a result", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
