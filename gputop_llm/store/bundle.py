"""A capture's folder (bundle) as a colleague gets it: opened anywhere, without a GPU, whatever somebody put into it.

    rank<k>_pid<pid>.gtw   the raw records, one for each process (native); or
    *.sqlite               of Nsight Systems, of all processes, without what nsys knows of the environment; or
    *.trace.json[.gz]      of torch.profiler, one for each process
    verdict.json, .md      what they say
    capture.json           what was done: plan, PIDs, costs, the command that repeats it, versions
    environment.json       GPUs, driver, engine, command line and environment without secrets, commit
    engine.jsonl           what the engine said of its pace around the window
    frames.jsonl           what the monitor saw in the minute before and after, as `watch --json` writes it

Only plain files of the folder itself are read, none of them through a link, and none beyond its bound.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.model.pace import EnginePace
from gputop_llm.printable import printable
from gputop_llm.store.bundle_pace import pace_of

#: What records end with: native, of Nsight Systems, of torch.profiler.
RECORD, EXPORT, TRACE = ".gtw", ".sqlite", ".trace.json"
RECORDS = (RECORD, EXPORT, TRACE, f"{TRACE}.gz")
VERDICT_JSON, VERDICT_PAGE = "verdict.json", "verdict.md"
CAPTURE, ENVIRONMENT = "capture.json", "environment.json"
FRAMES, ENGINE = "frames.jsonl", "engine.jsonl"

_RECORDS = (*RECORDS, *(f"{name}.gz" for name in (RECORD, EXPORT)), *(f"{name}.xz" for name in (RECORD, EXPORT)))
_MOST_NAMES = 4096
#: Processes of one target.
_MOST_RECORDS = 256
_MOST_JSON_BYTES = 16 << 20
_MOST_LINES_BYTES = 64 << 20
_MOST_LINES = 10_000
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True)
class Bundle:
    """One capture. What is missing or can't be used is empty or None, and `notes` says so.

    `records` are its raw files, by name; `pace` is what the engine said while it was taken.
    """

    path: Path
    records: tuple[Path, ...]
    capture: Mapping[str, Any]
    verdict: Mapping[str, Any]
    pace: EnginePace | None = None
    notes: tuple[str, ...] = ()

    def frames(self) -> Iterator[Mapping[str, Any]]:
        """The frames of the minute before and after, oldest first; lines that are no frame are left out."""
        with _Folder(self.path) as folder:
            yield from folder.objects(FRAMES)

    def environment(self) -> Mapping[str, Any]:
        """What it was taken in (`bundle_environment`); empty where that is not known."""
        with _Folder(self.path) as folder:
            return folder.json(ENVIRONMENT)


def read(path: Path) -> Bundle:
    """Opens a bundle; its records are only named, not read.

    Raises:
        GputopError: it isn't there, is no folder, may not be read, or holds no record.
    """
    with _Folder(path) as folder:
        records = tuple(path / name for name in folder.records())
        if not records:
            raise GputopError(
                f"cannot read {_shown(path)}",
                f"it is a folder without a record ({', '.join(RECORDS)})",
                "name a capture's folder",
            )
        capture, verdict = folder.json(CAPTURE), folder.json(VERDICT_JSON)
        pace = pace_of(capture, folder.objects(ENGINE))
        return Bundle(path, records, capture, verdict, pace, tuple(folder.notes))


def expanded(paths: Sequence[Path]) -> tuple[list[Path], EnginePace | None, tuple[str, ...]]:
    """The files to read for what a user named, bundles among them; the engine's pace (of a single bundle); and what of
    the bundles was not read.

    Raises:
        GputopError: a folder is no bundle.
    """
    files: list[Path] = []
    notes: list[str] = []
    pace = None
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        bundle = read(path)
        files += bundle.records
        notes += bundle.notes
        pace = bundle.pace if len(paths) == 1 else None
    return files, pace, tuple(notes)


class _Folder:
    """A folder that is open: what it holds is reached from its descriptor, so that nothing can be exchanged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: list[str] = []
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise GputopError(f"cannot read {_shown(path)}", str(error.strerror or error)) from error

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def records(self) -> list[str]:
        """The names of the plain files that are records, in order."""
        found = []
        with os.scandir(self._fd) as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST_NAMES:
                    self.notes.append(f"the folder has more than {_MOST_NAMES} files: the others were not looked at")
                    break
                if entry.name.endswith(_RECORDS):
                    if entry.is_file(follow_symlinks=False):
                        found.append(entry.name)
                    else:
                        self.notes.append(f"{printable(entry.name, 100)} is no plain file and was not read")
        if len(found) > _MOST_RECORDS:
            raise GputopError(f"will not read {_shown(self._path)}", f"it has more than {_MOST_RECORDS} records")
        return sorted(found, key=_in_order)

    def json(self, name: str) -> Mapping[str, Any]:
        """A JSON object; empty where there is none that can be used."""
        data = self._read(name, _MOST_JSON_BYTES)
        if data is None:
            return {}
        found = _object(data)
        if found is None:
            self.notes.append(f"{name} is damaged and was not used")
        return found or {}

    def objects(self, name: str) -> Iterator[Mapping[str, Any]]:
        """The JSON objects of a file with one in each line."""
        data = self._read(name, _MOST_LINES_BYTES) or b""
        for line in data.split(b"\n", _MOST_LINES)[:_MOST_LINES]:
            if (found := _object(line)) is not None:
                yield found

    def _read(self, name: str, most_bytes: int) -> bytes | None:
        try:
            fd = os.open(name, _OPEN, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.notes.append(f"{name} was not read: {error.strerror or error}")
            return None
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                self.notes.append(f"{name} was not read: it is no plain file")
                return None
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            self.notes.append(f"{name} was not read: it has more than {most_bytes >> 20} MiB")
            return None
        return data


def _object(data: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_number(text: str) -> None:
    raise ValueError(f"JSON has no {text}")


def _in_order(name: str) -> tuple[int, str]:
    """rank10 comes after rank9."""
    digits = name.removeprefix("rank").partition("_")[0]
    return (int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 1 << 40, name)


def _shown(path: Path) -> str:
    return printable(os.fsdecode(path))
