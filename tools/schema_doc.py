#!/usr/bin/env python3
"""Writes the table of every JSON path into docs/headless.md, and into the file that the tests hold it against.

Paths and types follow from the data model's own annotations and from what
`gputop_llm.report.jsonform` leaves out, adds and renames.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gputop_llm.model import EngineLive, EngineLog, EngineReading, Gpu, GpuNode, Host, Part, Target  # noqa: E402
from gputop_llm.model.limits import EngineLimits  # noqa: E402
from gputop_llm.model.symptom import Severity, SymptomReport  # noqa: E402
from gputop_llm.report import jsonform  # noqa: E402

DOC = ROOT / "docs" / "headless.md"
LOCK = ROOT / "tests" / "cli" / f"schema-{jsonform.SCHEMA}.txt"
BEGIN, END = "<!-- schema: written by tools/schema_doc.py -->", "<!-- end of schema -->"

_NAMES = {str: "string", float: "number", int: "integer", bool: "boolean", Severity: "string"}
# What the keys of a mapping stand for.
_KEYS = {
    "missing": "field",
    "waiting_by_reason": "reason",
    "finished_per_s": "reason",
    "http_per_s": "status",
    "latency": "latency",
    "cache_config": "setting",
    "flags": "engine",
    "unread": "url",
}
_TOP: tuple[tuple[str, Any], ...] = (
    ("schema", int),
    ("version", str),
    ("at", str),
    ("at_s", float),
    ("seq", int),
    ("period_s", float),
    ("simulated", str | None),
    ("focus", str | None),
    ("notes", tuple[str, ...]),
    ("symptoms", SymptomReport | None),
    ("node", GpuNode | None),
    ("gpus", tuple[Gpu, ...] | None),
    ("host", Host | None),
    ("targets", tuple[Target, ...] | None),
    ("target_notes", tuple[str, ...] | None),
)
_ENGINE: tuple[tuple[str, Any], ...] = (
    ("target_key", str),
    ("url", str),
    ("scrape", Part),
    ("reading", EngineReading | None),
    ("total", EngineLive | None),
    ("models", tuple[EngineLive, ...] | None),
    ("ranks", tuple[EngineLive, ...] | None),
    ("http_per_s", Mapping[str, float] | None),
    ("limits", EngineLimits | None),
)


_LOG: tuple[tuple[str, Any], ...] = (("target_key", str), ("source", Part), ("log", EngineLog | None))
_TOTAL = "engines[].total."
_ALIKE_BELOW = (
    "engines[].models[].",
    "engines[].ranks[].",
    f"{_TOTAL}latency.<latency>.p95.",
    f"{_TOTAL}latency.<latency>.p99.",
    "engines[].limits.mfu.",
    "gpus[].mig_instances[].processes[].",
    "logs[].source.",
    "sources.host.",
    "sources.targets.",
    "symptoms.held_back[].",
    "symptoms.pending[].",
)
_REMARKS = {
    "node.pairs": "every two GPUs: what joins them (read once, after the first frame)",
    "node.pairs[].path": "as `nvidia-smi topo -m` names it: `PIX`, `PXB`, `PHB`, `NODE`, `SYS`, or `same board`",
    "engines[].http_per_s": "answers of the server per second by status class (`5xx`); empty where it is not known",
    "schema": "1",
    "version": "of gputop-llm",
    "at": "when the frame was made, UTC",
    "at_s": "the same in seconds since 1970",
    "seq": "counts frames; a hole means that a slow reader missed some",
    "period_s": "seconds between frames",
    "simulated": "a sentence if all of this is a demo; null if it is real",
    "focus": "the `key` of the target that is attached to",
    "notes": "what happened in the last 30 s: attached, exited, came back",
    "symptoms": "what the rules say (docs/symptoms.md); null if they failed",
    "symptoms.active": "raised, in the order to read: each root, worst first, followed by what it explains",
    "symptoms.active[].id": "the rule",
    "symptoms.active[].subject.key": "`gpu:<index>`, `engine:<key of the target>`, `.../rank:<rank>`, `node`, ...",
    "symptoms.active[].severity": "`note` (nothing is wrong), `warning` or `critical`",
    "symptoms.active[].evidence[].window_s": "what the value is the mean, rate or quantile of; null: of the moment",
    "symptoms.active[].evidence[].text": "instead of a number, or with bounds",
    "symptoms.active[].evidence[].threshold": "what the value was compared with",
    "symptoms.active[].evidence[].missing": "why the value is null",
    "symptoms.active[].causes": "in the order to check",
    "symptoms.active[].advice[].flags.<engine>": "the exact flag or setting of that engine",
    "symptoms.active[].next_capture": "`nsys`, `kineto`, `native`, `ncu`, `py-spy`; what would prove or refute it",
    "symptoms.active[].agreeing": "of `signals` independent ones",
    "symptoms.active[].since_s": "from when on its condition held; seconds since 1970",
    "symptoms.active[].trend": "of its figure over a minute: `rising`, `steady` or `falling`",
    "symptoms.active[].root": "the `key` of the symptom that explains it; null for a root",
    "symptoms.active[].key": "names it while it lasts",
    "symptoms.active[].confidence": "`high`, `medium` or `low`",
    "symptoms.held_back": "as `active`: not raised although they hold; `held_back` says why",
    "symptoms.cant_tell": "rules that can't judge a subject",
    "symptoms.cant_tell[].needs": "what it would take",
    "symptoms.overridden": "thresholds that are not the default, with their origin",
    "symptoms.pending": "as `active`: conditions that hold, but not yet for as long as it takes",
    "symptoms.log": "when symptoms were raised within the last hour, 100 at most, oldest first",
    "symptoms.judged": "answers that were not `can't tell`",
    "symptoms.log[].severity": "the worst that it was",
    "symptoms.log[].until_s": "null while it still is raised",
    "node.problem": "why no GPU can be read",
    "gpus": "null when GPUs can't be read: `node.problem` or `sources.gpus.error` says why",
    "gpus[].index": "as NVML counts",
    "gpus[].mem_source": "`device`, or `host-shared` where the GPU uses the host's memory",
    "gpus[].mem_free_bytes": "what is not used; where the memory is `host-shared`, what the host could still give",
    "gpus[].throttle[].share_pct": "of the time since the poll before; null if only the momentary bit is known",
    "gpus[].throttle[].source": "`counter` or `bit`",
    "gpus[].energy_j": "since the driver was loaded",
    "gpus[].xids[].at_s": "seconds since 1970",
    "gpus[].mig_instances[].processes": "as `gpus[].processes`",
    "gpus[].gpm": "averages over `interval_s`, in percent of the peak; Hopper and newer",
    "gpus[].processes[].pid": "as NVML counts: the host's",
    "gpus[].missing.<field>": "why that field is null; so with every `missing`",
    "host.cpu_pct": "of all cores",
    "host.processes": "of the target in focus; of all engines when none is",
    "host.processes[].cpu_pct": "of one core",
    "host.processes[].main_thread_pct": "of one core",
    "host.processes[].io_wait_pct": "for block I/O, swapping in included; of one thread's time, all threads together",
    "host.processes[].cgroup.io_some_pct": "of the time in which a task of its group was stalled on I/O",
    "host.processes[].cgroup.io_full_pct": "the same where all that could have run were",
    "host.processes[].cgroup.throttled_pct": "share of the enforcement periods",
    "host.processes[].cgroup.throttled_s_per_s": "throttled thread time per second",
    "targets": "engines and other processes that hold GPU memory",
    "targets[].key": "names it while it lives",
    "targets[].engine": "`vllm`; `cuda` for other processes; `unknown` for a URL without a process here",
    "targets[].argv[]": "secrets are blanked",
    "targets[].urls_from": "`flag`, `argv`, `socket` or `network` (of a container)",
    "targets[].processes[].role": "`api-server`, `engine-core`, `worker`, `coordinator` or `other`",
    "targets[].processes[].gpus_from": "`nvml` or `inferred`",
    "targets[].attachable": "null, or why it can't be watched",
    "targets[].started_s": "seconds since 1970",
    "targets[].processes[].start_s": "seconds since 1970",
    "engines": "one entry for each address that is scraped, eight at most",
    "engines[].scrape.age_s": "how old the newest good answer was when the frame was made",
    "engines[].scrape.took_s": "how long the newest try took",
    "engines[].scrape.error": "why the newest try failed; what is shown is then the last good answer",
    "engines[].scrape.period_s": "longer than asked for while the server answers slowly or not at all",
    "engines[].reading": "what the page says of the engine; null before the first answer",
    "engines[].url": "the first one of an engine with a page for each rank: `targets[].urls` has all",
    "engines[].reading.unread.<url>": "why a page of several gave nothing; totals and models are null then",
    "engines[].reading.sleeping": "`awake`, or how deep it sleeps; null where the page does not say",
    "engines[].reading.problem": "why the page holds no engine's metrics",
    "engines[].total": "everything on the page over the last `window_s` seconds",
    "engines[].total.restarted": "the window was cut short by a restart",
    "engines[].total.latency": "`ttft`, `itl`, `tpot`, `queue`, `prefill`, `decode`, `e2e`; empty with several models",
    "engines[].total.latency.<latency>.count": "observations in the window",
    "engines[].total.latency.<latency>.p50": "the truth is above `low_s` and at most `high_s`",
    "engines[].total.latency.<latency>.p50.high_s": "null: the bucket has no upper bound",
    "engines[].total.latency.<latency>.p50.value_s": "interpolated; null where that would be a guess",
    "engines[].total.latency.<latency>.p95": "as `p50`",
    "engines[].total.latency.<latency>.p99": "as `p50`",
    "engines[].total.doubtful": "fields that the page states in two ways",
    "engines[].models": "one entry per model, as `total`",
    "engines[].ranks": "one entry per model and rank, as `total`",
    "logs": "of each engine with processes here, eight at most, for 15 minutes after its end too",
    "logs[].log": "what its own log says; null before it was looked for",
    "logs[].log.places": "what is read of it",
    "logs[].log.problem": "why it is out of reach",
    "logs[].log.signals": "one for each thing said, as written: of the start (16), and the newest (24)",
    "logs[].log.signals[].kind": "`kv-pool`, `memory`, `loading`, `graphs`, `start`; `out-of-memory`, `nccl`, `cuda`, "
    "`died`, `exception`, `engine-dead`, `preemption`, `slow`",
    "logs[].log.signals[].severity": "`note`, `warning` or `critical`",
    "logs[].log.signals[].text": "the line without its prefix, cut at 300 characters; secrets are blanked",
    "logs[].log.signals[].at_s": "of the newest such line; seconds since 1970",
    "logs[].log.signals[].at_from": "`line`: its own stamp, or that of a line before it; `read`: when it was seen",
    "logs[].log.signals[].where": "innermost frame of a traceback",
    "logs[].log.signals[].count": "lines that differ in numbers only",
    "logs[].log.unread_bytes": "between what was read",
    "sources": "how fresh each source is; `error` as in `engines[].scrape`",
    "sources.host": "as `sources.gpus`",
    "sources.targets": "as `sources.gpus`",
}


def rows() -> list[tuple[str, str]]:
    """(path, type) of everything that a frame's JSON can hold, in its order."""
    found: list[tuple[str, str]] = []
    for name, kind in _TOP:
        found += _of(name, kind)
    found += [("engines", "array"), ("engines[]", "object")]
    for name, kind in _ENGINE:
        found += _of(f"engines[].{name}", kind)
    found += [("logs", "array"), ("logs[]", "object")]
    for name, kind in _LOG:
        found += _of(f"logs[].{name}", kind)
    found.append(("sources", "object"))
    for name in ("gpus", "host", "targets"):
        found += _of(f"sources.{name}", Part)
    return found


