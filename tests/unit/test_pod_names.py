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


def named(tmp_path, environ, cgroup=POD, uts="uts:[4026534000]", files=(), mounts=()):
    proc = FakeProc(tmp_path / "proc")
    proc.add(10, ["vllm", "serve", "m"], cgroup=cgroup, environ=environ)
    os.symlink(uts, proc.path / "10/ns/uts")
    for name, content in dict(files).items():
        proc.write(f"10/root{name}", content)
    rows = (f"{n} 1 8:1 {source} {place} rw - ext4 /dev/sda1 rw" for n, (place, source) in enumerate(mounts))
    proc.write("10/mountinfo", "\n".join(rows))
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


NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


@pytest.mark.parametrize(
    ("environ", "files", "name"),
    [
        # A title was written over the environment.
        ({}, {"/etc/hostname": "vllm-0\n"}, "vllm-0"),
        ({}, {"/etc/hostname": "vllm-0\n", NAMESPACE: "shop"}, "shop/vllm-0"),
        ({**IN_CLUSTER, "POD_NAME": "a-1", "POD_NAMESPACE": "shop"}, {"/etc/hostname": "other"}, "shop/a-1"),
        ({}, {"/etc/hostname": "[red]\n", NAMESPACE: "shop"}, UID),
    ],
)
def test_the_files_of_a_pod_name_it_too_and_its_namespace(tmp_path, environ, files, name):
    assert named(tmp_path, environ, files=files) == f"containerd 3f2a91c04b7d, pod {name}"


def test_a_pod_on_the_node_s_own_network_is_not_called_as_the_node(tmp_path):
    files = {"/etc/hostname": "node-7\n"}
    assert named(tmp_path, {}, files=files, uts="uts:[4026531838]") == f"containerd 3f2a91c04b7d, pod {UID}"


ID = "3f2a91c04b7d" + "0" * 52
SANDBOX = f"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}"


@pytest.mark.parametrize(
    ("mounts", "container"),
    [
        ([("/etc/hostname", f"/var/lib/docker/containers/{ID}/hostname")], "docker 3f2a91c04b7d"),
        ([("/etc/hosts", f"/containers/overlay-containers/{ID}/userdata/hosts")], "podman 3f2a91c04b7d"),
        (
            [("/etc/hosts", f"/var/lib/kubelet/pods/{UID}/etc-hosts"), ("/etc/hostname", f"{SANDBOX}/hostname")],
            "pod vllm-0",
        ),
        # The node of containers has their mounts, but under other names.
        ([("/var/lib/docker/x", f"/var/lib/docker/containers/{ID}/mounts")], None),
    ],
)
def test_from_within_a_container_is_known_by_the_files_that_are_mounted_into_it(tmp_path, mounts, container):
    assert named(tmp_path, {}, cgroup="0::/", files={"/etc/hostname": "vllm-0"}, mounts=mounts) == container
