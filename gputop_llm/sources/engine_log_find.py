"""Where an engine's standard output and error go: a file, the journal, a container's log, or why nobody can tell."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from gputop_llm.printable import printable
from gputop_llm.sources.container import container_id
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.sources.procfs import printable as as_text

MOST_FILES = 4
_MOST_PROCESSES = 32
# Looking for who reads a pipe: so many processes and so long at most.
_SEARCHED = 4096
_SEARCH_S = 0.2
_LISTED = 4096
# All processes of an engine write to the same few places, which stay what they are.
_KNOWN_S = 300.0
# What stands between an engine and its file in a shell's pipeline.
_FILTERS = frozenset(
    ("tee", "cat", "ts", "grep", "sed", "awk", "gawk", "mawk", "rotatelogs", "cronolog", "multilog", "svlogd", "s6-log")
)
_POD_LOGS = "/var/log/containers"
# Docker's own form, and that of Podman.
_CONTAINER_LOGS = (
    "/var/lib/docker/containers/{id}/{id}-json.log",
    "/var/lib/containers/storage/overlay-containers/{id}/userdata/ctr.log",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Something that can be read. `path` is how, `name` what to call it; `follow` where the file is replaced when full.

    With `cgroup` it is the journal of that control group instead.
    """

    name: str
    path: str = ""
    follow: bool = False
    cgroup: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The places, or why there is none."""

    places: tuple[Place, ...]
    problem: str | None


class LogFinder:
    """Looks where processes write to.

    Args:
        proc: /proc.
        host: where the machine's own file tree is (tests choose).
    """

    def __init__(self, proc: ProcFs, host: str = "") -> None:
        self._proc = proc
        self._host = host
        self._known: dict[tuple[int, int], tuple[Place | str, float]] = {}

    def find(self, pids: Iterable[int]) -> Found:
        """Where these processes of one engine write to, its root first."""
        places: dict[tuple[int, int], Place] = {}
        why: list[str] = []
        for pid in islice(pids, _MOST_PROCESSES):
            for number in (1, 2):
                self._look(pid, number, places, why)
                if len(places) == MOST_FILES:
                    return Found(tuple(places.values()), None)
        if places:
            return Found(tuple(places.values()), None)
        return Found((), why[0] if why else "its processes are gone, or have closed stdout and stderr")

    def _look(self, pid: int, number: int, places: dict[tuple[int, int], Place], why: list[str]) -> None:
        stream = "stdout" if number == 1 else "stderr"
        try:
            link = self._proc.link(f"{pid}/fd/{number}")
            found = os.stat(f"{self._proc.root}/{pid}/fd/{number}")
        except PermissionError:
            why.append("another user's process: where it writes to may only be seen by root")
            return
        except OSError as error:
            if error.errno != errno.ENOENT:
                why.append(f"{stream} can't be looked at ({os.strerror(error.errno or 0)})")
            return
        identity = found.st_dev, found.st_ino
        place, until_s = self._known.get(identity, ("", 0.0))
        if time.monotonic() >= until_s:
            try:
                place = self._place(pid, number, link, stat.S_ISREG(found.st_mode))
            except OSError as error:
                place = f"can't be looked at ({os.strerror(error.errno or 0)})"
            self._known[identity] = place, time.monotonic() + _KNOWN_S
        if isinstance(place, Place):
            places[identity] = place
        else:
            why.append(f"{stream} {place}")

    def _place(self, pid: int, number: int, link: str, regular: bool) -> Place | str:
        """What a descriptor leads to, or what it is instead, as the end of a sentence."""
        if link.startswith("/dev/null"):
            return "goes to /dev/null"
        if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
            return f"is a terminal ({printable(link, 60)})"
        if link.startswith("socket:"):
            return self._journal(pid) or self._container(pid) or "is a socket that is not the journal's"
        if link.startswith("pipe:"):
            return self._container(pid) or self._behind_pipe(pid, number, link)
        if not regular:
            return f"is no file ({printable(link, 60)})"
        if not self._written(pid, number):
            return "is a file that is not open for writing"
        return Place(printable(link.removesuffix(" (deleted)"), 300), f"{self._proc.root}/{pid}/fd/{number}")

    def _written(self, pid: int, number: int) -> bool:
        """Whether a process may write there itself: what it only points at may be a file that it must not read."""
        mode = self._flags(pid, number) & os.O_ACCMODE
        return mode in (os.O_WRONLY, os.O_RDWR)

    def _flags(self, pid: int, number: int) -> int:
        for line in self._proc.read(f"{pid}/fdinfo/{number}", 4096).splitlines():
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8)
        return 0

    def _journal(self, pid: int) -> Place | None:
        """The journal, if systemd runs the process as a service."""
        for line in self._cgroup(pid).splitlines():
            number, _, path = line.partition(":")
            controllers, _, path = path.partition(":")
            if (number == "0" or controllers == "name=systemd") and path.rpartition("/")[2].endswith(".service"):
                return Place(f"the journal of {printable(path.rpartition('/')[2], 100)}", cgroup=path)
        return None

    def _container(self, pid: int) -> Place | str | None:
        """What the container's runtime makes of its output."""
        identity = container_id(self._cgroup(pid))
        if identity is None:
            return None
        for path in self._container_logs(identity):
            if os.path.exists(path):
                if not os.access(path, os.R_OK):
                    return f"goes to its container's log, which only root may read ({path})"
                return Place(path, path, follow=True)
        return None

    def _container_logs(self, identity: str) -> Iterator[str]:
        for form in _CONTAINER_LOGS:
            yield self._host + form.format(id=identity)
        try:
            with os.scandir(self._host + _POD_LOGS) as entries:
                names = [entry.name for entry in islice(entries, _LISTED)]
        except OSError:
            return
        yield from (f"{self._host}{_POD_LOGS}/{name}" for name in names if name.endswith(f"-{identity}.log"))

    def _cgroup(self, pid: int) -> str:
        return as_text(self._proc.read(f"{pid}/cgroup"))

    def _behind_pipe(self, pid: int, number: int, link: str) -> Place | str:
        """Who reads a pipe, and the one file that such a process writes (`engine | tee FILE`)."""
        reader = self._reader(pid, link)
        if reader is None:
            return "is a pipe, and who reads it can't be seen from here"
        name = printable(self._proc.stat(reader).comm, 40)
        written = self._files_of(reader) if name in _FILTERS else []
        if len(written) == 1:
            return Place(f"{written[0].name}, written by {name}", written[0].path)
        return f"is a pipe to PID {reader} ({name})"

    def _reader(self, writer: int, link: str) -> int | None:
        until = time.monotonic() + _SEARCH_S
        # Who started it, or was started with it, has a number close by.
        for pid in sorted(self._proc.pids(), key=lambda other: abs(other - writer))[:_SEARCHED]:
            if time.monotonic() > until:
                return None
            try:
                numbers = [int(name) for name in self._proc.names(f"{pid}/fd")]
            except OSError:
                continue
            if any(self._reads(pid, number, link) for number in numbers):
                return pid
        return None

    def _reads(self, pid: int, number: int, link: str) -> bool:
        try:
            return (
                self._proc.link(f"{pid}/fd/{number}") == link and self._flags(pid, number) & os.O_ACCMODE == os.O_RDONLY
            )
        except OSError:
            # Closed in the meantime.
            return False

    def _files_of(self, pid: int) -> list[Place]:
        """The files that a process was told to write to, or else its standard output, if that is a file."""
        found = {}
        for number in sorted(int(name) for name in self._proc.names(f"{pid}/fd"))[:64]:
            link = self._proc.link(f"{pid}/fd/{number}")
            if (
                link.startswith("/")
                and not link.startswith(("/dev/", "/proc/", "/sys/"))
                and self._written(pid, number)
            ):
                name = printable(link.removesuffix(" (deleted)"), 300)
                found[number] = Place(name, f"{self._proc.root}/{pid}/fd/{number}")
        told = [place for number, place in found.items() if number > 2]
        return told or [place for number, place in found.items() if number == 1]
