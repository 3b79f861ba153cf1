"""Two figures on which one may differ, worked out from the traces in plain Python with nothing of the program's."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache

import pytest

from gputop_llm.verdict import kernels
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.kernel_names import Family
from tests.support.captures import CAPTURES
from tests.support.recorded import QWEN, TRAINING, context

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@cache
def events(name):
    """Complete events of a trace, times in whole ns."""
    with gzip.open(CAPTURES / name) as file:
        trace = json.load(file)
    return [
        {**event, "start": round(event["ts"] * 1000), "end": round((event["ts"] + event["dur"]) * 1000)}
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and "dur" in event
    ]


def window(name):
    (span,) = [event for event in events(name) if event.get("cat") == "Trace"]
    return span["start"], span["end"]


def test_small_operations_of_the_qwen_trace_are_53_percent_of_its_window():
    low, high = window(QWEN)
    work = Counter()
    for event in events(QWEN):
        if event["cat"] == "kernel":
            # No two kernels of this trace overlap: sums are unions.
            work[event["name"]] += event["end"] - event["start"]
    plain = {n: ns for n, ns in work.items() if "::elementwise_kernel<" in n or "vectorized_elementwise_kernel<" in n}
    moved = {n: ns for n, ns in work.items() if "unrolled_elementwise_kernel<" in n or "CatArray" in n}
    indexed = {n: ns for n, ns in work.items() if "indexSelect" in n or "index_elementwise" in n}
    silu = {n: ns for n, ns in plain.items() if "silu_kernel" in n}

    def pct(*parts):
        return 100 * sum(ns for part in parts for ns in part.values()) / (high - low)

    # Counting only the kernels that are called (vectorized_)elementwise_kernel gives the "about 45 %" of others.
    assert pct(plain) == pytest.approx(45.6, abs=0.2)
    found = kernels.analyse(context(QWEN))[0]
    (family,) = [f for f in found.families if f.family is Family.ELEMENTWISE]
    assert found.pct(family.union_ns) == pytest.approx(pct(plain, moved, indexed) - pct(silu), abs=0.2)
    assert found.pct(family.union_ns) == pytest.approx(52.9, abs=0.1)


def test_the_training_trace_is_idle_with_work_submitted_not_for_want_of_data():
    low, high = window(TRAINING)
    rows = sorted((e for e in events(TRAINING) if e.get("cat", "").lower() in DEVICE), key=lambda e: e["start"])
    calls = {
        event["args"]["correlation"]: event
        for event in events(TRAINING)
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    idle = Counter()
    at = low
    for row in rows:
        if row["start"] > at:
            gap = (max(at, low), min(row["start"], high))
            call = calls.get(row["args"].get("correlation"))
            if call is None:
                idle["launch not recorded"] += gap[1] - gap[0]
            else:
                returned = min(max(call["end"], gap[0]), gap[1])
                idle["submitted"] += gap[1] - returned
                # Data that is late would show here: the host is on its way to the launch or inside of a copy.
                idle["host"] += returned - gap[0]
        at = max(at, row["end"])
    idle["after the last"] += max(0, high - at)
    total = sum(idle.values())

    assert idle["host"] < 0.03 * total
    assert idle["submitted"] > 0.8 * total
    made: Context = context(TRAINING)
    found = made.idle[0]
    assert found.idle_ns == pytest.approx(total, rel=0.001)
    assert found.total_ns[Cause.SUBMITTED] == pytest.approx(idle["submitted"], rel=0.01)
