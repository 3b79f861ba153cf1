"""Sampled counters of a node's GPUs: read from an export, judged by themselves."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict.assemble import judge

STEP_NS = 100_000
TYPE = 0x00000000_05000000


def export(path, sm, dram=None, gpus=1, order=lambda rows: rows):
    """An export with these values at 10 kHz."""
    db = sqlite3.connect(path)
    db.executescript(
        "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);"
        "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3.1');"
        "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.0');"
        "CREATE TABLE ANALYSIS_DETAILS (duration INTEGER, startTime INTEGER, stopTime INTEGER);"
        f"INSERT INTO ANALYSIS_DETAILS VALUES ({len(sm) * STEP_NS}, 0, {len(sm) * STEP_NS});"
        "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INT, sourceId INT, typeName TEXT, metricId INT, metricName TEXT);"
        "CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT);"
    )
    names = ["GR Active [Throughput %]", "SMs Active [Throughput %]", "DRAM Read Bandwidth [Throughput %]",
             "DRAM Write Bandwidth [Throughput %]", "Tensor Active [Throughput %]"]  # fmt: skip
    rows = []
    for gpu in range(gpus):
        db.executemany(
            "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, 0, 'GH100', ?, ?)",
            [(TYPE | gpu, number, name) for number, name in enumerate(names)],
        )
        for number, value in enumerate(sm):
            values = (value, value, *((dram or sm)[number], 0), value // 2)
            rows += [(number * STEP_NS, TYPE | gpu, metric, one) for metric, one in enumerate(values)]
    db.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?)", order(rows))
    db.commit()
    db.close()
    return path


def test_pauses_are_told_with_their_share_and_length(tmp_path):
    # 7 ms of work, 3 ms of nothing.
    path = export(tmp_path / "m.sqlite", ([40] * 70 + [0] * 30) * 20)
    verdict = judge(read_capture([path]))

    assert verdict.judged
    assert verdict.headline == "GPU 0 pauses for 30 % of the window, in 20 gaps of up to 3.0 ms"
    (row,) = verdict.tables["gpu_metrics"]
    assert row["sm_active_pct"] == pytest.approx(28.0)
    assert row["sm_active_working_pct"] == pytest.approx(40.0)
    assert row["dram_pct"] == pytest.approx(28.0)
    assert row["step_us"] == pytest.approx(100.0)
    assert verdict.findings[0].recoverable_pct == pytest.approx(30.0)


def test_a_sample_alone_is_no_pause(tmp_path):
    verdict = judge(read_capture([export(tmp_path / "m.sqlite", ([50] * 9 + [0]) * 100)]))

    assert verdict.healthy
    assert verdict.tables["gpu_metrics"][0]["pauses"] == 0


def test_full_memory_is_healthy_and_named(tmp_path):
    verdict = judge(read_capture([export(tmp_path / "m.sqlite", [90] * 1000, dram=[85] * 1000)]))

    assert verdict.headline == "healthy, bound by memory: DRAM at 85 % of its peak, pauses 0 % of the window"


def test_few_samples_are_not_judged(tmp_path):
    verdict = judge(read_capture([export(tmp_path / "m.sqlite", [50] * 20)]))

    assert not verdict.judged
    assert "only 20 samples" in verdict.headline


def test_rows_may_come_in_any_order_and_of_several_gpus(tmp_path):
    sm = ([40] * 70 + [0] * 30) * 5
    order = np.random.default_rng(3).permutation
    path = export(tmp_path / "m.sqlite", sm, gpus=3, order=lambda rows: [rows[at] for at in order(len(rows))])
    rows = judge(read_capture([path])).tables["gpu_metrics"]

    assert [row["gpu"] for row in rows] == [0, 1, 2]
    assert {row["pauses"] for row in rows} == {5}
