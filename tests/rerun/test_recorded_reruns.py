"""A decode-like loop recorded on an H200, and what its script said when it launched the kernels again there."""

from __future__ import annotations

import gzip
import json

import pytest

from gputop_llm.rerun.match import launched_of, matches, reproduced_pct
from gputop_llm.rerun.prepare import prepare
from tests.support.captures import CAPTURES
from tests.support.decode_loop import CONFIG

H200 = CAPTURES / "h200"


def again(kind, config=None):
    """The prepared cases, and the matches of what they launched."""
    prepared = prepare([H200 / f"kineto_torch-2.11-decode-{kind}.json.gz"], config_file=config)
    told = json.loads(gzip.decompress((H200 / f"rerun_torch-2.11-decode-{kind}_said.json.gz").read_bytes()))
    launched, errors = launched_of(told)
    assert set(errors.values()) <= {"ModuleNotFoundError: No module named 'vllm'"}
    return prepared, told, matches(prepared.hot, launched)


def test_every_kernel_of_a_recorded_loop_was_launched_again_by_its_operators():
    prepared, told, found = again("eager")

    assert {one["case"] for one in told["cases"]} == {case.label for case in prepared.cases}
    assert 99.0 < reproduced_pct(found) <= 100.0
    assert [one.hot.short for one in found if one.best is None] == []
    hottest = found[0]
    assert hottest.best.case == "aten::mm of 32×2048, 2048×16384"
    assert hottest.best.duration_us == pytest.approx(hottest.hot.median_ns / 1e3, rel=0.15)


def test_most_kernels_of_graph_replays_were_launched_again_from_the_config_alone(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    prepared, told, found = again("graph", config)

    assert all(one.by_graph == one.calls for one in prepared.hot)
    assert {one["case"] for one in told["cases"]} == {case.label for case in prepared.cases}
    assert reproduced_pct(found) == pytest.approx(80.8, abs=0.1)
    # Activation by vLLM's own operation, which wasn't there; sampling is greedy here.
    assert {one.hot.short.partition(":")[0] for one in found if one.best is None} == {
        "elementwise_kernel", "vectorized_elementwise_kernel", "reduce_kernel"
    }  # fmt: skip
