"""Injection without a borrowed thread: the target's own Python starts our thread (PEP 768, CPython 3.14 and later).

`sys.remote_exec` writes a script's path into the target's memory; its main thread runs it at its next safe point, with
the GIL. What the script starts is the same thread as that of injection.py, and all else is done as there. So it needs
the same rights, but no thread that waits in the kernel, no ptrace, and no room on a stack.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from gputop_llm.capture.inject.channel import Channel
from gputop_llm.capture.inject.injection import Injection
from gputop_llm.capture.inject.memory import Maps, Memory
from gputop_llm.capture.inject.openness import closed_by_loading, closed_by_rights, closed_by_state, seccomp_mode
from gputop_llm.capture.inject.refused import InjectionRefused
from gputop_llm.capture.inject.remote_script import FUNCTIONS, PLACE, STARTED, ScriptFolder, script
from gputop_llm.capture.inject.runtime import closed_by_libc
from gputop_llm.capture.inject.scratch import Scratch
from gputop_llm.capture.inject.stub import CODE, CREATED_OFFSET
from gputop_llm.sources.procfs import ProcFs

_FIRST = (3, 14)
_PYTHON = re.compile(rb"/(?:lib)?python(\d+)\.(\d+)(t?)(?:\.so[.\d]*)?(?: \(deleted\))?$", re.MULTILINE)
_DISABLED = "PYTHON_DISABLE_REMOTE_DEBUG"
#: An empty script that is always there.
_NOTHING = "/dev/null"
_NS_PER_S = 1_000_000_000
_SAME_PYTHON = "run gputop-llm with the server's own Python: python{} -m gputop_llm"


def openness(pid: int) -> InjectionRefused | None:
    """Why a process can't be made to start our thread by itself; None when it can.

    Nothing is done to it. Whether its main thread comes to a safe point in time shows only then.
    """
    if (closed := closed_by_state(pid)) is not None:
        return closed
    try:
        maps = Maps.of(pid)
        closed = _closed_by_python(pid, maps) or _closed_by_place(pid) or closed_by_libc(maps)
        if closed is not None:
            return closed
        with Memory(pid):
            return closed_by_loading(pid, maps)
    except OSError as error:
        return closed_by_rights(pid, error)


def inject(pid: int, start_ticks: int, library: bytes, deadline_s: float) -> Channel:
    """As `injection.inject`, by the target's Python.

    Raises:
        InjectionRefused: it was not done; the process goes on as before.
    """
    return _ByPython(pid, start_ticks, library, time.monotonic() + deadline_s).run()


class _ByPython(Injection):
    def closed(self) -> InjectionRefused | None:
        return openness(self.pid)

    def start(self, entry: int) -> tuple[Scratch, tuple[int, str]]:
        scratch = self.choose_scratch()
        uid, gid, inner = _identity(self.pid)
        functions = {name: self.runtime.function(name.encode()) for name in FUNCTIONS}
        with _folder((uid, gid)) as folder:
            text = script(
                inner,
                int(self.end * _NS_PER_S),
                folder.path,
                scratch.address,
                CODE,
                self.block(scratch, entry),
                CREATED_OFFSET,
                functions,
            )
            try:
                folder.fill(text)
            except OSError as error:
                raise _no_place(error) from error
            self.same_process()
            self._ask(folder.script)
            try:
                answer = self._answer(folder)
            except InjectionRefused:
                self._withdraw(folder)
                raise
        if not answer.startswith(STARTED):
            raise _said_no(answer)
        with suppress(ValueError):
            self.stopped_ms = int(answer.removeprefix(STARTED)) / 1e6
        return scratch, (self.pid, "Python")

    def _ask(self, path: str) -> None:
        try:
            _remote_exec()(self.pid, path)
        except (OSError, RuntimeError, ValueError) as error:
            raise _not_asked(error) from error

    def _answer(self, folder: ScriptFolder) -> str:
        while not (answer := folder.answer()):
            if folder.begun():
                self.pause("running a script in the target's Python", "the script ends by itself")
            else:
                self.pause(
                    "waiting for the target's Python to come to a safe point (its main thread waits in the kernel, or "
                    "computes outside of Python)",
                    "the script is withdrawn",
                )
        return answer

    def _withdraw(self, folder: ScriptFolder) -> None:
        """A path that leads nowhere would be an error in the target's log whenever it comes to it."""
        if not folder.begun():
            with suppress(InjectionRefused):
                self.same_process()
                self._ask(_NOTHING)


