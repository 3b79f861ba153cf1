"""power-capped, thermal-throttled, hw-slowdown and gpu-fault, and the table of Xids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import XidEvent
from gputop_llm.model.symptom import Severity
from gputop_llm.symptoms.rules import tpot
from gputop_llm.symptoms.xids import ACTIONS, SOURCE, lookup
from tests.support.gpu_frames import RULES, changes, noisy, problems, throttle
from tests.support.symptom_frames import AT_S, busy, cant_tell, cause, changing, number, raised_at, reports, symptom

LOW = {"sm_clock_mhz": 1410.0}
CAPPED = {**LOW, "throttle": throttle(sw_power_cap=62.0), "power_w": 696.0}
HOT = {**LOW, "throttle": throttle(sw_thermal=45.0), "temp_c": 88.0}
BRAKED = {"sm_clock_mhz": 990.0, "throttle": throttle(hw_power_brake=80.0, hw_slowdown=True)}
KINDS = [("power-capped", CAPPED), ("thermal-throttled", HOT), ("hw-slowdown", BRAKED)]
NOBODYS = {641: {"gpus": ()}}


def guest(frame, _s):
    """The same node as a vGPU guest."""
    return replace(frame, gpus=replace(frame.gpus, value=replace(frame.gpus.value, vgpu_guest=True)))


class TestClocks:
    @pytest.mark.parametrize(("rule", "gpu"), KINDS)
    def test_raised_after_ten_seconds_and_alone(self, rule, gpu):
        frames = busy(30, gpu=gpu)
        assert raised_at(rule, RULES, frames) == 10
        assert problems(frames) == {rule}

    @pytest.mark.parametrize(
        ("rule", "reason"),
        [
            ("power-capped", "sw_power_cap"),
            ("thermal-throttled", "sw_thermal"),
            ("thermal-throttled", "hw_thermal"),
            ("hw-slowdown", "hw_power_brake"),
        ],
    )
    def test_near_misses_of_share_and_clock(self, rule, reason):
        assert raised_at(rule, RULES, busy(30, gpu={**LOW, "throttle": throttle(**{reason: 31.0})})) == 10
        assert raised_at(rule, RULES, busy(60, gpu={**LOW, "throttle": throttle(**{reason: 30.0})})) is None
        clock = {"sm_clock_mhz": 0.951 * 1980, "throttle": throttle(**{reason: 90.0})}
        assert raised_at(rule, RULES, busy(60, gpu=clock)) is None

    @pytest.mark.parametrize("reason", ["idle", "app_clocks", "sync_boost", "display_clocks"])
    def test_idle_and_chosen_clocks_are_no_slowdown(self, reason):
        assert problems(busy(60, gpu={**LOW, "throttle": throttle(**{reason: 100.0})})) == set()

    def test_a_momentary_bit_counts_by_how_many_readings_have_it(self):
        bits = [replace(t, share_pct=None, source="bit") for t in throttle()]
        on = tuple(replace(t, active=True) if t.name == "sw_power_cap" else t for t in bits)
        half = {**CAPPED, "throttle": lambda s: on if s % 2 else tuple(bits)}
        rare = {**CAPPED, "throttle": lambda s: on if s % 5 == 0 else tuple(bits)}
        assert raised_at("power-capped", RULES, busy(40, gpu=half)) is not None
        assert raised_at("power-capped", RULES, busy(60, gpu=rare)) is None

    def test_the_general_bit_belongs_to_heat_when_heat_set_it(self):
        gpu = {**LOW, "temp_c": 92.0, "throttle": throttle(hw_thermal=90.0, hw_slowdown=True)}
        assert problems(busy(30, gpu=gpu)) == {"thermal-throttled"}
        assert problems(busy(30, gpu={**LOW, "throttle": throttle(hw_slowdown=True)})) == {"hw-slowdown"}

    def test_power_is_judged_on_the_engines_gpus_heat_and_hardware_on_all(self):
        for rule, gpu in KINDS:
            frames = busy(30, gpus=2, each_gpu={1: gpu}, process=NOBODYS)
            expected = None if rule == "power-capped" else 10
            assert raised_at(rule, RULES, frames, subject="gpu:1") == expected

    @pytest.mark.parametrize(("rule", "gpu"), KINDS)
    def test_cant_tell_in_a_vgpu_guest(self, rule, gpu):
        missing = {"throttle": "not available in a vGPU guest"}
        (found,) = cant_tell(rule, RULES, busy(15, gpu={**gpu, "throttle": None, "missing": missing}, edit=guest))
        assert found.needs.startswith("vGPU guest: the reasons for lowered clocks")

    @pytest.mark.parametrize("fields", [{"power_limit_w": None}, {"power_w": None}])
    def test_the_power_cap_needs_power_and_its_limit(self, fields):
        missing = dict.fromkeys(fields, "Not Supported")
        (found,) = cant_tell("power-capped", RULES, busy(15, gpu={**CAPPED, **fields, "missing": missing}))
        assert found.needs == "power and its limit (Not Supported)"
        assert raised_at("power-capped", RULES, busy(30, gpu={**CAPPED, **fields})) is None

    @pytest.mark.parametrize(("rule", "gpu"), KINDS)
    def test_cant_tell_without_the_clock(self, rule, gpu):
        fields = {**gpu, "sm_clock_mhz": None, "missing": {"sm_clock_mhz": "Not Supported"}}
        (found,) = cant_tell(rule, RULES, busy(15, gpu=fields))
        assert found.needs == "the SM clock and its maximum (Not Supported)"

    def test_headlines_have_the_decisive_numbers(self):
        lines = {rule: symptom(rule, RULES, busy(30, gpu=gpu)).headline for rule, gpu in KINDS}
        assert lines == {
            "power-capped": "GPU 0 is held at 1410 of 1980 MHz by its power limit (696 W, 99 % of the limit)",
            "thermal-throttled": "GPU 0 is too hot: 88 °C, held at 1410 of 1980 MHz",
            "hw-slowdown": "GPU 0: power brake for 80 % of the time, 990 of 1980 MHz",
        }

    @pytest.mark.parametrize(("rule", "gpu"), KINDS)
    def test_evidence_has_reasons_clock_power_and_temperature_with_their_limits(self, rule, gpu):
        found = symptom(rule, RULES, busy(30, gpu=gpu))
        by_name = {e.name.removeprefix("GPU 0 "): e for e in found.evidence}
        assert by_name["SM clock"].value == gpu["sm_clock_mhz"]
        assert by_name["SM clock"].threshold == pytest.approx(0.95 * 1980)
        assert by_name["power"].threshold == 700.0
        assert by_name["temperature"].threshold == 89.0
        reasons = [e for e in found.evidence if e.threshold == 30.0]
        assert max(e.value for e in reasons) >= 45.0
        assert {e.source for e in reasons} == {"NVML counters"}
        drawn = {"power_w": 700.0, "temp_c": 89.0, "sm_clock_mhz": 0.95 * 1980}
        assert found.chart_threshold == pytest.approx(drawn[found.chart.rpartition(".")[2]])

    def test_a_limit_below_the_boards_speaks_for_it_and_the_advice_names_the_boards(self):
        lowered = symptom("power-capped", RULES, busy(30, gpu={**CAPPED, "power_limit_w": 500.0, "power_w": 497.0}))
        normal = symptom("power-capped", RULES, busy(30, gpu=CAPPED))
        assert lowered.causes[0].speaks_for == ("limit 500 W, the board's is 700 W",)
        assert "-pl 700" in lowered.advice[0].text
        assert cause(normal, "set below").speaks_against
        assert cause(normal, "normal at full load").speaks_for
        assert cause(normal, "above this GPU's own").speaks_against
        module = symptom("power-capped", RULES, busy(30, gpu={**CAPPED, "power_w": 420.0}))
        assert module.causes[0].text.startswith("a limit above this GPU's own")
        assert module.causes[0].speaks_for == ("420 W, 60 % of the limit only",)

    def test_one_hot_gpu_speaks_for_its_own_cooling_and_all_of_them_for_the_room(self):
        one = busy(30, gpus=2, each_gpu={1: HOT})
        both = busy(30, gpus=2, gpu=HOT)
        assert cause(symptom("thermal-throttled", RULES, one), "this GPU").speaks_for == (
            "88 °C here, 61 °C on the coolest GPU",
        )
        found = reports(RULES, both)[-1].active[0]
        assert cause(found, "room").speaks_for
        assert cause(found, "this GPU").speaks_against

    def test_a_power_cap_explains_slow_tokens(self):
        frames = busy(40, gpu=CAPPED, lat={"itl": 0.3, "tpot": 0.3})
        active = reports((*RULES, *tpot.RULES), frames)[-1].active
        assert [s.id for s in active] == ["power-capped", "tpot-high"]
        assert active[1].root == active[0].key

    def test_noise_around_the_thresholds_does_not_flap(self):
        share = noisy(30.0, 10.0)
        clock = noisy(0.95 * 1980, 25.0)
        shares = {**CAPPED, "throttle": lambda s: throttle(sw_power_cap=share(s))}
        assert changes("power-capped", busy(300, gpu=shares)) <= 1
        assert changes("power-capped", busy(300, gpu={**CAPPED, "sm_clock_mhz": clock})) <= 1


class TestXids:
    def test_the_known_ones(self):
        assert lookup(79).meaning == "GPU has fallen off the bus"
        assert lookup(79).advice == "reboot the machine; if it recurs: contact the vendor's support"
        assert "reset the GPU" in lookup(48).advice
        assert lookup(63).advice == "nothing needs to be done"
        assert "kernel log" in lookup(154).advice
        assert SOURCE.startswith("https://docs.nvidia.com/")

    @pytest.mark.parametrize(
        ("number", "severity"),
        [
            (79, Severity.CRITICAL),
            (48, Severity.CRITICAL),
            (119, Severity.CRITICAL),
            (74, Severity.CRITICAL),
            (13, Severity.WARNING),
            (31, Severity.WARNING),
            (43, Severity.WARNING),
            (63, Severity.NOTE),
            (92, Severity.NOTE),
        ],
    )
    def test_how_bad_they_are(self, number, severity):
        assert lookup(number).severity is severity

    def test_an_unknown_number_says_so_and_is_a_warning(self):
        assert lookup(999).meaning == "not in NVIDIA's catalogue"
        assert lookup(999).severity is Severity.WARNING
        assert lookup(999).advice

    def test_every_documented_number_has_a_meaning_and_advice(self):
        known = [n for n in range(1, 200) if lookup(n).meaning != "not in NVIDIA's catalogue"]
        assert len(known) == 110
        assert {8, 13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 154, 158} <= set(known)
        assert not {1, 12, 59, 61, 81, 87, 108, 138} & set(known)
        for code in known:
            xid = lookup(code)
            assert xid.number == code
            assert xid.act is None or xid.act in ACTIONS
            assert xid.then is None or xid.then in ACTIONS
            assert xid.advice
            assert len(f"GPU 15: Xid {code}, {xid.meaning}") <= 100


def xids(*events):
    """Events (number, second) as NVML gives them."""
    found = tuple(XidEvent(AT_S + second, number) for number, second in events)
    return {"xids": lambda s: tuple(x for x in found if x.at_s <= AT_S + s)}


class TestGpuFault:
    def test_an_xid_is_raised_within_seconds_with_its_meaning_and_nvidias_advice(self):
        frames = busy(20, gpu=xids((79, 10)))
        assert raised_at("gpu-fault", RULES, frames) == 12
        found = symptom("gpu-fault", RULES, frames)
        assert found.severity is Severity.CRITICAL
        assert found.headline == "GPU 0: Xid 79, GPU has fallen off the bus"
        (evidence,) = [e for e in found.evidence if e.name == "GPU 0 Xid 79"]
        assert evidence.text.startswith("GPU has fallen off the bus, 9 s ago; NVIDIA: reboot the machine")
        assert found.advice[0].text.startswith("Xid 79, NVIDIA: reboot the machine")

    def test_an_applications_xid_fades_after_ten_minutes_a_hard_one_after_an_hour(self):
        def old(number, age_s):
            return busy(20, gpu={"xids": (XidEvent(AT_S - age_s, number),)})

        assert raised_at("gpu-fault", RULES, old(31, 570)) == 2
        assert raised_at("gpu-fault", RULES, old(31, 601)) is None
        assert raised_at("gpu-fault", RULES, old(119, 3500)) == 2
        assert raised_at("gpu-fault", RULES, old(119, 3601)) is None

    def test_the_worst_of_several_is_the_headline(self):
        found = symptom("gpu-fault", RULES, busy(20, gpu=xids((45, 10), (13, 11), (95, 9), (45, 12))))
        assert found.headline == "GPU 0: Xid 95, uncontained memory error: all applications are affected"
        assert [e.name for e in found.evidence if "Xid" in e.name] == ["GPU 0 Xid 45", "GPU 0 Xid 13", "GPU 0 Xid 95"]

    @pytest.mark.parametrize(
        ("fields", "headline", "severity"),
        [
            ({"lost": True}, "GPU 0 is lost: it doesn't answer the driver any more", Severity.CRITICAL),
            ({"remap_failed": True}, "GPU 0: a faulty memory row could not be remapped", Severity.CRITICAL),
            (
                {"remap_pending": True},
                "GPU 0: a faulty memory row waits for a GPU reset to be remapped",
                Severity.WARNING,
            ),
            (
                {"ecc_uncorrected": 2},
                "GPU 0: 2 uncorrected memory errors since the driver was loaded",
                Severity.WARNING,
            ),
        ],
    )
    def test_other_faults(self, fields, headline, severity):
        frames = busy(20, gpu=fields)
        assert raised_at("gpu-fault", RULES, frames) == 2
        found = symptom("gpu-fault", RULES, frames)
        assert (found.headline, found.severity) == (headline, severity)
        assert found.advice

    def test_uncorrected_errors_that_come_in_now_are_critical(self):
        frames = busy(20, gpu={"ecc_uncorrected": changing((0, 0), (10, 1))})
        found = symptom("gpu-fault", RULES, frames)
        assert found.severity is Severity.CRITICAL
        assert number(found, "uncorrected ECC errors") == 1

    def test_corrected_errors_and_remapped_rows_are_no_fault(self):
        assert problems(busy(20, gpu={"ecc_corrected": 900, "remapped_rows": 3})) == set()

    def test_a_gpu_that_no_engine_uses_is_judged_too(self):
        frames = busy(20, gpus=2, each_gpu={1: {"remap_failed": True}}, process=NOBODYS)
        assert raised_at("gpu-fault", RULES, frames, subject="gpu:1") == 2

    def test_one_reading_of_a_lost_gpu_is_not_enough(self):
        assert raised_at("gpu-fault", RULES, busy(30, gpu={"lost": lambda s: s == 10})) is None

    @pytest.mark.parametrize(
        ("fields", "edit", "reason"),
        [
            (
                {"remap_pending": None, "missing": {"remap_pending": "not available in a vGPU guest"}},
                guest,
                "vGPU guest: row remapping and ECC",
            ),
            ({"missing": {"xids": "No Permission"}}, None, "Xid events (No Permission)"),
        ],
    )
    def test_cant_tell(self, fields, edit, reason):
        (found,) = cant_tell("gpu-fault", RULES, busy(15, gpu=fields, edit=edit))
        assert found.needs.startswith(reason)

    def test_a_consumer_card_without_ecc_is_judged_by_its_xids(self):
        fields = {"ecc_uncorrected": None, "remap_pending": None, "remap_failed": None}
        assert cant_tell("gpu-fault", RULES, busy(15, gpu=fields)) == ()

    def test_the_class_of_the_xid_speaks_for_hardware_driver_or_application(self):
        application = symptom("gpu-fault", RULES, busy(20, gpu=xids((31, 10))))
        assert application.causes[0].text == "an application that used the GPU wrongly"
        assert cause(application, "hardware").speaks_against
        driver = symptom("gpu-fault", RULES, busy(20, gpu=xids((119, 10))))
        assert cause(driver, "driver").speaks_for
        hardware = symptom("gpu-fault", RULES, busy(20, gpu={**xids((48, 10)), "remap_pending": True}))
        assert hardware.causes[0].text.startswith("hardware")

    def test_a_lost_gpu_makes_no_other_rule_fire(self):
        gone = dict.fromkeys(("util_pct", "gpm", "power_w", "sm_clock_mhz", "throttle", "pcie_gen", "processes"))
        frames = busy(40, gpu={**gone, "lost": True, "mem_used_bytes": None})
        assert problems(frames) == {"gpu-fault"}
