"""bandwidth-bound and compute-bound: notes on which limit of the chip has been reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model.limits import EngineLimits, LimitEstimate
from gputop_llm.model.symptom import Severity
from tests.support.gpu_frames import RULES, changes, noisy
from tests.support.symptom_frames import busy, cant_tell, cause, number, raised_at, symptom

DECODE = {"gpm.dram_bw_pct": 82.0, "gpm.tensor_pct": 12.0}
PREFILL = {"gpm.tensor_pct": 71.0}
NO_GPM = {"gpm": None, "missing": {"gpm": "needs a Hopper or newer GPU (GPM)"}}


@pytest.mark.parametrize(("rule", "gpu"), [("bandwidth-bound", DECODE), ("compute-bound", PREFILL)])
def test_raised_after_ten_seconds_as_a_note_that_calls_it_normal(rule, gpu):
    assert raised_at(rule, RULES, busy(30, gpu=gpu)) == 10
    found = symptom(rule, RULES, busy(30, gpu=gpu))
    assert found.severity is Severity.NOTE
    assert "normal" in found.headline
    assert len(found.headline) <= 100
    assert found.next_capture == "ncu"


@pytest.mark.parametrize(
    ("rule", "gpu"),
    [
        ("bandwidth-bound", {**DECODE, "gpm.dram_bw_pct": 74.9}),
        ("bandwidth-bound", {**DECODE, "gpm.tensor_pct": 30.0}),
        ("compute-bound", {"gpm.tensor_pct": 59.9}),
    ],
)
def test_near_miss(rule, gpu):
    assert raised_at(rule, RULES, busy(60, gpu=gpu)) is None


@pytest.mark.parametrize("rule", ["bandwidth-bound", "compute-bound"])
@pytest.mark.parametrize(
    ("fields", "reason"), [(NO_GPM, "Hopper"), ({**NO_GPM, "mig_enabled": True}, "MIG: the GPM counters")]
)
def test_cant_tell_without_gpm(rule, fields, reason):
    (found,) = cant_tell(rule, RULES, busy(15, gpu=fields))
    assert reason in found.needs


def test_bandwidth_shows_what_share_of_the_peak_is_in_bytes():
    found = symptom("bandwidth-bound", RULES, busy(30, gpu=DECODE))
    assert number(found, "DRAM bandwidth") == pytest.approx(82.0)
    assert number(found, "DRAM traffic") == pytest.approx(0.82 * 4.8e12)
    assert number(found, "tensor pipe") == pytest.approx(12.0)


def test_the_estimates_are_shown_where_the_model_is_known_and_missing_where_not():
    def known(frame, _s):
        mbu = LimitEstimate("MBU", "bytes / bandwidth", 61.5, at_least=True)
        mfu = LimitEstimate("MFU", "flops / peak", unknown="the model's config.json can't be read")
        return replace(frame, engines=(replace(frame.engines[0], limits=EngineLimits(mbu, mfu)),))

    (mbu,) = [
        e for e in symptom("bandwidth-bound", RULES, busy(30, gpu=DECODE, edit=known)).evidence if e.name == "MBU"
    ]
    (mfu,) = [e for e in symptom("compute-bound", RULES, busy(30, gpu=PREFILL, edit=known)).evidence if e.name == "MFU"]
    (nothing,) = [e for e in symptom("bandwidth-bound", RULES, busy(30, gpu=DECODE)).evidence if e.name == "MBU"]
    assert (mbu.value, mbu.text) == (61.5, "at least 62 %")
    assert (mfu.value, mfu.missing) == (None, "the model's config.json can't be read")
    assert nothing.value is None
    assert nothing.missing


def test_prompts_that_are_computed_speak_for_prefill_and_none_against():
    with_prompts = symptom("compute-bound", RULES, busy(30, gpu=PREFILL))
    without = symptom("compute-bound", RULES, busy(30, gpu=PREFILL, live={"prompt_computed_tokens_per_s": 0.0}))
    assert cause(with_prompts, "prompts are being computed").speaks_for
    assert cause(without, "prompts are being computed").speaks_against


def test_noise_around_the_thresholds_does_not_flap():
    assert changes("bandwidth-bound", busy(300, gpu={**DECODE, "gpm.dram_bw_pct": noisy(75.0, 8.0)})) <= 1
    assert changes("bandwidth-bound", busy(300, gpu={**DECODE, "gpm.tensor_pct": noisy(30.0, 8.0)})) <= 1
    assert changes("compute-bound", busy(300, gpu={"gpm.tensor_pct": noisy(60.0, 8.0)})) <= 1
