"""memory-spike and noisy-neighbour."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import GpuProcess, MigInstance, TargetList
from gputop_llm.model.symptom import Severity
from tests.support.frames import target
from tests.support.gpu_frames import GIB, RULES, changes, noisy, problems
from tests.support.symptom_frames import (
    AT_S,
    CORE,
    busy,
    cant_tell,
    cause,
    changing,
    number,
    raised_at,
    symptom,
)

TOTAL = 140 * GIB
CORE_PROCESS = GpuProcess(CORE, "compute", 70 * GIB, 95.0, None)


def used(*steps, total=TOTAL):
    return {"mem_total_bytes": total, "mem_used_bytes": changing(*((at, int(share * total)) for at, share in steps))}


class TestMemorySpike:
    def test_a_jump_is_raised_within_seconds_and_stays_in_sight(self):
        frames = busy(60, gpu=used((0, 0.60), (20, 0.66)))
        assert raised_at("memory-spike", RULES, frames) == 22
        assert raised_at("memory-spike", RULES, frames[:55]) == 22
        assert "memory-spike" in problems(frames[:55])

    def test_near_miss_five_percent(self):
        assert raised_at("memory-spike", RULES, busy(60, gpu=used((0, 0.60), (20, 0.649)))) is None

    def test_growth_over_minutes_is_no_jump(self):
        slow = {"mem_total_bytes": TOTAL, "mem_used_bytes": lambda s: int((0.5 + 0.001 * s) * TOTAL)}
        assert raised_at("memory-spike", RULES, busy(240, gpu=slow)) is None

    def test_a_server_that_preallocated_nearly_all_is_not_growing(self):
        assert raised_at("memory-spike", RULES, busy(60, gpu=used((0, 0.985)))) is None

    def test_growth_past_97_percent(self):
        filling = {"mem_total_bytes": TOTAL, "mem_used_bytes": lambda s: int(min(0.99, 0.955 + 0.0005 * s) * TOTAL)}
        frames = busy(60, gpu=filling)
        # 97 % is passed in second 31.
        assert 31 <= raised_at("memory-spike", RULES, frames) <= 34
        assert symptom("memory-spike", RULES, frames).severity is Severity.CRITICAL

    def test_silent_while_the_engine_starts(self):
        young = {"started_s": AT_S - 60}
        assert raised_at("memory-spike", RULES, busy(40, gpu=used((0, 0.1), (20, 0.9)), target=young)) is None

    def test_what_the_engine_took_while_it_started_is_no_spike_later(self):
        young = {"started_s": AT_S - 110}
        assert raised_at("memory-spike", RULES, busy(60, gpu=used((0, 0.1), (8, 0.9)), target=young)) is None

    def test_silent_while_the_engine_has_not_answered_yet(self):
        def silent(frame, _s):
            return replace(frame, engines=(replace(frame.engines[0], window=None),))

        assert raised_at("memory-spike", RULES, busy(40, gpu=used((0, 0.1), (20, 0.9)), edit=silent)) is None

    def test_cant_tell_without_a_memory_figure(self):
        gpu = {"mem_used_bytes": None, "missing": {"mem_used_bytes": "no permission"}}
        (found,) = cant_tell("memory-spike", RULES, busy(15, gpu=gpu))
        assert found.needs == "the used memory (no permission)"

    def test_the_memory_of_the_mig_instance_counts(self):
        def instance(share):
            return MigInstance(2, 0, "MIG-a", "3g.71gb", int(share * 70 * GIB), 70 * GIB, 60)

        slices = changing((0, (instance(0.6),)), (20, (instance(0.7),)))
        gpu = {"mig_enabled": True, "mem_used_bytes": None, "mig_instances": slices}
        frames = busy(40, gpu=gpu, process={CORE: {"mig_instance": 2}})
        assert raised_at("memory-spike", RULES, frames, subject="gpu:0/mig:2") == 22
        assert symptom("memory-spike", RULES, frames).headline.startswith("GPU 0 MIG instance 2 memory grew by 7.0 GiB")

    def test_evidence_has_before_after_and_the_processes(self):
        other = GpuProcess(900, "compute", 4 * GIB, 0.0, None)
        gpu = {
            **used((0, 0.60), (20, 0.70)),
            "processes": changing((0, (CORE_PROCESS,)), (20, (CORE_PROCESS, replace(other, mem_bytes=14 * GIB)))),
        }
        found = symptom("memory-spike", RULES, busy(26, gpu=gpu))
        assert number(found, "memory before") == pytest.approx(0.60 * TOTAL)
        assert number(found, "memory now") == pytest.approx(0.70 * TOTAL)
        assert number(found, "growth") == pytest.approx(10.0)
        (process,) = [e for e in found.evidence if e.name == "PID 900"]
        assert process.text == "0 B before, 14.0 GiB now"
        assert found.causes[0].text == "another process on this GPU"
        assert found.headline == "GPU 0 memory grew by 14.0 GiB in 10 s to 70 %, 42.0 GiB left"

    def test_growth_of_the_engines_own_process_speaks_for_its_allocator_and_against_others(self):
        grown = replace(CORE_PROCESS, mem_bytes=84 * GIB)
        gpu = {**used((0, 0.60), (20, 0.70)), "processes": changing((0, (CORE_PROCESS,)), (20, (grown,)))}
        found = symptom("memory-spike", RULES, busy(26, gpu=gpu))
        assert cause(found, "peak of activations").speaks_for
        assert cause(found, "fragmentation").speaks_for
        assert cause(found, "another process").speaks_against

    def test_noise_around_the_thresholds_does_not_flap(self):
        for share in (noisy(60.0, 2.2), noisy(97.0, 0.4)):
            gpu = {"mem_total_bytes": TOTAL, "mem_used_bytes": lambda s, share=share: int(share(s) / 100 * TOTAL)}
            assert changes("memory-spike", busy(300, gpu=gpu)) <= 1


def neighbour(pid=4471, *, sm=34.0, mem=20 * GIB, **process):
    """A process on GPU 0 that is somebody else's, and the target that discovery makes of it."""
    base = target(f"cuda:{pid}", gpus=(0,))
    (_, core) = base.processes
    mine = {"pid": pid, "nvml_pid": pid, "role": "other", "title": "python train.py --lr 3e-4", **process}
    found = replace(base, engine="cuda", user="alice", urls=(), argv=(), model=None, processes=(replace(core, **mine),))
    return GpuProcess(pid, "compute", mem, sm, None), found


