"""How each route finds something out about a serving case: the product's own commands, other tools on its files."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.results import Job, Result, Results
from benchmarks.accuracy.serving import RouteFailed, free_port, lab_command, pace, run, serving

MONITOR = (sys.executable, "-m", "gputop_llm")
PACE_S, LIVE_S, CAPTURE_S = 15.0, 20.0, 1.0
#: About what a job takes: one that doesn't fit into the time left isn't begun.
TAKES_S = {
    "pace": 30, "live": 45, "native": 45, "kineto": 75, "nsys": 75, "ncu": 150, "nsys-ai": 60, "nsys-analyze": 30,
}  # fmt: skip
#: A case is as good as warm when it serves: its rules aren't to be held back for two minutes.
_SETTINGS = '[thresholds]\n"warming-up.age_s" = 1\n'
#: The first launches are those of its warm-up.
_NCU = (
    "--set",
    "detailed",
    "--target-processes",
    "all",
    # Clocks are observed, never set; ncu's default would lock them.
    "--clock-control",
    "none",
    "--launch-skip",
    "100",
    "--launch-count",
    "40",
    "--kill",
    "yes",
)


@dataclass(frozen=True)
class Setting:
    """What all routes need to know: the Python that has PyTorch, the device, and where captures are kept."""

    python: str
    device: str
    results: Results


def take(job: Job, setting: Setting) -> Result:
    """The result of a job.

    Raises:
        RouteFailed: it has none.
    """
    return _ROUTES[job.route](job, setting)


def _pace(job: Job, setting: Setting) -> Result:
    return pace(setting.python, job, setting.device, PACE_S)


def _live(job: Job, setting: Setting) -> Result:
    with tempfile.TemporaryDirectory() as folder, serving(setting.python, job, setting.device) as served:
        settings = Path(folder) / "config.toml"
        settings.write_text(_SETTINGS)
        watch = [*MONITOR, "check", "--json", "--for", f"{LIVE_S:g}", "--url", served.url, "--config", str(settings)]
        # Its codes tell the severity; 3 that something can't be told.
        # What was usual in an earlier run is no measure for this one.
        told = json.loads(run(watch, LIVE_S + 60.0, good=(0, 1, 2, 3), environment={"XDG_STATE_HOME": folder}))
    return {"symptoms": symptoms_of(told, served.pid), "told": told}


def symptoms_of(told: Result, pid: int) -> list[str]:
    """Ids of what `check --json` calls a symptom of a case or of a GPU: not of other engines, nor that it is young."""
    own = f"engine:lab:{pid}:"
    raised = [
        one["id"]
        for one in told["symptoms"]["active"]
        if one["subject"]["key"].startswith(own) or not one["subject"]["key"].startswith("engine:")
    ]
    return [id for id in dict.fromkeys(raised) if id != "warming-up"]


def _native(job: Job, setting: Setting) -> Result:
    with serving(setting.python, job, setting.device) as served:
        return _captured(job, setting, served.url, "--route", "native")


def _kineto(job: Job, setting: Setting) -> Result:
    with serving(setting.python, job, setting.device, environment={"KINETO_USE_DAEMON": "1"}) as served:
        return _captured(job, setting, served.url, "--route", "kineto-daemon", "--with", "cpu")


def _nsys(job: Job, setting: Setting) -> Result:
    with serving(setting.python, job, setting.device, before=(*MONITOR, "run", "--nsys", "--")) as served:
        return _captured(job, setting, served.url, "--route", "nsys-session")


def _captured(job: Job, setting: Setting, url: str, *how: str) -> Result:
    kept = setting.results.place / "captures" / job.file.removesuffix(".json")
    command = [*MONITOR, "capture", "--yes", "--json", "--url", url, "--seconds", f"{CAPTURE_S:g}", *how]
    # 4: it can't be judged, which is an answer.
    told = json.loads(run([*command, "--output", str(kept)], 180.0, good=(0, 4)))
    exports = sorted(Path(told["path"]).glob("*.sqlite*"))
    # Relative: results may be carried to where the other tools are.
    export = os.path.relpath(exports[0], setting.results.place) if exports else None
    return {"export": export, **judged(told["verdict"])}


def judged(verdict: Result) -> Result:
    """What of a verdict is compared."""
    names = ("id", "weight", "recoverable_pct", "recoverable_of", "headline")
    return {
        "judged": verdict["judged"],
        "healthy": verdict["healthy"],
        "headline": verdict["headline"],
        "findings": [{name: one[name] for name in names} for one in verdict["findings"]],
    }


def _ncu(job: Job, setting: Setting) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        report, page = Path(folder) / "case.ncu-rep", Path(folder) / "case.csv"
        # Profiled kernels are replayed: it ends once it has so many of them, long before its time.
        lab = lab_command(setting.python, job, setting.device, 600.0, free_port())
        # --kill ends the case by a signal, which ncu passes on.
        run(["ncu", *_NCU, "--force-overwrite", "-o", str(report), *lab], 240.0, good=range(256))
        if not report.exists():
            raise RouteFailed("ncu wrote no report")
        page.write_text(run(["ncu", "--import", str(report), "--page", "raw", "--csv"], 60.0))
        return judged(json.loads(run([*MONITOR, "verdict", str(page), "--json"], 60.0, good=(0, 4))))


def _nsys_ai(job: Job, setting: Setting) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        copy, out = _export(job, setting, folder), Path(folder) / "out.json"
        run(["nsys-ai", "diagnose", str(copy), "--session", f"{folder}/session", "-o", str(out)], 300.0)
        told = json.loads(out.read_text())
    findings = [{"id": one["label"], "weight": one["severity"]} for one in told["findings"]]
    return {"version": told.get("producer_version"), "findings": findings}


def _nsys_analyze(job: Job, setting: Setting) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        told = run(["nsys", "analyze", "--rule", "all", str(_export(job, setting, folder))], 120.0)
    return {"told": told, "findings": [{"id": rule, "weight": "warning"} for rule in fired_rules(told)]}


def fired_rules(told: str) -> list[str]:
    """Rules of `nsys analyze` that list something: those whose section has a table."""
    parts = re.split(r"^ *\*\* .*\((\w+)\):\s*$", told, flags=re.MULTILINE)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [rule for rule, section in pairs if re.search(r"^[ -]*-{3}[ -]*$", section, re.MULTILINE)]


def _export(job: Job, setting: Setting, folder: str) -> Path:
    """A copy of the export that route "nsys" left: other tools write beside what they read."""
    found = setting.results.get(Job(job.case, job.fixed, "nsys"))
    export = (found or {}).get("export")
    if not export:
        raise RouteFailed("route nsys has left no export")
    copy = Path(folder) / Path(export).name
    shutil.copy(setting.results.place / export, copy)
    if copy.suffix == ".xz":
        run(["xz", "-d", str(copy)], 120.0)
        copy = copy.with_suffix("")
    return copy


_ROUTES: dict[str, Callable[[Job, Setting], Result]] = {
    "pace": _pace,
    "live": _live,
    "native": _native,
    "kineto": _kineto,
    "nsys": _nsys,
    "ncu": _ncu,
    "nsys-ai": _nsys_ai,
    "nsys-analyze": _nsys_analyze,
}
