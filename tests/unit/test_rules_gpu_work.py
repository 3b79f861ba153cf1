"""gpu-busy-not-working and gpu-starved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model.symptom import Severity
from gputop_llm.symptoms.checks import State
from tests.support.captures import CAPTURES
from tests.support.fake_nvml import FakeNvml
from tests.support.gpu_frames import BY_ID, QUIET, RULES, changes, everything_raised, noisy, on, problems, readings
from tests.support.symptom_frames import (
    CORE,
    busy,
    cant_tell,
    cause,
    changing,
    checks,
    number,
    raised_at,
    reports,
    symptom,
)

BUSY = "gpu-busy-not-working"
NO_GPM = {"gpm": None, "missing": {"gpm": "needs a Hopper or newer GPU (GPM)"}}


class TestBusyNotWorking:
    def test_raised_after_ten_seconds_of_full_utilisation_with_a_quarter_of_the_sms_at_work(self):
        assert raised_at(BUSY, RULES, busy(30, gpu=QUIET)) == 10

    def test_near_miss_half_of_the_sms_at_work(self):
        assert raised_at(BUSY, RULES, busy(60, gpu={**QUIET, "gpm.sm_active_pct": 50.0})) is None

    def test_near_miss_utilisation_just_under_ninety(self):
        assert raised_at(BUSY, RULES, busy(60, gpu={**QUIET, "util_pct": 89.0})) is None

    def test_ninety_is_enough(self):
        assert raised_at(BUSY, RULES, busy(30, gpu={**QUIET, "util_pct": 90.0})) == 10

    def test_cleared_when_the_sms_get_to_work(self):
        frames = busy(60, gpu={**QUIET, "gpm.sm_active_pct": changing((0, 25.0), (20, 84.0))})
        assert raised_at(BUSY, RULES, frames[:20]) == 10
        assert BUSY not in everything_raised(frames)

    def test_a_healthy_gpu_gives_nothing(self):
        assert everything_raised(busy(60)) == set()

    def test_it_says_which_gpu_and_both_numbers_in_one_line(self):
        found = symptom(BUSY, RULES, busy(30, gpus=2, each_gpu={1: QUIET}))
        assert found.subject.label == "GPU 1"
        assert found.headline == "GPU 1 reads 98 % busy, but its SMs work only 25 % of the time"
        assert found.severity is Severity.WARNING

    def test_the_evidence_has_every_number_with_its_threshold(self):
        found = symptom(BUSY, RULES, busy(30, gpu=QUIET))
        by_name = {e.name.removeprefix("GPU 0 "): e for e in found.evidence}
        assert by_name["utilisation"].value == 98.0
        assert by_name["utilisation"].threshold == 90.0
        assert by_name["SM active"].value == pytest.approx(25.0)
        assert by_name["SM active"].threshold == 50.0
        assert by_name["SM occupancy"].value == pytest.approx(3.6)
        assert by_name["tensor pipe"].value == pytest.approx(3.1)
        assert by_name["DRAM bandwidth"].value == pytest.approx(17.8)
        assert by_name["power"].value == pytest.approx(100 * 262 / 700)
        assert all(e.window_s == 10.0 and e.source for e in found.evidence)

    def test_without_gpm_low_power_and_idle_memory_tell(self):
        frames = busy(30, gpu={**QUIET, **NO_GPM})
        assert raised_at(BUSY, RULES, frames) == 10
        found = symptom(BUSY, RULES, frames)
        assert found.headline == "GPU 0 reads 98 % busy at 37 % of its power limit, memory 12 % busy"
        (sm,) = [e for e in found.evidence if "SM active" in e.name]
        assert sm.value is None
        assert "Hopper" in sm.missing

    @pytest.mark.parametrize("near_miss", [{"power_w": 0.46 * 700}, {"mem_util_pct": 20.0}])
    def test_without_gpm_near_misses(self, near_miss):
        assert raised_at(BUSY, RULES, busy(60, gpu={**QUIET, **NO_GPM, **near_miss})) is None

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"util_pct": None, "missing": {"util_pct": "Unknown Error"}}, "utilisation (Unknown Error)"),
            (
                {"gpm": None, "power_limit_w": None, "missing": {"power_limit_w": "Not Supported", "gpm": "old"}},
                "GPM counters (old), or power and its limit (Not Supported)",
            ),
            ({"gpm": None, "mem_util_pct": None, "missing": {"mem_util_pct": "gone", "gpm": "old"}}, "gone"),
            ({"mig_enabled": True}, "MIG: utilisation isn't defined"),
        ],
    )
    def test_cant_tell_and_says_what_it_needs(self, fields, reason):
        (found,) = cant_tell(BUSY, RULES, busy(15, gpu={**QUIET, **fields}))
        assert reason in found.needs
        assert raised_at(BUSY, RULES, busy(30, gpu={**QUIET, **fields})) is None

    def test_an_idle_gpu_needs_no_counters_to_be_judged(self):
        (check,) = checks(BY_ID[BUSY], busy(12, gpu={**QUIET, "util_pct": 3.0, **NO_GPM}))
        assert check.state is State.CLEAR

    def test_a_gpu_that_no_engine_uses_is_not_judged(self):
        nobodys = busy(30, gpus=2, each_gpu={1: QUIET}, process={641: {"gpus": ()}})
        assert raised_at(BUSY, RULES, nobodys) is None

    def test_readings_that_stopped_coming_say_nothing_about_now(self):
        def silent(frame, s):
            return replace(frame, gpus=replace(frame.gpus, age_s=float(s)))

        frames = busy(90, gpu=QUIET, edit=silent)
        assert checks(BY_ID[BUSY], frames[:15])
        assert checks(BY_ID[BUSY], frames[:17]) == []
        assert BUSY in everything_raised(frames[:20])
        assert BUSY not in everything_raised(frames)

    def test_noise_around_the_thresholds_does_not_flap(self):
        for name, middle, spread in (("gpm.sm_active_pct", 50.0, 8.0), ("util_pct", 90.0, 6.0)):
            assert changes(BUSY, busy(300, gpu={**QUIET, name: noisy(middle, spread)})) <= 1

    def test_eager_mode_and_a_full_core_speak_for_small_kernels(self):
        eager = {"argv": ("vllm", "serve", "m", "--enforce-eager")}
        found = symptom(BUSY, RULES, busy(30, gpu=QUIET, target=eager, load={CORE: {"main_thread_pct": 97.0}}))
        small = cause(found, "small kernels")
        assert found.causes[0] is small
        assert any("eager" in text for text in small.speaks_for)
        assert any("97 %" in text for text in small.speaks_for)
        assert not small.speaks_against

    def test_a_host_that_keeps_up_speaks_against_small_kernels(self):
        assert cause(symptom(BUSY, RULES, busy(30, gpu=QUIET)), "small kernels").speaks_against

    def test_few_sequences_speak_for_latency_bound_kernels_and_many_against(self):
        few = symptom(BUSY, RULES, busy(30, gpu=QUIET, live={"running": 8.0}))
        many = symptom(BUSY, RULES, busy(30, gpu=QUIET, live={"running": 256.0}))
        assert any("8 sequences" in text for text in cause(few, "latency-bound").speaks_for)
        assert any("256 sequences" in text for text in cause(many, "latency-bound").speaks_against)

    def test_waiting_for_another_gpu_is_possible_only_with_another_gpu(self):
        alone = symptom(BUSY, RULES, busy(30, gpu=QUIET))
        assert cause(alone, "NCCL").speaks_against
        found = next(s for s in reports(RULES, busy(30, gpus=2, gpu=QUIET))[-1].active if s.id == BUSY)
        assert any("all 2 GPUs" in text for text in cause(found, "NCCL").speaks_for)


ON_ITS_GPUS = (
    "gpu-busy-not-working",
    "gpu-starved",
    "bandwidth-bound",
    "compute-bound",
    "copy-bound",
    "memory-spike",
    "noisy-neighbour",
    "power-capped",
)


@pytest.mark.parametrize("rule", ON_ITS_GPUS)
class TestEnginesWhoseGpusAreNotKnown:
    def test_the_reason_is_told(self, rule):
        nowhere = {CORE: {"gpus": (), "note": "its GPU can't be told: needs root or the same user"}}
        (found,) = cant_tell(rule, RULES, busy(15, process=nowhere))
        assert found.subject.key.startswith("engine:")
        assert found.needs == "which GPUs the engine uses (its GPU can't be told: needs root or the same user)"

    def test_an_engine_that_is_only_an_address_is_somewhere_else(self, rule):
        remote = busy(15, target={"processes": (), "root_pid": None})
        assert "known by its address only" in cant_tell(rule, RULES, remote)[0].needs

    def test_where_there_is_no_gpu_there_is_nothing_to_tell(self, rule):
        def without(frame, _s):
            return replace(frame, gpus=replace(frame.gpus, value=replace(frame.gpus.value, gpus=())))

        assert cant_tell(rule, RULES, busy(15, process={CORE: {"gpus": ()}}, edit=without)) == ()


class TestStarved:
    def test_raised_while_requests_run_and_the_gpu_idles(self):
        assert raised_at("gpu-starved", RULES, busy(30, gpu={"util_pct": 45.0})) == 10

    def test_near_miss_sixty_percent(self):
        assert raised_at("gpu-starved", RULES, busy(60, gpu={"util_pct": 60.0})) is None

    def test_silent_while_nothing_runs(self):
        assert raised_at("gpu-starved", RULES, busy(60, gpu={"util_pct": 3.0}, live={"running": 0.0})) is None

    def test_silent_where_requests_only_come_now_and_then(self):
        now_and_then = {"running": lambda s: 1.0 if s % 6 < 3 else 0.0}
        assert raised_at("gpu-starved", RULES, busy(90, gpu={"util_pct": 30.0}, live=now_and_then)) is None

    def test_a_rank_without_requests_starves_of_nothing(self):
        ranks = ({"running": 40.0}, {"running": 0.0})
        process = {640: {"rank": "DP0"}, 641: {"rank": "DP1"}}
        idle = busy(30, gpus=2, ranks=ranks, process=process, each_gpu={1: {"util_pct": 2.0}})
        assert raised_at("gpu-starved", RULES, idle) is None
        working = busy(30, gpus=2, ranks=ranks, process=process, each_gpu={0: {"util_pct": 45.0}})
        assert raised_at("gpu-starved", RULES, working, subject="gpu:0") == 10
        assert "with 40 requests running" in symptom("gpu-starved", RULES, working).headline

    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ({"gpu": {"util_pct": None, "missing": {"util_pct": "Unknown Error"}}}, "Unknown Error"),
            ({"gpu": {"util_pct": 30.0}, "live": {"running": None}}, "running requests"),
            ({"gpu": {"util_pct": 30.0, "mig_enabled": True}}, "MIG"),
        ],
    )
    def test_cant_tell(self, more, reason):
        (found,) = cant_tell("gpu-starved", RULES, busy(15, **more))
        assert reason in found.needs

    def test_cant_tell_from_a_page_that_stands_still(self):
        frames = busy(60, gpu={"util_pct": 30.0}, scrape={"at": 2, "error": "no answer within 2 s"})
        assert any("30 s old" in c.needs or "old" in c.needs for c in cant_tell("gpu-starved", RULES, frames))

    def test_evidence_and_headline(self):
        frames = busy(30, gpu={"util_pct": 45.0}, load={CORE: {"main_thread_pct": 97.0}}, live={"waiting": 3.0})
        found = symptom("gpu-starved", RULES, frames)
        assert found.headline == "GPU 0 is busy only 45 % of the time with 64 requests running; a thread at 97 % CPU"
        assert number(found, "utilisation") == 45.0
        assert number(found, "running") == 64.0
        assert number(found, "waiting") == 3.0
        assert number(found, "busiest thread") == pytest.approx(97.0)
        assert found.next_capture == "kineto"

    def test_a_full_core_speaks_for_the_host_and_an_idle_one_for_waiting_on_each_step(self):
        full = symptom("gpu-starved", RULES, busy(30, gpu={"util_pct": 45.0}, load={CORE: {"main_thread_pct": 97.0}}))
        relaxed = symptom("gpu-starved", RULES, busy(30, gpu={"util_pct": 45.0}))
        assert cause(full, "the host is the limit").speaks_for
        assert cause(relaxed, "the host is the limit").speaks_against
        assert cause(relaxed, "each step waits").speaks_for

    def test_waiting_for_a_disk_is_a_cause_with_iowait(self):
        def waits(frame, _s):
            return replace(frame, host=replace(frame.host, value=replace(frame.host.value, iowait_pct=22.0)))

        found = symptom("gpu-starved", RULES, busy(30, gpu={"util_pct": 45.0}, edit=waits))
        assert cause(found, "disk").speaks_for == ("22.0 % of CPU time waits for I/O",)

    def test_noise_around_the_threshold_does_not_flap(self):
        assert changes("gpu-starved", busy(300, gpu={"util_pct": noisy(60.0, 8.0)})) <= 1


class TestRecordedLoads:
    """NVML and GPM of an H200 under real load."""

    def record(self, *names):
        return readings(FakeNvml.from_h200(*(CAPTURES / "h200" / f"nvml_{n}.json" for n in names)), 30)

    def test_idle_gives_nothing(self):
        assert problems(on(self.record("idle"), live={"running": 0.0, "generation_tokens_per_s": 0.0})) == set()

    def test_vllm_at_40_to_55_percent_utilisation_is_starved_and_not_busy(self):
        frames = on(self.record("vllm-load-1", "vllm-load-2", "vllm-load-3"), load={CORE: {"main_thread_pct": 96.8}})
        assert max(f.gpus.value.gpus[0].util_pct for f in frames) < 90
        assert {"gpu-starved", "host-bound"} <= problems(frames)
        assert BUSY not in problems(frames)

    def test_the_same_counters_with_utilisation_near_100_are_busy_and_not_working(self):
        nodes = self.record("vllm-load-1", "vllm-load-2", "vllm-load-3")
        full = [replace(n, gpus=(replace(n.gpus[0], util_pct=99.0),)) for n in nodes]
        found = symptom(BUSY, RULES, on(full))
        assert 20 < number(found, "SM active") < 32
        assert found.confidence == "high"

    def test_eager_torch_between_two_steps_is_starved(self):
        assert "gpu-starved" in problems(on(self.record("torch-eager")))
