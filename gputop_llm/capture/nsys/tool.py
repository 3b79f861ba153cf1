"""One nsys of this machine: its options, its sessions, starting and stopping a collection.

Options are asked from the binary itself (`--help`): documents, versions and builds disagree. That a command returned 0
says little (a session that isn't there is made, a range that never began writes no file): what counts is what
`sessions list` and the disk say.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.capture import process
from gputop_llm.capture.nsys.failures import explained, last_words
from gputop_llm.errors import GputopError

ASK_WITHIN_S = 10.0
START_WITHIN_S = 15.0
_OPTION = re.compile(r"^\s{0,12}(?:-\w\b[^-\n]{0,4})?(--[a-z][\w-]*)", re.MULTILINE)
_SESSION = re.compile(r"^\s*(\d+)\s+[\d:]+\s+(\w+)\s+(\d+)\s+(\S.*?)\s*$")
#: Others are Started, StartRange (waits for its range), Collection, SystemWideCollection.
_AT_REST = ("Idle", "Launched", "Shutdown")
_REPORTS = (".nsys-rep", ".sqlite", ".qdstrm", ".qdrep")


@dataclass(frozen=True, slots=True)
class Session:
    """A session as `nsys sessions list` shows it. `launched` counts its programs."""

    id: str
    state: str
    launched: int
    name: str

    @property
    def collecting(self) -> bool:
        """Whether a collection goes on, or waits for its range."""
        return self.state not in _AT_REST


class Tool:
    """An nsys.

    Args:
        path: of the binary itself, no link: it finds its importer from there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._flags: dict[str, frozenset[str]] = {}

    def version(self) -> str:
        """As it says it; "" where it doesn't."""
        found = re.search(r"\d+(\.\d+)+", self._run(["--version"], ASK_WITHIN_S)[1])
        return found[0] if found else ""

    def flags(self, command: str) -> frozenset[str]:
        """The long options that a command has."""
        if command not in self._flags:
            self._flags[command] = frozenset(_OPTION.findall(self._run([command, "--help"], ASK_WITHIN_S)[1]))
        return self._flags[command]

    def options(self, command: str, wanted: Sequence[tuple[str, str]]) -> list[str]:
        """Those of the options that the command has, as arguments."""
        known = self.flags(command)
        return [f"{name}={value}" for name, value in wanted if name in known]

    def sessions(self, within_s: float = ASK_WITHIN_S) -> list[Session]:
        """All sessions of this version in this PID namespace.

        Raises:
            GputopError: it can't be asked.
        """
        code, said = self._run(["sessions", "list"], within_s)
        if code != 0:
            raise self._failure("cannot ask nsys for its sessions", said)
        found = (_SESSION.match(line) for line in said.splitlines())
        return [Session(one[1], one[2], int(one[3]), one[4]) for one in found if one is not None]

    def session(self, which: str) -> Session | None:
        """The session with that ID or name; None where there is none."""
        return next((one for one in self.sessions() if which in (one.id, one.name)), None)

    def start(self, output: Path, wanted: Sequence[tuple[str, str]]) -> None:
        """Starts a collection.

        Args:
            output: the report, without its ending.
            wanted: its options; those that this nsys doesn't have are left out.

        Raises:
            GputopError: it did not start.
        """
        usual = (("--export", "sqlite"), ("--output", expandable(output)), ("--force-overwrite", "true"))
        code, said = self._run(["start", *self.options("start", (*wanted, *usual))], START_WITHIN_S)
        if code != 0:
            raise self._failure("cannot start nsys", said)

    def stop(self, session: str, within_s: float) -> tuple[list[Path], str]:
        """Ends a collection: the files that were written, as nsys says, and its words. `none` of them may be there.

        Raises:
            GputopError: it did not end.
        """
        code, said = self._run(["stop", f"--session={session}"], within_s)
        if code != 0:
            raise self._failure("cannot stop nsys", said)
        return generated(said), said

    def export(self, report: Path, target: Path, within_s: float) -> None:
        """The SQLite export of a report.

        Raises:
            GputopError: it can't be made.
        """
        arguments = ["export", "--type=sqlite", f"--output={expandable(target)}", "--force-overwrite=true", str(report)]
        code, said = self._run(arguments, within_s)
        if code != 0 or not target.is_file():
            raise self._failure("cannot export the report of nsys", said)

    def run(self, arguments: Sequence[str], within_s: float) -> tuple[int | None, str]:
        """Its exit code, None when it took too long and was killed; and all that it said."""
        return self._run(arguments, within_s)

    def _run(self, arguments: Sequence[str], within_s: float) -> tuple[int | None, str]:
        return process.said([str(self.path), *arguments], within_s)

    def _failure(self, what: str, said: str) -> GputopError:
        meaning = explained(said)
        words = last_words(said)
        return GputopError(what, meaning.why, meaning.todo or (f"its words: {words}" if words else ""))


def generated(said: str) -> list[Path]:
    """The files after "Generated:"."""
    _, found, rest = said.rpartition("Generated:")
    lines = [part.strip().strip("'\"") for line in rest.splitlines() for part in line.split("\r")] if found else []
    paths = [line for line in lines if line.startswith("/") and line.endswith(_REPORTS)]
    return [Path(line) for line in dict.fromkeys(paths)]


def expandable(path: Path) -> str:
    """A path as an option of nsys, which replaces %h, %q{…} and the like."""
    return str(path).replace("%", "%%")


def distrusted(path: Path) -> str | None:
    """Why a binary must not be run: whoever else may write it could have anything done by this user; else None."""
    ours = {0, os.geteuid()}
    for part in (path, *path.parents):
        try:
            about = os.stat(part)
        except OSError as error:
            return f"{part}: {(error.strerror or str(error)).lower()}"
        if about.st_uid not in ours:
            return f"{part} belongs to another user"
        if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
            return f"{part} can be written by everybody"
    return None
