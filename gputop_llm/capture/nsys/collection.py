"""One collection of nsys from its start to the record in the capture's folder; and the same ended after a crash.

nsys writes its report into a folder of its own beside the capture's: it holds the environment of the program, and is
removed when the record is made.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gputop_llm.capture.folder import PART, CaptureFolder
from gputop_llm.capture.guards import disk_at, disk_full
from gputop_llm.capture.nsys.export import clean
from gputop_llm.capture.nsys.failures import explained, meaning_of
from gputop_llm.capture.nsys.tool import Tool, distrusted
from gputop_llm.capture.undo import Step
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.store.bundle import EXPORT

RECORD = f"nsys{EXPORT}"
STOP = "nsys-stop"
#: Two minutes were needed for the report of 2 GB.
STOP_WITHIN_S, EXPORT_WITHIN_S = 240.0, 240.0
_APPEARS_WITHIN_S = 10.0
#: A report of a program that ended meanwhile is written by nsys itself.
_WRITTEN_WITHIN_S = 30.0
_LOOK_S = 0.1
#: A process that is only being started has no command line yet.
_BECOMES_S = 0.5
_REPORTS = (".nsys-rep", ".qdrep")


class Collection:
    """One collection.

    Args:
        tool: the nsys of the session.
        session: its ID, or the name of one that is made for it.
        folder: of the capture.
        options: of its start.
        theirs: whether somebody else has started it: the reports stay where they are.
    """

    def __init__(
        self,
        tool: Tool,
        session: str,
        folder: CaptureFolder,
        options: Sequence[tuple[str, str]] = (),
        theirs: bool = False,
    ) -> None:
        self._options = options
        self._theirs = theirs
        #: What a dead worker has recorded is kept wherever it fits.
        self._guarded = True
        self.tool = tool
        self.session = session
        self._folder = folder
        self._raw = raw_folder(folder)
        self._output = self._raw / "report"
        self.words = ""
        self.report_bytes = 0
        self.events = 0
        self.whole = False

    @property
    def step(self) -> Step:
        """What undoes it."""
        place, name = self._folder.named
        step = {"do": STOP, "nsys": str(self.tool.path), "session": self.session, "folder": place, "name": name}
        return {**step, "theirs": self._theirs}

    def start(self) -> None:
        """Starts it.

        Raises:
            GputopError: it did not start.
        """
        self._make_raw()
        self.tool.start(self._output, self._options)
        until = time.monotonic() + _APPEARS_WITHIN_S
        while True:
            now = self.tool.session(self.session)
            if now is not None and now.collecting:
                return
            if now is None or time.monotonic() > until:
                state = f"its session is {now.state}" if now is not None else "its session is gone"
                raise GputopError("cannot start nsys", f"it said that it had started, and {state}", "try again")
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """Ends it and makes the record of its report.

        Raises:
            GputopError: there is no report, or it can't be read.
        """
        files: Sequence[Path] = ()
        if self._theirs:
            self._make_raw()
        try:
            files, self.words = self.tool.stop(self.session, STOP_WITHIN_S)
        except GputopError as failure:
            if self._theirs:
                raise GputopError(failure.what, failure.why, "its own report is where it was told to write") from None
            # A program that ended takes its session along; the report is then written by what is left of it, and the
            # export after it: whether that is whole can't be told.
            if not self._written():
                raise
            self._export_anew()
        self._make_record(files)

    def finish(self) -> None:
        """The same for a worker that is gone, from wherever it was; what it had begun to run is waited for.

        Raises:
            GputopError: there is no report, or it can't be read.
        """
        self._guarded = False
        until = time.monotonic() + STOP_WITHIN_S
        quiet = time.monotonic() + _BECOMES_S
        while time.monotonic() < min(until, quiet):
            time.sleep(_LOOK_S)
            if self._runs():
                quiet = time.monotonic() + _BECOMES_S
        if self.goes_on():
            self.stop()
        elif not (self._folder.inside / RECORD).exists() and self._output.with_suffix(".nsys-rep").exists():
            self._export_anew()
            self._make_record(())

    def goes_on(self) -> bool:
        """Whether nsys collects, or waits for a range.

        Raises:
            GputopError: it can't be asked.
        """
        now = self.tool.session(self.session)
        return now is not None and now.collecting

    def remove(self) -> None:
        """Removes what nsys wrote."""
        shutil.rmtree(self._raw, ignore_errors=True)

    def _runs(self) -> bool:
        """Whether a command of nsys for this collection still runs: it outlives whoever ran it."""
        proc = ProcFs()
        for pid in proc.pids():
            with suppress(OSError):
                argv = proc.argv(pid)
                # A script has its interpreter before it.
                named = str(self.tool.path) in argv[:2] and {"start", "stop", "export"} & set(argv[1:3])
                if named and (f"--session={self.session}" in argv or any(str(self._raw) in one for one in argv)):
                    return True
        return False

    def _export_anew(self) -> None:
        """Of a report that is there: whether an export beside it is whole can't be told."""
        report = self._output.with_suffix(".nsys-rep")
        self._output = self._output.with_name("exported")
        self.tool.export(report, self._output.with_suffix(EXPORT), EXPORT_WITHIN_S)

    def _written(self) -> bool:
        until = time.monotonic() + _WRITTEN_WITHIN_S
        size = -1
        while time.monotonic() < until:
            with suppress(OSError):
                now = self._output.with_suffix(".nsys-rep").stat().st_size
                if now == size > 0:
                    return True
                size = now
            time.sleep(1.0)
        return False

    def _make_raw(self) -> None:
        try:
            self._raw.mkdir(mode=0o700)
        except OSError as error:
            raise GputopError(f"cannot make {self._raw}", error.strerror or str(error)) from error

    def _make_record(self, files: Sequence[Path]) -> None:
        export = self._ours(files, (EXPORT,))
        if export is None:
            report = self._ours(files, _REPORTS)
            if report is None:
                raise self._nothing(files)
            export = self._output.with_suffix(EXPORT)
            self.tool.export(report, export, EXPORT_WITHIN_S)
        with suppress(OSError):
            self.report_bytes = export.stat().st_size
        if self._guarded and (full := disk_full(disk_at(self._raw), self.report_bytes)):
            raise GputopError(
                "cannot keep the export of nsys", f"the disk is nearly full: {full}", "take a shorter window"
            )
        with suppress(FileNotFoundError):
            os.unlink(self._folder.inside / f"{RECORD}{PART}")
        os.close(self._folder.open_record(RECORD))
        self.events = clean(export, self._folder.inside / f"{RECORD}{PART}")
        self._folder.whole(RECORD)
        self.whole = True

    def _ours(self, files: Sequence[Path], endings: Sequence[str]) -> Path | None:
        """The file of one of these kinds: where it was to be; else the last that nsys says it has written."""
        planned = [self._output.with_suffix(ending) for ending in endings]
        named = [path for path in files if path.suffix in endings]
        for path in (*planned, *reversed(named)):
            with suppress(OSError):
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode) and about.st_size > 0 and about.st_uid in (0, os.geteuid()):
                    if path.parent == self._raw or self._theirs:
                        return path
                    return Path(shutil.move(path, self._output.with_suffix(path.suffix)))
        return None

    def _nothing(self, files: Sequence[Path]) -> GputopError:
        unread = next((path for path in files if path.suffix == ".qdstrm"), None)
        if unread is not None or (meaning_of(self.words) is not None):
            if unread is not None:
                unread.unlink(missing_ok=True)
            meaning = explained("Importer error status" if unread is not None else self.words)
            return GputopError("nsys wrote no report", meaning.why, meaning.todo)
        return GputopError(
            "nsys wrote no report", "it ended the collection and named no file", "try a longer window, without a range"
        )


def raw_folder(folder: CaptureFolder) -> Path:
    """Where nsys writes for a capture."""
    place, name = folder.named
    return Path(place) / f".{name}.nsys"


def undo(step: Step) -> str | None:
    """Stops the collection of a capture whose process is gone, and keeps its record; why not, as a clause."""
    path = Path(str(step.get("nsys")))
    folder = CaptureFolder(Path(str(step.get("folder"))), str(step.get("name")))
    collection = Collection(Tool(path), str(step.get("session")), folder, theirs=bool(step.get("theirs")))
    try:
        if (doubt := distrusted(path)) is not None:
            return f"nsys was not stopped: {doubt}"
        folder.open()
        try:
            collection.finish()
        finally:
            folder.close()
    except (GputopError, OSError) as failure:
        return failure.sentence() if isinstance(failure, GputopError) else str(failure)
    finally:
        collection.remove()
    return None
