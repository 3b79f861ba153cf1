"""What copies and memsets are called, the same whoever recorded them."""

from __future__ import annotations

from gputop_llm.timeline.model import CopyKind, Memory

_COPY_TITLES = {
    CopyKind.UNKNOWN: "Memcpy",
    CopyKind.HTOD: "Memcpy HtoD",
    CopyKind.DTOH: "Memcpy DtoH",
    CopyKind.DTOD: "Memcpy DtoD",
    CopyKind.HTOH: "Memcpy HtoH",
    CopyKind.PTOP: "Memcpy PtoP",
    CopyKind.UVM: "Memcpy UVM",
}


def copy_title(kind: int, source: int, target: int) -> str:
    """A copy by its direction and the memory at both ends (values of `CopyKind` and `Memory`)."""
    return f"{_COPY_TITLES[CopyKind(kind)]} ({Memory(source).name.title()} -> {Memory(target).name.title()})"


def memset_title(_kind: int, _source: int, target: int) -> str:
    """A memset by the memory that it sets (a value of `Memory`); takes what `copy_title` takes."""
    return f"Memset ({Memory(target).name.title()})"
