"""Opens what Nsight Compute wrote, told by what is in it: a report (.ncu-rep), or the text of `ncu --csv`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gputop_llm.errors import GputopError
from gputop_llm.ncu.container import MAGIC, options_of
from gputop_llm.ncu.csv_text import read_text
from gputop_llm.ncu.failures import explain
from gputop_llm.ncu.model import KernelReport
from gputop_llm.ncu.report import read_report
from gputop_llm.timeline.read import first_bytes
from gputop_llm.timeline.unpack import shown, unpacked

#: What ncu prints before its table may be preceded by the program's own output.
_PEEK = 65536
_TEXT_OF_NCU = re.compile(r'^(==(PROF|ERROR|WARNING)== |"?ID"?,"?(Process ID|Kernel Name)"?,)', re.MULTILINE)
#: A full set of metrics is 1 MB for each launch.
_MOST_BYTES = 1 << 30
_MOST_TEXT_BYTES = 256 << 20


@dataclass(frozen=True)
class Profile:
    """What was read: the launches of all files, in order. `options` are those of ncu that a report tells."""

    kernels: tuple[KernelReport, ...]
    files: tuple[str, ...]
    format: str
    options: Mapping[str, str] = field(default_factory=dict)


def is_profile(path: Path) -> bool:
    """Whether Nsight Compute wrote the file, by its first bytes (unpacked, where it is compressed).

    Raises:
        GputopError: it can't be read.
    """
    try:
        # Where a folder above it is closed to this user, even that can't be told.
        if path.is_dir():
            return False
        first = first_bytes(path, _PEEK)
    except OSError as error:
        raise GputopError(f"cannot read {path}", error.strerror or str(error)) from None
    return first.startswith(MAGIC) or bool(_TEXT_OF_NCU.search(_decoded(first)))


def read_profile(paths: Sequence[Path]) -> Profile:
    """All launches of the files.

    Raises:
        GputopError: a file can't be read, is damaged, holds no launch, or tells that ncu failed.
    """
    kernels: list[KernelReport] = []
    options: dict[str, str] = {}
    formats: list[str] = []
    for path in paths:
        with unpacked(path, limit_bytes=_MOST_BYTES) as plain:
            if first_bytes(plain, len(MAGIC)) == MAGIC:
                options |= options_of(plain)
                found = read_report(plain)
                formats.append("ncu")
            else:
                found = _text(path, plain)
                formats.append("ncu-csv")
        if not found:
            raise GputopError(
                f"cannot judge {shown(path)}",
                "no kernel was profiled in it",
                "look at ncu's filters (--kernel-name, --launch-skip), and profile again",
            )
        kernels += found
    return Profile(tuple(kernels), tuple(map(str, paths)), formats[0], options)


def _text(path: Path, plain: Path) -> tuple[KernelReport, ...]:
    if plain.stat().st_size > _MOST_TEXT_BYTES:
        raise GputopError(
            f"will not read {shown(path)}",
            f"{_MOST_TEXT_BYTES >> 20} MiB is the limit of a table",
            "profile fewer launches (--launch-count)",
        )
    text = _decoded(plain.read_bytes())
    found = read_text(text)
    if not found and (failure := explain(text)) is not None:
        raise failure.error(f"ncu recorded nothing in {shown(path)}")
    return found


def _decoded(data: bytes) -> str:
    """Text as it comes out of a pipe, also of a PowerShell one."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")
