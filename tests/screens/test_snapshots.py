"""Every screen at every size, as text."""

from __future__ import annotations

import pytest

from tests.support import frames
from tests.support.screen_text import assert_golden, screen_text

SIZES = [(80, 24), (120, 40), (200, 60)]
FRAMES = {
    "one-gpu": frames.one_gpu_loaded,
    "tp2": frames.tp2,
    "eight-gpus": frames.eight_gpus,
    "gpu-without-engine": frames.gpu_without_engine,
    "no-gpu": frames.no_gpu,
    "nothing-known": frames.nothing_known,
    "unreachable": frames.unreachable,
    "rank-unread": frames.rank_unread,
    "everything-on": frames.everything_on,
    "markup": frames.markup_in_names,
    "logged": frames.logged,
}
SCREENS = {"overview": "1", "gpus": "2", "engine": "3", "processes": "4"}
# Which frames are worth a picture of which screen.
CASES = [
    *(("overview", name) for name in FRAMES if name != "logged"),
    *(("gpus", name) for name in ("one-gpu", "eight-gpus", "no-gpu", "nothing-known")),
    *(
        ("engine", name)
        for name in ("one-gpu", "eight-gpus", "unreachable", "rank-unread", "everything-on", "nothing-known", "logged")
    ),
    *(("processes", name) for name in ("one-gpu", "tp2", "eight-gpus", "gpu-without-engine", "markup")),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize(("screen", "name"), CASES)
async def test_screen_looks_as_it_did(running, screen, name, size):
    async with running(FRAMES[name](), size) as it:
        if screen != "overview":
            await it.press(SCREENS[screen])
        assert_golden(screen_text(it.app), f"{screen}-{name}-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize(("name", "key"), [("help", "?"), ("palette", ":"), ("targets", "t")])
async def test_overlay_looks_as_it_did(running, name, key, size):
    async with running(frames.eight_gpus(), size) as it:
        await it.press(key)
        assert_golden(screen_text(it.app), f"{name}-{size[0]}x{size[1]}")


@pytest.mark.parametrize("name", ["one-gpu", "eight-gpus", "no-gpu"])
async def test_overview_in_a_small_window(running, name):
    async with running(FRAMES[name](), (60, 15)) as it:
        assert_golden(screen_text(it.app), f"overview-{name}-60x15")


async def test_before_the_first_frame_the_screen_says_that_it_is_starting(running):
    async with running(None) as it:
        assert_golden(screen_text(it.app), "overview-starting-80x24")


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_at_80_columns_and_more_the_essence_needs_no_scrolling(running, size):
    async with running(frames.one_gpu_loaded(), size) as it:
        text = screen_text(it.app)
        for word in (
            "vLLM 0.24.0", "llama-1b", "pid 600", "NVML util", "SM active", "tensor", "DRAM", "memory", "power",
            "throttled", "PCIe", "running", "waiting", "KV", "prefix hit", "TTFT", "ITL", "queue", "prefill", "decode",
            "e2e", "out tokens", "prompt", "cached", "steps", "preempted", "CPU", "load", "engine-core", "Symptoms",
            "no symptoms", "quit",
        ):  # fmt: skip
            assert word in text
