"""The lab's cases as recorded on an H200: each gets the verdict that its truth demands, and its twin no finding."""

from __future__ import annotations

from functools import cache

import pytest

from gputop_llm.lab import CASES
from gputop_llm.model.finding import Verdict, Weight
from gputop_llm.model.pace import EnginePace, PaceSample
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict.assemble import judge
from tests.support.captures import CAPTURES

FOLDER = CAPTURES / "lab"
RECORDS = sorted(path.name.removesuffix(".gtw.xz") for path in FOLDER.glob("*.gtw.xz"))
CAUSES = [name for name in RECORDS if name.endswith(".cause")]
TWINS = [name for name in RECORDS if name.endswith(".twin")]
#: What twins gained on the machine of the records, % of the time for a token (docs/lab.md); the share that a finding
#: gives must be within ±30 % of it.
GAINED = {"allocator": 41.9, "gil-thread": 99.5, "pageable-copies": 32.5, "unfused-norm": 94.8}


@cache
def verdict_on(name: str) -> Verdict:
    """As `capture` gave it: the engine's page told of its running requests before the window and after it."""
    running = 32.0
    pace = EnginePace((PaceSample(0, running=running), PaceSample(3, running=running)), 1, 2, recovered=True)
    return judge(read_capture([FOLDER / f"{name}.gtw.xz"]), pace=pace)


def above_note(verdict: Verdict) -> list[str]:
    return [finding.id for finding in verdict.findings if finding.weight > Weight.NOTE]


@pytest.mark.parametrize("name", CAUSES)
def test_a_case_is_judged_as_its_truth_says(name):
    truth, verdict = CASES[name.removesuffix(".cause")].truth, verdict_on(name)
    assert verdict.judged
    if truth.first:
        assert verdict.findings[0].id in truth.first
        assert verdict.headline == verdict.findings[0].headline
    else:
        assert verdict.headline.startswith("healthy, GPU-bound")
        assert above_note(verdict) == []


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_accused_of_nothing(name):
    verdict = verdict_on(name)
    assert (verdict.judged, verdict.healthy) == (True, True)
    assert above_note(verdict) == []


@pytest.mark.parametrize("case", GAINED)
def test_what_could_be_recovered_is_what_the_twin_gained(case):
    first = verdict_on(f"{case}.cause").findings[0]
    assert first.recoverable_pct == pytest.approx(GAINED[case], rel=0.3)


def test_each_record_is_of_a_case_and_told_of_in_the_index():
    index = (FOLDER / "INDEX.md").read_text(encoding="utf-8")
    assert {name.rpartition(".")[0] for name in RECORDS} <= set(CASES)
    assert [name for name in RECORDS if f"| {name}.gtw.xz |" not in index] == []
