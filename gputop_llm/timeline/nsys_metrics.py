"""Counters of GPUs that Nsight Systems sampled (table GPU_METRICS), some thousand times a second.

A row is one counter at one moment: timestamp (ns), typeId (its lowest byte is the GPU), metricId, value (percent for
what is kept here). Exports before 2023.4 keep them in another form and are read as having none.
"""

from __future__ import annotations

import re

import numpy as np

from gputop_llm.timeline.model import GpuMetrics
from gputop_llm.timeline.nsys_columns import Column
from gputop_llm.timeline.nsys_db import NsysDb

_TABLE, _NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_KEPT = (
    ("sm_active", re.compile(r"SMs? Active\b")),
    ("dram_read", re.compile(r"DRAM Read (Bandwidth|Throughput)\b")),
    ("dram_write", re.compile(r"DRAM Write (Bandwidth|Throughput)\b")),
    ("tensor_active", re.compile(r"Tensor (Active|Pipe Throughput)\b")),
    ("gr_active", re.compile(r"GR Active\b")),
)
_GPU = 0xFF


def gpu_metrics(db: NsysDb, shift: int) -> tuple[GpuMetrics, ...]:
    """The sampled counters of each GPU; empty where none were sampled.

    Args:
        shift: added to each timestamp.
    """
    wanted = ("timestamp", "typeId", "metricId", "value")
    if not (db.has(_TABLE, *wanted) and db.has(_NAMES, "typeId", "metricId", "metricName")):
        return ()
    names = _names(db)
    parts: list[list[np.ndarray]] = [[] for _ in wanted]
    for columns, _ in db.chunks(_TABLE, [Column((name,)) for name in wanted]):
        for part, column in zip(parts, columns, strict=True):
            part.append(column)
    if not parts[0]:
        return ()
    at, kind, metric, value = (np.concatenate(part) for part in parts)
    found = []
    for gpu in np.unique(kind & _GPU):
        series = {}
        for name, (wanted_kind, wanted_metric) in names.get(int(gpu), {}).items():
            rows = (kind == wanted_kind) & (metric == wanted_metric)
            order = np.argsort(at[rows], kind="stable")
            series[name] = (at[rows][order] + shift, value[rows][order].astype(np.float64))
        if "sm_active" in series:
            found.append(GpuMetrics(int(gpu), series))
    return tuple(found)


def _names(db: NsysDb) -> dict[int, dict[str, tuple[int, int]]]:
    """By GPU and our name: typeId and metricId."""
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for kind, metric, name in db.rows(f"SELECT typeId, metricId, metricName FROM {_NAMES}"):
        if isinstance(kind, int) and isinstance(metric, int) and isinstance(name, str):
            for ours, pattern in _KEPT:
                if pattern.match(name):
                    found.setdefault(kind & _GPU, {}).setdefault(ours, (kind, metric))
    return found
