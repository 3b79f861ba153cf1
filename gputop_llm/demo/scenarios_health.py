"""Scenarios of a GPU's health: power, heat, its link, its faults."""

from __future__ import annotations

from gputop_llm.demo.causes import near_miss, raising
from gputop_llm.demo.sensors import counts_up, gpu_says, throttled, xid

SCENARIOS = (
    raising(
        "power-capped",
        "the power limit was set to 300 W: the SM clock falls to 78 %",
        readings=(throttled("sw_power_cap", clock_pct=78.0, power_w=299.0, power_limit_w=300.0),),
    ),
    near_miss(
        "power-capped",
        "the power limit is touched all the time, and costs 3 % of the SM clock",
        readings=(throttled("sw_power_cap", clock_pct=97.0, power_w=299.0, power_limit_w=300.0),),
    ),
    raising(
        "thermal-throttled",
        "the GPU has come to its slowdown temperature: the SM clock falls to 70 %",
        readings=(throttled("sw_thermal", clock_pct=70.0, temp_c=88.0, temp_mem_c=95.0),),
    ),
    near_miss(
        "thermal-throttled",
        "the GPU is hot, and the clock is lowered in one fifth of the time",
        readings=(throttled("sw_thermal", clock_pct=97.0, share_pct=20.0, temp_c=84.0, temp_mem_c=91.0),),
    ),
    raising(
        "hw-slowdown",
        "the power brake of the board halves the clock",
        readings=(throttled("hw_slowdown", "hw_power_brake", clock_pct=50.0, power_w=210.0),),
    ),
    near_miss(
        "hw-slowdown",
        "the power brake of the board engages for moments that cost 3 % of the clock",
        readings=(throttled("hw_power_brake", clock_pct=97.0, share_pct=10.0),),
    ),
    raising(
        "link-degraded",
        "under load the PCIe link runs at gen 3 ×8 instead of gen 5 ×16",
        readings=(gpu_says(0, pcie_gen=3, pcie_width=8),),
    ),
    near_miss(
        "link-degraded",
        "the PCIe link has replayed packets long ago; now it runs as it should",
        readings=(gpu_says(0, pcie_replays=212),),
    ),
    raising(
        "link-degraded",
        "the PCIe link replays packets again and again",
        variant="replays",
        counters=(counts_up("pcie_replays", per_s=4.0),),
    ),
    raising(
        "gpu-fault",
        "the driver reports Xid 48 (double-bit ECC error), and a row waits to be remapped",
        readings=(gpu_says(0, remap_pending=True),),
        counters=(xid(48), gpu_says(0, ecc_uncorrected=1)),
    ),
    near_miss(
        "gpu-fault",
        "memory errors are corrected one after the other",
        counters=(counts_up("ecc_corrected", per_s=2.0),),
    ),
)
