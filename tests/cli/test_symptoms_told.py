"""Symptoms without a screen: in the JSON of a frame, in the text of a snapshot, and as one line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gputop_llm.model.symptom import CantTell, Severity, Subject, SymptomReport
from gputop_llm.report import jsonform
from gputop_llm.report.text import WIDTH, frame_text
from gputop_llm.report.text_symptoms import counted, one_line
from tests.support import frames
from tests.support.symptom_reports import ENGINE, a_full_report, a_report, a_symptom
from tools import schema_doc

LOADED = frames.one_gpu_loaded()
KV = a_symptom("kv-pressure", Severity.CRITICAL, since_s=LOADED.at_s - 125, trend="rising")
TTFT = a_symptom("ttft-high", root=KV.key, held_back="", headline="TTFT p95 4.2 s")
FULL = a_full_report(KV, TTFT)


def told(report: SymptomReport | None) -> dict:
    return json.loads(jsonform.frame_line(replace(LOADED, symptoms=report)))


def text(report: SymptomReport | None, ascii_only: bool = False) -> str:
    return frame_text(replace(LOADED, symptoms=report), "gpu-node-7", ascii_only)


# -- JSON -----------------------------------------------------------------------------


def test_json_has_each_symptom_with_its_evidence_causes_and_advice():
    (kv, ttft) = told(FULL)["symptoms"]["active"]
    assert (kv["id"], kv["severity"], kv["confidence"], kv["trend"], kv["root"]) == (
        "kv-pressure", "critical", "medium", "rising", None,
    )  # fmt: skip
    assert kv["key"] == ttft["root"] == "kv-pressure@engine:600@1795967802"
    assert kv["evidence"][0] == {
        "name": "KV cache usage",
        "value": 99.0,
        "unit": "%",
        "source": "vllm /metrics",
        "window_s": 10.0,
        "text": None,
        "threshold": 95.0,
        "threshold_origin": "default",
        "missing": None,
    }
    assert kv["evidence"][2]["value"] is None
    assert kv["evidence"][2]["missing"] == "not supported"
    assert kv["causes"][0]["speaks_against"] == ["few tokens are cached"]
    assert kv["advice"][0]["flags"] == {"vllm": "--gpu-memory-utilization"}


def test_json_has_what_is_pending_held_back_overridden_and_can_not_be_told():
    said = told(FULL)["symptoms"]
    assert [s["id"] for s in said["pending"]] == ["host-bound"]
    assert said["held_back"][0]["held_back"] == "the engine is warming up"
    assert said["cant_tell"][3] == {
        "id": "stalled",
        "subject": {"key": ENGINE.key, "label": ENGINE.label},
        "needs": "a live counter",
    }
    assert said["overridden"] == ["kv-pressure.kv_pct = 98 (my.toml)"]
    assert [h["until_s"] for h in said["log"]] == [2.0, None]
    assert said["judged"] == 9


def test_json_is_null_where_the_rules_were_not_asked():
    assert told(None)["symptoms"] is None


def test_every_documented_path_of_symptoms_is_there_with_its_type():
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    found: dict[str, set[str]] = {}

    def walk(value, path):
        found.setdefault(path, set()).add("null" if value is None else kinds[type(value)])
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{path}.<engine>" if path.endswith(".flags") else f"{path}.{name}")
        elif isinstance(value, list):
            for inner in value:
                walk(inner, f"{path}[]")

    walk(told(FULL)["symptoms"], "symptoms")
    documented = {p: k for p, k in schema_doc.rows() if p == "symptoms" or p.startswith("symptoms.")}
    assert found.keys() == documented.keys()
    for path, types in found.items():
        allowed = set(documented[path].split(" or ")) | ({"integer"} if "number" in documented[path] else set())
        assert types <= allowed, path


# -- text -----------------------------------------------------------------------------


def test_text_ranks_symptoms_with_what_follows_below_its_root():
    lines = text(FULL).splitlines()
    start = lines.index("Symptoms")
    assert lines[start + 1] == "  CRITICAL  kv-pressure vllm org/model-a: kv-pressure: 99 % full, 7 waiting"
    assert (
        lines[start + 2]
        == "            since 16:06:41 UTC, for 2 m 05 s, rising; medium confidence; next capture: nsys"
    )
    assert lines[start + 3] == "            check first: the pool is too small (requests wait)"
    assert lines[start + 4] == "    WARNING   ttft-high vllm org/model-a: TTFT p95 4.2 s"


def test_text_says_what_is_pending_held_back_changed_and_can_not_be_told():
    said = " ".join(text(FULL).split())
    assert (
        "not yet for long enough to be called a symptom (`gputop-llm check` watches longer): WARNING host-bound" in said
    )
    assert "held back, since the engine is warming up: tpot-high" in said
    assert (
        "can't tell comm-bound of GPU 0, GPU 1: needs GPM counters can't tell bandwidth-bound of GPU 1: needs" in said
    )
    assert "threshold changed: kv-pressure.kv_pct = 98 (my.toml)" in said


def test_text_says_that_there_is_none_and_nothing_where_the_rules_were_not_asked():
    assert "Symptoms  none" in text(replace(a_report(), judged=3))
    assert "Symptoms  nothing could be judged" in text(replace(a_report(), judged=0))
    assert "Symptoms" not in text(None)


def test_text_shows_a_cause_that_something_speaks_against_as_such():
    doubtful = replace(KV, causes=(replace(KV.causes[0], speaks_for=()),))
    assert "check first: the pool is too small (but few tokens are cached)" in text(a_report(doubtful))


def test_many_reasons_are_cut():
    unknown = tuple(CantTell("x", ENGINE, f"input {i}") for i in range(20))
    assert "… and 12 more reasons (--json has all)" in text(a_report(cant_tell=unknown))


EVIL = a_symptom(
    "kv-pressure",
    subject=Subject("engine:x", "vllm [red]\x1b[31m\u202e" + "m" * 300),
    headline="\x07 \n 99 %",
    root="a\nb",
)


@pytest.mark.parametrize("report", [FULL, a_report(EVIL, held_back=(EVIL,), pending=(EVIL,))])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_too_wide_or_holds_anything_that_moves_the_cursor(report, ascii_only):
    for line in text(report, ascii_only).splitlines():
        assert len(line) <= WIDTH
        assert line.isprintable()
        assert line.isascii() or not ascii_only


def test_one_line_stays_one_line():
    assert one_line(EVIL, 0.0).isprintable()
    assert one_line(KV, LOADED.at_s) == (
        "CRITICAL kv-pressure vllm org/model-a: kv-pressure: 99 % full, 7 waiting (for 2 m 05 s, medium confidence)"
    )


def test_counts_are_in_words():
    assert counted(a_report(KV, TTFT, a_symptom("tpot-high"))) == "1 critical, 2 warnings"
    assert counted(a_report(a_symptom("x", Severity.NOTE))) == "1 note"
    assert counted(a_report()) == ""
