"""Getting the client into a running process and having it serve, in four steps that each can be the last one.

1. A borrowed thread maps two pages and goes on waiting.
2. A borrowed thread starts a new thread, which runs our code from these pages, and goes on waiting.
3. The new thread opens two pipes and a memfd; we open the other ends and write the library into the memfd.
4. We say go: the new thread loads the library and calls its entry, or only that where it was loaded before.

Whatever happens to us, each thread finishes what it has begun by itself: see victim.py and stub.S.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from gputop_llm.capture.inject.channel import Channel
from gputop_llm.capture.inject.claim import claim
from gputop_llm.capture.inject.elf import Library
from gputop_llm.capture.inject.frames import Call
from gputop_llm.capture.inject.handover import open_pipe, tell, write_library
from gputop_llm.capture.inject.memory import Maps, Memory
from gputop_llm.capture.inject.openness import (
    closed_by_loading,
    closed_by_process,
    closed_by_rights,
    no_safe_thread,
    running_since,
    seccomp_mode,
)
from gputop_llm.capture.inject.ptrace import NotStopped, Stopped
from gputop_llm.capture.inject.refused import InjectionRefused
from gputop_llm.capture.inject.runtime import CLIENT_PREFIX, clients, find_runtime
from gputop_llm.capture.inject.scratch import Scratch, choose
from gputop_llm.capture.inject.stub import (
    BLOCK_BYTES,
    CODE,
    CREATED_OFFSET,
    ENTRY_SYMBOL,
    GO,
    LEAVE,
    Progress,
    State,
    library_path,
    new_block,
)
from gputop_llm.capture.inject.victim import killed_for, lend
from gputop_llm.capture.inject.waits import Wait, raw, thread_ids, waiting_threads

_MOST_STOPS = 40
_SEARCH_S = 2.0
_SEARCH_AGAIN_S = 0.01
_POLL_S = 100e-6
_TEXT_MOST_BYTES = 300
_SECCOMP = "allow it in the container's seccomp profile (docker: --security-opt seccomp=unconfined)"


def inject(pid: int, start_ticks: int, library: bytes, deadline_s: float) -> Channel:
    """Has the client serve in a process, on a thread of its own.

    Args:
        pid: the process.
        start_ticks: field 22 of its /proc/PID/stat, by which another process with the same PID is told.
        library: the client, an x86-64 shared library with `void gputop_client_serve(const struct gputop_call *)`.
        deadline_s: how long all of it may take.

    Raises:
        InjectionRefused: it was not done; the process goes on as before. Where it hung half-way, the sentence says at
            what, and what ends by itself.
    """
    end = time.monotonic() + deadline_s
    outcome: list[Channel | BaseException] = []

    def work() -> None:
        try:
            outcome.append(Injection(pid, start_ticks, library, end).run())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            outcome.append(error)

    # The kernel detaches what a thread traces when that thread ends, however it ends.
    thread = threading.Thread(target=work, name="inject")
    thread.start()
    thread.join()
    (result,) = outcome
    if isinstance(result, Channel):
        return result
    raise result


def mapped_clients(pid: int) -> tuple[str, ...]:
    """Names of the client libraries that are mapped in a process; empty when it can't be looked at."""
    try:
        return tuple(sorted(clients(Maps.of(pid))))
    except OSError:
        return ()