def _folder(owner: tuple[int, int]) -> ScriptFolder:
    try:
        return ScriptFolder(owner)
    except OSError as error:
        raise _no_place(error) from error


def _no_place(error: OSError) -> InjectionRefused:
    return InjectionRefused(f"its script can't be written below {PLACE} ({error.strerror})", f"make room in {PLACE}")


def _closed_by_python(pid: int, maps: Maps) -> InjectionRefused | None:
    theirs = python_of(maps)
    if theirs is None:
        return InjectionRefused("it is no Python program, or one whose version doesn't show", "")
    version = _words(theirs)
    if theirs[:2] < _FIRST:
        return InjectionRefused(
            f"it runs Python {version}, and sys.remote_exec came with 3.14",
            "start the server with Python 3.14 or later",
        )
    ours = (*sys.version_info[:2], "t" if "t" in sys.abiflags else "")
    if ours != theirs or "remote_exec" not in vars(sys):
        return InjectionRefused(
            f"it runs Python {version}, and gputop-llm runs in {_words(ours)}", _SAME_PYTHON.format(version)
        )
    if not vars(sys)["is_remote_debug_enabled"]():
        return InjectionRefused("gputop-llm's own Python has remote debugging off", f"unset {_DISABLED}")
    with suppress(OSError):
        if ProcFs().environ(pid).get(_DISABLED):
            return _disabled(f" ({_DISABLED})")
    return None


def _closed_by_place(pid: int) -> InjectionRefused | None:
    """Its Python opens the script by its own path, and ours reads the program's file by the path that it has there."""
    proc = ProcFs()
    if proc.link(f"{pid}/ns/mnt") != proc.link("self/ns/mnt") or not os.path.samefile(f"/proc/{pid}/root", "/"):
        return InjectionRefused(
            "it runs in another container, or with another root: files have other paths there",
            "run gputop-llm inside that container",
        )
    if seccomp_mode(pid) == "2":
        return InjectionRefused("it has a seccomp filter, which can't be looked at without ptrace", "")
    return None


def python_of(maps: Maps) -> tuple[int, int, str] | None:
    """The Python that a process runs: major and minor version, "t" where it is free-threaded. None: it shows none."""
    for mapping in maps.files(_PYTHON):
        if (match := _PYTHON.search(mapping.name.encode())) is not None:
            return int(match[1]), int(match[2]), match[3].decode()
    return None


def _identity(pid: int) -> tuple[int, int, int]:
    """Effective uid and gid of a process, and its PID as it sees it itself."""
    status = ProcFs().status(pid)
    return int(status["Uid"].split()[1]), int(status["Gid"].split()[1]), int(status.get("NSpid", str(pid)).split()[-1])


def _said_no(answer: str) -> InjectionRefused:
    reasons = {
        "no ctypes": ("its Python has not loaded ctypes, which would stay", ""),
        "no memory": ("it could not map 8 KiB, some of it executable (a limit on its memory, or SELinux)", ""),
        "no thread": ("it could not start a thread (a limit on processes or memory)", ""),
        "late": ("its Python came to a safe point too late, and did nothing", "try again when the target is less busy"),
    }
    return InjectionRefused(*reasons.get(answer, (f"the script failed in it ({ascii(answer)[1:-1]})", "")))


def _not_asked(error: Exception) -> InjectionRefused:
    text = str(error)
    if "not enabled" in text:
        return _disabled("")
    return InjectionRefused(f"its Python can't be asked to run a script ({ascii(text)[1:-1]})", "")


def _disabled(by: str) -> InjectionRefused:
    return InjectionRefused(f"its Python was started with remote debugging off{by}", f"start it without {_DISABLED}")


def _words(version: tuple[object, ...]) -> str:
    major, minor, suffix = version
    return f"{major}.{minor}{suffix}"


def _remote_exec() -> Callable[[int, str], None]:
    function: Callable[[int, str], None] = vars(sys)["remote_exec"]
    return function
