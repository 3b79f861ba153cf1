"""What the field cases say about the GPU-side rules, from NVML's answers to the symptoms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import TargetList, TargetProcess
from gputop_llm.sources.cuda_processes import HIDDEN_USER, HOST_PID
from tests.support.frames import target
from tests.support.gpu_frames import RULES, case, on, problems
from tests.support.symptom_frames import CORE, cant_tell, raised_at, symptom


def with_others(frames, *processes):
    """The same frames with these processes found on GPU 0, none of them of the engine."""
    others = tuple(
        replace(target(f"cuda:nvml-{p.nvml_pid}:0"), engine="cuda", urls=(), user=None, processes=(p,))
        for p in processes
    )
    return [
        replace(f, targets=replace(f.targets, value=TargetList((*f.targets.value.targets, *others)))) for f in frames
    ]


def unseen(nvml_pid, why, kind):
    return TargetProcess(None, None, "other", why, gpus=(0,), gpus_from="nvml", nvml_pid=nvml_pid, unseen=kind)


class Test02Mig:
    """An A100 with MIG: the parent GPU has no utilisation; the engine is on GPU instance 2."""

    def frames(self, **more):
        return on(case(2), process={CORE: {"nvml_pid": 901, "mig_instance": 2}}, **more)

    @pytest.mark.parametrize("rule", ["gpu-busy-not-working", "gpu-starved", "bandwidth-bound", "compute-bound"])
    def test_rules_on_utilisation_cant_tell_because_of_mig(self, rule):
        (found,) = cant_tell(rule, RULES, self.frames())
        assert "MIG" in found.needs

    def test_starved_does_not_fire(self):
        assert raised_at("gpu-starved", RULES, self.frames()) is None

    def test_the_other_instance_is_no_neighbour(self):
        gpu = self.frames()[0].gpus.value.gpus[0]
        strangers = [
            TargetProcess(p.pid, 1, "other", "python train.py", gpus=(0,), nvml_pid=p.pid, mig_instance=p.gpu_instance)
            for p in gpu.processes
            if p.gpu_instance != 2
        ]
        assert strangers, "the case has a process on another instance"
        assert raised_at("noisy-neighbour", RULES, with_others(self.frames(), *strangers)) is None

    def test_memory_is_judged_on_the_instance(self):
        assert cant_tell("memory-spike", RULES, self.frames()) == ()


class Test03VgpuGuest:
    @pytest.mark.parametrize("rule", ["power-capped", "thermal-throttled", "hw-slowdown", "link-degraded", "gpu-fault"])
    def test_health_rules_cant_tell_because_it_is_a_vgpu_guest(self, rule):
        (found,) = cant_tell(rule, RULES, on(case(3, 12)))
        assert found.needs.startswith("vGPU guest")
        assert raised_at(rule, RULES, on(case(3))) is None


class Test04Wsl:
    def test_a_neighbour_cannot_be_judged_by_memory_and_it_says_so(self):
        frames = on(case(4), process={CORE: {"nvml_pid": 79}})
        (found,) = cant_tell("noisy-neighbour", RULES, frames)
        assert "memory by process" in found.needs

    def test_utilisation_that_is_missing_every_second_time_fires_nothing(self):
        assert problems(on(case(4), process={CORE: {"nvml_pid": 79}})) == set()


class Test05PowerLimit:
    @pytest.mark.parametrize("index", [0, 1])
    def test_without_a_limit_the_power_cap_and_the_share_of_it_cant_be_told(self, index):
        frames = on([replace(node, gpus=(_alone(node.gpus[index]),)) for node in case(5)])
        for rule in ("power-capped", "gpu-busy-not-working"):
            (found,) = cant_tell(rule, RULES, frames)
            assert "power and its limit" in found.needs
        assert problems(frames) == set()


def _alone(gpu):
    """The case's GPU as the only one, at full utilisation."""
    return replace(gpu, index=0, util_pct=99.0)


class Test07HostPids:
    """NVML lists host PID 56752 with 100 % utilisation; it can't be seen in this container."""

    def test_the_pid_of_the_host_is_not_counted_as_a_neighbour(self):
        frames = on(case(7), process={CORE: {"nvml_pid": None, "gpus_from": "inferred"}})
        assert {p.pid for p in frames[0].gpus.value.gpus[0].processes} == {56752}
        frames = with_others(frames, unseen(56752, HOST_PID, "pid-namespace"))
        assert raised_at("noisy-neighbour", RULES, frames) is None


class Test08HiddenUsers:
    def test_another_users_hidden_process_is_counted(self):
        frames = with_others(on(case(8), process={CORE: {"nvml_pid": 8100}}), unseen(4471, HIDDEN_USER, "other-user"))

        def loud(frame):
            gpu = frame.gpus.value.gpus[0]
            processes = tuple(replace(p, sm_util_pct=30.0 if p.pid == 4471 else 60.0) for p in gpu.processes)
            missing = {k: v for k, v in gpu.missing.items() if not k.startswith("processes")}
            gpu = replace(gpu, processes=processes, missing=missing)
            return replace(frame, gpus=replace(frame.gpus, value=replace(frame.gpus.value, gpus=(gpu,))))

        found = symptom("noisy-neighbour", RULES, [loud(frame) for frame in frames])
        assert "PID 4471 (another user (hidden))" in found.headline


class Test09Zombie:
    def test_memory_that_a_zombie_still_holds_is_no_noise(self):
        frames = on(case(9), process={CORE: {"nvml_pid": 1}})
        zombie = TargetProcess(7302, 7300, "other", "", gpus=(0,), gpus_from="nvml", nvml_pid=7302, state="Z")
        assert raised_at("noisy-neighbour", RULES, with_others(frames, zombie)) is None


class Test34RunningButNoToken:
    """Utilisation 100 % at a third of the power limit: a spinning wait."""

    def test_the_gpu_reads_busy_without_working(self):
        frames = on(case(34, 5)[-1:] * 30)
        found = symptom("gpu-busy-not-working", RULES, frames)
        assert found.headline == "GPU 0 reads 100 % busy at 31 % of its power limit, memory 2 % busy"

    def test_before_that_it_drew_power_and_was_not_flagged(self):
        assert raised_at("gpu-busy-not-working", RULES, on(case(34, 1) * 30)) is None