class Injection:
    """One injection: `start` is by a borrowed thread here, and may be by other means. For the rest see `inject`."""

    def __init__(self, pid: int, start_ticks: int, library: bytes, end: float) -> None:
        self.pid, self.start_ticks, self.library, self.end = pid, start_ticks, library, end
        self.name = f"{CLIENT_PREFIX}{hashlib.sha256(library).hexdigest()[:12]}"
        self.kernel = _kernel()
        self.stopped_ms = 0.0
        self.last_lent: int | None = None

    def run(self) -> Channel:
        """Makes the four steps.

        Raises:
            InjectionRefused: as `inject`.
        """
        began = time.perf_counter()
        try:
            self.memory = Memory(self.pid)
        except OSError as error:
            raise closed_by_process(self.pid) or closed_by_rights(self.pid, error) from error
        with self.memory:
            self.same_process()
            if (closed := self.closed()) is not None:
                raise closed
            try:
                with claim(self.pid, self.end):
                    return self._run(began)
            except (OSError, ValueError) as error:
                self.same_process()
                raise InjectionRefused(f"the target's memory can't be used ({error})", "try again") from error

    def _run(self, began: float) -> Channel:
        self.maps = Maps.of(self.pid)
        self.runtime = find_runtime(self.maps, self.memory)
        if (closed := closed_by_loading(self.pid, self.maps)) is not None:
            raise closed
        loaded = clients(self.maps)
        entry = 0
        if self.name in loaded:
            entry = Library(self.memory, loaded[self.name]).function(ENTRY_SYMBOL) or 0
        scratch, thread = self.start(entry)
        commands, records = self._hand_over(scratch, entry, len(loaded))
        took_ms = (time.perf_counter() - began) * 1000
        return Channel(commands, records, took_ms, self.stopped_ms, entry != 0, thread)

    # -- what depends on the means -------------------------------------------------------------------------------------

    def closed(self) -> InjectionRefused | None:
        """What of the process is in the way."""
        return closed_by_process(self.pid)

    def start(self, entry: int) -> tuple[Scratch, tuple[int, str]]:
        """Has our code run on a new thread of the target, from pages of its own.

        Returns:
            The pages; the thread that was borrowed for it, and what it waited in.
        """
        scratch = self._map_scratch()
        wait = self._start_thread(scratch, entry)
        return scratch, (wait.tid, wait.name)

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _map_scratch(self) -> Scratch:
        scratch = self.choose_scratch()
        wait = self._borrow(scratch.calls())
        while not scratch.is_untouched(self.memory):
            if self._is_back(wait) and not scratch.is_untouched(self.memory):
                raise InjectionRefused(
                    "it could not map 8 KiB, some of it executable (a limit on its memory, or a seccomp filter)",
                    _SECCOMP,
                )
            self.pause("mapping a page in the target", "the page stays where it is mapped late: 8 KiB")
        return scratch

    def _start_thread(self, scratch: Scratch, entry: int) -> Wait:
        runtime = self.runtime
        block = self.block(scratch, entry)

        def prepare(thread: Stopped) -> None:
            thread.poke(scratch.address, CODE + bytes(-len(CODE) % 8))
            self.memory.write(scratch.data, block)

        before = set(thread_ids(self.pid))
        arguments = (scratch.data + CREATED_OFFSET, 0, scratch.address, scratch.data)
        wait = self._borrow((Call(0, arguments, runtime.pthread_create),), prepare)
        while (progress := self._progress(scratch)) is not None and progress.state == State.NOT_STARTED:
            if self._is_back(wait) and not set(thread_ids(self.pid)) - before:
                progress = self._progress(scratch)
                if progress is not None and progress.state == State.NOT_STARTED:
                    raise InjectionRefused(
                        "it could not start a thread (a limit on processes or memory, or a seccomp filter)", _SECCOMP
                    )
            self.pause("starting a thread in the target", "one that starts late ends by itself after 10 s")
        return wait

    def _hand_over(self, scratch: Scratch, entry: int, loaded_before: int) -> tuple[int, int]:
        while (progress := self._progress(scratch)) is None or progress.state < State.READY:
            if progress is None:
                raise InjectionRefused("its new thread gave up", "try again")
            self.pause("opening pipes in the target", "the new thread ends by itself after 10 s")
        self._check(progress)
        self.same_process()
        commands = open_pipe(self.pid, progress.commands, os.O_WRONLY)
        try:
            records = open_pipe(self.pid, progress.records, os.O_RDONLY)
            try:
                self._load(scratch, progress, entry, loaded_before, commands)
            except BaseException:
                os.close(records)
                raise
        except BaseException:
            os.close(commands)
            raise
        return commands, records

    def _load(self, scratch: Scratch, progress: Progress, entry: int, loaded_before: int, commands: int) -> None:
        try:
            if not entry:
                write_library(self.pid, progress.library, self.library)
                offset, path = library_path(progress.library, loaded_before)
                self.memory.write(scratch.data + offset, path)
            self.same_process()
        except BaseException:
            with suppress(InjectionRefused):
                tell(commands, LEAVE)
            raise
        tell(commands, GO)
        # The client unmaps the block as soon as it has copied it.
        while (now := self._progress(scratch)) is not None and now.state != State.SERVING:
            self._check(now)
            self.pause(
                "loading the library in the target",
                "the new thread waits for the loader, and ends once it has its turn",
            )
        self.same_process()

    # -- what they use -------------------------------------------------------------------------------------------------

    def choose_scratch(self) -> Scratch:
        """Where the pages will be."""
        chosen = choose(self.maps)
        if chosen is None:
            raise InjectionRefused("too much is left in it from injections that were killed", "restart the target")
        return chosen

    def block(self, scratch: Scratch, entry: int) -> bytes:
        """What our thread finds in its data page."""
        runtime = self.runtime
        return new_block(scratch.whole, runtime.functions, runtime.gadget, entry, self.name.encode())

    def _borrow(self, calls: Sequence[Call], before: Callable[[Stopped], None] | None = None) -> Wait:
        """Has some thread make these calls; gives the wait that it goes back to."""
        search_end = min(self.end, time.monotonic() + _SEARCH_S)
        stops, last, unfit = 0, "", set()
        while True:
            for wait in waiting_threads(self.pid, self.memory, self.last_lent):
                if wait.tid in unfit:
                    continue
                if stops == _MOST_STOPS:
                    raise no_safe_thread(self.pid, self.memory, last)
                self.same_process()
                stops += 1
                try:
                    self._survives(wait)
                    lent = lend(
                        self.pid, wait, calls, self.memory, self.maps, self.runtime, kernel=self.kernel, before=before
                    )
                except NotStopped as error:
                    last = f"one in {wait.name}: {error}"
                    if error.lasting:
                        unfit.add(wait.tid)
                except OSError as error:
                    if error.errno == errno.EPERM:
                        raise closed_by_process(self.pid) or closed_by_rights(self.pid, error) from error
                    if error.errno != errno.ESRCH:
                        raise
                    last = f"one in {wait.name}: the thread ended"
                else:
                    self.stopped_ms = max(self.stopped_ms, lent.stopped_ms)
                    self.last_lent = wait.tid
                    return wait
            self.same_process()
            if time.monotonic() > search_end:
                raise no_safe_thread(self.pid, self.memory, last)
            time.sleep(_SEARCH_AGAIN_S)

    def _survives(self, wait: Wait) -> None:
        """Refuses a process that would be, or might be, killed for one of our system calls."""
        if seccomp_mode(wait.tid) == "2" and (call := killed_for(self.pid, wait)) is not None:
            raise InjectionRefused(
                f"its seccomp filter would kill it for {call}",
                f"allow {call} in its filter (systemd: SystemCallFilter=)",
            )

    def _progress(self, scratch: Scratch) -> Progress | None:
        """What the block says; None when it is gone."""
        try:
            block = self.memory.read(scratch.data, BLOCK_BYTES)
        except OSError:
            return None
        return Progress(block) if len(block) == BLOCK_BYTES else None

    def _check(self, progress: Progress) -> None:
        """Raises what our thread has failed at."""
        state = progress.state
        if state in (State.NO_MEMFD, State.NO_PIPE):
            number = -progress.error
            what = "memfd_create" if state == State.NO_MEMFD else "pipe2"
            text = os.strerror(number) if 0 < number < 4096 else "unknown error"
            raise InjectionRefused(f"{what} failed in it ({text})", _SECCOMP)
        if state in (State.NOT_LOADED, State.NO_ENTRY):
            raise InjectionRefused(f"its loader did not take the library ({self._text(progress.error)})", "")
        if state not in (State.STARTED, State.READY, State.LOADING, State.SERVING):
            raise InjectionRefused("something in the target wrote over the client's page", "try again")

    def _text(self, address: int) -> str:
        try:
            text = self.memory.read(address & ((1 << 63) - 1), _TEXT_MOST_BYTES)
        except OSError:
            return "no reason given"
        return ascii(text.partition(b"\0")[0].decode("utf-8", "replace"))[1:-1]

    def _is_back(self, wait: Wait) -> bool:
        """Whether a borrowed thread is in its wait again."""
        fields = raw(self.pid, wait.tid).split()
        return len(fields) == 9 and (int(fields[7], 16), int(fields[8], 16)) == (wait.sp, wait.pc)

    def pause(self, step: str, left: str) -> None:
        """Waits a little for the target, until our time is over."""
        if time.monotonic() > self.end:
            raise InjectionRefused(f"{step} took too long; {left}", "try again when the target is less busy")
        self.same_process()
        time.sleep(_POLL_S)

    def same_process(self) -> None:
        """Raises where it is another process by now."""
        if running_since(self.pid) != self.start_ticks:
            raise InjectionRefused(f"process {self.pid} is another one now, or has ended", "choose a process that runs")


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split("-")[0].split(".")[:2]
    return int(major), int(minor)
