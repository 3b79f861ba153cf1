"""What every engine-side symptom is: one line with numbers, sourced evidence, exact flags; and how they are grouped."""

from __future__ import annotations

import pytest

from gputop_llm.model import SpecDecode
from gputop_llm.model.symptom import Severity
from gputop_llm.sampling.history import History
from gputop_llm.symptoms.catalogue import RULES as ALL
from gputop_llm.symptoms.compose import EXPLAINS
from gputop_llm.symptoms.rules import caches, errors, kv, latency, life, queue, ranks, stale, stalled, tpot
from tests.support import symptom_frames as sf
from tests.support.symptom_frames import busy, limits, reports, stuck_from
from tests.support.symptom_frames import latency as p95

RULES = (
    *latency.RULES,
    *tpot.RULES,
    *queue.RULES,
    *kv.RULES,
    *caches.RULES,
    *stalled.RULES,
    *ranks.RULES,
    *life.RULES,
    *errors.RULES,
    *stale.RULES,
)
UNITS = {"%", "s", "/s", "B", "B/s", "tok/s", "W", "MHz", "°C", ""}

RAISING = {
    "ttft-high": {"lat": {"ttft": 12.3, "queue": p95(9.0)}, "live": {"waiting": 1234.0}},
    "tpot-high": {"lat": {"itl": p95(0.9, 9000, p50_s=0.02, p99_s=2.0)}},
    "queue-growing": {"live": {"waiting": lambda s: 123.4 * s}},
    "scheduler-capped": {"live": {"waiting": 1234.0}},
    "kv-pressure": {"live": {"kv_usage_pct": 100.0, "preemptions_per_s": 123.4, "waiting": 1234.0}},
    "prefix-cache-cold": {"live": {"prefix_hit_pct": 3.0, "prompt_computed_tokens_per_s": 123_456.0}},
    "spec-decode-weak": {"live": {"spec": SpecDecode(12.0, 1.1, 12_345.0, (20.0, 4.0))}},
    "stalled": {
        "counters": {"generation_tokens": stuck_from(1), "steps": stuck_from(1, "steps")},
        "gpus": 8,
        "gpu": sf.CLEAR_OF_WORK,
    },
    "rank-imbalance": {"ranks": [{"running": 1234.0}, {"running": 0.0}]},
    "warming-up": {"target": {"started_s": sf.AT_S}, "reading": {"started_s": sf.AT_S}},
    "underloaded": {"live": {"running": 0.25, "requests_per_s": 1234.5}},
    "errors-rising": {
        "live": {"finished_per_s": {"stop": 1.0, "abort": 123.4, "error": 123.4}, "requests_per_s": 248.0}
    },
    "metrics-stale": {"scrape": {"at": 1, "error": "cannot read it: no answer within 5 s"}},
}
NOTES = {"warming-up", "underloaded"}


def raised(rule):
    frames = busy(90, **RAISING[rule])
    return next(s for s in reports(RULES, frames)[-1].active if s.id == rule)


def test_each_rule_of_the_engine_side_is_tried_here():
    assert {rule.id for rule in RULES} == set(RAISING)


@pytest.mark.parametrize("rule", sorted(RAISING))
def test_the_headline_is_one_line_with_its_numbers(rule):
    headline = raised(rule).headline
    assert len(headline) <= 100
    assert headline.isprintable()
    assert any(letter.isdigit() for letter in headline)


@pytest.mark.parametrize("rule", sorted(RAISING))
def test_each_piece_of_evidence_has_a_source_and_a_unit_and_a_value_or_the_reason_why_not(rule):
    found = raised(rule)
    assert found.evidence
    assert any(e.threshold is not None and e.threshold_origin for e in found.evidence)
    for e in found.evidence:
        assert e.source
        assert e.unit in UNITS
        assert e.value is not None or e.text or e.missing, e
        assert e.value is None or e.missing is None, e
    names = [e.name for e in found.evidence]
    assert len(names) == len(set(names))


def test_what_a_rate_is_of_is_said_and_a_figure_of_the_moment_claims_no_window():
    full = {e.name: e.window_s for e in raised("kv-pressure").evidence}
    assert (full["waiting"], full["running"]) == (None, None)
    assert full["preemptions"] == full["KV cache usage"] == 10.0
    still = raised("stalled").evidence
    assert {e.window_s for e in still if e.source == "/proc" and e.value is not None} == {1.0}


