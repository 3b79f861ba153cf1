"""A /proc made of real files, for processes and containers that can't be had in a test."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

BOOT_S = 1_790_000_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
HOST_PIDS = "pid:[4026531836]"
NETWORK = "net:[4026531840]"


class FakeClock:
    """Time that moves when told to; wall time begins an hour after the boot of the fake machine.

    `set_by_s` is by how much somebody has set the wall clock since.
    """

    def __init__(self) -> None:
        self.now = 3600.0
        self.set_by_s = 0.0

    def wall(self) -> float:
        return BOOT_S + self.now + self.set_by_s

    def mono(self) -> float:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


class FakeProc:
    """Builds and changes /proc below `path`; `root` is what sources take as proc_root."""

    def __init__(self, path: Path, pid_namespace: str = HOST_PIDS, mountinfo: str = "") -> None:
        self.path = path
        self.root = str(path)
        path.mkdir(parents=True, exist_ok=True)
        self.write("stat", f"cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\nbtime {BOOT_S}\n")
        (path / "self/ns").mkdir(parents=True)
        self._link("self/ns/pid", pid_namespace)
        self._link("self/ns/net", NETWORK)
        self.write("self/mountinfo", mountinfo)

    def add(
        self,
        pid: int,
        cmdline: Sequence[str] | str = (),
        *,
        ppid: int = 1,
        comm: str | None = None,
        state: str = "S",
        pgrp: int | None = None,
        session: int | None = None,
        started_s: float = 100.0,
        uid: int = 0,
        cgroup: str = "0::/",
        environ: dict[str, str] | None = None,
        fds: Iterable[str] = (),
        network: str = NETWORK,
        inner_pid: int | None = None,
        listen: Iterable[tuple[str, int, int]] = (),
        threads: dict[int, tuple[str, int]] | None = None,
        rss_kib: int = 1024,
        io_ticks: dict[int, int] | None = None,
    ) -> None:
        """Adds (or replaces) a process.

        A `cmdline` that is text is a title as setproctitle leaves it; `listen` are (hex address, port, inode),
        `threads` are {tid: (name, CPU ticks)}, `io_ticks` {tid: ticks that it waited for block I/O}.
        """
        words = [cmdline] if isinstance(cmdline, str) else list(cmdline)
        if comm is None:
            comm = os.path.basename(words[0])[:15] if words else "?"
        raw = (
            cmdline.encode() + b" " * 40 + b"\0" * 3
            if isinstance(cmdline, str)
            else b"".join(word.encode() + b"\0" for word in words)
        )
        self.remove(pid)
        pgrp = pid if pgrp is None else pgrp
        threads = threads or {pid: (comm, 0)}
        self.write(f"{pid}/cmdline", raw)
        self.write(f"{pid}/comm", comm + "\n")
        self.write(f"{pid}/cgroup", cgroup + "\n")
        self.write(f"{pid}/environ", "\0".join(f"{k}={v}" for k, v in (environ or {}).items()))
        self.write(f"{pid}/status", _status(pid, comm, state, uid, inner_pid, rss_kib, len(threads)))
        ticks = sum(spent for _, spent in threads.values())
        line = (pid, comm, state, ppid, pgrp, pgrp if session is None else session)
        self.write(f"{pid}/stat", _stat(*line, ticks, len(threads), int(started_s * TICKS_PER_S), rss_kib // 4))
        for tid, (name, spent) in threads.items():
            self.set_thread(pid, tid, name, spent, (io_ticks or {}).get(tid, 0))
        (self.path / f"{pid}/fd").mkdir()
        for number, target in enumerate((*fds, *(f"socket:[{inode}]" for _, _, inode in listen))):
            self._link(f"{pid}/fd/{number}", target)
        self.write(f"{pid}/net/tcp", _tcp(place for place in listen if len(place[0]) == 8))
        self.write(f"{pid}/net/tcp6", _tcp(place for place in listen if len(place[0]) == 32))
        (self.path / f"{pid}/ns").mkdir()
        self._link(f"{pid}/ns/net", network)

    def set_thread(self, pid: int, tid: int, name: str, ticks: int, io_ticks: int = 0) -> None:
        """Adds a thread, or sets its CPU time."""
        self.write(f"{pid}/task/{tid}/stat", _stat(tid, name, "S", 1, pid, pid, ticks, 1, 0, 0, io_ticks))

    def remove(self, pid: int) -> None:
        """The process has ended and was collected."""
        shutil.rmtree(self.path / str(pid), ignore_errors=True)

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file below the root."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def add_case(self, procs: Path) -> None:
        """Adds the processes of a field case's procs.json; those that give an error are not there."""
        for entry in json.loads(procs.read_text()):
            if "error" in entry:
                continue
            titled = len(entry["cmdline"]) == 1 and "::" in entry["cmdline"][0]
            self.add(
                entry["pid"],
                entry["cmdline"][0] if titled else entry["cmdline"],
                ppid=entry["ppid"],
                comm=entry["comm"],
                state=entry.get("state", "S"),
                uid=entry.get("uid", 0),
                fds=entry.get("fds", ()),
            )

    def add_ps_tree(self, name: str, text: str) -> None:
        """Adds the tree under the heading `## name` of a recorded `ps --forest -o pid,ppid,pgid,nlwp,rss,comm,args`."""
        section = re.split(r"^## ", text, flags=re.MULTILINE)
        lines = next(part for part in section if part.startswith(f"{name}\n")).splitlines()[2:]
        for line in filter(None, lines):
            pid, ppid, pgrp, threads, rss, rest = line.split(None, 5)
            command = rest.split("\\_")[-1].strip() if "\\_" in rest else rest.split(None, 1)[1]
            self.add(
                int(pid),
                command if command.startswith("VLLM::") else command.split(),
                ppid=int(ppid),
                pgrp=int(pgrp),
                comm=command[:15] if command.startswith("VLLM::") else os.path.basename(command.split()[0]),
                threads={int(pid) + n: ("python", 0) for n in range(int(threads))},
                rss_kib=int(rss),
            )

    def _link(self, name: str, target: str) -> None:
        (self.path / name).unlink(missing_ok=True)
        os.symlink(target, self.path / name)


