"""Profiled launches made up for the tests: the Speed of Light and whatever else a case needs."""

from __future__ import annotations

from pathlib import Path

from gputop_llm.ncu import assemble
from gputop_llm.ncu.model import KernelReport, NvidiaRule
from gputop_llm.ncu.read import Profile, read_profile
from tests.support.captures import CAPTURES

H200 = CAPTURES / "h200"
PUBLIC = CAPTURES / "public"
ALONE = H200 / "ncu-2025.3.1_linear-32x2048x8192_gpu-alone.ncu-rep"
SHARED = H200 / "ncu-2025.3.1_linear-32x2048x8192_gpu-shared.ncu-rep"
FULL = H200 / "ncu-2025.3.1_set-full_decode-gemms.ncu-rep.xz"
DETAILS = H200 / "ncu_decode-gemms_details.csv"
RAW = H200 / "ncu_decode-gemms_raw.csv"
GEMV = PUBLIC / "cg_k0001.csv"
TINY = PUBLIC / "josiahls_profile.ncu-rep"

ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
#: Enough waves, warps and time for nothing of it to stand out.
PLENTY = {
    "gpu__time_duration.sum": 50_000.0,
    "launch__waves_per_multiprocessor": 8.0,
    "sm__maximum_warps_per_active_cycle_pct": 100.0,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 95.0,
}


def light(sm=None, memory=None, dram=None, l2=None, l1=None):
    """Metrics of the Speed of Light; those that are None are left out."""
    given = {
        f"sm__throughput{ELAPSED}": sm,
        f"gpu__compute_memory_throughput{ELAPSED}": memory,
        f"gpu__dram_throughput{ELAPSED}": dram,
        f"lts__throughput{ELAPSED}": l2,
        f"l1tex__throughput{ELAPSED}": l1,
    }
    return {name: value for name, value in given.items() if value is not None}


def kernel(name=GEMM, rules=(), missing=(), **metrics):
    """A launch; keyword `_with` holds metrics under ncu's own names, the others are those of `light`."""
    more = metrics.pop("with_", {})
    grid = metrics.pop("grid", (1056, 1, 1))
    return KernelReport(
        name=name,
        full_name=name,
        metrics={**PLENTY, **light(**metrics), **more},
        missing=frozenset(missing),
        rules=tuple(rules),
        grid=grid,
        block=(256, 1, 1),
        compute_capability=(9, 0),
    )


def rule(identifier, title="", speedup=None, whole=True, message=""):
    return NvidiaRule(identifier, "", title, message, True, speedup, whole)


def judged(*kernels, name=None, shapes=None, options=None):
    """The verdict on launches."""
    return assemble.judge(Profile(tuple(kernels), ("made-up",), "ncu", options or {}), name, shapes)[0]


def recorded(path: Path, **asked):
    """The verdict on a recorded profile."""
    return assemble.judge(read_profile([path]), **asked)[0]


def ids(verdict):
    return [finding.id for finding in verdict.findings]


def found(verdict, id):
    """The finding with that id."""
    return next(finding for finding in verdict.findings if finding.id == id)
