"""What an Nsight Systems export says about itself: version, window, clock, GPUs, the recorder's own messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gputop_llm.timeline import intervals
from gputop_llm.timeline import nsys_schema as schema
from gputop_llm.timeline.model import Device
from gputop_llm.timeline.nsys_columns import Column
from gputop_llm.timeline.nsys_db import NsysDb

_RANK = re.compile(r'(?:RANK|OMPI_COMM_WORLD_RANK|PMI_RANK|SLURM_PROCID)="?(\d{1,6})"?')
_DRIVER = re.compile(r"Installed CUDA driver version \(([\d.]+)\).*driver version ([\d.]+)")
_GPU_COLUMNS = (
    *("id", "name", "smCount", "memoryBandwidth", "totalMemory", "computeMajor", "computeMinor"),
    *("uuid", "cuDevice"),
)
_MAX_MESSAGES = 200
_WORST_FIRST = ("error", "warning", "info", "verbose")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine as the file lists it."""

    device: Device
    uuid: str | None
    cuda_ordinal: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the file says about itself. `window` is in file time, `utc_ns` the moment of its time 0."""

    tool: str | None
    schema: str | None
    window: tuple[int, int] | None
    utc_ns: int | None
    rank: int | None
    gpus: tuple[Gpu, ...]
    ordinals: dict[tuple[int, int], int]
    diagnostics: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


def read_facts(db: NsysDb) -> Facts:
    """Everything that stands beside the events."""
    export = _export_facts(db)
    product, version = export.get("EXPORT_PRODUCT_NAME"), export.get("EXPORT_PRODUCT_VERSION")
    number = export.get("EXPORT_SCHEMA_VERSION")
    utc = _single(db, schema.SESSION_START, "utcEpochNs")
    shift = _shift(export)
    warnings = []
    if (parts := _version(number)) and parts[:2] > schema.NEWEST_TESTED:
        newest = ".".join(map(str, schema.NEWEST_TESTED))
        warnings.append(f"schema {number} is newer than the newest that was tested ({newest}): check the figures")
    cut = bool(export.get("EXPORT_PARAM_TIMES_TO_EXPORT")) or any(name.startswith("DERIVED") for name in export)
    if cut:
        warnings.append("the file was cut out of a longer capture, so the recorded window does not hold for it")
    return Facts(
        tool=f"{(product or 'Nsight Systems').removeprefix('NVIDIA ')} {version}" if version else None,
        schema=number,
        window=None if cut else _window(db, shift),
        utc_ns=None if utc is None else utc - shift,
        rank=_rank(db),
        gpus=_gpus(db),
        ordinals=_ordinals(db),
        diagnostics=_diagnostics(db),
        warnings=tuple(warnings),
    )


def is_export(db: NsysDb) -> bool:
    """Whether the database is one that nsys wrote."""
    return any(
        name in schema.EXPORT_FACTS or name.startswith(("CUPTI_ACTIVITY_KIND_", "TARGET_INFO_")) for name in db.tables
    )


def why_no_work(db: NsysDb, diagnostics: tuple[tuple[str, str], ...]) -> str:
    """Why a capture has no device rows, as far as the recorder's messages tell."""
    texts = [text for _, text in diagnostics]
    for text in texts:
        if found := _DRIVER.search(text):
            driver, known = found.groups()
            return (
                f"the driver (CUDA {driver}) is newer than this nsys knows ({known}), which loses kernels: update nsys"
            )
    if schema.RUNTIME in db.tables and db.estimated_rows(schema.RUNTIME):
        return "CUDA calls were recorded but no work on a GPU: the record is incomplete"
    if any("No CUDA events collected" in text for text in texts):
        return "no CUDA events were collected: the traced process does not use CUDA, or its children were not followed"
    return "the capture has no CUDA rows: was --trace=cuda given, and the right process traced?"


def profiler_time_ns(db: NsysDb, window: tuple[int, int]) -> int:
    """How long the profiler itself worked on the host within the window (ns, as a union over threads)."""
    types = ", ".join(map(str, schema.PROFILER_OVERHEAD_TYPES))
    spans = [np.empty((2, 0), dtype=np.int64)]
    for table, where in ((schema.PROFILER_OVERHEAD, "1"), (schema.OVERHEAD, f"overheadType IN ({types})")):
        if db.has(table, "start", "end") and (where == "1" or db.has(table, "overheadType")):
            spans += [np.stack(chunk) for chunk, _ in db.chunks(table, (Column(("start",)), Column(("end",))), where)]
    start, end = np.concatenate(spans, axis=1)
    return intervals.length(*intervals.union(*intervals.clip(start, end, *window)))


