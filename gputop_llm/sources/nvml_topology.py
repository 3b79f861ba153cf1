"""How the GPUs of a node are joined: what two of them have to cross, and whether they reach each other's memory.

It can't change while the driver is loaded, and is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from types import ModuleType
from typing import Any

from gputop_llm.model.gpu import GpuPair
from gputop_llm.sources.nvml_errors import failures, judge

# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`.
_PATHS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvmlGpuP2PCapsIndex_t.
_READ, _NVLINK = 0, 2
# nvmlGpuP2PStatus_t: 0 is yes, 6 is unknown; all between is a reason why not.
_YES, _UNKNOWN = 0, 6


def pairs(lib: ModuleType, handles: Mapping[int, Any]) -> tuple[GpuPair, ...]:
    """Every two of these GPUs.

    Args:
        handles: NVML's handles by index.

    Raises:
        DriverGone, GpuLost: the answer says so.
    """
    return tuple(_pair(lib, a, handles[a], b, handles[b]) for a, b in combinations(sorted(handles), 2))


def _pair(lib: ModuleType, a: int, first: Any, b: int, second: Any) -> GpuPair:
    missing: dict[str, str] = {}
    path = _ask(lib, missing, "path", "nvmlDeviceGetTopologyCommonAncestor", first, second)
    if path is not None and path not in _PATHS:
        missing["path"] = f"the driver names a path {path} that is not known here"
    return GpuPair(
        a,
        b,
        None if path is None else _PATHS.get(path),
        _status(lib, missing, "nvlink", first, second, _NVLINK),
        _status(lib, missing, "peer_access", first, second, _READ),
        missing,
    )


def _status(lib: ModuleType, missing: dict[str, str], field: str, first: Any, second: Any, kind: int) -> bool | None:
    status = _ask(lib, missing, field, "nvmlDeviceGetP2PStatus", first, second, kind)
    if status == _UNKNOWN:
        missing[field] = "the driver does not know"
    return None if status is None or status == _UNKNOWN else status == _YES


def _ask(lib: ModuleType, missing: dict[str, str], field: str, call: str, *arguments: Any) -> int | None:
    try:
        return int(getattr(lib, call)(*arguments))
    except failures(lib) as error:
        missing[field] = judge(error)
        return None
