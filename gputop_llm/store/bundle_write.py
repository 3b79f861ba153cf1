"""Writes a bundle: under a name that begins with ".partial-" until it is whole, and gone if it is not finished."""

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

PARTIAL = ".partial-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,200}")
_WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OF_A_NAME = 100


class BundleWriter:
    """A bundle that is being written. As a context it is removed on leaving, unless it was finished.

    Every method raises GputopError when the disk is full or can't be written; nothing then stands under a lasting name.
    """

    def __init__(self, parent: Path, path: Path) -> None:
        self._parent = parent
        self.path = path
        self._open = True

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def write_text(self, name: str, text: str) -> None:
        """Adds a file of text."""
        with self._failing(name):
            fd = os.open(self._inside(name), _WRITE_NEW, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(fd)

    def write_json(self, name: str, value: Any) -> None:
        """Adds a file of JSON; numbers that JSON doesn't have (NaN) are an error of the caller."""
        self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def add(self, source: Path) -> None:
        """Adds a plain file under its own name: as a second name of it where that is possible, else as a copy."""
        with self._failing(source.name):
            target = self._inside(source.name)
            fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "it is no plain file")
                try:
                    os.link(source, target, follow_symlinks=False)
                except OSError as error:
                    if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                        raise
                    with open(os.open(target, _WRITE_NEW, 0o600), "wb") as copy:
                        shutil.copyfileobj(file, copy, 1 << 20)

    def finish(self, name: str) -> Path:
        """Gives it its lasting name (with a number, where that is taken), and returns where it is."""
        with self._failing(name):
            for attempt in range(1, 100):
                final = self._parent / (_checked(name) if attempt == 1 else f"{_checked(name)}-{attempt}")
                # Renaming onto an empty folder would replace it.
                if not os.path.lexists(final):
                    os.rename(self.path, final)
                    self.path, self._open = final, False
                    return final
            raise FileExistsError(errno.EEXIST, "there are 99 of that name")

    def abort(self) -> None:
        """Removes it, unless it was finished."""
        if self._open:
            self._open = False
            shutil.rmtree(self.path, ignore_errors=True)

    def _inside(self, name: str) -> Path:
        return self.path / _checked(name)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        with _told(self._parent, name):
            yield


def create(parent: Path, name: str) -> BundleWriter:
    """A new bundle below `parent`, which is made if it isn't there; readable by this user only.

    Args:
        name: what it is called while it is written; `finish` gives the lasting name.

    Raises:
        GputopError: it can't be made.
    """
    with _told(parent, name):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for attempt in range(1, 100):
            path = parent / f"{PARTIAL}{_checked(name)}{'' if attempt == 1 else f'-{attempt}'}"
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                return BundleWriter(parent, path)
        raise FileExistsError(errno.EEXIST, "there are 99 unfinished ones of that name")


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
