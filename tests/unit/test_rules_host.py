"""host-bound and cpu-throttled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import CgroupCpu, ThreadLoad
from gputop_llm.sampling.history import History
from gputop_llm.sources.cgroup import CgroupSample, CpuCounters, cpu_between
from gputop_llm.symptoms.compose import EXPLAINS
from tests.support.captures import field_case
from tests.support.gpu_frames import QUIET, RULES, changes, noisy, problems
from tests.support.symptom_frames import (
    API_SERVER,
    CORE,
    WORKER,
    busy,
    cant_tell,
    cause,
    number,
    raised_at,
    reports,
    symptom,
)

SLOW_GPU = {"gpm.sm_active_pct": 31.0}
FULL = {CORE: {"main_thread_pct": 97.0, "cpu_pct": 104.0}}


class TestHostBound:
    def test_raised_when_the_engine_core_fills_its_core_and_the_sms_idle(self):
        assert raised_at("host-bound", RULES, busy(30, gpu=SLOW_GPU, load=FULL)) == 10

    @pytest.mark.parametrize(
        ("gpu", "thread"), [({"gpm.sm_active_pct": 60.0}, 97.0), (SLOW_GPU, 89.9)], ids=["SM active", "thread"]
    )
    def test_near_miss(self, gpu, thread):
        assert raised_at("host-bound", RULES, busy(60, gpu=gpu, load={CORE: {"main_thread_pct": thread}})) is None

    def test_a_thread_that_spins_in_an_idle_engine_is_no_bottleneck(self):
        idle = busy(60, gpu=SLOW_GPU, load=FULL, live={"running": 0.0})
        assert raised_at("host-bound", RULES, idle) is None

    def test_another_thread_than_the_main_one_counts(self):
        threads = (ThreadLoad(CORE, "VLLM::EngineCor", 20.0), ThreadLoad(905, "output-thread", 95.0))
        load = {CORE: {"main_thread_pct": 20.0, "top_threads": threads}}
        found = symptom("host-bound", RULES, busy(30, gpu=SLOW_GPU, load=load))
        assert "thread output-thread" in found.headline

    def test_a_worker_is_judged_with_the_gpu_that_it_feeds(self):
        load = {WORKER + 1: {"main_thread_pct": 98.0}}
        slow = busy(30, gpus=2, each_gpu={1: {**SLOW_GPU, "util_pct": 60.0}}, load=load)
        found = symptom("host-bound", RULES, slow)
        assert found.headline == f"worker {WORKER + 1}, main thread: 98 % of a core, SM active 31 % on GPU 1"
        assert raised_at("host-bound", RULES, busy(30, gpus=2, each_gpu={0: SLOW_GPU}, load=load)) is None

    @pytest.mark.parametrize(("util", "raised"), [(89.0, 10), (91.0, None)])
    def test_workers_that_spin_are_no_bottleneck_while_their_gpu_always_has_a_kernel(self, util, raised):
        load = {
            CORE: {"main_thread_pct": 98.0},
            WORKER: {"main_thread_pct": 99.0},
            WORKER + 1: {"main_thread_pct": 99.0},
        }
        frames = busy(30, gpus=2, gpu={**SLOW_GPU, "util_pct": util}, load=load)
        assert raised_at("host-bound", RULES, frames) == raised

    def test_without_gpm_low_utilisation_proves_it_and_high_utilisation_leaves_it_open(self):
        old = {"gpm": None, "missing": {"gpm": "needs a Hopper or newer GPU (GPM)"}}
        low = busy(30, gpu={**old, "util_pct": 48.0}, load=FULL)
        assert raised_at("host-bound", RULES, low) == 10
        assert "utilisation 48 %" in symptom("host-bound", RULES, low).headline
        (found,) = cant_tell("host-bound", RULES, busy(15, gpu={**old, "util_pct": 95.0}, load=FULL))
        assert "Hopper" in found.needs

    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ({"edit": lambda frame, _s: replace(frame, host=replace(frame.host, value=None))}, "CPU use"),
            ({"gpu": {**SLOW_GPU, "mig_enabled": True, "gpm": None}}, "MIG"),
            ({"live": {"running": None}}, "running requests"),
            ({"process": {CORE: {"gpus": ()}}}, "which GPUs"),
        ],
    )
    def test_cant_tell(self, more, reason):
        (found,) = cant_tell("host-bound", RULES, busy(15, **{"gpu": SLOW_GPU, "load": FULL, **more}))
        assert reason in found.needs

    def test_evidence_names_threads_switches_throttling_and_what_was_not_sampled(self):
        found = symptom("host-bound", RULES, busy(30, gpu=SLOW_GPU, load=FULL))
        assert number(found, f"engine-core {CORE}, main thread") == pytest.approx(97.0)
        assert number(found, f"api-server {API_SERVER}, main thread") == pytest.approx(22.0)
        assert number(found, "voluntary context switches") == pytest.approx(2200.0)
        assert number(found, "involuntary context switches") == pytest.approx(12.0)
        assert number(found, "quota periods throttled") == 0.0
        assert number(found, "SM active") == pytest.approx(31.0)
        (frame,) = [e for e in found.evidence if e.name == "top Python frame"]
        assert "not sampled" in frame.missing
        assert found.next_capture == "py-spy"

    def test_one_busy_thread_speaks_for_the_gil_and_several_against(self):
        one = symptom("host-bound", RULES, busy(30, gpu=SLOW_GPU, load=FULL))
        many = symptom(
            "host-bound", RULES, busy(30, gpu=SLOW_GPU, load={CORE: {"main_thread_pct": 97.0, "cpu_pct": 640.0}})
        )
        assert cause(one, "GIL").speaks_for
        assert cause(many, "GIL").speaks_against

    def test_flags_speak_for_eager_mode_and_logging(self):
        argv = {"argv": ("vllm", "serve", "m", "--enforce_eager", "--enable-log-requests")}
        flagged = symptom("host-bound", RULES, busy(30, gpu=SLOW_GPU, load=FULL, target=argv))
        plain = symptom("host-bound", RULES, busy(30, gpu=SLOW_GPU, load=FULL))
        for name in ("eager mode", "logging"):
            assert cause(flagged, name).speaks_for
            assert cause(plain, name).speaks_against

    def test_a_busy_api_server_speaks_for_tokenising(self):
        load = {**FULL, API_SERVER: {"main_thread_pct": 99.0}}
        assert cause(symptom("host-bound", RULES, busy(30, gpu=SLOW_GPU, load=load)), "tokenising").speaks_for

    def test_a_throttled_container_speaks_for_its_limit(self):
        load = {CORE: {**FULL[CORE], "cgroup": CgroupCpu("/pod", 2, 4.0, 4.0, 68.0, 1.37)}}
        found = symptom("host-bound", RULES, busy(30, gpu=SLOW_GPU, load=load))
        assert cause(found, "CPU limit").speaks_for == ("quota of 4 CPUs, 68 % of its periods throttled",)

    def test_it_explains_a_starved_gpu(self):
        frames = busy(30, gpu={"util_pct": 48.0, **SLOW_GPU}, load=FULL)
        active = reports(RULES, frames)[-1].active
        assert [(s.id, s.root) for s in active][:2] == [
            ("host-bound", None),
            ("gpu-starved", active[0].key),
        ]

    def test_noise_around_the_thresholds_does_not_flap(self):
        for load, gpu in (
            ({CORE: {"main_thread_pct": noisy(90.0, 8.0)}}, SLOW_GPU),
            (FULL, {"gpm.sm_active_pct": noisy(60.0, 8.0)}),
        ):
            assert changes("host-bound", busy(300, gpu=gpu, load=load)) <= 1


def quota(throttled_pct, quota_cpus=4.0):
    return {CORE: {"cgroup": CgroupCpu("/kubepods/pod7", 2, quota_cpus, 4.0, throttled_pct, 1.37)}}


class TestCpuThrottled:
    def test_raised_when_periods_of_the_quota_are_throttled(self):
        assert raised_at("cpu-throttled", RULES, busy(30, load=quota(6.0))) == 10

    def test_near_miss(self):
        assert raised_at("cpu-throttled", RULES, busy(60, load=quota(4.9))) is None

    def test_a_main_thread_that_queues_for_a_cpu_counts_too(self):
        waiting = {CORE: {"run_wait_pct": 31.0}}
        assert raised_at("cpu-throttled", RULES, busy(30, load=waiting)) == 10
        assert raised_at("cpu-throttled", RULES, busy(60, load={CORE: {"run_wait_pct": 19.0}})) is None
        assert (
            "waits 31 % of the time for a free CPU" in symptom("cpu-throttled", RULES, busy(30, load=waiting)).headline
        )

    def test_steal_counts_too(self):
        def stolen(pct):
            def edit(frame, _s):
                return replace(frame, host=replace(frame.host, value=replace(frame.host.value, steal_pct=pct)))

            return busy(30, edit=edit)

        assert raised_at("cpu-throttled", RULES, stolen(5.5)) == 10
        assert raised_at("cpu-throttled", RULES, stolen(4.9)) is None
        found = symptom("cpu-throttled", RULES, stolen(12.0))
        assert found.headline == "12 % of the CPU time goes to other virtual machines (steal)"
        assert found.causes[0].text == "the host is shared with other virtual machines"

    @pytest.mark.parametrize(
        ("load", "edit", "newest", "limit"),
        [
            (quota(6.0), None, 6.0, 5.0),
            ({CORE: {"run_wait_pct": 31.0}}, None, 31.0, 20.0),
            ({}, lambda f, _: replace(f, host=replace(f.host, value=replace(f.host.value, steal_pct=12.0))), 12.0, 5.0),
        ],
        ids=["quota", "run queue", "steal"],
    )
    def test_its_chart_is_what_it_was_raised_for(self, load, edit, newest, limit):
        frames, history = busy(30, load=load, edit=edit), History()
        for frame in frames:
            history.append(frame)
        found = symptom("cpu-throttled", RULES, frames)
        assert (history.series(found.chart, 1), found.chart_threshold) == ([newest], limit)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"cgroup": None, "missing": {"cgroup": "its control group can't be seen from here"}}, "can't be seen"),
            ({"cgroup": CgroupCpu("/pod", 2, 4.0, None, None, None)}, "needs two polls"),
        ],
    )
    def test_cant_tell(self, fields, reason):
        (found,) = cant_tell("cpu-throttled", RULES, busy(15, load={CORE: fields}))
        assert reason in found.needs

    def test_cant_tell_of_an_engine_on_another_host(self):
        (found,) = cant_tell("cpu-throttled", RULES, busy(15, target={"processes": ()}))
        assert "another host" in found.needs

    def test_noise_around_the_threshold_does_not_flap(self):
        load = {CORE: {"cgroup": lambda s: CgroupCpu("/pod", 2, 4.0, 4.0, noise(s), 0.1)}}
        noise = noisy(5.0, 3.0)
        assert changes("cpu-throttled", busy(300, load=load)) <= 1


class TestFieldCase10:
    """A container that may use 4 CPUs, and is throttled in 204 of 300 periods within 30 s."""

    def sample(self, name, quota_cpus):
        fields = dict(line.split() for line in (field_case(10) / name).read_text().splitlines())
        throttled_s = float(fields.get("throttled_usec", 0)) / 1e6 + float(fields.get("throttled_time", 0)) / 1e9
        used = float(fields["usage_usec"]) / 1e6 if "usage_usec" in fields else None
        counters = CpuCounters(int(fields["nr_periods"]), int(fields["nr_throttled"]), throttled_s, used)
        return CgroupSample("/kubepods/pod", 2, quota_cpus, counters, None, None)

    def group(self):
        before, after = self.sample("v2_cpu.stat_t0.txt", 4.0), self.sample("v2_cpu.stat_t1.txt", 4.0)
        return cpu_between(before, after, 30.0)

    def test_it_fires_with_the_windows_numbers_not_the_lifetimes(self):
        frames = busy(30, load={CORE: {"cgroup": self.group()}})
        assert raised_at("cpu-throttled", RULES, frames) == 10
        found = symptom("cpu-throttled", RULES, frames)
        assert found.headline == "CPU quota of 4 cores stops the engine in 68 % of all periods"
        assert number(found, "quota periods throttled") == pytest.approx(68.0)
        assert 30 * number(found, "thread time lost") == pytest.approx(41.2)

    def test_use_is_related_to_the_quota_not_to_the_visible_cores(self):
        found = symptom("cpu-throttled", RULES, busy(30, load={CORE: {"cgroup": self.group()}}))
        (used,) = [e for e in found.evidence if e.name == "CPU used (cores)"]
        assert used.value == pytest.approx(4.0)
        assert used.threshold == 4.0

    def test_it_is_named_before_the_gpu_is_slow(self):
        frames = busy(30, gpu={**QUIET, "util_pct": 45.0}, load={CORE: {"cgroup": self.group()}})
        active = reports(RULES, frames)[-1].active
        assert active[0].id == "cpu-throttled"
        assert {s.root for s in active[1:]} == {active[0].key}
        assert {"gpu-starved", "gpu-busy-not-working", "host-bound"} <= EXPLAINS["cpu-throttled"]

    def test_a_quota_of_7_65_cpus_that_does_not_throttle_now_is_silent(self):
        v1 = self.sample("v1_cpu.stat.txt", 7.65)
        now = cpu_between(v1, v1, 30.0)
        assert now.quota_cpus == 7.65
        assert problems(busy(30, load={CORE: {"cgroup": now}})) == set()

    def test_max_is_no_quota_and_the_rule_is_silent(self):
        assert (field_case(10) / "unlimited_cpu.max.txt").read_text().startswith("max")
        free = cpu_between(self.sample("v2_cpu.stat_t0.txt", None), self.sample("v2_cpu.stat_t1.txt", None), 30.0)
        frames = busy(30, load={pid: {"cgroup": free} for pid in (CORE, API_SERVER)})
        assert raised_at("cpu-throttled", RULES, frames) is None
        assert cant_tell("cpu-throttled", RULES, frames) == ()