def table() -> str:
    """The rows as a Markdown table; what has the form of something above is named once."""
    lines = ["| path | type | |", "|---|---|---|"]
    for path, kind in rows():
        if not path.startswith(_ALIKE_BELOW):
            lines.append(f"| `{path}` | {kind} | {_REMARKS.get(path, '')} |")
    return "\n".join(lines)


def locked() -> str:
    """The rows as text, one a line."""
    return "".join(f"{path}: {kind}\n" for path, kind in rows())


def with_table(document: str) -> str:
    """The document with the present table between its two marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _of(path: str, kind: Any) -> Iterator[tuple[str, str]]:
    kind, optional = _without_none(kind)
    or_null = " or null" if optional else ""
    if kind in _NAMES:
        yield path, _NAMES[kind] + or_null
    elif typing.get_origin(kind) is tuple:
        yield path, "array" + or_null
        yield from _of(f"{path}[]", typing.get_args(kind)[0])
    elif typing.get_origin(kind) is not None and issubclass(typing.get_origin(kind), Mapping):
        yield path, "object" + or_null
        yield from _of(f"{path}.<{_KEYS[path.rpartition('.')[2]]}>", typing.get_args(kind)[1])
    else:
        yield path, "object" + or_null
        if kind is Part:
            yield f"{path}.at", "string or null"
        hints = _hints(kind)
        for name, attribute in jsonform.shown_fields(kind):
            yield from _of(f"{path}.{name}", hints[attribute])


def _hints(cls: Any) -> dict[str, Any]:
    hints = {field.name: typing.get_type_hints(cls)[field.name] for field in dataclasses.fields(cls)}
    for name in jsonform.ADDED.get(cls, ()):
        hints[name] = typing.get_type_hints(getattr(cls, name).fget)["return"]
    return hints


def _without_none(kind: Any) -> tuple[Any, bool]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(kind) if one is not type(None)]
        assert len(others) == 1, kind
        return others[0], True
    return kind, False


if __name__ == "__main__":
    DOC.write_text(with_table(DOC.read_text(encoding="utf-8")), encoding="utf-8")
    LOCK.write_text(locked(), encoding="utf-8")
