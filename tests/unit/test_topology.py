"""How GPUs are joined: what NVML answers, and what comm-bound makes of it."""

from __future__ import annotations

from dataclasses import replace

import pynvml
import pytest

from gputop_llm.model import GpuPair
from gputop_llm.sources.nvml import NvmlSource
from gputop_llm.symptoms import topology
from gputop_llm.symptoms.rules import comm
from gputop_llm.symptoms.view import NodeView
from tests.support.clock import ManualClock
from tests.support.fake_nvml import CAPTURES, FakeNvml
from tests.support.symptom_frames import busy, cause, symptom

BUSY = {"util_pct": 100.0, "gpm.sm_active_pct": 22.0, "pcie_tx_bytes_per_s": 20e9, "gpm.pcie_tx_bytes_per_s": 20e9}


def machine(gpus: int, path: int = pynvml.NVML_TOPOLOGY_SYSTEM, **status: int) -> FakeNvml:
    """GPUs that are all joined alike; `status` by what is asked ("nvlink", "read")."""
    fake = FakeNvml.from_h200(CAPTURES / "h200" / "nvml_idle.json", copies=gpus)
    for gpu in range(gpus):
        fake.set("TopologyCommonAncestor", path, gpu)
        fake.set("P2PStatus", {"nvlink": 0, "read": 0, **status}, gpu)
    return fake


def second_poll(fake: FakeNvml) -> tuple[GpuPair, ...]:
    """What is known after the first reading, which does not wait for it."""
    source = NvmlSource(fake, ManualClock())
    assert source.poll().pairs == ()
    return source.poll().pairs


def test_every_two_gpus_are_asked_for_once():
    fake = machine(4)
    source = NvmlSource(fake, ManualClock())
    _, first, second = source.poll(), source.poll(), source.poll()
    assert [(pair.a, pair.b) for pair in first.pairs] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert all(replace(pair, a=0, b=1) == GpuPair(0, 1, "SYS", True, True) for pair in first.pairs)
    assert second.pairs is first.pairs
    assert fake.calls["nvmlDeviceGetTopologyCommonAncestor"] == 6


@pytest.mark.parametrize(
    ("level", "path"), [(0, "same board"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_a_path_is_named_as_nvidia_smi_names_it(level, path):
    (pair,) = second_poll(machine(2, level))
    assert pair.path == path


def test_a_status_is_yes_no_or_unknown():
    (pair,) = second_poll(machine(2, nvlink=5, read=6))
    assert (pair.nvlink, pair.peer_access) == (False, None)
    assert pair.missing == {"peer_access": "the driver does not know"}


def test_what_the_driver_refuses_is_missing_with_its_reason():
    fake = machine(2, path=77)
    fake.fail("P2PStatus", 3)
    (pair,) = second_poll(fake)
    assert (pair.path, pair.nvlink, pair.peer_access) == (None, None, None)
    assert pair.missing["path"] == "the driver names a path 77 that is not known here"
    assert pair.missing["nvlink"] == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"


def test_one_gpu_has_no_pair():
    assert second_poll(machine(1)) == ()


def joined(*pairs: GpuPair):
    """An `edit`: the GPUs are joined like this."""
    return lambda frame, _s: replace(frame, gpus=replace(frame.gpus, value=replace(frame.gpus.value, pairs=pairs)))


def waiting(*pairs: GpuPair):
    """comm-bound on GPUs that are joined like this."""
    return symptom("comm-bound", comm.RULES, busy(30, gpus=2, gpu=BUSY, edit=joined(*pairs)))


def test_gpus_without_nvlink_speak_for_tensor_parallelism_over_pcie():
    found = waiting(GpuPair(0, 1, "SYS", False, False))
    (shown,) = [e for e in found.evidence if e.name == "P2P topology"]
    assert shown.text == "GPU 0 to 1: SYS, no NVLink, no peer access"
    assert shown.text in cause(found, "over PCIe").speaks_for


def test_nvlink_between_all_speaks_against_it():
    found = waiting(GpuPair(0, 1, "SYS", True, True))
    assert "NVLink joins every two of them" in cause(found, "over PCIe").speaks_against


def test_of_many_pairs_the_farthest_is_named():
    pairs = (GpuPair(0, 1, "PIX", False, True), GpuPair(0, 2, "SYS", False, True), GpuPair(1, 2, "SYS", False, False))
    view = NodeView(busy(1, gpus=4, edit=joined(*pairs, GpuPair(2, 3, "SYS", False, False))))
    assert topology.joints(view, [0, 1, 2]).text == "GPU 1 to 2: SYS, no NVLink, no peer access"
    assert topology.joints(view, [0, 1]).text == "GPU 0 to 1: PIX, no NVLink, peer access"


def test_what_is_not_known_is_told_with_its_reason():
    unknown = GpuPair(0, 1, missing={"path": "no permission"})
    assert topology.joints(NodeView(busy(1, gpus=2, edit=joined(unknown))), [0, 1]).missing == "no permission"
    assert topology.joints(NodeView(busy(1, gpus=2)), [0, 1]).missing == "NVML did not say how they are joined"