def _export_facts(db: NsysDb) -> dict[str, str]:
    table = next((name for name in schema.EXPORT_FACTS if db.has(name, "name", "value")), None)
    rows = db.rows(f"SELECT name, substr(value, 1, 500) FROM {table}", limit=1000) if table else []
    return {name: value for name, value in rows if isinstance(name, str) and isinstance(value, str)}


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text or ""))


def _single(db: NsysDb, table: str, column: str) -> int | None:
    rows = db.rows(f'SELECT "{column}" FROM {table}', limit=1) if db.has(table, column) else []
    return rows[0][0] if rows and isinstance(rows[0][0], int) else None


def _shift(export: dict[str, str]) -> int:
    """What `nsys export --ts-shift` and `--ts-normalize` added to all times (ns)."""
    text = export.get("EXPORT_CONFIG_TIME_SHIFT", "0")
    return int(text) if re.fullmatch(r"-?\d{1,19}", text) else 0


def _window(db: NsysDb, shift: int) -> tuple[int, int] | None:
    """Collection began at 0 of the events' clock and lasted `duration`."""
    duration = _single(db, schema.DETAILS, "duration")
    if duration is None or not 0 < duration < 1 << 60:
        return None
    return shift, shift + duration


def _rank(db: NsysDb) -> int | None:
    """The distributed rank, from the environment that the recorder kept. Nothing else of that is read."""
    if not db.has(schema.CAPTURE_FACTS, "name", "value"):
        return None
    rows = db.rows(
        f"SELECT value FROM {schema.CAPTURE_FACTS} WHERE name LIKE 'PROCESS%:ENVIRONMENT_VARIABLE'"
        " AND (value LIKE 'RANK=%' OR value LIKE '%_RANK=%' OR value LIKE 'SLURM_PROCID=%')"
    )
    found = [_RANK.fullmatch(value) for (value,) in rows if isinstance(value, str)]
    ranks = {int(match.group(1)) for match in found if match}
    return ranks.pop() if len(ranks) == 1 else None


def _gpus(db: NsysDb) -> tuple[Gpu, ...]:
    if not db.has(schema.GPUS, "id"):
        return ()
    columns = ", ".join(name if db.has(schema.GPUS, name) else "NULL" for name in _GPU_COLUMNS)
    found = []
    for number, name, sms, bandwidth, memory, major, minor, uuid, ordinal in db.rows(
        f"SELECT {columns} FROM {schema.GPUS}", limit=1024
    ):
        if not _is_number(number):
            continue
        device = Device(
            number=number,
            name=name if isinstance(name, str) and name else None,
            sm_count=_positive(sms),
            mem_bandwidth_bytes_per_s=_positive(bandwidth),
            mem_total_bytes=_positive(memory),
            compute_capability=f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None,
        )
        known = isinstance(uuid, str) and any(c not in "0-" for c in uuid)
        found.append(Gpu(device, str(uuid) if known else None, ordinal if isinstance(ordinal, int) else None))
    return tuple(found)


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _ordinals(db: NsysDb) -> dict[tuple[int, int], int]:
    """The GPU behind each (pid, CUDA ordinal): CUDA_VISIBLE_DEVICES gives each process its own numbers."""
    if not db.has(schema.CUDA_DEVICES, "gpuId", "cudaId", "pid"):
        return {}
    rows = db.rows(f"SELECT pid, cudaId, gpuId FROM {schema.CUDA_DEVICES}")
    return {
        (pid, ordinal): gpu
        for pid, ordinal, gpu in rows
        if isinstance(pid, int) and _is_number(ordinal) and _is_number(gpu)
    }


def _is_number(value: object) -> bool:
    """Whether it can be the number of a GPU."""
    return isinstance(value, int) and 0 <= value < 1 << 16


def _diagnostics(db: NsysDb) -> tuple[tuple[str, str], ...]:
    """(severity, text), each once however many processes said it, the worst first."""
    if not db.has(schema.DIAGNOSTICS, "severity", "text"):
        return ()
    rows = db.rows(f"SELECT severity, substr(text, 1, 1000) FROM {schema.DIAGNOSTICS}")
    said = {(schema.SEVERITIES.get(s, "info"), text.strip()): None for s, text in rows if isinstance(text, str)}
    return tuple(sorted(said, key=lambda message: _WORST_FIRST.index(message[0])))[:_MAX_MESSAGES]
