"""Opens captures of any known form, told by what is in the file and never by its name."""

from __future__ import annotations

import filecmp
import gzip
import lzma
import zlib
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

from gputop_llm.errors import GputopError, UsageError
from gputop_llm.timeline import native_format
from gputop_llm.timeline.json_stream import MAX_BYTES
from gputop_llm.timeline.model import Timeline
from gputop_llm.timeline.nsys_db import MAGIC
from gputop_llm.timeline.nsys_export import REPORT_MAGIC
from gputop_llm.timeline.read_kineto import read_kineto
from gputop_llm.timeline.read_native import read_native
from gputop_llm.timeline.read_nsys import read_nsys
from gputop_llm.timeline.unpack import GZIP, XZ, head, shown

Form = Literal["nsys", "kineto", "native"]

_PEEK = 4096
#: An .xz header may ask for 4 GB of dictionary.
_XZ_MEMORY_BYTES = 256 << 20


def read_capture(
    paths: Sequence[Path],
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Timeline:
    """One timeline of a capture, or of several that are ranks of one run.

    `progress` gets the share that is done, 0 to 1.

    Raises:
        UsageError: the files are of different forms, or two are the same.
        GputopError: a file can't be read, is no capture, traces share no moment, or `cancelled` said yes.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a file is named twice", "each file must be another rank of the run")
    forms = {form_of(path) for path in paths}
    if len(forms) > 1:
        raise UsageError(
            "the files are of different kinds", "one run is read from captures of one kind", "give them one at a time"
        )
    for one, other in combinations(paths, 2):
        if one.stat().st_size == other.stat().st_size and filecmp.cmp(one, other, shallow=False):
            raise UsageError(
                f"{shown(one)} and {shown(other)} hold the same", "each file must be another rank of the run"
            )
    if forms == {"nsys"}:
        return read_nsys(paths, progress, cancelled)
    if forms == {"native"}:
        return read_native(paths, progress, cancelled)
    timeline = read_kineto(paths, progress, cancelled)
    if len(paths) > 1:
        _check_together(timeline)
    return timeline


def _check_together(timeline: Timeline) -> None:
    """Refuses traces that were not taken at the same time: between them every GPU would look idle."""
    ops = timeline.ops
    spans = [
        (int(ops.start[rows].min()), int(ops.end[rows].max()))
        for process in range(len(timeline.processes))
        for rows in (ops.process == process,)
        if rows.any()
    ]
    if len(spans) > 1 and max(start for start, _ in spans) >= min(end for _, end in spans):
        raise GputopError(
            "cannot put the traces on one clock",
            "they share no moment with GPU activity",
            "give traces of ranks of one run that were taken at the same time, or one at a time",
        )


def form_of(path: Path) -> Form:
    """What kind of capture a file is, by its first bytes (unpacked, where it is compressed).

    Raises:
        GputopError: it can't be read, or is none.
    """
    first = first_bytes(path)
    if first.startswith((MAGIC, REPORT_MAGIC)):
        return "nsys"
    if first.startswith(native_format.MAGIC):
        return "native"
    if first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        if not head(path).startswith((GZIP, XZ)) and path.stat().st_size > MAX_BYTES:
            raise GputopError(
                f"will not read {shown(path)}",
                f"it has {path.stat().st_size / 2**30:.0f} GiB, and {MAX_BYTES >> 30} GiB is the limit of a trace",
                "take a shorter window",
            )
        return "kineto"
    raise GputopError(
        f"cannot read {shown(path)}",
        "it is neither of Nsight Systems (export, report) nor a trace of torch.profiler nor a native record, nor of "
        "Nsight Compute",
        "give a .sqlite, .nsys-rep, .json, .json.gz, .gtw or .ncu-rep file, or what ncu --csv printed",
    )


def first_bytes(path: Path, length: int = _PEEK) -> bytes:
    """The first bytes of what a capture holds, at most `length` of them.

    Raises:
        GputopError: it can't be read, or its compression is damaged.
    """
    first = head(path, length)
    if not first.startswith((GZIP, XZ)):
        return first
    try:
        if first.startswith(GZIP):
            return zlib.decompressobj(wbits=31).decompress(first, length)
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES).decompress(first, length)
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError) as error:
        raise GputopError(f"cannot read {shown(path)}", f"its compression is damaged ({error})") from None