@pytest.mark.parametrize("rule", sorted(RAISING))
def test_its_chart_is_a_series_that_the_history_keeps(rule):
    history, chart = History(), raised(rule).chart
    for frame in busy(90, **RAISING[rule]):
        history.append(frame)
    assert (chart is None) == (rule == "warming-up")
    assert chart is None or set(history.series(chart, 60)) != {None}


@pytest.mark.parametrize("rule", sorted(RAISING))
def test_causes_advice_and_what_would_refute_it_are_there(rule):
    found = raised(rule)
    assert found.causes
    assert found.advice
    assert found.refuted_by
    assert "\n" not in found.refuted_by
    for advice in found.advice:
        assert set(advice.flags) <= {"vllm", "sglang", "trtllm"}
    assert found.next_capture in (None, "nsys", "kineto", "native", "ncu", "py-spy")
    assert 1 <= found.agreeing <= found.signals
    assert (found.severity is Severity.NOTE) == (rule in NOTES)
    assert ("normal" in found.headline) == (rule in NOTES)


def test_each_threshold_belongs_to_a_rule_and_each_rule_has_one():
    names = {t.name.partition(".")[0] for t in limits().thresholds()}
    assert {rule.id for rule in RULES} <= names
    assert names <= {rule.id for rule in ALL}


def test_each_threshold_clears_on_its_own_side():
    # Under the value for what is raised above it, over it for what is raised below it, never beyond.
    below = {
        "kv_pct",
        "below_plateau_pct",
        "hit_pct",
        "of_usual_pct",
        "acceptance_pct",
        "mean_length",
        "running",
        "of_cap_pct",
    }
    for t in limits().thresholds():
        rule, _, quantity = t.name.partition(".")
        if rule in RAISING and t.value != t.clear:
            falls = quantity in below and t.name not in ("kv-pressure.kv_pct",)
            assert (t.clear > t.value) == falls, t.name


def test_what_explains_and_what_is_explained_are_rules():
    known = {rule.id for rule in ALL}
    assert set(EXPLAINS) <= known
    assert {effect for effects in EXPLAINS.values() for effect in effects} <= known


def test_a_cache_that_fell_cold_is_the_root_of_late_first_tokens():
    frames = busy(40, live={"prefix_hit_pct": 3.0}, lat={"ttft": 3.0})
    active = reports(ALL, frames)[-1].active
    assert [(s.id, s.root) for s in active] == [("prefix-cache-cold", None), ("ttft-high", active[0].key)]


def test_a_cache_that_was_always_cold_explains_no_change():
    live = {"prefix_hit_pct": 3.0, "prefix_hit_lifetime_pct": 3.0}
    active = reports(ALL, busy(40, live=live, lat={"ttft": 3.0}))[-1].active
    assert {(s.id, s.severity, s.root) for s in active} == {
        ("ttft-high", Severity.WARNING, None),
        ("prefix-cache-cold", Severity.NOTE, None),
    }


def test_weak_drafts_are_the_root_of_slow_tokens():
    live = {"spec": SpecDecode(12.0, 1.1, 300.0, (20.0, 4.0))}
    active = reports(ALL, busy(40, live=live, lat={"itl": 0.2}))[-1].active
    assert [(s.id, s.root) for s in active] == [("spec-decode-weak", None), ("tpot-high", active[0].key)]


def test_requests_that_clients_give_up_are_explained_by_the_late_first_tokens():
    live = {"finished_per_s": {"stop": 3.0, "abort": 0.5}, "requests_per_s": 3.5}
    active = reports(ALL, busy(40, live=live, lat={"ttft": 9.0}))[-1].active
    assert [(s.id, s.root) for s in active] == [("ttft-high", None), ("errors-rising", active[0].key)]


def test_uneven_ranks_are_the_root_of_the_full_one():
    rank = {"running": 10.0, "kv_usage_pct": 20.0}
    frames = busy(40, live={"kv_usage_pct": 99.0}, ranks=[rank, {"running": 60.0, "kv_usage_pct": 99.0}])
    active = reports(ALL, frames)[-1].active
    assert [(s.id, s.root) for s in active] == [("rank-imbalance", None), ("kv-pressure", active[0].key)]
