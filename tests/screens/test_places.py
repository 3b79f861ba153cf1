"""What the screens say of where an engine runs: elsewhere, in a container, on a MIG instance."""

from __future__ import annotations

from dataclasses import replace

from gputop_llm.model import NO_PROCESS_DATA, Target
from tests.support import frames
from tests.support.screen_text import screen_text

URL = "http://gpu-7:8000"


def remote():
    """An engine known by its address, watched from a machine with GPUs of its own."""
    target = Target(f"url:{URL}", "unknown", urls=(URL,), urls_from="flag")
    return frames.frame(frames.node([frames.h200(0), frames.h200(1)]), (target,), (frames.engine(target.key, URL),))


def contained():
    """Both its processes have other PIDs in their container; it is on the first of two MIG instances."""
    base = frames.target()
    inner = tuple(replace(p, container_pid=n) for n, p in enumerate(base.processes, 1))
    inner = (inner[0], *(replace(p, mig_instance=1) for p in inner[1:]))
    target = replace(base, processes=inner, container="containerd 3f2a91c04b7d, pod shop/vllm-0")
    return frames.frame(frames.node([frames.with_mig(frames.h200())]), (target,), (frames.engine(),))


async def test_every_screen_of_a_remote_engine_says_that_there_is_no_process_data(running):
    async with running(remote(), (120, 40)) as it:
        overview = screen_text(it.app)
        assert f"▲ GPUs of this machine: {NO_PROCESS_DATA}" in overview
        assert f"Host 192 cores of this machine: {NO_PROCESS_DATA}" in overview
        assert "GPU –" not in overview
        for key in "23456t":
            await it.press(key)
            assert NO_PROCESS_DATA in screen_text(it.app).splitlines()[0]
            if key == "2":
                assert screen_text(it.app).count(f"of this machine: {NO_PROCESS_DATA}") == 2
            elif key == "4":
                assert f"\n  {NO_PROCESS_DATA}\n" in screen_text(it.app)
            elif key == "t":
                assert "engine at gpu-7:8000" in screen_text(it.app)


async def test_the_overview_of_a_vgpu_guest_says_so_and_the_gpu_page_why_figures_are_lacking(running):
    why = "not available in a vGPU guest (NVML_ERROR_NOT_SUPPORTED)"
    gpu = replace(frames.h200(), power_w=None, temp_c=None, missing={"power_w": why, "temp_c": why})
    node = replace(frames.node([gpu]), vgpu_guest=True)
    async with running(frames.frame(node, (frames.target(),), (frames.engine(),)), (108, 60)) as it:
        assert "vGPU guest: 2 says what can't be known" in screen_text(it.app)
        await it.press("2")
        rows = [
            line for line in it.app.screen.page_text().splitlines() if line.startswith(("power  ", "temperature  "))
        ]
        assert [row.split("–")[1].strip() for row in rows] == [why, why]


async def test_a_contained_engine_has_its_pod_both_pids_and_its_mig_instance(running):
    async with running(contained(), (108, 40)) as it:
        overview = screen_text(it.app)
        assert "pod shop/vllm-0" in overview
        assert "MIG1 40.0 of 70.0 GiB" in overview
        await it.press("2")
        assert "vLLM /models/llama-1b" in it.app.screen.page_text()
        await it.press("4")
        rows = [line.split() for line in screen_text(it.app).splitlines()]
        assert next(row for row in rows if row[:1] == ["pid"])[:3] == ["pid", "inside", "role"]
        assert next(row for row in rows if row[:1] == ["600"])[:3] == ["600", "1", "api-server"]
        assert next(row for row in rows if row[:1] == ["624"])[:5] == ["624", "2", "engine-core", "0", "MIG1"]
