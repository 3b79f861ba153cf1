"""Capture files as they come: checked to be readable, and unpacked when they are compressed (.gz, .xz).

What a file is, is told by its first bytes, never by its name.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable

GZIP = b"\x1f\x8b"
XZ = b"\xfd7zXZ\x00"

#: What a compressed capture may grow to. A 1 s window of a node-level capture was measured at 2.2 GB.
MAX_UNPACKED_BYTES = 8 << 30
#: Captures shrink 5 to 25 times; beyond this it is a bomb. Small files are let off: they do no harm.
_MAX_RATIO = 250
_RATIO_FROM_BYTES = 64 << 20
#: Left free on the disk that holds the temporary file.
_SPARE_BYTES = 256 << 20
#: An .xz header may ask for 4 GB of dictionary; `xz -9` needs 65 MB.
_XZ_MEMORY_BYTES = 256 << 20
_PIECE = 1 << 20


def shown(path: Path) -> str:
    """The path made safe to print."""
    return printable(os.fsdecode(path))


def head(path: Path, length: int = 64) -> bytes:
    """The first bytes of a capture file.

    Raises:
        GputopError: it isn't there, isn't a plain file, may not be read, or is empty.
    """
    what = f"cannot read {shown(path)}"
    try:
        # A pipe would block for ever in open(); the readers need to seek anyway.
        about = path.stat()
        if stat.S_ISDIR(about.st_mode):
            raise GputopError(what, "it is a folder", "name the capture file inside it")
        if not stat.S_ISREG(about.st_mode):
            raise GputopError(what, "it is not a regular file", "save the capture to a file first")
        first = b""
        # Files that the kernel makes up have no size, and reading one may wait for ever.
        if about.st_size:
            with path.open("rb") as file:
                first = file.read(length)
    except (OSError, ValueError) as error:
        raise GputopError(what, getattr(error, "strerror", None) or str(error)) from error
    if not first:
        raise GputopError(what, "the file is empty", "take the capture again")
    return first


@contextmanager
def unpacked(
    path: Path,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    limit_bytes: int = MAX_UNPACKED_BYTES,
) -> Iterator[Path]:
    """The file itself, or a temporary file with what it holds when it is compressed; removed on leaving.

    `progress` gets the share of the compressed file that was read.

    Raises:
        GputopError: it can't be read, is damaged, unpacks to more than `limit_bytes` or than the disk has, or
            `cancelled` said yes.
    """
    first = head(path)
    if not first.startswith((GZIP, XZ)):
        yield path
        return
    folder = Path(tempfile.mkdtemp(prefix="gputop-llm-"))
    try:
        plain = folder / "capture"
        _unpack(path, plain, first.startswith(XZ), progress, cancelled, limit_bytes)
        yield plain
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(
    path: Path,
    plain: Path,
    xz: bool,
    progress: Callable[[float], None] | None,
    cancelled: Callable[[], bool],
    limit_bytes: int,
) -> None:
    size = max(path.stat().st_size, 1)
    room = max(shutil.disk_usage(plain.parent).free - _SPARE_BYTES, 0)
    written = 0
    with path.open("rb") as source, plain.open("wb") as target:
        for piece in _checked(path, _pieces(source, xz)):
            written += len(piece)
            _check_size(path, written, source.tell(), limit_bytes, room)
            if cancelled():
                raise GputopError(f"unpacking {shown(path)} was cancelled")
            try:
                target.write(piece)
            except OSError as error:
                raise GputopError(f"cannot unpack {shown(path)} to {plain.parent}", str(error.strerror)) from error
            if progress is not None:
                progress(min(source.tell() / size, 1.0))


def _pieces(source: BinaryIO, xz: bool) -> Iterator[bytes]:
    """What the compressed stream holds, in pieces of bounded size."""
    if not xz:
        with gzip.open(source, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece
        return
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    data = b""
    while True:
        if decoder.eof:
            # Several streams may follow one another, padded with zeros.
            data = decoder.unused_data.lstrip(b"\0")
            if not data and not (data := source.read(_PIECE).lstrip(b"\0")):
                return
            decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        elif decoder.needs_input and not (data := source.read(_PIECE)):
            raise EOFError
        if piece := decoder.decompress(data, _PIECE):
            yield piece
        data = b""


def _checked(path: Path, pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except EOFError as error:
        raise GputopError(f"cannot unpack {shown(path)}", "it ends too early", "copy it again, whole") from error
    except (OSError, lzma.LZMAError, zlib.error) as error:
        raise GputopError(
            f"cannot unpack {shown(path)}", f"it is damaged ({error})", "copy it again, or unpack it yourself"
        ) from error


def _check_size(path: Path, written: int, read: int, limit_bytes: int, room_bytes: int) -> None:
    what = f"stopped unpacking {shown(path)}"
    if written > limit_bytes:
        raise GputopError(what, f"it holds more than {limit_bytes / 1e9:.1f} GB", "take a shorter capture")
    if written > _RATIO_FROM_BYTES and written > _MAX_RATIO * read:
        raise GputopError(what, f"it holds over {_MAX_RATIO} times its own size, which no capture does")
    if written > room_bytes:
        raise GputopError(
            what, f"{tempfile.gettempdir()} has no room for it", "set TMPDIR to a folder on a larger disk"
        )
