"""Hot kernels and families: union time, calls and shapes of real captures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model.finding import Weight
from gputop_llm.timeline.intervals import length, union
from gputop_llm.verdict import kernels
from gputop_llm.verdict.grouped import union_lengths
from gputop_llm.verdict.kernel_names import Family
from tests.support import recorded


def _hot(name: str, device: int = 0) -> kernels.Hot:
    return next(h for h in kernels.analyse(recorded.context(name)) if h.device == device)


def _family(hot: kernels.Hot, family: Family) -> kernels.HotFamily:
    return next(f for f in hot.families if f.family is family)


def test_graph_replays_are_a_row_of_their_own_and_what_runs_inside_is_not_guessed():
    hot = _hot(recorded.VLLM_GRAPHS)
    replays = hot.kernels[0]
    assert (replays.name, replays.family, replays.calls) == (kernels.GRAPH_NAME, Family.GRAPH, 396)
    assert replays.work_ns == pytest.approx(449.7e6, rel=0.01)
    (where,) = kernels.findings((hot,), recorded.context(recorded.VLLM_GRAPHS))
    assert "inside is unknown" in where.cause
    assert "Kineto" in str(where.next_capture)


def test_kernels_outside_of_the_replays_have_their_calls_and_shapes():
    hot = _hot(recorded.VLLM_GRAPHS)
    sample = next(k for k in hot.kernels if k.name == "_gumbel_sample_kernel")
    assert (sample.calls, sample.by_graph, sample.variants) == (379, 0, 1)
    assert sample.grid
    assert sample.block
    assert sample.mean_ns == pytest.approx(5.364e6 / 379, rel=0.01)


def test_nodes_of_replays_count_as_launched_by_graphs():
    attention = next(k for k in _hot(recorded.VLLM_NODES).kernels if k.name == "flash::FlashAttnFwdSm90")
    assert attention.calls == 1888
    assert attention.by_graph == 1888


def test_a_kernel_below_five_percent_of_the_window_is_never_proposed_for_ncu():
    for name in recorded.WITH_KERNELS:
        context = recorded.context(name)
        for hot in kernels.analyse(context):
            assert all(hot.pct(k.union_ns) >= 5 for k in hot.for_ncu)
            assert not {k.family for k in hot.for_ncu} & {Family.NCCL, Family.COPY, Family.GRAPH, Family.MEMSET}
    # The eager loop is launch-bound: none of its kernels takes 5 % of the window.
    eager = recorded.context(recorded.EAGER)
    assert kernels.findings(kernels.analyse(eager), eager)[0].next_capture is None


def test_small_elementwise_kernels_are_the_finding_of_the_unfused_model():
    context = recorded.context(recorded.QWEN)
    hot = _hot(recorded.QWEN)
    assert hot.families[0].family is Family.ELEMENTWISE
    assert hot.pct(_family(hot, Family.GEMM).union_ns) == pytest.approx(100 * 12.795 / 49.8, rel=0.01)
    _, unfused = kernels.findings((hot,), context)
    assert (unfused.id, unfused.weight) == ("unfused-elementwise", Weight.SEVERE)
    assert unfused.recoverable_pct == pytest.approx(hot.pct(hot.unfused_ns))


def test_the_moe_matmul_leads_the_amd_decode():
    hot = _hot(recorded.AMD_DECODE, 2)
    assert hot.families[0].family is Family.MOE_GEMM
    assert 100 * hot.families[0].union_ns / hot.busy_ns == pytest.approx(66, abs=1)


def test_a_device_that_copies_for_its_whole_window_is_not_said_to_compute():
    hot = _hot(recorded.VIDEO)
    assert hot.families[0].family is Family.COPY
    assert hot.pct(_family(hot, Family.GEMM).union_ns) < 3
    assert hot.for_ncu == ()


def test_a_capture_of_compiled_replays_is_not_said_to_need_fusing():
    for name in (recorded.VLLM_NODES, recorded.EAGER, recorded.TRAINING):
        context = recorded.context(name)
        assert [f.id for f in kernels.findings(kernels.analyse(context), context)] == ["hot-kernels"]


def test_families_never_exceed_the_busy_time_of_their_device():
    for name in recorded.WITH_KERNELS:
        for hot in kernels.analyse(recorded.context(name)):
            assert all(f.union_ns <= hot.busy_ns and f.union_ns <= f.work_ns for f in hot.families)
            assert sum(f.union_ns for f in hot.families) >= hot.busy_ns


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000), st.integers(0, 50)), max_size=40),
    st.integers(0, 2**50),
)
def test_unions_of_groups_are_those_of_each_group_alone(rows, origin):
    group, start, duration = (np.array(c, dtype=np.int64) for c in (zip(*rows, strict=True) if rows else ([], [], [])))
    start = start + origin
    each = [length(*union(start[group == g], (start + duration)[group == g])) for g in range(4)]
    assert union_lengths(group, 4, start, start + duration).tolist() == each
