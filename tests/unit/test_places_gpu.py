"""GPUs behind a go-between (WSL, vGPU, MIG in a container): what is found, and why the rest is not known."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

from gputop_llm.model import Gpu, GpuNode, MigInstance
from gputop_llm.report.text_gpus import gpu_lines
from gputop_llm.sources import nvml_driver
from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.nvml import NvmlSource
from tests.support import frames
from tests.support.clock import ManualClock
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_proc import FakeClock, FakeProc


def read(fake, tmp_path, wsl=True):
    dxg = tmp_path / "dxg"
    if wsl:
        dxg.touch()
    source = NvmlSource(fake, ManualClock(), dxg_path=dxg)
    node = source.poll()
    source.close()
    return node


def told(node):
    return "\n".join(gpu_lines(frames.frame(node)))


def test_under_wsl_what_is_missing_says_so(tmp_path):
    node = read(FakeNvml.from_case("04"), tmp_path)
    gpu = node.gpus[0]

    assert (node.wsl, node.vgpu_guest) == (True, False)
    assert {why for why in gpu.missing.values() if "WSL" in why} == {
        "not available on this GPU, or not under WSL (NVML_ERROR_NOT_SUPPORTED)",
        "not available on this GPU, or not under WSL (GPM)",
    }
    assert "under WSL" in told(node).splitlines()[0]


def test_in_a_vgpu_guest_the_text_says_so_and_which_figures_are_lacking(tmp_path):
    lines = told(read(FakeNvml.from_case("03"), tmp_path, wsl=False)).splitlines()

    assert lines[0].endswith("in a vGPU guest")
    assert any("power_w" in line and "temp_c" in line and "not available in a vGPU guest" in line for line in lines)


@pytest.fixture
def no_library():
    """NVML whose library no search path names."""
    fake = FakeNvml.from_case("04")
    fake.system["init"] = {"error": 12}
    return fake


def test_the_library_is_taken_from_where_windows_puts_it(tmp_path, monkeypatch, no_library):
    monkeypatch.setattr(nvml_driver, "load_from", lambda path: no_library.system.update(init=None) or True)

    assert read(no_library, tmp_path).problem is None


@pytest.mark.parametrize("wsl", [True, False])
def test_without_it_under_wsl_the_driver_is_to_be_installed_in_windows(tmp_path, wsl, no_library):
    assert ("in Windows, not in WSL" in read(no_library, tmp_path, wsl).problem) is wsl


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_that_was_loaded_by_its_path_is_found_by_its_name(tmp_path):
    library = tmp_path / "elsewhere.so"
    name = "libgputop-llm-test.so.1"
    subprocess.run(
        ["cc", "-shared", "-o", str(library), f"-Wl,-soname,{name}", "-x", "c", "-"], input=b"int one;", check=True
    )

    assert not nvml_driver.load_from(tmp_path / "none.so")
    with pytest.raises(OSError, match=name):
        ctypes.CDLL(name)
    assert nvml_driver.load_from(library)
    ctypes.CDLL(name)


def engine_in(proc, node, fds):
    proc.add(10, ["vllm", "serve", "m"], environ={"PATH": "/bin"})
    proc.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, fds=fds)
    (target,) = DiscoverySource(lambda: node, lambda url: False, proc.root, FakeClock()).poll().targets
    return target.processes[1]


@pytest.fixture
def pod(tmp_path):
    return FakeProc(tmp_path / "proc", pid_namespace="pid:[4026533777]")


def test_the_only_mig_instance_that_a_container_sees_is_its_engine_s(pod):
    slices = (MigInstance(3, 0, "MIG-3", "3g.40gb", None, None, None),)
    core = engine_in(pod, GpuNode((Gpu(0, mig_enabled=True, mig_instances=slices, processes=()),)), ["/dev/nvidia4"])

    assert (core.gpus, core.mig_instance, core.gpus_from) == ((0,), 3, "inferred")


def test_under_wsl_the_windows_driver_is_the_only_gpu(pod):
    core = engine_in(pod, GpuNode((Gpu(0, processes=()),)), ["/dev/dxg"])

    assert (core.gpus, core.gpus_from) == ((0,), "inferred")
