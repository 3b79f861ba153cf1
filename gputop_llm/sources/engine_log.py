"""The source of an engine's own log: finds it, reads of it what is new, and keeps what that says."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from gputop_llm.model import Target
from gputop_llm.model.log import EngineLog, LogSignal
from gputop_llm.sources.engine_log_begin import EARLIER_S, beginning, stamp_in
from gputop_llm.sources.engine_log_file import LogFile, Piece
from gputop_llm.sources.engine_log_find import MOST_FILES, LogFinder, Place
from gputop_llm.sources.engine_log_journal import EVERY_S, Journal
from gputop_llm.sources.engine_log_signals import Signals
from gputop_llm.sources.engine_log_stamps import LogClock
from gputop_llm.sources.engine_log_text import Joints, Lines, unwrapped
from gputop_llm.sources.engine_log_wording import hinted
from gputop_llm.sources.procfs import ProcFs

# A look at two descriptors of each process: workers are started later than their server, and may write elsewhere.
FIND_EVERY_S = 15.0
# Files that nobody writes any more hold the last words of processes that are gone.
MOST_LEFT = 4
# A line without a stamp of its own was written when one of so many lines before it was.
_BEFORE = 100


class _FileReader:
    """What one file says."""

    def __init__(self, place: Place, started_s: float | None) -> None:
        self.name = place.name
        self.signals = Signals()
        self.problem: str | None = None
        self._file = LogFile(place.path, place.follow)
        # A file that is replaced by another is followed, and is the same log.
        self.id: object = place.path if place.follow else self._file.id
        self._started_s = started_s
        self._lines = Lines()
        self._joints = Joints()
        self._clock = LogClock()
        self._first = True

    @property
    def unread_bytes(self) -> int:
        return self._file.unread_bytes

    def close(self) -> None:
        self._file.close()

    def read(self, now_s: float) -> None:
        self.problem = None
        try:
            begins_at = 0
            if self._first:
                size = self._file.size()
                begins_at = beginning(self._file.probe, size, self._file.written_s, self._started_s, self._clock)
            for piece in self._file.read(begins_at):
                self._take(piece, now_s)
            self._first = False
        except OSError as error:
            # The other files of this engine are read all the same.
            self.problem = f"{self.name} can't be read any more: {error.strerror or type(error).__name__}"

    def _take(self, piece: Piece, now_s: float) -> None:
        if not piece.follows:
            self.signals.skip()
        if piece.begins:
            self._lines.restart()
        elif not piece.follows:
            self._lines.skip()
            self._joints.skip()
        lines = self._lines.feed(piece.data)
        begin = [not self._joints.goes_on(line) for line in lines]
        # Most of what a busy server writes has no word that counts: it is looked through in one go.
        if not self.signals.waiting and not hinted(b"\n".join(lines)):
            return

        def when(position: int) -> tuple[float | None, str]:
            for line in reversed(lines[max(0, position - _BEFORE) : position + 1]):
                stamp = stamp_in(line, self._file.written_s)
                if stamp is not None and not self._first:
                    self._clock.learn(stamp, self._file.written_s)
                at_s = None if stamp is None else self._clock.at_s(stamp)
                if at_s is not None:
                    # What is older was left by an earlier run.
                    return min(at_s, now_s), "line"
            return (None if self._first else now_s), "read"

        texts = [unwrapped(line)[0] if begins else b"" for line, begins in zip(lines, begin, strict=True)]
        self.signals.feed(texts, when)


class _JournalReader:
    """What the journal says."""

    def __init__(self, place: Place, started_s: float | None) -> None:
        self.name = place.name
        self.signals = Signals()
        self.id: object = place.cgroup
        self.unread_bytes = 0
        self._journal = Journal(place.cgroup, (started_s or 0.0) - EARLIER_S)
        self._due_s = 0.0

    @property
    def problem(self) -> str | None:
        return self._journal.problem

    def close(self) -> None:
        """It holds nothing open."""

    def read(self, now_s: float) -> None:
        if now_s >= self._due_s:
            self._due_s = now_s + EVERY_S
            entries = self._journal.read()
            self.signals.feed([text for text, _ in entries], lambda position: (entries[position][1], "line"))


class EngineLogSource:
    """The log of one target, in every place that its processes write to.

    `target` may be set to the newest state of it at any time.
    """

    name = "the engine's log"
    deadline_s = 3.0

    def __init__(self, target: Target, proc: ProcFs | None = None, host: str = "") -> None:
        self.target = target
        self._finder = LogFinder(proc or ProcFs(), host)
        self._readers: list[_FileReader | _JournalReader] = []
        self._problem: str | None = None
        self._find_at_s = 0.0
        self._state: object = None
        self._log = EngineLog()

    def poll(self) -> EngineLog:
        """What its log says; costs a look at each file's size while nothing is written."""
        if time.monotonic() >= self._find_at_s:
            self._find_at_s = time.monotonic() + FIND_EVERY_S
            self._find()
        for reader in self._readers:
            reader.read(time.time())
        return self._newest()

    def abort(self) -> None:
        """Nothing ends a read of a file system that hangs."""

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _find(self) -> None:
        target = self.target
        others = (pid for pid in target.pids if pid != target.root_pid)
        found = self._finder.find([*(() if target.root_pid is None else (target.root_pid,)), *others])
        self._problem = found.problem
        known = {reader.id for reader in self._readers}
        here = set()
        for place in found.places:
            try:
                new = (_JournalReader if place.cgroup else _FileReader)(place, target.started_s)
            except OSError as error:
                self._problem = f"{place.name} can't be read: {error.strerror or error}"
                continue
            here.add(new.id)
            if new.id in known:
                new.close()
                continue
            known.add(new.id)
            self._readers.append(new)
        # A writer that begins a new file every hour leaves one each.
        left = [reader for reader in self._readers if reader.id not in here]
        for reader in left[: max(0, len(self._readers) - MOST_FILES - MOST_LEFT)]:
            reader.close()
            self._readers.remove(reader)

    def _newest(self) -> EngineLog:
        readers = self._readers
        problem = next((reader.problem for reader in readers if reader.problem), None)
        problem = problem if readers else self._problem
        state = problem, [(reader.name, reader.signals.seen, reader.unread_bytes) for reader in readers]
        if state != self._state:
            self._state = state
            self._log = EngineLog(
                places=tuple(reader.name for reader in readers),
                problem=problem,
                signals=_in_order([reader.signals.all() for reader in readers]),
                unread_bytes=sum(reader.unread_bytes for reader in readers),
            )
        return self._log


def _in_order(found: Sequence[tuple[LogSignal, ...]]) -> tuple[LogSignal, ...]:
    """Those of several files by their times, those of one as they were written."""
    if len(found) == 1:
        return found[0]
    return tuple(sorted((signal for one in found for signal in one), key=lambda signal: signal.at_s or math.inf))
