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
        "the power limit is touched all the time, and costs 4 % of the SM clock",
        readings=(throttled("sw_power_cap", clock_pct=96.0, power_w=299.0, power_limit_w=300.0),),
    ),
    raising(
        "thermal-throttled",
        "the GPU has come to its slowdown temperature: the SM clock falls to 70 %",
        readings=(throttled("sw_thermal", clock_pct=70.0, temp_c=88.0, temp_mem_c=95.0),),
    ),
    near_miss(
        "thermal-throttled",
        "the GPU is hot, and its clock is lowered in a quarter of the time",
        readings=(throttled("sw_thermal", clock_pct=90.0, share_pct=25.0, temp_c=84.0, temp_mem_c=91.0),),
    ),
    raising(
        "hw-slowdown",
        "the power brake of the board halves the clock",
        readings=(throttled("hw_slowdown", "hw_power_brake", clock_pct=50.0, power_w=210.0),),
    ),
    near_miss(
        "hw-slowdown",
        "the power brake of the board engages in a quarter of the time",
        readings=(throttled("hw_power_brake", clock_pct=80.0, share_pct=25.0),),
    ),
    raising(
        "link-degraded",
        "under load the PCIe link runs at gen 3 ×8 instead of gen 5 ×16",
        lingers_s=30.0,
        readings=(gpu_says(0, pcie_gen=3, pcie_width=8),),
    ),
    near_miss(
        "link-degraded",
        "the PCIe link has replayed packets before; now it replays three in two minutes",
        when=(0.0, 100.0),
        counters=(counts_up("pcie_replays", per_s=0.026, from_count=212),),
    ),
    raising(
        "link-degraded",
        "the PCIe link replays packets again and again",
        variant="replays",
        lingers_s=130.0,
        every_s=300.0,
        counters=(counts_up("pcie_replays", per_s=4.0),),
    ),
    raising(
        "gpu-fault",
        "an uncorrected memory error: a row waits to be remapped, until the GPU is reset",
        readings=(gpu_says(0, ecc_uncorrected=1, remap_pending=True),),
    ),
    raising(
        "gpu-fault",
        "the driver reports Xid 31: a program accessed memory that is not mapped",
        variant="xid",
        when=(20.0, 620.0),
        every_s=1500.0,
        counters=(xid(31),),
    ),
    near_miss(
        "gpu-fault",
        "memory errors are corrected one after the other",
        counters=(counts_up("ecc_corrected", per_s=2.0),),
    ),
)
