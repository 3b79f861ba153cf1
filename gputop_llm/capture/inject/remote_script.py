"""The script that a Python target runs to start our thread, and the folder in which it finds it.

It runs on the target's main thread with the GIL, so it waits for nothing: no import, no loader, nobody else.
The functions that it calls are given as addresses; a lock of the loader that another thread holds can't hold it up.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

#: Where every process of a mount namespace finds it, whatever its own TMPDIR.
PLACE, PREFIX = "/tmp", "gputop-llm-remote-"
SCRIPT, ANSWER = "run.py", "said"
STARTED = "started "
#: The C library's functions that it calls.
FUNCTIONS = ("mmap", "mprotect", "munmap", "pthread_sigmask", "pthread_create")

_ANSWER_MOST_BYTES = 200
_OURS = re.compile(re.escape(PREFIX) + r"[a-z0-9_]+")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_TEXT = """\
# Written by gputop-llm, run once by sys.remote_exec; it removes itself. See docs/capture.md.
def start(pid, ends_ns, folder, address, code, block, created, functions):
    import posix, sys, time
    began_ns = time.monotonic_ns()
    if posix.getpid() != pid:
        return  # a child that was forked after its parent had been asked
    try:
        answer = posix.open(folder + "/said", posix.O_WRONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW)
    except OSError:
        return  # whoever asked has given up
    try:
        posix.unlink(folder + "/said")
        posix.unlink(folder + "/run.py")
        posix.rmdir(folder)
        said = "late"
        if began_ns < ends_ns:
            said = enter(sys.modules.get("ctypes"), address, code, block, created, **functions)
        if not said:
            said = "started " + str(time.monotonic_ns() - began_ns)
        posix.write(answer, said.encode())
    except Exception as error:
        posix.write(answer, type(error).__name__.encode())
    finally:
        posix.close(answer)

def enter(ctypes, address, code, block, created, mmap, mprotect, munmap, pthread_sigmask, pthread_create):
    if ctypes is None:
        return "no ctypes"  # to import it would take long, and would stay
    size = ctypes.c_size_t
    call = ctypes.PYFUNCTYPE(size, size, size, size, size, size, size)  # keeps the GIL
    page, data = 4096, address + 4096
    # Private, anonymous, only if nothing is there.
    got = call(mmap)(address, 2 * page, 3, 0x100022, (1 << 64) - 1, 0)
    if got != address:
        if got < 1 << 47:
            call(munmap)(got, 2 * page, 0, 0, 0, 0)
        return "no memory"
    for at, content in ((address, code), (data, block)):
        for index in range(0, len(content), 8):
            size.from_address(at + index).value = int.from_bytes(content[index : index + 8], "little")
    if call(mprotect)(address, page, 5, 0, 0, 0) & 0xffffffff:
        call(munmap)(address, 2 * page, 0, 0, 0, 0)
        return "no memory"
    every = ctypes.create_string_buffer(b"\\xff" * 128, 128)
    before = ctypes.create_string_buffer(128)
    call(pthread_sigmask)(0, ctypes.addressof(every), ctypes.addressof(before), 0, 0, 0)
    try:
        failed = call(pthread_create)(data + created, 0, address, data, 0, 0) & 0xffffffff
    finally:
        call(pthread_sigmask)(2, ctypes.addressof(before), 0, 0, 0, 0)
    if failed:
        call(munmap)(address, 2 * page, 0, 0, 0, 0)
        return "no thread"

try:
    start(**VALUES)
finally:
    del start, enter
"""


def script(
    pid: int,
    ends_ns: int,
    folder: str,
    address: int,
    code: bytes,
    block: bytes,
    created: int,
    functions: Mapping[str, int],
) -> str:
    """The script's text.

    Args:
        pid: of the target, as it sees itself.
        ends_ns: on CLOCK_MONOTONIC; later than that it does nothing.
        folder: where it lies.
        address: where its two pages will be.
        code, block: what goes into the first and the second one.
        created: where in the second one pthread_create may put the new thread's name.
        functions: the addresses of `FUNCTIONS`.
    """
    values = {
        "pid": pid, "ends_ns": ends_ns, "folder": folder, "address": address,
        "code": code + bytes(-len(code) % 8), "block": block + bytes(-len(block) % 8), "created": created,
        "functions": dict(functions),
    }  # fmt: skip
    return _TEXT.replace("VALUES", repr(values))


class ScriptFolder:
    """A private folder with the script and an empty file for its answer, both the target's user's.

    The answer is read through a descriptor that is open from the start: the script removes all of it first.

    Args:
        owner: uid and gid of the target.

    Raises:
        OSError: it can't be made.
    """

    def __init__(self, owner: tuple[int, int]) -> None:
        self.path = tempfile.mkdtemp(prefix=PREFIX, dir=PLACE)
        self._folder = os.open(self.path, _DIRECTORY)
        self._answer = -1
        self._owner = owner
        try:
            self._answer = self._new(ANSWER, os.O_RDWR)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ScriptFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def script(self) -> str:
        """Where the script is."""
        return f"{self.path}/{SCRIPT}"

    def fill(self, text: str) -> None:
        """Writes the script and hands all of it to the target's user."""
        handle = self._new(SCRIPT, os.O_WRONLY)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
        if self._owner[0] != os.geteuid():
            os.fchown(self._folder, *self._owner)

    def begun(self) -> bool:
        """Whether the script has begun to run."""
        return os.fstat(self._answer).st_nlink == 0

    def answer(self) -> str:
        """What it has said; empty until then."""
        return os.pread(self._answer, _ANSWER_MOST_BYTES, 0).decode("ascii", "replace")

    def close(self) -> None:
        """Removes what is left."""
        empty(self._folder, self.path)
        os.close(self._folder)
        if self._answer >= 0:
            os.close(self._answer)

    def _new(self, name: str, access: int) -> int:
        flags = access | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(name, flags, 0o600, dir_fd=self._folder)
        if self._owner[0] != os.geteuid():
            os.fchown(handle, *self._owner)
        return handle


def empty(folder: int, path: str) -> None:
    """Removes our files in a folder, and the folder once it is empty. What isn't there is no error."""
    for name in (SCRIPT, ANSWER):
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
    with suppress(OSError):
        os.rmdir(path)


def remove_left(older_s: float, now_s: float, place: str = PLACE) -> list[str]:
    """Removes folders that a killed capture has left, as far as they are ours to remove; gives their paths.

    Args:
        older_s: those that are younger may be in use.
        now_s: the time, in seconds since 1970.
    """
    removed = []
    for path in sorted(Path(place).glob(f"{PREFIX}*")):
        if not _OURS.fullmatch(path.name):
            continue
        with suppress(OSError):
            folder = os.open(path, _DIRECTORY)
            try:
                about = os.fstat(folder)
                mine = os.geteuid() in (0, about.st_uid) and stat.S_IMODE(about.st_mode) == 0o700
                if mine and now_s - about.st_mtime >= older_s:
                    empty(folder, str(path))
                    if not path.exists():
                        removed.append(str(path))
            finally:
                os.close(folder)
    return removed