def _stat(
    pid: int,
    comm: str,
    state: str,
    ppid: int,
    pgrp: int,
    session: int,
    ticks: int,
    threads: int,
    start: int,
    rss: int,
    io_ticks: int = 0,
) -> str:
    head = f"{pid} ({comm}) {state} {ppid} {pgrp} {session} 0 -1 4194304 0 0 0 0"
    return f"{head} {ticks} 0 0 0 20 0 {threads} 0 {start} 0 {rss} " + "0 " * 17 + f"{io_ticks} " + "0 " * 9 + "0\n"


def _status(pid: int, comm: str, state: str, uid: int, inner_pid: int | None, rss_kib: int, threads: int) -> str:
    inner = "" if inner_pid is None else f"\t{inner_pid}"
    return (
        f"Name:\t{comm}\nState:\t{state}\nPid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}{inner}\n"
        f"VmRSS:\t{rss_kib} kB\nVmSwap:\t8 kB\nThreads:\t{threads}\n"
        "voluntary_ctxt_switches:\t100\nnonvoluntary_ctxt_switches:\t10\n"
    )


def _tcp(listen: Iterable[tuple[str, int, int]]) -> str:
    rows = [
        f"   {n}: {address}:{port:04X} {'0' * len(address)}:0000 0A 00000000:00000000 00:00000000 00000000     0"
        f"        0 {inode} 1 0000000000000000 100 0 0 10 0"
        for n, (address, port, inode) in enumerate(listen)
    ]
    return (
        "\n".join(["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid", *rows]) + "\n"
    )
