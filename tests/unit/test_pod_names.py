"""The name of the Kubernetes pod that an engine runs in."""

from __future__ import annotations

import os

import pytest

from gputop_llm.sources.container import container_of
from gputop_llm.sources.procfs import ProcFs
from tests.support.fake_proc import FakeProc

UID = "1b2c3d4e-0000-4000-8000-123456789abc"
POD = f"0::/kubepods/besteffort/pod{UID}/{'3f2a91c04b7d' + '0' * 52}"
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "vllm-7d9f-abcde"}


def named(tmp_path, environ, cgroup=POD, uts="uts:[4026534000]"):
    proc = FakeProc(tmp_path / "proc")
    proc.add(1, ["systemd"])
    proc.add(10, ["vllm", "serve", "m"], cgroup=cgroup, environ=environ)
    for pid, target in ((1, "uts:[4026531838]"), (10, uts)):
        os.symlink(target, proc.path / f"{pid}/ns/uts")
    return container_of(ProcFs(proc.root), 10)


def test_a_pod_is_named_as_its_host(tmp_path):
    assert named(tmp_path, IN_CLUSTER) == "containerd 3f2a91c04b7d, pod vllm-7d9f-abcde"


def test_a_name_that_is_handed_in_comes_first(tmp_path):
    assert named(tmp_path, {**IN_CLUSTER, "POD_NAME": "vllm-0"}) == "containerd 3f2a91c04b7d, pod vllm-0"


@pytest.mark.parametrize(
    ("environ", "uts"),
    [
        ({}, "uts:[4026534000]"),
        ({"HOSTNAME": "vllm-0"}, "uts:[4026534000]"),
        ({**IN_CLUSTER, "HOSTNAME": "[bold]x"}, "uts:[4026534000]"),
        # On the node's own network the host is the node.
        (IN_CLUSTER, "uts:[4026531838]"),
    ],
)
def test_otherwise_it_goes_by_its_uid(tmp_path, environ, uts):
    assert named(tmp_path, environ, uts=uts) == f"containerd 3f2a91c04b7d, pod {UID}"


def test_outside_of_a_pod_nothing_is_named(tmp_path):
    assert named(tmp_path, IN_CLUSTER, cgroup="0::/user.slice") is None
