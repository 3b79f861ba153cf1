"""Names that merely begin like a card's never get its figures; shares of a card never exceed it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.gpus import PEAK_FIELDS, all_specs, find, nominal_from_nvml, scaled

NAMES = [name for spec in all_specs() for name in spec.nvml_names]
SLICEABLE = [spec for spec in all_specs() if spec.mig_compute_slices]


@given(st.sampled_from(NAMES), st.text(min_size=1))
def test_a_longer_name_means_the_card_only_if_it_is_another_name_of_the_table(name, suffix):
    found = find(name + suffix)
    assert found is None or " ".join((name + suffix).lower().split()) in {known.lower() for known in found.nvml_names}


@given(st.text(), st.none() | st.integers(min_value=0, max_value=2**48))
def test_any_name_and_memory_get_an_answer(name, total):
    find(name, total)


@given(st.sampled_from(SLICEABLE), st.data())
def test_a_slice_never_exceeds_its_card_and_the_whole_slice_is_the_card(spec, data):
    compute = data.draw(st.integers(1, spec.mig_compute_slices))
    memory = data.draw(st.integers(1, spec.mig_memory_slices))
    part = scaled(spec, compute, memory)
    whole = scaled(spec, spec.mig_compute_slices, spec.mig_memory_slices)
    for name in ("mem_bytes", "mem_bytes_per_s", "l2_bytes", *PEAK_FIELDS.values()):
        value, limit = getattr(part, name), getattr(spec, name)
        assert (value is None) == (limit is None)
        assert value is None or 0 < value <= limit
        assert getattr(whole, name) == limit


@given(st.floats(1, 1e5), st.integers(1, 16_384))
def test_the_nominal_bandwidth_is_two_transfers_of_the_width_per_clock(clock, width):
    nominal = nominal_from_nvml(clock, width)
    assert nominal is not None
    assert abs(nominal.bytes_per_s / (clock * 1e6 * width / 4) - 1) < 1e-12
