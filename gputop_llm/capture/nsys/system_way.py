"""GPU metrics and CPU samples of the whole node, without any session: a way of capturing that touches no process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gputop_llm.capture.nsys.session_way import ENDS, WRITTEN
from gputop_llm.capture.way import Cost, Route, Seen, Setting, Taker, Way, Words
from gputop_llm.timeline.nsys_export import places

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan

COST = Cost(0.0, None, 5.0, "nothing is done to the engine; it was not measured beside a loaded one")
_KEY, _TITLE = "nsys-system", "Nsight Systems, system-wide: GPU metrics and CPU samples"


def look(seen: Seen) -> tuple[Route, ...]:
    """Whether there is an nsys and the right to sample the node."""
    if not places():
        todo = "install Nsight Systems (package nsight-systems-cli)"
        return (Route(_KEY, _TITLE, "closed", "there is no nsys on this machine", todo),)
    if os.geteuid() != 0 and _restricted(seen):
        why = "the driver gives GPU counters to administrators only"
        todo = "run gputop-llm as root (sudo), or set NVreg_RestrictProfilingToAdminUsers=0"
        return (Route(_KEY, _TITLE, "closed", why, todo),)
    return (Route(_KEY, _TITLE, "open"),)


def words(plan: Plan) -> Words:
    """What a system-wide window does."""
    return Words(
        title=_TITLE,
        what="record 10,000 times a second how much of each GPU of this node works (SM active, DRAM), and where the "
        "CPUs are: no kernels, no API calls",
        how=f"nsys reads the GPUs' counters and samples all CPUs; nothing is done to {plan.processes()}",
        stays="nothing",
        ends=ENDS,
        written=WRITTEN,
    )


def taker(setting: Setting) -> Taker:
    """Takes it."""
    from gputop_llm.capture.nsys.system_taker import SystemTaker

    return SystemTaker(setting)


WAY = Way(_KEY, COST, look, words, taker)


def _restricted(seen: Seen) -> bool:
    """Whether the driver says that its counters are the administrator's; where it says nothing it is tried."""
    try:
        return b"RmProfilingAdminOnly: 1" in seen.proc.read("driver/nvidia/params", 1 << 16)
    except OSError:
        return False
