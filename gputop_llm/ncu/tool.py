"""The ncu of this machine. Its options and sections are asked from itself: documents, versions and builds disagree."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from glob import glob
from pathlib import Path

from gputop_llm.errors import GputopError
from gputop_llm.ncu import child

_ASK_WITHIN_S = 30.0
_MOST_BYTES = 64 << 20
#: Where the CUDA toolkit, NVIDIA's own package and Debian put it.
_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/lib/nsight-compute/ncu")
_OPTION = re.compile(r"^  (?:-\w \[ )?(--[a-z][\w-]*)", re.MULTILINE)
_SECTION = re.compile(r"^(\w+) .* (?:yes|no) ", re.MULTILINE)


class NoNcu(GputopError):
    """There is no ncu on this machine."""


class Ncu:
    """An ncu.

    Args:
        path: as it was found; links are followed by its own start script.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def version(self) -> str:
        """As it says it ("2025.3.1.0"); "" where it doesn't."""
        found = re.search(r"Version (\d+(?:\.\d+)+)", self.said(["--version"]))
        return found[1] if found else ""

    @cached_property
    def flags(self) -> frozenset[str]:
        """The long options that it has."""
        return frozenset(_OPTION.findall(self.said(["--help"])))

    @cached_property
    def sections(self) -> frozenset[str]:
        """The identifiers of the sections that it has."""
        return frozenset(_SECTION.findall(self.said(["--list-sections"])))

    def said(self, arguments: Sequence[str]) -> str:
        """What it answers to a question that runs no program; "" when it doesn't in time.

        Raises:
            GputopError: it can't be started.
        """
        with tempfile.TemporaryFile() as words:
            ended = child.run([str(self.path), *arguments], words, _ASK_WITHIN_S)
            words.seek(0)
            return "" if ended.code is None else words.read(_MOST_BYTES).decode("utf-8", "replace")


def find_ncu(environment: Mapping[str, str] = os.environ) -> Ncu:
    """The one on the PATH, else below CUDA_HOME or CUDA_PATH, else the newest where packages put it.

    Raises:
        NoNcu: there is none.
    """
    candidates: list[str | None] = [shutil.which("ncu", path=environment.get("PATH"))]
    candidates += [f"{environment[name]}/bin/ncu" for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    placed = [path for place in _PLACES for path in glob(place)]
    candidates += [*sorted(placed, key=_by_version, reverse=True)]
    for path in candidates:
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return Ncu(Path(path))
    raise NoNcu(
        "there is no ncu on this machine",
        "it is neither on the PATH, nor below CUDA_HOME, /usr/local/cuda* or /opt/nvidia/nsight-compute",
        "install Nsight Compute (it is part of the CUDA toolkit), or name its folder in PATH",
    )


def _by_version(path: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", path)]
