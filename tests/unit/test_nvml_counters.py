"""Rates from cumulative counters: PCIe, NVLink, and the shares of time for which clocks were held down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.sources.nvml import NvmlSource
from gputop_llm.sources.nvml_fields import CounterRate, FieldValue
from gputop_llm.sources.nvml_throttle import Throttle, counter_fields
from tests.support.clock import ManualClock
from tests.support.fake_nvml import CAPTURES, FakeNvml

LOAD = CAPTURES / "h200" / "nvml_vllm-load-1.json"
PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX = 197, 198, 138, 139
MIB = 1024 * 1024


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def fake():
    return FakeNvml.from_h200(LOAD)


class TestPcie:
    def test_without_gpm_bytes_per_second_are_the_counters_difference_over_the_time(self, fake, clock):
        fake.fail("nvmlGpmQueryDeviceSupport", 3)
        source = NvmlSource(fake, clock)
        fake.set_field(PCIE_TX, 1_000)
        fake.set_field(PCIE_RX, 2**40)
        first = source.poll().gpus[0]
        assert first.pcie_tx_bytes_per_s is None
        assert first.missing["pcie_tx_bytes_per_s"] == "needs two samples"
        clock.step(2)
        fake.set_field(PCIE_TX, 5_001_000)
        fake.set_field(PCIE_RX, 2**40 + 3_000)
        gpu = source.poll().gpus[0]
        assert (gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s) == (2_500_000.0, 1_500.0)

    def test_no_traffic_is_zero(self, fake, clock):
        fake.fail("nvmlGpmQueryDeviceSupport", 3)
        fake.set_field(PCIE_TX, 77)
        source = NvmlSource(fake, clock)
        source.poll()
        clock.step(1)
        assert source.poll().gpus[0].pcie_tx_bytes_per_s == 0.0

    def test_gpm_stands_in_for_counters_that_the_driver_does_not_have(self, fake, clock):
        source = NvmlSource(fake, clock)
        source.poll()
        clock.step(1)
        gpu = source.poll().gpus[0]
        assert gpu.pcie_tx_bytes_per_s == gpu.gpm.pcie_tx_bytes_per_s
        assert gpu.pcie_tx_bytes_per_s > 10 * MIB
        assert "pcie_tx_bytes_per_s" not in gpu.missing

    def test_the_costly_counters_are_left_alone_where_gpm_tells_the_rates(self, fake, clock):
        fake.set_field(PCIE_TX, 1_000)
        fake.set_field(PCIE_RX, 1_000)
        asked = []
        real = fake.nvmlDeviceGetFieldValues
        fake.nvmlDeviceGetFieldValues = lambda handle, keys: (asked.extend(keys), real(handle, keys))[1]
        source = NvmlSource(fake, clock)
        source.poll()
        asked.clear()
        for _ in range(5):
            clock.step(1)
            gpu = source.poll().gpus[0]
        assert not {(PCIE_TX, 0), (PCIE_RX, 0)} & set(asked)
        assert gpu.pcie_tx_bytes_per_s == gpu.gpm.pcie_tx_bytes_per_s

    def test_without_both_it_is_missing(self, fake, clock):
        fake.fail("nvmlGpmQueryDeviceSupport", 3)
        source = NvmlSource(fake, clock)
        source.poll()
        clock.step(1)
        gpu = source.poll().gpus[0]
        assert gpu.pcie_tx_bytes_per_s is None
        assert gpu.missing["pcie_tx_bytes_per_s"] == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"

    def test_a_narrow_counter_that_may_wrap_unseen_is_not_trusted(self, fake, clock):
        """Gen5 x16 carries 63 GB/s: 32 bits can wrap fifteen times a second."""
        fake.fail("nvmlGpmQueryDeviceSupport", 3)
        source = NvmlSource(fake, clock)
        for value in (1_000, 2_000):
            fake.set_field(PCIE_TX, value, bits=32)
            gpu = source.poll().gpus[0]
            clock.step(1)
        assert gpu.pcie_tx_bytes_per_s is None
        assert "32 bits" in gpu.missing["pcie_tx_bytes_per_s"]

    def test_a_batch_that_is_refused_for_one_field_is_asked_one_by_one_and_once_only(self, fake, clock):
        fake.set_field(PCIE_RX, 0)
        fake.fail("nvmlGpmQueryDeviceSupport", 3)
        real = fake.nvmlDeviceGetFieldValues
        batches = []

        def refusing(handle, keys):
            batches.append(len(keys))
            if (PCIE_TX, 0) in keys:
                fake.fail("nvmlDeviceGetFieldValues", 2, times=1)
            return real(handle, keys)

        fake.nvmlDeviceGetFieldValues = refusing
        source = NvmlSource(fake, clock)
        for _ in range(3):
            gpu = source.poll().gpus[0]
            clock.step(1)
        asked = len(batches) - 3
        # In the third poll the two costly throttle counters rest.
        assert batches == [asked] + [1] * asked + [asked - 1, asked - 3]
        assert gpu.temp_mem_c == 43.0
        assert "NVML_ERROR_INVALID_ARGUMENT" in gpu.missing["pcie_tx_bytes_per_s"]


class TestCounterRate:
    @given(
        start=st.integers(0, 2**64 - 1),
        steps=st.lists(st.tuples(st.integers(0, 10**12), st.floats(0.01, 100)), min_size=1),
    )
    def test_rates_times_elapsed_add_up_to_what_was_counted(self, start, steps):
        rate, value, at, total = CounterRate(), start, 0.0, 0.0
        rate.update(FieldValue(value, 64), at, None)
        for step, elapsed in steps:
            value, before, at = value + step, at, at + elapsed
            per_s, _ = rate.update(FieldValue(value, 64), at, None)
            total += per_s * (at - before)
        assert total == pytest.approx(value - start, rel=1e-9, abs=1e-6)

    @given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
    def test_a_32_bit_counter_that_can_wrap_once_only_is_right_across_the_wrap(self, start, step):
        rate = CounterRate()
        rate.update(FieldValue(start, 32), 0.0, 1e9)
        per_s, _ = rate.update(FieldValue((start + step) % 2**32, 32), 2.0, 1e9)
        assert per_s == step / 2

    @given(st.integers(1, 2**63), st.integers(1, 2**63))
    def test_a_counter_that_fell_gives_one_gap_and_no_negative_rate(self, low, fall):
        rate = CounterRate()
        rate.update(FieldValue(low + fall, 64), 0.0, None)
        assert rate.update(FieldValue(low, 64), 1.0, None) == (None, "the driver's counter started again")
        assert rate.update(FieldValue(low + 5, 64), 2.0, None)[0] == 5.0

    def test_a_gap_starts_it_anew(self):
        rate = CounterRate()
        rate.update(FieldValue(0, 64), 0.0, None)
        assert rate.update(None, 1.0, None) == (None, "needs two samples")
        assert rate.update(FieldValue(100, 64), 2.0, None) == (None, "needs two samples")
        assert rate.update(FieldValue(150, 64), 3.0, None)[0] == 50.0

    def test_two_readings_at_the_same_moment_give_no_rate(self):
        rate = CounterRate()
        rate.update(FieldValue(0, 64), 1.0, None)
        assert rate.update(FieldValue(9, 64), 1.0, None)[0] is None
        assert rate.update(FieldValue(9, 64), 2.0, None)[0] == 9.0


class TestThrottle:
    def reasons(self, source, clock):
        clock.step(1)
        return {reason.name: reason for reason in source.poll().gpus[0].throttle}

    def test_the_first_poll_knows_the_bits_only(self, fake, clock):
        fake.set("CurrentClocksEventReasons", 0x4)
        reasons = self.reasons(NvmlSource(fake, clock), clock)
        assert reasons["sw_power_cap"].active
        assert (reasons["sw_power_cap"].share_pct, reasons["sw_power_cap"].source) == (None, "bit")
        assert not reasons["hw_thermal"].active

    def test_a_burst_between_two_polls_counts_though_no_bit_is_set(self, fake, clock):
        source = NvmlSource(fake, clock)
        self.reasons(source, clock)
        fake.set_field(74, 4085666944 + 250_000_000)
        capped = self.reasons(source, clock)["sw_power_cap"]
        assert capped.active
        assert capped.share_pct == pytest.approx(25.0)
        assert capped.source == "counter"
        quiet = self.reasons(source, clock)["sw_power_cap"]
        assert (quiet.active, quiet.share_pct) == (False, 0.0)

    def test_a_costly_counter_is_read_seldom_and_misses_no_burst(self, fake, clock):
        fake.set_field(271, 0)
        source = NvmlSource(fake, clock)
        for _ in range(2):
            source.poll()
            clock.step(1)
        fake.set_field(271, 600_000_000)  # 0.6 s, in one burst
        shares = []
        for _ in range(3):
            gpu = source.poll().gpus[0]
            shares.append(next(r.share_pct for r in gpu.throttle if r.name == "hw_power_brake"))
            clock.step(1)
        assert shares == [0.0, 0.0, pytest.approx(20.0)]

    @pytest.mark.parametrize(
        ("field", "name"),
        [(74, "sw_power_cap"), (76, "sync_boost"), (269, "sw_thermal"), (270, "hw_thermal"), (271, "hw_power_brake")],
    )
    def test_each_counter_belongs_to_its_reason(self, field, name, fake, clock):
        fake.set_field(field, 0)
        source = NvmlSource(fake, clock)
        self.reasons(source, clock)
        fake.set_field(field, 500_000_000)
        active = [reason for reason in self.reasons(source, clock).values() if reason.active]
        assert [(reason.name, reason.share_pct) for reason in active] == [(name, pytest.approx(50.0))]

    @pytest.mark.parametrize(
        ("bit", "name"),
        [(0x1, "idle"), (0x2, "app_clocks"), (0x8, "hw_slowdown"), (0x100, "display_clocks"), (0x40, "hw_thermal")],
    )
    def test_each_bit_belongs_to_its_reason(self, bit, name, fake, clock):
        fake.set("CurrentClocksEventReasons", bit)
        active = [reason.name for reason in self.reasons(NvmlSource(fake, clock), clock).values() if reason.active]
        assert active == [name]

    def test_a_reason_that_the_gpu_cannot_have_is_left_out(self, fake, clock):
        fake.set("SupportedClocksThrottleReasons", 0x1FF & ~0x10)
        fake.set_field(76, 0, error=3)
        assert "sync_boost" not in self.reasons(NvmlSource(fake, clock), clock)

    def test_without_counters_bits_are_used(self, fake, clock):
        for field in (74, 76, 269, 270, 271):
            fake.set_field(field, 0, error=3)
        fake.set("CurrentClocksEventReasons", 0x24)
        source = NvmlSource(fake, clock)
        self.reasons(source, clock)
        reasons = self.reasons(source, clock)
        assert {name for name, reason in reasons.items() if reason.active} == {"sw_power_cap", "sw_thermal"}
        assert {reason.source for reason in reasons.values()} == {"bit"}

    def test_without_bits_counters_are_used(self, fake, clock):
        fake.set("CurrentClocksEventReasons", {"error": 3})
        fake.set("CurrentClocksThrottleReasons", {"error": 3})
        source = NvmlSource(fake, clock)
        assert source.poll().gpus[0].throttle is None
        assert set(self.reasons(source, clock)) == {"sw_power_cap", "sync_boost"} | {
            "sw_thermal",
            "hw_thermal",
            "hw_power_brake",
        }

    def test_without_both_there_is_a_reason(self, fake, clock):
        fake.set("SupportedClocksEventReasons", 0)
        fake.fail("FieldValues", 3)
        gpu = NvmlSource(fake, clock).poll().gpus[0]
        assert gpu.throttle is None
        assert gpu.missing["throttle"] == "this GPU tells no reason for its clocks"

    def test_an_old_drivers_name_of_the_call_works(self, fake, clock):
        fake.set("CurrentClocksEventReasons", {"error": 13})
        fake.set("CurrentClocksThrottleReasons", 0x20)
        assert self.reasons(NvmlSource(fake, clock), clock)["sw_thermal"].active

    @pytest.mark.parametrize("driver", ["535.104.05", "570.172.08", "575.51.03", "580.65.06", None, "garbage"])
    def test_drivers_that_number_the_thermal_counters_otherwise_are_not_asked_for_them(self, driver):
        """269–271 are power smoothing settings before 580.82."""
        assert {field for field, _ in counter_fields(driver)} == {74, 76}

    @pytest.mark.parametrize("driver", ["580.82.07", "580.159.04", "590.44.01", "610.1"])
    def test_newer_drivers_are(self, driver):
        assert {field for field, _ in counter_fields(driver)} == {74, 76, 269, 270, 271}

    @given(st.lists(st.tuples(st.integers(0, 10**10), st.floats(0.05, 10)), min_size=1, max_size=20))
    def test_a_share_is_always_from_0_to_100_percent(self, steps):
        throttle, value, at = Throttle(), 0, 0.0
        throttle.update(0, None, {(74, 0): FieldValue(value, 64)}, at)
        for step, elapsed in steps:
            value, at = value + step, at + elapsed
            (capped,) = [
                reason
                for reason in throttle.update(0, None, {(74, 0): FieldValue(value, 64)}, at)
                if reason.name == "sw_power_cap"
            ]
            assert 0.0 <= capped.share_pct <= 100.0
            assert capped.active == (capped.share_pct > 0)


class TestNvlink:
    @pytest.fixture
    def linked(self, fake):
        for link in range(18):
            fake.set(f"NvLink{link}", 1 if link < 4 else 0)
        return fake

    def test_rates_are_over_all_links_and_from_kib(self, linked, clock):
        scopes = []
        real = linked.nvmlDeviceGetFieldValues

        def watching(handle, keys):
            scopes.extend(scope for field, scope in keys if field == NVLINK_TX)
            return real(handle, keys)

        linked.nvmlDeviceGetFieldValues = watching
        source = NvmlSource(linked, clock)
        for tick in range(2):
            linked.set_field(NVLINK_TX, 1024 * tick)
            linked.set_field(NVLINK_RX, 2048 * tick)
            gpu = source.poll().gpus[0]
            clock.step(1)
        assert (gpu.nvlink_tx_bytes_per_s, gpu.nvlink_rx_bytes_per_s) == (1.0 * MIB, 2.0 * MIB)
        assert scopes == [0xFFFFFFFF] * 2

    def test_gpm_stands_in(self, linked, clock):
        linked.devices[0]["gpm"] = {
            **linked.devices[0]["gpm"],
            "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC": [0, 7.0, "MiB/s"],
        }
        linked.devices[0]["ticks"] = [{}]
        source = NvmlSource(linked, clock)
        source.poll()
        clock.step(1)
        gpu = source.poll().gpus[0]
        assert gpu.nvlink_tx_bytes_per_s == gpu.gpm.nvlink_tx_bytes_per_s == 7.0 * MIB

    def test_errors_are_summed_over_their_kinds_and_kept_between_reads(self, linked, clock):
        for field, count in ((38, 1), (52, 2), (59, 4)):
            linked.set_field(field, count)
        source = NvmlSource(linked, clock)
        for _ in range(4):
            assert source.poll().gpus[0].nvlink_errors == 7
            clock.step(1)

    def test_no_errors_on_hopper_are_unknown_where_its_old_counters_answer_0_whatever_happened(self, linked, clock):
        for field in (38, 45, 52, 59):
            linked.set_field(field, 0)
        gpu = NvmlSource(linked, clock).poll().gpus[0]
        assert gpu.nvlink_errors is None
        assert "on Hopper the driver answers 0" in gpu.missing["nvlink_errors"]
        linked.set("Architecture", 8)
        assert NvmlSource(linked, clock).poll().gpus[0].nvlink_errors == 0

    def test_links_that_are_all_down_carry_nothing_that_could_be_measured(self, fake, clock):
        for link in range(18):
            fake.set(f"NvLink{link}", 0)
        source = NvmlSource(fake, clock)
        source.poll()
        clock.step(1)
        gpu = source.poll().gpus[0]
        assert gpu.nvlink_tx_bytes_per_s is None
        assert gpu.missing["nvlink_tx_bytes_per_s"] == "this GPU has no active NVLink"

    def test_an_error_that_passes_is_not_taken_for_no_link(self, linked, clock):
        linked.fail("NvLinkState", 999, times=1)
        linked.set_field(NVLINK_TX, 0)
        source = NvmlSource(linked, clock)
        source.poll()
        clock.step(1)
        assert source.poll().gpus[0].nvlink_tx_bytes_per_s == 0.0
