"""Writes a bundle: under a hidden name that ends in ".bundle.partial" until it is whole, and gone if not finished."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable

#: Ends the name of a folder that is being made, which begins with a dot.
PARTIAL = ".partial"
PARTIAL_BUNDLE = f".bundle{PARTIAL}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,200}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_SECOND_NAME = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOENT)
_WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OF_A_NAME = 100


class BundleWriter:
    """A bundle that is being written. As a context it is removed on leaving, unless it was finished.

    Its folder may lie where another user can exchange it for a link (root may write to a user's own place): it is
    opened once, as what was just made, and everything in it is reached from there.

    Every method raises GputopError when the disk is full or can't be written; nothing then stands under a lasting name.

    Args:
        parent: where it lies; `place` is open there, and `folder` in the bundle itself. The writer closes both.
        name: what it is called until it is finished.
    """

    def __init__(self, parent: Path, name: str, place: int, folder: int) -> None:
        self._parent = parent
        self._name = name
        self._place, self._folder = place, folder

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def write_text(self, name: str, text: str) -> None:
        """Adds a file of text."""
        with _told(self._parent, name), open(self._new(name), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def write_json(self, name: str, value: Any) -> None:
        """Adds a file of JSON; numbers that JSON doesn't have (NaN) are an error of the caller."""
        self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def add(self, name: str, source: int) -> None:
        """Adds a plain file that is open for reading: as a second name of it where that is possible, else as a copy."""
        with _told(self._parent, name):
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise OSError(errno.EINVAL, "it is no plain file")
            try:
                # What is open, whatever has its name by now.
                os.link(f"/proc/self/fd/{source}", _checked(name), dst_dir_fd=self._folder, follow_symlinks=True)
            except OSError as error:
                if error.errno not in _NO_SECOND_NAME:
                    raise
                with open(source, "rb", closefd=False) as file, open(self._new(name), "wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())

    def finish(self, name: str) -> Path:
        """Gives it its lasting name (with a number, where that is taken), and returns where it is."""
        with _told(self._parent, name):
            for attempt in range(1, 100):
                final = _checked(name) if attempt == 1 else f"{_checked(name)}-{attempt}"
                try:
                    os.stat(final, dir_fd=self._place, follow_symlinks=False)
                except FileNotFoundError:
                    # Renaming onto an empty folder would replace it.
                    os.rename(self._name, final, src_dir_fd=self._place, dst_dir_fd=self._place)
                    self._close()
                    return self._parent / final
            raise FileExistsError(errno.EEXIST, "there are 99 of that name")

    def abort(self) -> None:
        """Removes it, unless it was finished."""
        if self._folder < 0:
            return
        with suppress(OSError):
            for name in os.listdir(self._folder):
                os.unlink(name, dir_fd=self._folder)
            os.rmdir(self._name, dir_fd=self._place)
        self._close()

    def _new(self, name: str) -> int:
        return os.open(_checked(name), _WRITE_NEW, 0o600, dir_fd=self._folder)

    def _close(self) -> None:
        os.close(self._folder)
        os.close(self._place)
        self._folder = self._place = -1


def create(parent: Path, name: str) -> BundleWriter:
    """A new bundle below `parent`, which is made if it isn't there; readable by this user only.

    Args:
        name: what it is called while it is written; `finish` gives the lasting name.

    Raises:
        GputopError: it can't be made.
    """
    with _told(parent, name):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = os.open(parent, _DIRECTORY)
        try:
            for attempt in range(1, 100):
                partial = f".{_checked(name)}{'' if attempt == 1 else f'-{attempt}'}{PARTIAL_BUNDLE}"
                with suppress(FileExistsError):
                    os.mkdir(partial, mode=0o700, dir_fd=place)
                    return BundleWriter(parent, partial, place, _own(partial, place))
            raise FileExistsError(errno.EEXIST, "there are 99 unfinished ones of that name")
        except BaseException:
            os.close(place)
            raise


def _own(name: str, place: int) -> int:
    """A folder that was just made, open."""
    folder = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
    if os.fstat(folder).st_uid != os.geteuid():
        os.close(folder)
        raise PermissionError(errno.EPERM, "somebody has exchanged it")
    return folder


def bundle_name(
    model: str | None, gpu: str | None, phase: str | None, shape: str | None, commit: str | None, stamp: str
) -> str:
    """`<model>_<gpu>_<phase>_<shape>_<commit>_<UTC time>`; what isn't known is named so.

    Args:
        stamp: the time, as "20261129T193000Z".
    """
    parts = (
        _word((model or "").rstrip("/").rpartition("/")[2], "model"),
        _word((gpu or "").removeprefix("NVIDIA "), "gpu"),
        _word(phase, "phase"),
        _word(shape, "shape"),
        _word(commit, "commit"),
        _word(stamp, "time"),
    )
    return "_".join(parts)


def _word(text: str | None, what: str) -> str:
    """A part of a name: what could mean something to a shell, a path or an eye that splits at "_" becomes "-"."""
    word = re.sub(r"[^A-Za-z0-9.+=-]+", "-", (text or "")[:_MOST_OF_A_NAME]).strip("-.")[:40].rstrip("-.")
    return word or f"unknown-{what}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise GputopError(f"cannot write {printable(name, 100)!r}", "it is no name of a file in a bundle")
    return name


@contextmanager
def _told(parent: Path, name: str) -> Iterator[None]:
    """An OSError as a sentence."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise GputopError(
            f"cannot write {printable(name, 200)} to {printable(os.fsdecode(parent))}",
            (error.strerror or str(error)).lower(),
            "free some space, or name another folder" if full else "name another folder",
        ) from error
