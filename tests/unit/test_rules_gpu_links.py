"""comm-bound, copy-bound and link-degraded, and what a PCIe link can carry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import LoraState
from gputop_llm.model.pcie import link_bytes_per_s, link_name
from tests.support.gpu_frames import BY_ID, GIB, RULES, changes, noisy
from tests.support.symptom_frames import busy, cant_tell, cause, changing, checks, number, raised_at, reports, symptom

X16 = 32e9 * 128 / 130 * 16 / 8
SPINNING = {"util_pct": 100.0, "gpm.sm_active_pct": 22.0}
OVER_PCIE = {**SPINNING, "pcie_tx_bytes_per_s": 0.11 * X16}
OVER_NVLINK = {**SPINNING, "nvlink_tx_bytes_per_s": 60e9, "nvlink_rx_bytes_per_s": 55e9}
COPYING = {"pcie_rx_bytes_per_s": 0.42 * X16}


@pytest.mark.parametrize(
    ("generation", "width", "expected"),
    [(1, 16, 4e9), (2, 16, 8e9), (3, 16, 15.754e9), (4, 8, 15.754e9), (5, 16, 63.015e9), (6, 16, 121e9)],
)
def test_a_link_carries_its_line_rate_less_encoding(generation, width, expected):
    assert link_bytes_per_s(generation, width) == pytest.approx(expected, rel=1e-3)
    assert link_name(generation, width) == f"gen{generation} x{width}"


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (5, None), (9, 16), (5, 0)])
def test_an_unknown_link_carries_an_unknown_amount(generation, width):
    assert link_bytes_per_s(generation, width) is None


class TestCommBound:
    @pytest.mark.parametrize("gpu", [OVER_PCIE, OVER_NVLINK], ids=["PCIe", "NVLink"])
    def test_raised_when_all_gpus_read_busy_with_few_sms_and_much_traffic(self, gpu):
        assert raised_at("comm-bound", RULES, busy(30, gpus=2, gpu=gpu)) == 10

    @pytest.mark.parametrize(
        "gpu",
        [
            {**OVER_PCIE, "pcie_tx_bytes_per_s": 0.099 * X16},
            {**OVER_PCIE, "gpm.sm_active_pct": 50.0},
            {**OVER_PCIE, "util_pct": 89.0},
        ],
        ids=["traffic", "SM active", "utilisation"],
    )
    def test_near_miss(self, gpu):
        assert raised_at("comm-bound", RULES, busy(60, gpus=2, gpu=gpu)) is None

    def test_one_gpu_that_is_not_busy_is_enough_to_clear_it(self):
        frames = busy(60, gpus=2, gpu=OVER_PCIE, each_gpu={1: {"util_pct": 80.0}})
        assert raised_at("comm-bound", RULES, frames) is None

    def test_a_spread_between_the_ranks_names_the_slow_one(self):
        frames = busy(30, gpus=4, each_gpu={2: {"util_pct": 61.0}})
        assert raised_at("comm-bound", RULES, frames) == 10
        found = symptom("comm-bound", RULES, frames)
        assert found.headline == "GPU 2 (TP2) is 61 % busy, the ranks that wait for it up to 97 %"
        assert number(found, "spread of utilisation") == pytest.approx(36.0)
        assert "GPU 2 (TP2)" in found.causes[0].text
        assert found.causes[0].speaks_for

    def test_eight_gpus_fit_into_one_line(self):
        found = symptom("comm-bound", RULES, busy(30, gpus=8, gpu=OVER_NVLINK))
        assert found.headline == (
            "GPUs 0–7 read busy with SM active at most 22 %, NVLink at 13 %: they wait for each other"
        )

    def test_near_miss_a_spread_of_thirty_points(self):
        assert raised_at("comm-bound", RULES, busy(60, gpus=4, each_gpu={2: {"util_pct": 67.0}})) is None

    def test_data_parallel_ranks_wait_for_nobody(self):
        ranks = ({"running": 40.0}, {"running": 1.0})
        process = {640: {"rank": "DP0"}, 641: {"rank": "DP1"}}
        apart = {"each_gpu": {1: {"util_pct": 20.0}}, "gpus": 2, "ranks": ranks, "process": process}
        assert raised_at("comm-bound", RULES, busy(60, **apart)) is None
        for flag in ("--enable-expert-parallel", "-ep"):
            experts = busy(30, **apart, target={"argv": ("vllm", "serve", "m", flag)})
            assert raised_at("comm-bound", RULES, experts) == 10

    def test_an_engine_on_one_gpu_is_not_judged_at_all(self):
        assert checks(BY_ID["comm-bound"], busy(12, gpu=OVER_PCIE)) == []

    def test_idle_ranks_wait_for_nothing(self):
        frames = busy(60, gpus=2, live={"running": 0.0}, each_gpu={0: {"util_pct": 0.0}, 1: {"util_pct": 40.0}})
        assert raised_at("comm-bound", RULES, frames) is None

    @pytest.mark.parametrize(
        ("each_gpu", "reason"),
        [
            ({1: {"util_pct": None, "missing": {"util_pct": "Unknown Error"}}}, "utilisation of GPU 1 (Unknown Error)"),
            (
                {0: {"gpm": None, "missing": {"gpm": "old GPU"}, "pcie_tx_bytes_per_s": 0.2 * X16}},
                "GPM counters of GPU 0 (old GPU)",
            ),
            ({0: {"mig_enabled": True}}, "MIG"),
            ({0: {"nvlink_tx_bytes_per_s": 5e9, "name": "Some board"}}, "what NVLink carries on Some board"),
        ],
    )
    def test_cant_tell(self, each_gpu, reason):
        (found,) = cant_tell("comm-bound", RULES, busy(15, gpus=2, gpu=SPINNING, each_gpu=each_gpu))
        assert reason in found.needs

    def test_evidence_has_each_gpus_load_and_links_and_what_is_not_polled(self):
        found = symptom("comm-bound", RULES, busy(30, gpus=2, gpu=OVER_NVLINK))
        for index in (0, 1):
            assert number(found, f"GPU {index} utilisation") == 100.0
            assert number(found, f"GPU {index} SM active") == pytest.approx(22.0)
            assert number(found, f"GPU {index} NVLink, busier direction") == pytest.approx(60e9)
            assert number(found, f"GPU {index} PCIe, busier direction") == pytest.approx(60e6)
        (topology,) = [e for e in found.evidence if e.name == "P2P topology"]
        assert topology.missing == "NVML did not say how they are joined"
        (nvlink,) = [e for e in found.evidence if e.name.startswith("GPU 0 NVLink")]
        assert "H200" in nvlink.source

    def test_traffic_on_pcie_speaks_for_tensor_parallelism_over_it_and_nvlink_against(self):
        pcie = symptom("comm-bound", RULES, busy(30, gpus=2, gpu=OVER_PCIE))
        nvlink = symptom("comm-bound", RULES, busy(30, gpus=2, gpu=OVER_NVLINK))
        assert any("PCIe at 11 %" in text for text in cause(pcie, "over PCIe").speaks_for)
        assert any("NVLink at 13 %" in text for text in cause(nvlink, "over PCIe").speaks_against)

    def test_a_low_clock_is_told_of_the_straggler(self):
        frames = busy(30, gpus=2, each_gpu={1: {"util_pct": 60.0, "sm_clock_mhz": 1410.0}})
        found = symptom("comm-bound", RULES, frames)
        assert any("1410 MHz" in text for text in cause(found, "straggler").speaks_for)

    def test_it_explains_gpus_that_are_busy_and_not_working(self):
        active = reports(RULES, busy(30, gpus=2, gpu=OVER_PCIE))[-1].active
        assert [(s.id, bool(s.root)) for s in active] == [
            ("comm-bound", False),
            ("gpu-busy-not-working", True),
            ("gpu-busy-not-working", True),
        ]

    def test_noise_around_the_thresholds_does_not_flap(self):
        for gpu in (
            {**OVER_PCIE, "pcie_tx_bytes_per_s": noisy(0.10 * X16, 0.03 * X16)},
            {**OVER_PCIE, "gpm.sm_active_pct": noisy(50.0, 8.0)},
        ):
            assert changes("comm-bound", busy(300, gpus=2, gpu=gpu)) <= 1
        assert changes("comm-bound", busy(300, gpus=2, each_gpu={1: {"util_pct": noisy(67.0, 8.0)}})) <= 1


class TestCopyBound:
    def test_raised_when_copies_fill_a_third_of_the_link_while_decoding(self):
        assert raised_at("copy-bound", RULES, busy(30, gpu=COPYING)) == 10

    @pytest.mark.parametrize("way", ["rx", "tx"])
    def test_near_miss(self, way):
        assert raised_at("copy-bound", RULES, busy(60, gpu={f"pcie_{way}_bytes_per_s": 0.299 * X16})) is None

    def test_the_link_that_is_there_counts_not_the_best_one(self):
        slow = {"pcie_rx_bytes_per_s": 0.42 * X16 / 4, "pcie_gen": 4, "pcie_width": 8}
        assert raised_at("copy-bound", RULES, busy(30, gpu=slow)) == 10

    def test_loading_a_model_is_not_decoding(self):
        frames = busy(60, gpu=COPYING, live={"generation_tokens_per_s": 0.0})
        assert raised_at("copy-bound", RULES, frames) is None

    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ({"gpu": {"pcie_gen": None, "missing": {"pcie_gen": "Not Supported"}}}, "generation and width"),
            (
                {
                    "gpu": {
                        "pcie_rx_bytes_per_s": None,
                        "pcie_tx_bytes_per_s": None,
                        "missing": {"pcie_rx_bytes_per_s": "needs two samples"},
                    }
                },
                "PCIe traffic (needs two samples)",
            ),
            ({"gpu": COPYING, "live": {"generation_tokens_per_s": None}}, "generated tokens"),
            ({"gpu": {**COPYING, "mig_enabled": True}}, "MIG"),
        ],
    )
    def test_cant_tell(self, more, reason):
        (found,) = cant_tell("copy-bound", RULES, busy(15, **more))
        assert reason in found.needs

    def test_evidence_and_headline(self):
        found = symptom("copy-bound", RULES, busy(30, gpu=COPYING))
        assert found.headline == "GPU 0 copies 24.6 GiB/s host to GPU while decoding: 42 % of gen5 x16"
        assert number(found, "PCIe host to GPU") == pytest.approx(0.42 * X16)
        assert number(found, "PCIe GPU to host") == pytest.approx(30e6)
        (rx,) = [e for e in found.evidence if "host to GPU" in e.name]
        assert rx.threshold == pytest.approx(0.3 * X16)
        assert "58.7 GiB/s" in rx.source

    def test_an_offloading_flag_speaks_for_offloading(self):
        argv = {"argv": ("vllm", "serve", "m", "--cpu-offload-gb=20")}
        offloading = symptom("copy-bound", RULES, busy(30, gpu=COPYING, target=argv))
        plain = symptom("copy-bound", RULES, busy(30, gpu=COPYING))
        assert cause(offloading, "offloaded").speaks_for
        assert cause(plain, "offloaded").speaks_against

    def test_waiting_adapters_speak_for_lora_swaps(self):
        lora = {"lora": LoraState(("a", "b"), ("c", "d", "e"), 2)}
        swapping = symptom("copy-bound", RULES, busy(30, gpu=COPYING, reading=lora))
        assert cause(swapping, "LoRA").speaks_for == ("3 adapters wait, 2 fit",)
        both = symptom("copy-bound", RULES, busy(30, gpu=COPYING, reading={"lora": LoraState(("a",), ("a",), 2)}))
        assert cause(both, "LoRA").speaks_for == ()
        assert cause(symptom("copy-bound", RULES, busy(30, gpu=COPYING)), "LoRA").speaks_against

    def test_the_direction_speaks_for_reading_back_or_against_it(self):
        back = symptom("copy-bound", RULES, busy(30, gpu={"pcie_tx_bytes_per_s": 0.42 * X16}))
        assert cause(back, "read back").speaks_for
        assert cause(symptom("copy-bound", RULES, busy(30, gpu=COPYING)), "read back").speaks_against

    def test_noise_around_the_threshold_does_not_flap(self):
        assert changes("copy-bound", busy(300, gpu={"pcie_rx_bytes_per_s": noisy(0.3 * X16, 0.08 * X16)})) <= 1


class TestLinkDegraded:
    @pytest.mark.parametrize("gpu", [{"pcie_gen": 4}, {"pcie_width": 8}])
    def test_raised_under_load(self, gpu):
        assert raised_at("link-degraded", RULES, busy(30, gpu=gpu)) == 10

    def test_an_idle_gpu_lowers_its_generation_by_design(self):
        idle = {"pcie_gen": 1, "util_pct": 3.0}
        assert raised_at("link-degraded", RULES, busy(60, gpu=idle, live={"running": 0.0})) is None

    def test_near_miss_the_link_wakes_up_with_the_load(self):
        waking = {"pcie_gen": changing((0, 1), (22, 5)), "util_pct": changing((0, 3.0), (20, 97.0))}
        assert raised_at("link-degraded", RULES, busy(60, gpu=waking)) is None

    def test_one_good_reading_under_load_is_enough(self):
        assert raised_at("link-degraded", RULES, busy(60, gpu={"pcie_gen": lambda s: 5 if s % 4 == 0 else 4})) is None

    def test_replays_that_come_in_and_near_miss(self):
        rising = {"pcie_replays": lambda s: 100 + s}
        assert raised_at("link-degraded", RULES, busy(30, gpu=rising)) == 15
        few = {"pcie_replays": lambda s: 100 + s // 40}
        assert raised_at("link-degraded", RULES, busy(150, gpu=few)) is None

    def test_old_replays_do_not_count(self):
        assert raised_at("link-degraded", RULES, busy(60, gpu={"pcie_replays": 9000})) is None

    def test_nvlink_errors(self):
        frames = busy(30, gpu={"nvlink_errors": lambda s: 7 if s < 5 else 9})
        assert raised_at("link-degraded", RULES, frames) == 15
        assert symptom("link-degraded", RULES, frames).headline == "GPU 0: 2 NVLink errors in two minutes"
        assert raised_at("link-degraded", RULES, busy(60, gpu={"nvlink_errors": 7})) is None

    def test_gpus_that_no_engine_uses_are_judged_too(self):
        frames = busy(30, gpus=2, each_gpu={1: {"pcie_width": 8}}, process={641: {"gpus": ()}})
        assert raised_at("link-degraded", RULES, frames, subject="gpu:1") == 10

    def test_cant_tell_in_a_vgpu_guest_and_says_so(self):
        fields = {"pcie_gen": None, "pcie_width": None, "pcie_replays": None, "missing": {"pcie_gen": "Not Supported"}}

        def guest(frame, _s):
            return replace(frame, gpus=replace(frame.gpus, value=replace(frame.gpus.value, vgpu_guest=True)))

        (found,) = cant_tell("link-degraded", RULES, busy(15, gpu=fields, edit=guest))
        assert found.needs.startswith("vGPU guest")

    def test_a_gpu_without_nvlink_lacks_nothing(self):
        assert cant_tell("link-degraded", RULES, busy(15)) == ()

    def test_evidence_and_causes(self):
        narrow = symptom("link-degraded", RULES, busy(30, gpu={"pcie_width": 8}))
        assert narrow.headline == (
            "GPU 0: PCIe link at gen5 x8 under load, gen5 x16 is possible (29.3 GiB/s of 58.7 GiB/s)"
        )
        assert {e.text for e in narrow.evidence if e.text} == {"gen5 x8 (29.3 GiB/s)", "gen5 x16 (58.7 GiB/s)"}
        assert cause(narrow, "seating").speaks_for == ("width 8 of 16",)
        assert not cause(narrow, "BIOS").speaks_for
        slow = symptom("link-degraded", RULES, busy(30, gpu={"pcie_gen": 3}))
        assert cause(slow, "BIOS").speaks_for == ("generation 3 of 5",)
        replaying = symptom("link-degraded", RULES, busy(30, gpu={"pcie_replays": lambda s: s}))
        assert cause(replaying, "BIOS").speaks_against
        assert number(replaying, "PCIe replays") == 29

    def test_it_explains_copies_that_fill_the_link(self):
        frames = busy(30, gpu={"pcie_width": 4, "pcie_rx_bytes_per_s": 9 * GIB})
        assert [s.id for s in reports(RULES, frames)[-1].active] == ["link-degraded", "copy-bound"]
