"""How the GPUs of an engine are joined, in words and as evidence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gputop_llm.model import GpuPair
from gputop_llm.model.symptom import Evidence
from gputop_llm.symptoms.view import NodeView

# From the nearest to the farthest.
_PATHS = ("same board", "PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True)
class Joints:
    """Some GPUs and what joins them.

    `nvlink` tells whether NVLink joins every two of them, None while that is unknown; `text` says what does: of
    several kinds the farthest. Empty, with the reason in `missing`, while nothing is known.
    """

    nvlink: bool | None
    text: str
    missing: str | None = None


def joints(view: NodeView, indices: Collection[int]) -> Joints:
    """What joins these GPUs."""
    pairs = [p for p in (view.node.pairs if view.node else ()) if p.a in indices and p.b in indices]
    if not pairs:
        return Joints(None, "", "NVML did not say how they are joined")
    known = [pair.nvlink for pair in pairs]
    nvlink = False if False in known else None if None in known else True
    if nvlink:
        return Joints(True, "NVLink joins every two of them")
    apart = [pair for pair in pairs if not pair.nvlink]
    farthest = max(
        apart, key=lambda pair: (_PATHS.index(pair.path) if pair.path in _PATHS else -1, not pair.peer_access)
    )
    if farthest.path is None:
        return Joints(nvlink, "", next(iter(farthest.missing.values()), "the driver does not say"))
    return Joints(nvlink, _words(farthest))


def evidence(found: Joints) -> Evidence:
    """As a line of evidence."""
    return Evidence(
        "P2P topology", None, "", "NVML, as nvidia-smi topo -m", text=found.text or None, missing=found.missing
    )


def _words(pair: GpuPair) -> str:
    linked = {True: "", False: ", no NVLink", None: ""}[pair.nvlink]
    reach = {True: ", peer access", False: ", no peer access", None: ""}[pair.peer_access]
    return f"GPU {pair.a} to {pair.b}: {pair.path}{linked}{reach}"
