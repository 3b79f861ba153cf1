"""What the names in a Kineto trace mean."""

from __future__ import annotations

import re
from functools import lru_cache

from gputop_llm.timeline.model import CopyKind, Memory

_API_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver"})
_VERSION_SUFFIX = re.compile(r"_v\d{4,}$|_ptsz$|_ptds$")
_COPY = re.compile(r"(HtoD|DtoH|DtoD|HtoH|PtoP|UVM)", re.IGNORECASE)
_ENDS = re.compile(r"\((\w+)\s*->\s*(\w+)\)")
#: What SGLang puts before every pid of the one file into which it merges its ranks: "[TP01-EP01] 4711".
_LABEL = re.compile(r"\[((?:[TDPE]P\d{1,6}-?)+)\] ")
_TP = re.compile(r"TP(\d{1,6})$")
_KINDS = {
    "HTOD": CopyKind.HTOD,
    "DTOH": CopyKind.DTOH,
    "DTOD": CopyKind.DTOD,
    "HTOH": CopyKind.HTOH,
    "PTOP": CopyKind.PTOP,
    "UVM": CopyKind.UVM,
}
# AMD's "Host" tells nothing about pinning.
_MEMORY = {"pageable": Memory.PAGEABLE, "pinned": Memory.PINNED, "device": Memory.DEVICE, "managed": Memory.MANAGED}


def is_api(category: str) -> bool:
    """Whether a category (lower case) is of host API calls; AMD traces put hip* names under cuda_runtime."""
    return category in _API_CATEGORIES


@lru_cache(maxsize=4096)
def api_name(name: str) -> str:
    """An API's name without a version suffix."""
    return _VERSION_SUFFIX.sub("", name)


@lru_cache(maxsize=256)
def copy_kind(name: str) -> CopyKind:
    """The direction from a name such as "Memcpy HtoD (Pageable -> Device)"."""
    found = _COPY.search(name)
    return _KINDS[found.group(1).upper()] if found else CopyKind.UNKNOWN


@lru_cache(maxsize=256)
def copy_memories(name: str) -> tuple[Memory, Memory]:
    """The memory at both ends from such a name."""
    found = _ENDS.search(name)
    if not found:
        return Memory.UNKNOWN, Memory.UNKNOWN
    source, target = (_MEMORY.get(end.lower(), Memory.UNKNOWN) for end in found.groups())
    return source, target


def rank_label(pid: object) -> str | None:
    """The label of a rank that stands before a pid, without its brackets."""
    found = _LABEL.match(pid) if isinstance(pid, str) else None
    return found[1] if found else None


def pid_behind_label(pid: object) -> int | None:
    """The number behind a rank's label."""
    number = _LABEL.sub("", pid, count=1) if isinstance(pid, str) and _LABEL.match(pid) else ""
    return int(number) if re.fullmatch(r"\d{1,9}", number) else None


def tp_rank(label: str) -> int | None:
    """The rank of a label that tells nothing but that of tensor parallelism, which counts all there are."""
    found = _TP.match(label)
    return int(found[1]) if found else None
