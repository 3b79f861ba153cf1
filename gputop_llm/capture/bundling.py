"""From a capture's folder, as the worker leaves it, to the bundle that a colleague can open: with verdict and name.

The folder is left as it is until the bundle stands beside it, whole: a failure costs the verdict's files, no record.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gputop_llm import __version__
from gputop_llm.capture.repeat import command_of
from gputop_llm.errors import GputopError
from gputop_llm.model.finding import Verdict
from gputop_llm.printable import printable
from gputop_llm.redact_argv import redact_record
from gputop_llm.report import jsonform, verdict_json
from gputop_llm.report.verdict_markdown import verdict_markdown
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.store import bundle, bundle_write
from gputop_llm.store.bundle_environment import environment
from gputop_llm.timeline import native_format
from gputop_llm.timeline.read import read_capture
from gputop_llm.timeline.stack_samples import samples_name
from gputop_llm.verdict.assemble import judge

#: The year 9999.
_LATEST_S = 253_370_764_800


def bundled(folder: Path, cancelled: Callable[[], bool] = lambda: False, proc: ProcFs | None = None) -> Path:
    """Makes a bundle of a capture's folder and removes that; returns where the bundle is.

    Raises:
        GputopError: the records can't be read, or the bundle can't be written; the folder then is as it was.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise GputopError(f"cannot read {printable(str(folder))}", error.strerror or str(error)) from error
    try:
        path = _written(folder, opened, cancelled, proc or ProcFs())
        with suppress(OSError):
            for name in os.listdir(opened):
                os.unlink(name, dir_fd=opened)
            os.rmdir(folder)
    finally:
        os.close(opened)
    return path


def _written(folder: Path, opened: int, cancelled: Callable[[], bool], proc: ProcFs) -> Path:
    # A path that can't be exchanged while it is open.
    taken = bundle.read(Path(f"/proc/self/fd/{opened}"))
    timeline = read_capture(taken.records, cancelled=cancelled)
    names = tuple(path.name for path in taken.records)
    verdict = judge(replace(timeline, origin=replace(timeline.origin, files=names)), pace=taken.pace)
    plan = taken.capture.get("plan")
    plan = plan if isinstance(plan, Mapping) else {}
    surroundings = environment(
        _before(taken, plan.get("at_s")), plan.get("key"), _pid(plan), _argv(plan), str(plan.get("engine") or ""), proc
    )
    with bundle_write.create(folder.parent, folder.name.strip(".")) as writer:
        for name in (*names, *map(samples_name, names), bundle.ENGINE):
            _add(writer, name, opened)
        writer.write_json(bundle.CAPTURE, {**redact_record(taken.capture), **_added(plan)})
        frames = [json.dumps(redact_record(frame), separators=(",", ":")) for frame in taken.frames()]
        writer.write_text(bundle.FRAMES, "".join(f"{frame}\n" for frame in frames))
        writer.write_json(bundle.ENVIRONMENT, surroundings)
        writer.write_text(bundle.VERDICT_JSON, verdict_json.verdict_text(verdict) + "\n")
        writer.write_text(bundle.VERDICT_PAGE, verdict_markdown(verdict))
        return writer.finish(_name(verdict, plan, surroundings, taken))


def _add(writer: bundle_write.BundleWriter, name: str, folder: int) -> None:
    """Adds a file of the folder; one that isn't there is left out."""
    try:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return
    try:
        writer.add(name, source)
    finally:
        os.close(source)


def _added(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What capture.json has beside what the worker knew: the command that repeats it, and the versions of all forms."""
    return {
        "repeat": command_of(plan),
        "formats": {
            "record": native_format.VERSION,
            "verdict": verdict_json.SCHEMA,
            "frame": jsonform.SCHEMA,
            "written_by": __version__,
        },
    }


def _before(taken: bundle.Bundle, at_s: object) -> Mapping[str, Any] | None:
    """The last frame before the capture was agreed to; else the first there is."""
    found: Mapping[str, Any] | None = None
    for frame in taken.frames():
        seen = frame.get("at_s")
        late = isinstance(at_s, (int, float)) and isinstance(seen, (int, float)) and seen > at_s
        if found is not None and late:
            break
        found = frame
    return found


def _name(verdict: Verdict, plan: Mapping[str, Any], surroundings: Mapping[str, Any], taken: bundle.Bundle) -> str:
    gpus = [str(gpu.get("name")) for gpu in surroundings["gpus"] if gpu.get("name")]
    gpu = f"{len(gpus)}x{gpus[0].removeprefix('NVIDIA ')}" if len(gpus) > 1 else gpus[0] if gpus else None
    git = surroundings["git"]
    at_s = plan.get("at_s")
    known = isinstance(at_s, (int, float)) and 0 <= at_s < _LATEST_S
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s if known else time.time()))
    name = bundle_write.bundle_name(
        plan.get("model"), gpu, _phase(verdict), _shape(taken), git["commit"][:10] if git else None, stamp
    )
    return name if taken.capture.get("outcome") == "done" else f"{name}-incomplete"


def _phase(verdict: Verdict) -> str | None:
    """The phase with most of the window."""
    rows = [row for row in verdict.tables.get("phases", ()) if isinstance(row.get("window_pct"), float)]
    best = max(rows, key=lambda row: float(str(row["window_pct"])), default=None)
    return str(best["phase"]) if best is not None else None


def _shape(taken: bundle.Bundle) -> str | None:
    """Processes and requests that ran: "2ranks-32running"."""
    parts = [f"{len(taken.records)}ranks"] if len(taken.records) > 1 else []
    if taken.pace is not None:
        before = [s.running for s in taken.pace.samples if s.at_ns <= taken.pace.began_ns and s.running is not None]
        parts += [f"{before[-1]:.0f}running"] if before else []
    return "-".join(parts) or None


def _pid(plan: Mapping[str, Any]) -> int | None:
    ranks = plan.get("ranks")
    first = ranks[0] if isinstance(ranks, list) and ranks else None
    pid = first.get("pid") if isinstance(first, Mapping) else None
    return pid if type(pid) is int and pid > 0 else None


def _argv(plan: Mapping[str, Any]) -> list[str]:
    argv = plan.get("argv")
    return [str(item) for item in argv] if isinstance(argv, list) else []
