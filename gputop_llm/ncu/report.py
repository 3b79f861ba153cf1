"""Reads a .ncu-rep with NVIDIA's own `ncu_report` (PyPI: ncu-report; the optional extra `ncu`)."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.ncu.model import KernelReport, NvidiaRule
from gputop_llm.ncu.quantity import base
from gputop_llm.timeline.unpack import shown

_WORKLOADS = {0: "kernel", 1: "range", 2: "command list", 3: "graph"}
#: Rules say 1 for information, 2 for an optimisation, 3 for a warning; an old "Small Grid" is a warning.
_ADVISING = {2, 3}
_GLOBAL, _LOCAL = 2, 1
#: Of a metric with this many instances the sum is enough; the instances are never read.
_EXTENT = ("x", "y", "z")


def read_report(path: Path) -> tuple[KernelReport, ...]:
    """The launches of a report, in order.

    Raises:
        GputopError: `ncu_report` isn't installed, or can't read the file.
    """
    try:
        reader: Any = importlib.import_module("ncu_report")
    except (ImportError, OSError) as error:
        raise GputopError(
            f"cannot read {shown(path)}",
            f"NVIDIA's reader of such reports is not installed here ({type(error).__name__})",
            "pip install 'gputop-llm[ncu]', or on a machine with Nsight Compute: "
            "ncu --import REPORT --page raw --csv > kernels.csv, and give that file",
        ) from error
    found: list[KernelReport] = []
    try:
        report = reader.load_report(str(path))
        for number in range(report.num_ranges()):
            actions = report.range_by_idx(number)
            found += [
                _kernel(reader, actions.action_by_idx(at), len(found) + at) for at in range(actions.num_actions())
            ]
    except Exception as error:  # a native module: whatever it raises means that it can't read the file
        raise GputopError(
            f"cannot read {shown(path)}",
            f"the report is damaged, or newer than the reader ({type(error).__name__})",
            "copy it again, whole, or update ncu-report",
        ) from error
    return tuple(found)


def _kernel(reader: Any, action: Any, number: int) -> KernelReport:
    metrics: dict[str, float] = {}
    missing: set[str] = set()
    texts: dict[str, str] = {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = None if metric is None else metric.value()
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, (int, float)) and math.isfinite(value):
            metrics[name] = float(value) * base(metric.unit() or "")[0]
        else:
            missing.add(name)
    return KernelReport(
        name=action.name(),
        full_name=action.name(action.NameBase_DEMANGLED) or action.name(),
        metrics=metrics,
        number=number,
        missing=frozenset(missing),
        texts=texts,
        rules=tuple(_rule(one) for one in action.rule_results_as_dicts()),
        grid=_size(metrics, "launch__grid_dim_"),
        block=_size(metrics, "launch__block_dim_"),
        compute_capability=_capability(metrics),
        workload=_WORKLOADS.get(action.workload_type(), "kernel"),
    )


def _rule(result: dict[str, Any]) -> NvidiaRule:
    message = result.get("rule_message") or {}
    estimate = result.get("speedup_estimation") or {}
    return NvidiaRule(
        identifier=str(result.get("rule_identifier", "")),
        section=str(result.get("section_identifier", "")),
        title=str(message.get("title", "")),
        message=str(message.get("message", "")),
        advises=message.get("type") in _ADVISING,
        speedup_pct=estimate.get("speedup"),
        whole_kernel={_GLOBAL: True, _LOCAL: False}.get(estimate.get("type", 0)),
    )


def _size(metrics: dict[str, float], start: str) -> tuple[int, int, int] | None:
    try:
        x, y, z = (round(metrics[start + axis]) for axis in _EXTENT)
    except KeyError:
        return None
    return x, y, z


def _capability(metrics: dict[str, float]) -> tuple[int, int] | None:
    major = metrics.get("device__attribute_compute_capability_major")
    minor = metrics.get("device__attribute_compute_capability_minor")
    return None if major is None or minor is None else (round(major), round(minor))
