"""Results on the disk: one JSON file for each case, twin, route, device and commit, so that a run can be resumed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_llm.lab import CASES

ROOT = Path(__file__).resolve().parents[2]
#: In the order in which they are run: what the later ones need (a gain, an export) comes first.
ROUTES = {
    "cuda": ("pace", "live", "native", "kineto", "nsys", "ncu", "nsys-ai", "nsys-analyze"),
    "cpu": ("pace", "live"),
}
#: Of our own verdicts on a timeline.
VERDICTS = ("native", "kineto", "nsys")
#: Other tools, which get the export that route "nsys" left.
OTHERS = ("nsys-ai", "nsys-analyze")

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One thing to find out."""

    case: str
    fixed: bool
    route: str

    @property
    def file(self) -> str:
        """The name of its result's file."""
        return f"{self.case}.{'fixed' if self.fixed else 'cause'}.{self.route}.json"


class Results:
    """The results of one commit on one device.

    Args:
        folder: where all results are.
        commit: of the code that is measured.
        device: "cuda" or "cpu".
    """

    def __init__(self, folder: Path, commit: str, device: str) -> None:
        self.commit = commit
        self.device = device
        self.place = folder / commit / device

    def get(self, job: Job) -> Result | None:
        """What is known of a job; None before it was run."""
        path = self.place / job.file
        return json.loads(path.read_text()) if path.exists() else None

    def put(self, job: Job, found: Result) -> None:
        """Keeps a result; the file is whole or not there."""
        self.place.mkdir(parents=True, exist_ok=True)
        whole = {
            "case": job.case,
            "fixed": job.fixed,
            "route": job.route,
            "commit": self.commit,
            "device": self.device,
            **found,
        }
        unfinished = self.place / f".{job.file}.{os.getpid()}"
        unfinished.write_text(json.dumps(whole, indent=1) + "\n")
        unfinished.rename(self.place / job.file)

    def left(self, jobs: Sequence[Job], retry: bool) -> list[Job]:
        """Those that have no result yet; with `retry` also those that failed."""
        known = {job: self.get(job) for job in jobs}
        return [job for job, found in known.items() if found is None or (retry and "failed" in found)]


def all_jobs(device: str, cases: Sequence[str] = (), routes: Sequence[str] = ()) -> list[Job]:
    """Everything that can be found out on a device, case by case; of some cases and routes only, where given."""
    return list(_jobs(device, cases or tuple(CASES), routes or ROUTES[device]))


def _jobs(device: str, cases: Sequence[str], routes: Sequence[str]) -> Iterator[Job]:
    for name in cases:
        case = CASES[name]
        if device not in case.devices:
            continue
        for route in ROUTES[device]:
            if route in routes and (route != "ncu" or case.truth.kernel):
                yield Job(name, False, route)
                yield Job(name, True, route)


def commit_here() -> str:
    """The commit that is checked out, short; "-dirty" behind it where tracked files differ."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return told.stdout.strip()
