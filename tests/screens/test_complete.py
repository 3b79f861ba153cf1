"""Nothing that the model knows is left out: every field has its place on a screen."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from gputop_llm.model import EngineLive, EngineReading, Gpm, Gpu
from gputop_llm.tui.panels import engine_details, gpu_details
from gputop_llm.tui.panels.common import NO_REASON, reason_for
from gputop_llm.tui.panels.gpu_details import SECTIONS, value_of
from tests.support import frames

# Fields with a section of their own, or that are no values.
LISTED_APART = ("throttle", "xids", "mig_instances", "processes", "gpm", "missing")


def test_every_field_of_a_gpu_has_a_row():
    shown = {f.name for _, group in SECTIONS for f in group}
    # What the host has left is the free memory of a GPU that shares it.
    wanted = {f.name for f in fields(Gpu)} - {*LISTED_APART, "host_available_bytes"}
    wanted |= {f"gpm.{f.name}" for f in fields(Gpm)}
    assert wanted <= shown
    assert shown - wanted == {"mem_used_pct", "mem_free_bytes", "power_pct"}


@pytest.mark.parametrize("apart", ["throttle", "xids", "mig_instances", "processes"])
def test_fields_listed_apart_are_there(apart):
    gpu = frames.with_mig(frames.troubled(frames.h200()))
    text = "\n".join("".join(t for t, _ in line) for line in gpu_details.gpu_details(frames.one_gpu_loaded(), gpu, 100))
    words = {
        "throttle": "▲ active, 62 % of the time",
        "xids": "▲ Xid 63 at 16:07:31",
        "mig_instances": "3g.71gb  GI 1  CI 0",
        "processes": "pid 624",
    }
    assert words[apart] in text


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_an_unknown_gpu_field_shows_a_dash_with_its_reason(running, size):
    why = "silent"
    names = ["throttle", "processes", *(f.name for _, group in SECTIONS for f in group)]
    blank = Gpu(0, missing={"gpm": why, **dict.fromkeys(names, why)})
    unknown = [name for name in names if value_of(blank, name) is None]
    base = frames.one_gpu_loaded()
    async with running(replace(base, gpus=frames.part(frames.node([blank]))), size) as it:
        await it.press("2")
        text = it.app.screen.text()
        assert len(unknown) > 50
        assert text.count(f"–  {why}") == len(unknown)
        assert NO_REASON not in text


@pytest.mark.parametrize(
    ("missing", "name", "reason"),
    [
        ({"gpm.tensor_pct": "own", "gpm": "all"}, "gpm.tensor_pct", "own"),
        ({"gpm": "all"}, "gpm.tensor_pct", "all"),
        ({"nvlink": "no link"}, "nvlink_rx_bytes_per_s", "no link"),
        ({"mem_used_bytes": "hidden"}, "mem_used_pct", "hidden"),
        ({"power_w": "no sensor"}, "power_pct", "no sensor"),
        ({}, "fan_pct", NO_REASON),
    ],
)
def test_a_reason_is_found_by_field_or_by_group(missing, name, reason):
    assert reason_for(missing, name) == reason


def test_every_figure_of_an_engine_has_a_row():
    shown = {name for name, _, _ in engine_details.FIELDS}
    elsewhere = {"model", "rank", "restarted", "waiting_by_reason", "finished_per_s", "latency", "spec"}
    assert {f.name for f in fields(EngineLive)} - elsewhere - {"doubtful", "missing"} == shown


async def test_the_engine_screen_holds_everything_that_the_engine_said(running):
    async with running(frames.everything_on()) as it:
        await it.press("3")
        text = it.app.screen.text()
        for words in (
            "http://127.0.0.1:8000/metrics", "took 4.2 ms", "asked every 1 s", "vLLM 0.24.0", "/models/llama-1b",
            "12 m 04 s ago", "awake", "because capacity", "because deferred", "with length /s", "with abort /s",
            "Latency, base", "Latency, sql-lora", "TPOT", "decode", "61 % of draft tokens", "mean length 2.84",
            "0: 82 %", "2: 42 %", "sql-lora, chat-lora", "code-lora", "adapters at most          4",
            "num_gpu_blocks            137333", "gpu_memory_utilization    0.5", "two API servers: step counts",
            "3 lines of the page could not be read", 'vllm:broken{x="1" 12', "ttft: there are several models",
            "mean prompt tokens: no such histogram", "333?", "steps per s, tokens per step",
        ):  # fmt: skip
            assert words in text, words


def test_no_field_of_a_reading_is_forgotten():
    """A new field fails here until the engine screen shows it."""
    known = {
        "engine", "series", "version", "started_s", "lora", "cache_config", "sleeping", "problem", "notes", "missing",
        "skipped_lines", "first_skipped", "unread", "not_narrowed",
        # For the rules only: which counters move step by step.
        "progress",
        # For the rules only: their rate is in evidence.
        "http",
        # For the rules only: how long such a page takes is no sign.
        "held_back",
        # For the rules only: how old what it says may be.
        "gauges_lag_s",
    }  # fmt: skip
    assert {f.name for f in fields(EngineReading)} == known


async def test_ranks_stand_side_by_side(running):
    async with running(frames.eight_gpus()) as it:
        await it.press("3")
        lines = it.app.screen.text().splitlines()
        assert any(line.split() == ["all", "DP0", "DP1"] for line in lines)
        assert any(line.split() == ["requests", "running", "32", "25", "7"] for line in lines)


async def test_more_ranks_than_columns_continue_below(running):
    base = frames.eight_gpus()
    ranks = tuple(replace(frames.live(str(n)), running=float(100 + n)) for n in range(16))
    window = replace(base.engines[0].window, ranks=ranks)
    async with running(replace(base, engines=(replace(base.engines[0], window=window),))) as it:
        await it.press("3")
        text = it.app.screen.text()
        for n in range(16):
            assert f"DP{n}" in text
            assert str(100 + n) in text


async def test_servers_whose_address_is_wider_than_a_column_have_numbers_and_a_legend(running):
    base = frames.eight_gpus()
    ranks = tuple(replace(frames.live(f"127.0.0.1:{port}"), running=float(port)) for port in (8001, 8002))
    window = replace(base.engines[0].window, ranks=ranks)
    async with running(replace(base, engines=(replace(base.engines[0], window=window),))) as it:
        await it.press("3")
        lines = [line.split() for line in it.app.screen.text().splitlines()]
        assert ["server", "1", "127.0.0.1:8001"] in lines
        assert ["server", "2", "127.0.0.1:8002"] in lines
        assert ["all", "server", "1", "server", "2"] in lines


async def test_a_page_without_engine_metrics_says_what_it_is(running):
    base = frames.one_gpu_loaded()
    problem = "the page holds Python process metrics only: this is not the engine's port"
    engine = frames.engine(value=EngineReading("vllm", problem=problem), window=None)
    async with running(replace(base, engines=(replace(engine, window=None),))) as it:
        words = " ".join(it.app.screen.text().split())
        assert problem in words
        await it.press("3")
        assert problem in " ".join(it.app.screen.text().split())


async def test_inferred_gpus_are_marked(running):
    async with running(frames.tp2()) as it:
        await it.press("4")
        assert "0 inferred" in it.app.screen.text()


async def test_a_process_that_only_nvml_knows_shows_its_pid_in_brackets(running):
    base = frames.one_gpu_loaded()
    target = base.targets.value.targets[0]
    hidden = replace(target.processes[1], pid=None, nvml_pid=88123, note="not in this PID namespace")
    found = replace(base.targets.value, targets=(replace(target, processes=(hidden,)),))
    async with running(replace(base, targets=replace(base.targets, value=found))) as it:
        await it.press("4")
        assert "(88123)" in it.app.screen.text()
        assert "pid (88123): not in this PID namespace" in it.app.screen.text()
