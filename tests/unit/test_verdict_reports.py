"""A verdict as text, Markdown and JSON: widths, unknowns, and markup that stays inert."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Verdict, Weight
from gputop_llm.report import verdict_json, verdict_markdown, verdict_text, verdict_words


def finding(text="gemm", **changes):
    values = {
        "id": "x",
        "weight": Weight.FINDING,
        "headline": text,
        "facts": (Fact(text, math.nan, "%", text, text, text), Fact("b", None, "ms")),
        "cause": text,
        "advice": (Advice(text, {"vllm": "--vllm-flag", "sglang": "--sglang-flag"}),),
        "recoverable_pct": 12.34,
        "recoverable_formula": text,
        "confidence": text,
        "refuted_by": text,
        "next_capture": text,
        "subject": text,
    }
    return Finding(**{**values, **changes})


def verdict(text="gemm", **changes):
    values = {
        "judged": True,
        "headline": text,
        "findings": (finding(text),),
        "tables": {"kernels": ({"kernel": text, "mean_us": math.inf, "calls": None},) * 30},
        "facts": (Fact("GPU busy", 52.24, "%", plus_minus=3.0),),
        "notes": (text,),
        "healthy": False,
        "capture": {"format": "nsys", "files": [text], "tool": text, "engine": "vllm", "window_ms": 1.0},
    }
    return Verdict(**{**values, **changes})


@given(st.text(max_size=300))
def test_any_text_leaves_no_control_character_and_no_line_over_100_columns(text):
    shown = verdict_text.verdict_text(verdict(text))

    assert all(line.isprintable() for line in shown.splitlines())
    assert max(map(verdict_text._cells, shown.splitlines())) <= 100


@given(st.text(max_size=300))
def test_any_text_is_inert_in_markdown(text):
    shown = verdict_markdown.verdict_markdown(verdict(text))
    plain = re.sub(r"\\.", "", shown)

    assert "<" not in plain
    assert "`" not in plain
    assert "[" not in plain
    assert len([line for line in shown.split("\n") if line.startswith("# ")]) == 1
    table = shown.split("## Hot kernels")[1].split("## Notes")[0].strip().split("\n")
    assert {re.sub(r"\\.", "", row).count("|") for row in table} == {4}


@given(st.text(max_size=100))
def test_json_is_ascii_and_holds_no_nan(text):
    shown = verdict_json.verdict_text(verdict(text))
    said = json.loads(shown, parse_constant=lambda constant: pytest.fail(constant))

    assert shown.isascii()
    assert said["findings"][0]["facts"][0]["value"] is None
    assert said["tables"]["kernels"][0]["mean_us"] is None


def test_unknown_is_a_dash_and_never_0():
    shown = verdict_text.verdict_text(verdict())

    assert "b: –" in shown
    assert re.search(r"gemm\s+–\s+–", shown)


def test_advice_has_the_flag_of_the_engine_that_was_captured():
    advice = Advice("batch more", {"vllm": "--a", "sglang": "--b"})

    assert verdict_words.advised(advice, verdict()) == "batch more: --a"
    assert verdict_words.advised(advice, verdict(capture={})) == "batch more (vllm: --a; sglang: --b)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0.0, "0"),
        (0.2, "0.200"),
        (0.00167, "0.00167"),
        (52.24, "52.24"),
        (1071.9, "1,072"),
        (-3.5, "-3.50"),
    ],
)
def test_figures_keep_the_digits_that_tell(value, shown):
    assert verdict_words.figure(value) == shown


def test_a_capture_that_cannot_be_judged_has_no_findings_to_show():
    refused = verdict("can't judge: why; what to do", judged=False, healthy=None, findings=(), tables={})

    assert verdict_text.verdict_text(refused).startswith("can't judge: why; what to do\n")
    assert "**Symptom.**" not in verdict_markdown.verdict_markdown(refused)
    assert verdict_json.verdict_object(refused)["healthy"] is None
