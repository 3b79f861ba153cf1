"""Six misreadings that a verdict must not make."""

from __future__ import annotations

import pytest

from gputop_llm.model.finding import Weight
from gputop_llm.report.verdict_markdown import verdict_markdown
from gputop_llm.report.verdict_text import verdict_text
from gputop_llm.verdict.assemble import judge
from tests.support.recorded import AMD_DECODE, EAGER, EAGER_KINETO, QWEN, TRAINING, VIDEO, VLLM_GRAPHS, timeline

ALL = (VLLM_GRAPHS, EAGER, EAGER_KINETO, VIDEO, TRAINING, QWEN, AMD_DECODE)


def worth(verdict):
    return [finding for finding in verdict.findings if finding.weight > Weight.NOTE]


@pytest.mark.parametrize("name", [VLLM_GRAPHS, EAGER, VIDEO])
def test_1_the_kernel_with_the_highest_total_time_is_not_the_defect(name):
    verdict = judge(timeline(name))
    ops = timeline(name).ops
    total = {}
    for name_id, duration in zip(ops.name_id.tolist(), (ops.end - ops.start).tolist(), strict=True):
        total[name_id] = total.get(name_id, 0) + duration
    longest = timeline(name).name(max(total, key=total.get))

    assert verdict.findings[0].of == "window"
    assert longest not in verdict.headline


def test_2_a_gpu_that_is_always_busy_is_not_therefore_efficient():
    verdict = judge(timeline(VIDEO))

    assert all(row["busy_pct"] > 99 for row in verdict.tables["coverage"])
    assert verdict.healthy is False
    assert verdict.findings[0].id == "transfer-bound"


@pytest.mark.parametrize("name", ALL)
def test_3_host_time_and_device_time_are_never_added_to_a_latency(name):
    verdict = judge(timeline(name))

    for row in verdict.tables["coverage"]:
        assert row["busy_ms"] <= verdict.capture["window_ms"], "work that overlaps counts once"
    for row in verdict.tables.get("operators", ()):
        assert not [column for column in row if column.endswith("_ms") and ("cpu" in column) == ("device" in column)]
    for fact in (fact for finding in verdict.findings for fact in finding.facts):
        assert "latency" not in fact.name


def test_4_the_longest_wait_is_not_the_cause():
    verdict = judge(timeline(QWEN))
    waits = [finding for finding in verdict.findings if "cudaDeviceSynchronize" in finding.headline]

    assert [wait.weight for wait in waits] == [Weight.NOTE]
    assert waits[0].recoverable_pct == 0
    assert "cudaDeviceSynchronize" not in verdict.headline


@pytest.mark.parametrize("name", ALL)
def test_5_a_small_grid_or_low_occupancy_is_no_defect_of_its_own(name):
    for finding in worth(judge(timeline(name))):
        assert "occupancy" not in f"{finding.id} {finding.headline} {finding.cause}".lower()


@pytest.mark.parametrize("name", ALL)
def test_6_a_verdict_says_that_it_holds_for_this_load_and_version_only(name):
    verdict = judge(timeline(name))

    assert any("of this capture only" in note for note in verdict.notes)
    assert "of this capture only" in " ".join(verdict_text(verdict).split())
    assert "of this capture only" in verdict_markdown(verdict)
    assert verdict.capture["tool"] in verdict_text(verdict)
