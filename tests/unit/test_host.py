"""The host source on a /proc made of files: arithmetic, reasons, and what is read how often."""

import dataclasses

import pytest

from gputop_llm.errors import SourceError
from gputop_llm.model import TargetProcess
from gputop_llm.sources.host import HostSource
from gputop_llm.sources.procfs import PAGE_BYTES, ProcFs
from tests.support.fake_proc import BOOT_S, TICKS_PER_S, FakeClock, FakeProc

MIB = 1 << 20


class Machine:
    def __init__(self, path):
        self.clock = FakeClock()
        self.proc = FakeProc(path / "proc")
        self.cpu()
        self.proc.write(
            "meminfo", "MemTotal: 1024 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\nSwapTotal: 64 kB\nSwapFree: 16 kB\n"
        )
        self.proc.write("loadavg", "3.25 2.00 1.00 5/300 4242\n")
        self.swap(0, 0)
        self.watched = []
        self.source = HostSource(lambda: self.watched, self.proc.root, str(path / "none"), self.clock)

    def cpu(self, user=0, nice=0, system=0, idle=0, iowait=0, irq=0, softirq=0, steal=0, guest=0):
        line = f"cpu  {user} {nice} {system} {idle} {iowait} {irq} {softirq} {steal} {guest} 0\n"
        self.proc.write("stat", line + "".join(f"cpu{n} 0\n" for n in range(4)) + f"intr 5\nbtime {BOOT_S}\n")

    def swap(self, pages_in, pages_out):
        self.proc.write("vmstat", f"nr_free 1\npswpin {pages_in}\npswpout {pages_out}\n")

    def run(self, pid, ticks_of_threads, **more):
        self.proc.add(pid, ["python"], threads=ticks_of_threads, **more)

    def watch(self, pid, role="engine-core", started_s=100.0):
        self.watched.append(TargetProcess(pid, 1, role, "x", start_s=BOOT_S + started_s))

    def poll(self, after_s=1.0):
        self.clock.pass_s(after_s)
        return self.source.poll()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_first_poll_has_levels_and_no_rates(machine):
    host = machine.poll()

    assert (host.cores, host.load_1m) == (4, 3.25)
    assert (host.mem_total_bytes, host.mem_available_bytes, host.swap_used_bytes) == (1 * MIB, MIB // 2, 48 * 1024)
    for name in ("cpu_pct", "iowait_pct", "steal_pct", "swap_in_bytes_per_s", "swap_out_bytes_per_s"):
        assert getattr(host, name) is None
        assert host.missing[name] == "needs two polls"


def test_shares_are_of_all_cores_time_between_polls(machine):
    machine.cpu(user=1000, idle=1000)
    machine.poll()
    machine.cpu(user=1030, nice=1, system=8, idle=1040, iowait=10, irq=0, softirq=1, steal=10, guest=30)
    host = machine.poll()

    assert host.cpu_pct == pytest.approx(50.0)
    assert host.iowait_pct == pytest.approx(10.0)
    assert host.steal_pct == pytest.approx(10.0)
    assert host.missing == {}


def test_swap_traffic_is_pages_times_their_size(machine):
    machine.poll()
    machine.swap(10, 40)
    host = machine.poll(after_s=2.0)

    assert (host.swap_in_bytes_per_s, host.swap_out_bytes_per_s) == (5 * PAGE_BYTES, 20 * PAGE_BYTES)


def test_iowait_that_steps_back_gives_no_negative_share(machine):
    machine.cpu(idle=100, iowait=50)
    machine.poll()
    machine.cpu(idle=200, iowait=49)

    assert machine.poll().iowait_pct == 0.0


def test_files_that_are_missing_leave_their_figures_unknown(machine):
    machine.poll()
    for name in ("vmstat", "meminfo", "loadavg"):
        (machine.proc.path / name).unlink()
    host = machine.poll()

    assert (host.load_1m, host.mem_total_bytes, host.swap_used_bytes, host.swap_in_bytes_per_s) == (None,) * 4
    assert host.missing["load_1m"] == f"{machine.proc.root}/loadavg does not tell it"
    unknown = {field.name for field in dataclasses.fields(host) if getattr(host, field.name) is None}
    assert unknown == set(host.missing)


def test_without_proc_the_failure_teaches(tmp_path):
    with pytest.raises(SourceError, match="mount /proc"):
        HostSource(list, f"{tmp_path}/none").poll()


# -- watched processes ---------------------------------------------------------


def test_a_process_is_measured_between_two_polls(machine):
    machine.run(50, {50: ("python", 1000), 51: ("io", 0)}, rss_kib=2048)
    machine.watch(50)
    (first,) = machine.poll().processes
    assert (first.cpu_pct, first.main_thread_pct, first.top_threads) == (None, None, ())
    assert first.missing["cpu_pct"] == "needs two polls"
    assert (first.state, first.rss_bytes, first.swap_bytes, first.threads) == ("S", 2 * MIB, 8192, 2)

    machine.run(50, {50: ("python", 1000 + TICKS_PER_S), 51: ("io", TICKS_PER_S // 2)}, rss_kib=2048)
    status = machine.proc.path / "50/status"
    status.write_text(status.read_text().replace("voluntary_ctxt_switches:\t100", "voluntary_ctxt_switches:\t300"))
    (load,) = machine.poll(after_s=2.0).processes

    assert load.cpu_pct == pytest.approx(75.0)
    assert load.main_thread_pct == pytest.approx(50.0)
    assert [(t.tid, t.name, t.cpu_pct) for t in load.top_threads] == [(50, "python", 50.0), (51, "io", 25.0)]
    assert (load.ctx_voluntary_per_s, load.ctx_involuntary_per_s) == (100.0, 0.0)
    assert "cpu_pct" not in load.missing


def io_wait(machine, before, after, after_s=2.0, setting="1"):
    """The second reading of a process whose threads have waited for so many ticks."""
    if setting is not None:
        machine.proc.write("sys/kernel/task_delayacct", f"{setting}\n")
    threads = {50: ("python", 0), 51: ("io", 0)}
    machine.run(50, threads, io_ticks=before)
    machine.watch(50)
    (first,) = machine.poll().processes
    assert first.io_wait_pct is None
    machine.run(50, threads, io_ticks=after)
    return machine.poll(after_s).processes[0]


@pytest.mark.parametrize("setting", ["1", None], ids=["asked to count", "a kernel that counts unasked"])
def test_the_wait_for_io_is_that_of_all_threads(machine, setting):
    """The main thread's alone is what /proc/PID/stat gives."""
    load = io_wait(machine, {50: 10}, {50: 10 + TICKS_PER_S // 2, 51: TICKS_PER_S}, setting=setting)
    assert load.io_wait_pct == pytest.approx(25 + 50)
    assert "io_wait_pct" not in load.missing


def test_a_process_that_waits_no_more_has_no_io_wait(machine):
    assert io_wait(machine, {51: 500}, {51: 500}).io_wait_pct == 0.0


def test_a_long_wait_that_is_counted_at_its_end_is_no_more_than_all_of_the_time(machine):
    assert io_wait(machine, {50: 1}, {50: 1 + 60 * TICKS_PER_S}).io_wait_pct == 100.0


def test_a_kernel_that_does_not_count_io_waits_is_told_how_to(machine):
    load = io_wait(machine, {50: 7}, {50: 7}, setting="0")
    assert load.io_wait_pct is None
    assert "`sudo sysctl kernel.task_delayacct=1`" in load.missing["io_wait_pct"]


@pytest.mark.parametrize("setting", ["1", None])
def test_a_process_of_which_nothing_was_counted_may_be_older_than_the_counting(machine, setting):
    """The kernel says 0 of tasks that were started before: that is no measurement."""
    load = io_wait(machine, {}, {}, setting=setting)
    assert load.io_wait_pct is None
    assert "was started before kernel.task_delayacct was 1" in load.missing["io_wait_pct"]


def test_a_thread_that_waits_for_io_is_read_as_often_as_a_busy_one(machine):
    machine.proc.write("sys/kernel/task_delayacct", "1\n")
    threads = {50 + n: (f"t{n}", 0) for n in range(60)}
    machine.run(50, threads, io_ticks={105: 1})
    machine.watch(50)
    machine.poll()
    machine.proc.set_thread(50, 105, "loader", 0, 1 + TICKS_PER_S)
    machine.poll()
    for turn in range(2, 5):
        machine.proc.set_thread(50, 105, "loader", 0, 1 + turn * TICKS_PER_S)
        assert machine.poll().processes[0].io_wait_pct == pytest.approx(100.0)


def test_the_top_five_threads_are_named(machine):
    names = {50 + n: (f"t{n}", 0) for n in range(20)}
    machine.run(50, names)
    machine.watch(50)
    machine.poll()
    machine.run(50, {tid: (name, (tid - 50) * TICKS_PER_S // 100) for tid, (name, _) in names.items()})
    (load,) = machine.poll().processes

    assert [t.name for t in load.top_threads] == ["t19", "t18", "t17", "t16", "t15"]


def test_between_full_readings_only_the_hottest_threads_are_read(machine, monkeypatch):
    machine.run(50, {50 + n: (f"t{n}", 0) for n in range(100)})
    machine.watch(50)
    reads = []
    real = ProcFs.thread
    monkeypatch.setattr(ProcFs, "thread", lambda self, pid, tid: reads.append(tid) or real(self, pid, tid))
    counts = []
    for _ in range(11):
        reads.clear()
        machine.poll()
        counts.append(len(reads))

    assert [counts[n] for n in (0, 1, 5, 10)] == [100] * 4
    assert all(counts[n] <= 9 for n in (2, 3, 4, 6, 7, 8, 9))


def test_the_main_thread_is_read_at_each_poll(machine):
    machine.run(50, {50 + n: ("t", 0) for n in range(30)})
    machine.watch(50)
    machine.poll()
    for turn in range(1, 12):
        machine.proc.set_thread(50, 50, "main", turn * TICKS_PER_S)
        (load,) = machine.poll().processes
        assert load.main_thread_pct == pytest.approx(100.0)


def test_a_thread_that_wakes_up_is_seen_five_polls_later_at_the_latest(machine):
    threads = {50 + n: (f"t{n}", 5 * n) for n in range(30)}
    machine.run(50, threads)
    machine.watch(50)
    machine.poll()
    machine.run(50, {tid: (name, ticks + 5) for tid, (name, ticks) in threads.items()})
    machine.poll()
    machine.proc.set_thread(50, 79, "late", 10_000)

    assert any(t.name == "late" for _ in range(5) for p in machine.poll().processes for t in p.top_threads)


def test_a_thread_that_ends_is_left_out(machine):
    machine.run(50, {50: ("main", 0), 51: ("gone", 0)})
    machine.watch(50)
    machine.poll()
    machine.run(50, {50: ("main", 7)})
    (load,) = machine.poll().processes

    assert [t.tid for t in load.top_threads] == [50]


def test_a_process_that_ended_is_left_out(machine):
    machine.run(50, {50: ("main", 0)})
    machine.watch(50)
    machine.poll()
    machine.proc.remove(50)

    assert machine.poll().processes == ()


def test_a_pid_that_became_another_process_is_not_taken_for_the_old_one(machine):
    machine.run(50, {50: ("main", 0)}, started_s=100.0)
    machine.watch(50, started_s=100.0)
    machine.poll()
    machine.run(50, {50: ("other", 500)}, started_s=900.0)
    (load,) = machine.poll().processes

    assert (load.cpu_pct, load.rss_bytes, load.state) == (None, None, None)
    assert load.missing["cpu_pct"] == "this PID is another process now"


def test_a_restart_under_the_same_pid_begins_anew(machine):
    machine.run(50, {50: ("main", 900)}, started_s=100.0)
    machine.watch(50, started_s=100.0)
    machine.poll()
    machine.watched.clear()
    machine.watch(50, started_s=900.0)
    machine.run(50, {50: ("main", 950)}, started_s=900.0)
    (load,) = machine.poll().processes

    assert load.cpu_pct is None
    assert load.missing["cpu_pct"] == "needs two polls"


def test_what_may_not_be_read_is_unknown_with_the_reason(machine, monkeypatch):
    machine.run(50, {50: ("main", 0)})
    machine.watch(50)

    def denied(self, name, limit_bytes=0):
        raise PermissionError(13, "Permission denied", name)

    machine.poll()
    real = ProcFs.read
    monkeypatch.setattr(
        ProcFs, "read", lambda self, name, *a: (denied if name.startswith("50/") else real)(self, name, *a)
    )
    (load,) = machine.poll().processes

    assert (load.cpu_pct, load.rss_bytes) == (None, None)
    assert load.missing["cpu_pct"] == "needs root or the same user"
    assert load.missing["rss_bytes"] == "needs root or the same user"


def test_a_process_without_a_visible_group_says_so(machine):
    machine.run(50, {50: ("main", 0)})
    machine.watch(50)
    (load,) = machine.poll().processes

    assert load.cgroup is None
    assert "can't be seen" in load.missing["cgroup"]


def test_processes_of_one_group_share_one_reading(machine, tmp_path):
    group = tmp_path / "cgroup/g"
    group.mkdir(parents=True)
    (tmp_path / "cgroup/cgroup.controllers").write_text("cpu")
    (group / "cpu.max").write_text("200000 100000")
    (group / "cpu.stat").write_text("usage_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    machine.source = HostSource(lambda: machine.watched, machine.proc.root, str(tmp_path / "cgroup"), machine.clock)
    for pid in (50, 60):
        machine.run(pid, {pid: ("main", 0)}, cgroup="0::/g")
        machine.watch(pid)
    machine.poll()
    (group / "cpu.stat").write_text("usage_usec 3000000\nnr_periods 20\nnr_throttled 5\nthrottled_usec 1000000\n")
    one, other = (load.cgroup for load in machine.poll(after_s=2.0).processes)

    assert one == other
    assert (one.quota_cpus, one.used_cpus, one.throttled_pct, one.throttled_s_per_s) == (2.0, 1.5, 25.0, 0.5)


def group_of(machine, tmp_path, cgroup="0::/g", **files):
    group = tmp_path / "cgroup/g"
    group.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cgroup/cgroup.controllers").write_text("cpu io")
    for name, content in files.items():
        (group / name.replace("__", ".")).write_text(content)
    machine.source = HostSource(lambda: machine.watched, machine.proc.root, str(tmp_path / "cgroup"), machine.clock)
    machine.run(50, {50: ("main", 0)}, cgroup=cgroup)
    machine.watch(50)
    return group


def pressure(some_us, full_us):
    averages = "avg10=9.00 avg60=9.00 avg300=9.00"
    return f"some {averages} total={some_us}\nfull {averages} total={full_us}\n"


def test_io_pressure_is_of_the_time_between_two_polls(machine, tmp_path):
    group = group_of(machine, tmp_path, io__pressure=pressure(5_000_000, 1_000_000))
    (first,) = machine.poll().processes
    assert first.cgroup.io_some_pct is None
    assert first.missing["cgroup.io_some_pct"] == "needs two polls"
    (group / "io.pressure").write_text(pressure(5_500_000, 1_100_000))
    (load,) = machine.poll(after_s=2.0).processes
    assert (load.cgroup.io_some_pct, load.cgroup.io_full_pct) == (pytest.approx(25.0), pytest.approx(5.0))
    assert "cgroup.io_some_pct" not in load.missing


def test_io_pressure_is_of_the_process_s_own_group_and_the_quota_of_whichever_limits_it(machine, tmp_path):
    outer = group_of(machine, tmp_path, "0::/g/inner", cpu__max="200000 100000", io__pressure=pressure(0, 0))
    (outer / "inner").mkdir()
    (outer / "inner/io.pressure").write_text(pressure(0, 0))
    machine.poll()
    (outer / "io.pressure").write_text(pressure(900_000, 0))
    (outer / "inner/io.pressure").write_text(pressure(100_000, 0))
    group = machine.poll().processes[0].cgroup
    assert (group.path, group.quota_cpus, group.io_some_pct) == ("/g", 2.0, pytest.approx(10.0))


def test_a_kernel_without_pressure_figures_says_so(machine, tmp_path):
    group_of(machine, tmp_path, cpu__max="200000 100000")
    machine.poll()
    (load,) = machine.poll().processes
    assert load.cgroup.io_some_pct is None
    assert "psi=1" in load.missing["cgroup.io_some_pct"]


def test_a_target_that_is_no_longer_watched_is_forgotten(machine):
    machine.run(50, {50: ("main", 0)})
    machine.watch(50)
    machine.poll()
    machine.watched.clear()

    assert machine.poll().processes == ()


def test_a_target_without_a_pid_here_is_not_read(machine):
    machine.watched = [TargetProcess(None, None, "other", "host PID", nvml_pid=56752)]

    assert machine.poll().processes == ()