def shared(seconds, found, **more):
    """An engine's GPU with another process on it."""
    process, owner = found

    def edit(frame, s):
        on_gpu = process(s) if callable(process) else process
        gpu = frame.gpus.value.gpus[0]
        gpu = replace(gpu, processes=(CORE_PROCESS, on_gpu), **more)
        targets = TargetList((*frame.targets.value.targets, owner))
        return replace(
            frame,
            gpus=replace(frame.gpus, value=replace(frame.gpus.value, gpus=(gpu,))),
            targets=replace(frame.targets, value=targets),
        )

    return busy(seconds, edit=edit)


class TestNoisyNeighbour:
    def test_raised_when_another_process_uses_the_sms(self):
        frames = shared(30, neighbour())
        assert raised_at("noisy-neighbour", RULES, frames) == 10
        found = symptom("noisy-neighbour", RULES, frames)
        assert found.headline == "GPU 0 also works for PID 4471 (alice: python train.py --lr 3e-4): SM 34 %"
        assert number(found, "PID 4471, SM utilisation") == pytest.approx(34.0)
        assert number(found, "PID 4471, memory") == 20 * GIB
        assert [e.text for e in found.evidence if "whose" in e.name] == ["alice: python train.py --lr 3e-4"]

    def test_near_miss(self):
        assert raised_at("noisy-neighbour", RULES, shared(60, neighbour(sm=5.0))) is None

    def test_memory_that_grows_counts_and_memory_that_does_not_is_silent(self):
        def growing(s):
            return GpuProcess(4471, "compute", int((20 + 0.2 * s) * GIB), 0.0, None)

        _, owner = neighbour()
        frames = shared(40, (growing, owner))
        assert raised_at("noisy-neighbour", RULES, frames) <= 20
        assert "memory" in symptom("noisy-neighbour", RULES, frames).headline
        assert raised_at("noisy-neighbour", RULES, shared(60, neighbour(sm=0.0))) is None

    def test_the_engines_own_processes_are_no_neighbours(self):
        assert raised_at("noisy-neighbour", RULES, busy(60, gpus=2)) is None

    @pytest.mark.parametrize("title", ["nvidia-cuda-mps-server", "/usr/bin/nvidia-cuda-mps-server -force-tegra"])
    def test_the_mps_server_in_whose_name_the_engine_computes_is_no_neighbour(self, title):
        assert raised_at("noisy-neighbour", RULES, shared(60, neighbour(title=title))) is None

    def test_a_pid_of_the_host_that_cannot_be_seen_is_not_counted(self):
        hidden = neighbour(pid=None, nvml_pid=56752, unseen="pid-namespace", title="host PID, not visible")
        process = GpuProcess(56752, "compute", 32 * GIB, 100.0, None)
        assert raised_at("noisy-neighbour", RULES, shared(60, (process, hidden[1]))) is None

    def test_a_hidden_users_process_is_counted(self):
        _, owner = neighbour(pid=None, nvml_pid=4471, unseen="other-user", title="another user (hidden)")
        owner = replace(owner, user=None)
        frames = shared(30, (GpuProcess(4471, "compute", 20 * GIB, 34.0, None), owner))
        assert raised_at("noisy-neighbour", RULES, frames) == 10
        assert "another user (hidden)" in symptom("noisy-neighbour", RULES, frames).headline

    def test_another_mig_instance_is_no_neighbour_on_compute_and_its_own_instance_is(self):
        def mig(instance):
            process, owner = neighbour(mig_instance=instance)
            slices = tuple(MigInstance(i, 0, f"MIG-{i}", "3g.71gb", 40 * GIB, 70 * GIB, 60) for i in (1, 2))
            frames = shared(
                30, (replace(process, gpu_instance=instance), owner), mig_enabled=True, mig_instances=slices
            )
            return [_on_instance(f, 2) for f in frames]

        assert raised_at("noisy-neighbour", RULES, mig(1)) is None
        assert raised_at("noisy-neighbour", RULES, mig(2), subject="gpu:0/mig:2") == 10

    def test_a_second_engine_on_the_gpu_is_one_and_is_told_apart(self):
        process, owner = neighbour()
        frames = shared(30, (process, replace(owner, engine="vllm")))
        assert cause(symptom("noisy-neighbour", RULES, frames), "second engine").speaks_for

    def test_what_is_left_of_a_killed_engine_is_told_apart(self):
        process, owner = neighbour()
        frames = shared(30, (process, replace(owner, engine="vllm", orphan=True)))
        found = symptom("noisy-neighbour", RULES, frames)
        assert cause(found, "what is left").speaks_for
        assert not cause(found, "second engine").speaks_for

    @pytest.mark.parametrize(
        ("gpu", "reason"),
        [
            ({"processes": None, "missing": {"processes": "Not Supported"}}, "list of processes"),
            (
                {"missing": {"processes.mem_bytes": "the driver does not tell the memory of 1 of 1 processes"}},
                "memory by process",
            ),
        ],
    )
    def test_cant_tell(self, gpu, reason):
        (found,) = cant_tell("noisy-neighbour", RULES, busy(15, gpu=gpu))
        assert reason in found.needs

    def test_cant_tell_a_neighbour_without_sm_utilisation(self):
        frames = shared(15, neighbour(sm=None), missing={"processes.sm_util_pct": "Not Supported"})
        (found,) = cant_tell("noisy-neighbour", RULES, frames)
        assert "SM utilisation" in found.needs

    def test_a_long_command_is_cut(self):
        frames = shared(30, neighbour(title="python -m something.very.long " + "x" * 300))
        headline = symptom("noisy-neighbour", RULES, frames).headline
        assert len(headline) == 100
        assert headline.startswith("GPU 0 also works for PID 4471 (alice: python -m something.very.long xxx")
        assert headline.endswith("…): SM 34 %")

    def test_noise_around_the_threshold_does_not_flap(self):
        sm = noisy(5.0, 1.8)
        process, owner = neighbour()
        frames = shared(300, (lambda s: replace(process, sm_util_pct=sm(s)), owner))
        assert changes("noisy-neighbour", frames) <= 1


def _on_instance(frame, instance):
    first, *others = frame.targets.value.targets
    processes = tuple(replace(p, mig_instance=instance) if p.pid == CORE else p for p in first.processes)
    return replace(
        frame, targets=replace(frame.targets, value=TargetList((replace(first, processes=processes), *others)))
    )
