"""Turns an Nsight Systems report (.nsys-rep) into its SQLite export, with an nsys found on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import NamedTuple

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable
from gputop_llm.timeline.unpack import head, shown, unpacked

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
#: Where NVIDIA's packages, the CUDA toolkit, Nsight Compute and Debian put it.
_PLACES = (
    "/opt/nvidia/nsight-systems*/**/bin/nsys",
    "/opt/nvidia/nsight-systems*/**/target-linux-*/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
)
#: A 2.2 GB node-level report takes minutes.
_DEADLINE_S = 900.0
_QUESTION_S = 20.0
_LOOK_S = 0.1
#: Left free on the disk that takes the export.
_SPARE_BYTES = 256 << 20
#: A share of the time that the export takes of reading a report (the rest is reading the export).
_EXPORTING = 0.6
_PROGRESS = re.compile(rb"(\d{1,3})%")

Version = tuple[int, ...]


class Nsys(NamedTuple):
    """An nsys of this machine; the version is () when it doesn't tell."""

    path: Path
    version: Version


def is_report(path: Path) -> bool:
    """Whether the file is a report, not an export. GputopError: it can't be read."""
    return head(path).startswith(REPORT_MAGIC)


@contextmanager
def sqlite_export(
    path: Path, progress: Callable[[float], None], cancelled: Callable[[], bool]
) -> Iterator[tuple[Path, float]]:
    """The SQLite file for a capture, and the share of `progress` that was spent on getting it.

    A file that is compressed or a report is unpacked and exported into a temporary folder, removed on leaving.
    """
    with unpacked(path, lambda done: progress(done * 0.3), cancelled) as plain:
        spent = 0.3 if plain != path else 0.0
        if not is_report(plain):
            yield plain, spent
            return
        folder = Path(tempfile.mkdtemp(prefix="gputop-llm-"))
        try:
            yield export_nsys_rep(plain, folder, lambda done: progress(done * _EXPORTING), cancelled, path), _EXPORTING
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def export_nsys_rep(
    path: Path,
    folder: Path,
    progress: Callable[[float], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    label: Path | None = None,
) -> Path:
    """The SQLite export of a report, written into `folder` by the newest nsys of this machine.

    Raises:
        GputopError: there is no nsys, it is older than the report, it failed or took too long, the disk is nearly
            full, or `cancelled` said yes.
    """
    what = f"cannot export {shown(label or path)}"
    found = find_nsys()
    if not found:
        raise GputopError(
            what, "there is no nsys on this machine", "where it was taken, run: nsys export --type sqlite FILE"
        )
    nsys = found[0]
    target = folder / "capture.sqlite"
    arguments = ["export", "--type", "sqlite", "--output", str(target), *_supported(nsys.path), str(path)]
    log = folder / "nsys.log"
    status = _run(what, nsys.path, arguments, log, progress, cancelled)
    if status == 0 and target.is_file() and target.stat().st_size > 0:
        return target
    said = _last_words(log)
    taken_by = report_version(path)
    if (taken_by and nsys.version and taken_by[:3] > nsys.version[:3]) or "newer than" in said:
        report = f" ({_dotted(taken_by)})" if taken_by else ""
        raise GputopError(
            what,
            f"the report{report} is newer than the newest nsys here ({_dotted(nsys.version) or shown(nsys.path)})",
            "update nsys, or where it was taken run: nsys export --type sqlite FILE",
        )
    raise GputopError(
        what,
        f"{shown(nsys.path)} failed ({said or f'status {status}, no message'})",
        "copy the report again, whole, or where it was taken run: nsys export --type sqlite FILE",
    )


def places() -> list[Path]:
    """Where an nsys is on this machine, none of them run; the one on PATH first."""
    on_path = shutil.which("nsys")
    candidates = [on_path] if on_path else []
    candidates += [found for pattern in _PLACES for found in sorted(glob(pattern, recursive=True))]
    return list(dict.fromkeys(Path(os.path.realpath(path)) for path in candidates if os.access(path, os.X_OK)))


def find_nsys() -> list[Nsys]:
    """Every nsys of this machine that runs, the newest first; the one on PATH first among equals."""
    versions = [(path, _output(path, "--version")) for path in places()]
    working = [Nsys(path, _version(text)) for path, text in versions if text is not None]
    return sorted(working, key=lambda nsys: nsys.version, reverse=True)


def report_version(path: Path) -> Version:
    """The version of the nsys that took a report, () if it doesn't tell (2022 and before)."""
    match = re.match(REPORT_MAGIC + rb" (\d{4}(?:@\d+)+)", head(path))
    return _version(match.group(1).decode()) if match else ()


def _version(text: str) -> Version:
    match = re.search(r"\d{4}([.@]\d+)+", text)
    return tuple(int(part) for part in re.findall(r"\d+", match.group())) if match else ()


def _dotted(version: Version) -> str:
    return ".".join(map(str, version[:3]))


def _supported(nsys: Path) -> list[str]:
    """The further flags that this nsys lists; documents and programs disagree about them."""
    listed = _output(nsys, "export", "--help") or ""
    wanted = {"--force-overwrite": "true", "--lazy": "false"}
    return [f"{flag}={value}" for flag, value in wanted.items() if flag in listed]


def _output(program: Path, *arguments: str) -> str | None:
    """What a program prints; None if it doesn't run."""
    try:
        done = subprocess.run(
            [str(program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_QUESTION_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _run(
    what: str,
    program: Path,
    arguments: list[str],
    log: Path,
    progress: Callable[[float], None],
    cancelled: Callable[[], bool],
) -> int:
    """Runs the export to its end and returns its status; its words are in `log`."""
    with log.open("wb") as words:
        try:
            process = subprocess.Popen(
                [str(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )
        except OSError as error:
            raise GputopError(what, f"{shown(program)} does not start ({error.strerror})") from error
    deadline = time.monotonic() + _DEADLINE_S
    try:
        while True:
            try:
                return process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                pass
            if cancelled():
                raise GputopError(f"{what.replace('cannot export', 'the export of')} was cancelled")
            if time.monotonic() > deadline:
                raise GputopError(what, f"{shown(program)} took over {_DEADLINE_S / 60:.0f} minutes")
            if shutil.disk_usage(log.parent).free < _SPARE_BYTES:
                raise GputopError(what, f"{log.parent} is nearly full", "set TMPDIR to a folder on a larger disk")
            if told := _PROGRESS.findall(log.read_bytes()[-4096:]):
                progress(min(int(told[-1]) / 100, 1.0))
    finally:
        if process.poll() is None:
            # Its own session, so its own group: nothing else is in it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_words(log: Path) -> str:
    """The last thing the export said that isn't its progress bar."""
    text = log.read_bytes()[-65536:].decode("utf-8", "replace")
    lines = [line.strip() for line in re.split(r"[\r\n]", text)]
    said = [line for line in lines if line and not line.endswith("]")]
    return printable(said[-1], 300) if said else ""
