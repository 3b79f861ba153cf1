"""The NVML source through lost GPUs, driver reloads, hanging calls, Xid errors, and with no driver at all."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from gputop_llm.sources.nvml import NvmlSource
from tests.support.clock import ManualClock
from tests.support.fake_nvml import CAPTURES, FakeNvml

H200 = CAPTURES / "h200"
IDLE = H200 / "nvml_idle.json"
LOADS = [H200 / f"nvml_vllm-load-{number}.json" for number in (1, 2, 3)]


@pytest.fixture
def clock():
    return ManualClock()


def source_of(fake, clock, **paths):
    return NvmlSource(fake, clock, **paths)


def third_poll(fake, clock, source):
    """The reading after two seconds, with every rate known."""
    for _ in range(3):
        node = source.poll()
        fake.advance()
        clock.step(1)
    return node


def test_a_lost_gpu_is_said_to_be_lost_and_the_others_go_on(clock):
    fake = FakeNvml.from_h200(*LOADS, copies=4)
    source = source_of(fake, clock)
    source.poll()
    fake.lose(2)
    for _ in range(3):
        clock.step(1)
        gpus = source.poll().gpus
        assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
        assert [gpu.lost for gpu in gpus] == [False, False, True, False]
        assert gpus[2].name == "NVIDIA H200"
        assert gpus[2].util_pct is gpus[2].mem_used_bytes is gpus[2].processes is None
        assert "NVML_ERROR_GPU_IS_LOST" in gpus[2].missing["util_pct"]
        assert all(gpu.util_pct is not None for gpu in gpus if not gpu.lost)


def test_a_lost_gpu_is_looked_for_at_growing_intervals_and_comes_back(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    source = source_of(fake, clock)
    source.poll()
    fake.lose(1)
    for _ in range(100):
        clock.step(1)
        assert source.poll().gpus[0].util_pct is not None
    assert fake.inits == 1 + 2  # after 30 and 90 s
    fake.find(1)
    clock.step(300)
    gpus = source.poll().gpus
    assert [gpu.lost for gpu in gpus] == [False, False]
    assert gpus[1].util_pct == 0.0


def test_a_gpu_lost_before_the_start_is_listed_without_a_name(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    fake.lose(0)
    gpus = source_of(fake, clock).poll().gpus
    assert [(gpu.index, gpu.lost, gpu.name) for gpu in gpus] == [(0, True, None), (1, False, "NVIDIA H200")]


def test_a_gpu_that_may_not_be_opened_is_not_called_lost(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    fake.fail("HandleByIndex", 4, gpu=1)
    gpus = source_of(fake, clock).poll().gpus
    assert [gpu.lost for gpu in gpus] == [False, False]
    assert gpus[1].missing["util_pct"] == "no permission (NVML_ERROR_NO_PERMISSION)"


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_driver_reload_is_said_and_survived(code, clock, tmp_path):
    fake = FakeNvml.from_h200(*LOADS)
    source = source_of(fake, clock, version_path=tmp_path / "none")
    third_poll(fake, clock, source)
    clock.step(60)
    fake.unload_driver(init_code=code)
    node = source.poll()
    assert node.gpus == ()
    assert "connection to the NVIDIA driver was lost" in node.problem
    clock.step(1)
    assert source.poll().problem
    attempts = fake.calls["nvmlInit"]
    for _ in range(20):
        clock.step(1)
        assert source.poll().gpus == ()
    assert fake.calls["nvmlInit"] == attempts
    fake.unload_driver(init_code=None)
    clock.step(60)
    assert third_poll(fake, clock, source).gpus[0].gpm is not None


def test_a_reload_to_another_version_asks_for_a_restart_of_the_program(clock, tmp_path):
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.10.01  Fri May 31 09:35:42 UTC 2026\n")
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock, version_path=version)
    source.poll()
    clock.step(60)
    fake.unload_driver(init_code=18)
    source.poll()
    node = source.poll()
    assert node.driver == "590.10.01"
    assert "driver 590.10.01 is loaded, library 580.159.04 is still in use here; restart gputop-llm" in node.problem


def test_rates_and_gpm_do_not_reach_across_a_reload(clock):
    fake = FakeNvml.from_h200(*LOADS)
    source = source_of(fake, clock)
    third_poll(fake, clock, source)
    clock.step(60)
    fake.unload_driver(init_code=None)
    source.poll()
    gpu = source.poll().gpus[0]
    assert gpu.gpm is None
    assert gpu.missing["gpm"] == "needs two samples"
    assert all(reason.source == "bit" for reason in gpu.throttle)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "the NVIDIA kernel driver is not loaded (NVML_ERROR_DRIVER_NOT_LOADED)"),
        (12, "no NVIDIA driver library on this machine"),
        (4, "no permission (NVML_ERROR_NO_PERMISSION) on the /dev/nvidia* device files"),
        (999, "NVML did not start"),
    ],
)
def test_without_a_driver_there_is_one_sentence_and_no_retry_each_second(code, words, clock):
    fake = FakeNvml.from_h200(IDLE)
    fake.unload_driver(init_code=code)
    source = source_of(fake, clock)
    for _ in range(30):
        node = source.poll()
        clock.step(1)
        assert words in node.problem
        assert "\n" not in node.problem
    assert fake.calls["nvmlInit"] == 1
    assert fake.calls["nvmlShutdown"] == 0


def test_a_driver_without_gpus_says_so(clock):
    node = source_of(FakeNvml([], {"driver": "580.1", "cuda": 13000, "nvml": "13.580.1"}), clock).poll()
    assert "shows no GPU" in node.problem
    assert node.driver == "580.1"


def test_without_the_package_there_is_one_sentence(monkeypatch, clock):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    node = NvmlSource(clock=clock).poll()
    assert "nvidia-ml-py" in node.problem


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_on_a_machine_without_a_driver_the_real_library_gives_one_sentence(clock):
    node = NvmlSource(clock=clock).poll()
    assert node.gpus == ()
    assert node.problem


def test_closing_lets_go_of_everything(clock):
    fake = FakeNvml.from_h200(*LOADS, copies=2)
    source = source_of(fake, clock)
    third_poll(fake, clock, source)
    assert len(fake.live_samples) == 4
    source.close()
    assert fake.live_samples == {}
    assert fake.calls["nvmlEventSetFree"] == 1
    assert not fake.initialised


def test_closing_while_a_call_hangs_does_not_touch_the_driver(clock):
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock)
    source.poll()
    release = fake.hang("UtilizationRates")
    poll = threading.Thread(target=source.poll, daemon=True)
    poll.start()
    assert fake.hanging.wait(5)
    source.abort()
    source.close()
    assert fake.calls["nvmlShutdown"] == 0
    release.set()
    poll.join(5)
    assert not poll.is_alive()


def test_a_failing_shutdown_is_nobodys_problem(clock):
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock)
    source.poll()
    fake.unload_driver()
    source.close()


def test_an_xid_is_kept_with_the_time_of_its_receipt(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    source = source_of(fake, clock)
    assert source.poll().gpus[1].xids == ()
    fake.emit_xid(31, gpu=1)
    fake.emit_xid(79, gpu=1)
    clock.step(1)
    gpus = source.poll().gpus
    assert gpus[0].xids == ()
    assert [(event.xid, event.at_s) for event in gpus[1].xids] == [(31, clock.wall()), (79, clock.wall())]
    clock.step(1)
    assert len(source.poll().gpus[1].xids) == 2


def test_the_xid_of_a_lost_gpu_is_shown_with_it(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    source = source_of(fake, clock)
    source.poll()
    fake.emit_xid(79, gpu=1)
    fake.lose(1)
    clock.step(1)
    gpu = source.poll().gpus[1]
    assert gpu.lost
    assert [event.xid for event in gpu.xids] == [79]
    clock.step(1)
    assert [event.xid for event in source.poll().gpus[1].xids] == [79]


def test_a_storm_of_xids_is_bounded_and_does_not_hold_the_poll(clock):
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock)
    source.poll()
    for xid in range(500):
        fake.emit_xid(xid)
    xids = source.poll().gpus[0].xids
    assert len(xids) == 16
    assert fake.calls["nvmlEventSetWait_v2"] < 100


def test_xids_that_cannot_be_watched_are_missing_with_the_reason(clock):
    fake = FakeNvml.from_h200(IDLE)
    fake.fail("nvmlDeviceRegisterEvents", 3)
    gpu = source_of(fake, clock).poll().gpus[0]
    assert gpu.missing["xids"] == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"
