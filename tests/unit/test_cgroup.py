"""CPU quota and throttling of control groups, v1 and v2, met in the field and built by hand."""

import os
import shutil
from pathlib import Path

import pytest

from gputop_llm.sources.cgroup import CgroupReader, cpu_between, sample
from gputop_llm.sources.procfs import ProcFs
from tests.support.fake_proc import FakeProc

CASE = Path(__file__).parents[2] / "captures/field-cases/10-cgroup-quota-throttling"


@pytest.fixture
def proc(tmp_path):
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "cgroup"
    folder.mkdir()
    return folder


def put(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def v2(root, path, **files):
    put(root, cgroup__controllers="cpu memory\n")
    put(root / path, **files)


def read(proc, root, pid=10):
    place = CgroupReader(ProcFs(proc.root), str(root)).place(pid)
    return None if place is None else sample(place)


def test_10_v2_the_window_counts_and_not_the_lifetime(proc, root):
    proc.add(10, cgroup="0::/kubepods/pod1/engine")
    group = root / "kubepods/pod1/engine"
    v2(root, "kubepods/pod1/engine")
    shutil.copy(CASE / "v2_cpu.max.txt", group / "cpu.max")
    shutil.copy(CASE / "v2_cpu.stat_t0.txt", group / "cpu.stat")
    before = read(proc, root)
    shutil.copy(CASE / "v2_cpu.stat_t1.txt", group / "cpu.stat")
    cpu = cpu_between(before, read(proc, root), 30.0)

    assert (cpu.version, cpu.quota_cpus) == (2, 4.0)
    assert cpu.throttled_pct == pytest.approx(68.0)
    assert cpu.throttled_s_per_s * 30.0 == pytest.approx(41.2)
    assert cpu.used_cpus == pytest.approx(4.0)


def test_10_v1_quota(proc, root):
    proc.add(10, cgroup="5:cpu,cpuacct:/engine\n4:memory:/engine\n0::/")
    group = root / "cpu,cpuacct/engine"
    put(group, cpuacct__usage="1000000000\n")
    for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.stat"):
        shutil.copy(CASE / f"v1_{name}.txt", group / name)
    before = read(proc, root)
    put(group, cpu__stat="nr_periods 193\nnr_throttled 7\nthrottled_time 1005198271\n", cpuacct__usage="8000000000\n")
    cpu = cpu_between(before, read(proc, root), 2.0)

    assert (cpu.version, cpu.quota_cpus) == (1, 7.65)
    assert cpu.throttled_pct == pytest.approx(50.0)
    assert cpu.throttled_s_per_s == pytest.approx(0.5)
    assert cpu.used_cpus == pytest.approx(3.5)


def test_the_use_of_another_group_is_not_the_use_of_the_limited_one(proc, root):
    proc.add(10, cgroup="5:cpu:/engine\n4:cpuacct:/\n")
    put(root / "cpu/engine", cpu__cfs_quota_us="30000\n", cpu__cfs_period_us="100000\n")
    put(root / "cpu/engine", cpu__stat="nr_periods 10\nnr_throttled 1\nthrottled_time 5\n")
    put(root / "cpuacct", cpuacct__usage="8000000000\n")

    now = read(proc, root)

    assert now.quota_cpus == pytest.approx(0.3)
    assert now.counters.used_s is None


def test_10_max_is_no_quota_and_throttles_nothing(proc, root):
    proc.add(10, cgroup="0::/engine")
    v2(root, "engine", cpu__stat="usage_usec 1\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    shutil.copy(CASE / "unlimited_cpu.max.txt", root / "engine/cpu.max")
    found = read(proc, root)
    cpu = cpu_between(found, found, 1.0)

    assert (cpu.quota_cpus, cpu.throttled_pct, cpu.throttled_s_per_s) == (None, None, None)
    assert cpu.used_cpus == 0.0


def test_the_first_reading_has_a_quota_and_no_rates(proc, root):
    proc.add(10, cgroup="0::/engine")
    v2(
        root,
        "engine",
        cpu__max="200000 100000\n",
        cpu__stat="usage_usec 5\nnr_periods 5\nnr_throttled 5\nthrottled_usec 9\n",
    )
    cpu = cpu_between(None, read(proc, root), 0.0)

    assert (cpu.quota_cpus, cpu.used_cpus, cpu.throttled_pct, cpu.throttled_s_per_s) == (2.0, None, None, None)


def test_the_tightest_quota_of_all_ancestors_counts(proc, root):
    proc.add(10, cgroup="0::/a/b/c")
    v2(root, "a", cpu__max="800000 100000\n", cpu__stat="usage_usec 1\n")
    v2(root, "a/b", cpu__max="150000 50000\n", cpu__stat="usage_usec 2\n")
    v2(root, "a/b/c", cpu__max="max 100000\n", cpu__stat="usage_usec 3\n")
    found = read(proc, root)

    assert (found.quota_cpus, found.path, found.counters.used_s) == (3.0, "/a/b", 2e-6)


def test_a_container_sees_its_own_group_as_the_root(proc, root):
    proc.add(10, cgroup="0::/")
    v2(
        root,
        ".",
        cpu__max="100000 100000\n",
        cpu__stat="usage_usec 3\n",
        memory__max="1048576\n",
        memory__current="4096\n",
    )
    found = read(proc, root)

    assert (found.path, found.quota_cpus, found.mem_used_bytes, found.mem_limit_bytes) == ("/", 1.0, 4096, 1048576)


def test_the_tightest_memory_limit_comes_with_the_use_of_its_group(proc, root):
    proc.add(10, cgroup="0::/a/b")
    v2(root, "a", memory__max="1000\n", memory__current="900\n")
    v2(root, "a/b", memory__max="max\n", memory__current="100\n")
    found = read(proc, root)

    assert (found.mem_limit_bytes, found.mem_used_bytes) == (1000, 900)


def test_the_largest_number_of_v1_is_no_memory_limit(proc, root):
    proc.add(10, cgroup="5:cpu:/\n4:memory:/")
    put(root / "cpu", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    put(root / "memory", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="7\n")
    found = read(proc, root)

    assert (found.quota_cpus, found.mem_limit_bytes, found.mem_used_bytes) == (None, None, 7)


def test_in_a_v1_container_the_mount_is_the_own_group_and_nobody_else_s(proc, root):
    put(root / "cpu", cpu__cfs_quota_us="200000\n", cpu__cfs_period_us="100000\n")
    proc.write("self/cgroup", "5:cpu:/docker/abc\n")
    proc.add(10, cgroup="5:cpu:/docker/abc")
    proc.add(11, cgroup="5:cpu:/docker/other")

    assert read(proc, root, 10).quota_cpus == 2.0
    assert read(proc, root, 11) is None


def test_a_group_outside_of_our_namespace_is_not_guessed(proc, root):
    v2(root, ".", cpu__max="100000 100000\n")
    proc.add(10, cgroup="0::/../other")

    assert read(proc, root) is None


def test_without_any_group_mounted_nothing_is_said(proc, root):
    proc.add(10, cgroup="0::/a")

    assert read(proc, root) is None


def test_a_quota_that_changes_is_seen_within_ten_readings(proc, root):
    proc.add(10, cgroup="0::/a")
    v2(root, "a", cpu__max="100000 100000\n")
    reader = CgroupReader(ProcFs(proc.root), str(root))
    reader.place(10)
    put(root / "a", cpu__max="300000 100000\n")

    assert [reader.place(10).quota_cpus for _ in range(10)][-1] == 3.0


def test_an_idle_group_was_throttled_in_none_of_its_periods(proc, root):
    proc.add(10, cgroup="0::/a")
    v2(
        root,
        "a",
        cpu__max="100000 100000\n",
        cpu__stat="usage_usec 1\nnr_periods 9\nnr_throttled 9\nthrottled_usec 5\n",
    )
    found = read(proc, root)

    assert cpu_between(found, found, 1.0).throttled_pct == 0.0


def test_counters_that_fall_give_no_rate(proc, root):
    proc.add(10, cgroup="0::/a")
    v2(
        root,
        "a",
        cpu__max="100000 100000\n",
        cpu__stat="usage_usec 9\nnr_periods 9\nnr_throttled 9\nthrottled_usec 9\n",
    )
    before = read(proc, root)
    put(root / "a", cpu__stat="usage_usec 1\nnr_periods 1\nnr_throttled 1\nthrottled_usec 1\n")
    cpu = cpu_between(before, read(proc, root), 1.0)

    assert (cpu.used_cpus, cpu.throttled_pct, cpu.throttled_s_per_s) == (None, None, None)


def test_the_group_of_this_very_process_can_be_read():
    place = CgroupReader(ProcFs()).place(os.getpid())

    if place is None:
        pytest.skip("no control groups are mounted here")
    found = sample(place)
    assert found.version in (1, 2)
    assert found.counters.used_s is None or found.counters.used_s > 0
