"""Programs with the client in them, a CUPTI that is none, and the monitor's end of the protocol."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk, Command, Kinds

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
NATIVE = ROOT / "gputop_llm/capture/native"
DEADLINE_S = 30.0
ALL = Kinds.KERNELS | Kinds.COPIES | Kinds.MEMSETS | Kinds.RUNTIME | Kinds.DRIVER
MIB = 1 << 20
ROWS = {
    Chunk.KERNELS: np.dtype(form.KERNEL_ROW),
    Chunk.COPIES: np.dtype(form.COPY_ROW),
    Chunk.MEMSETS: np.dtype(form.MEMSET_ROW),
    Chunk.CALLS: np.dtype(form.CALL_ROW),
}


def build_hook():
    """The module that builds the library for a wheel."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Built:
    """The client as it is in this checkout, and what tests put around it."""

    folder: Path
    client: Path
    cuda: Path
    cupti: Path  # brings the driver's library along, as whatever uses CUDA does
    bare_cupti: Path
    old_cupti: Path  # from before CUDA 12.5
    torch: Path
    unknown_torch: Path
    host: Path


def built(cache: Path) -> Built:
    """Compiled once for the same sources, whoever asks first. Without a compiler it fails: to skip would hide it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests of the native client need a C compiler (cc or gcc) on the PATH"
    sources = sorted([*NATIVE.glob("*.[ch]"), *HERE.glob("*.c"), ROOT / "hatch_build.py"])
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = cache / f"native-{digest}"
    made = Built(
        folder,
        folder / "libgputop_client.so",
        folder / "libcuda.so.1",
        folder / "libcupti.so.13",
        folder / "bare/libcupti.so.13",
        folder / "old/libcupti.so.12",
        folder / "libtorch_cpu.so",
        folder / "unknown/libtorch_cpu.so",
        folder / "host",
    )
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "native.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.host.exists():
            for path in (made.bare_cupti, made.old_cupti, made.unknown_torch):
                path.parent.mkdir(parents=True, exist_ok=True)
            assert build_hook().build(sorted(NATIVE.glob("*.c")), made.client) == ""
            strict = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
            shared = [*strict, "-fPIC", "-shared"]
            driver = ["-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", f"-L{folder}", "-l:libcuda.so.1"]
            for command in (
                [*shared, "-o", made.cuda, "-x", "c", "/dev/null"],
                [*shared, "-o", made.bare_cupti, HERE / "fake_cupti.c", "-lpthread", "-ldl"],
                [*shared, "-DNO_SINGLE_CALLS", "-o", made.old_cupti, HERE / "fake_cupti.c", "-lpthread", "-ldl"],
                [*shared, "-o", made.cupti, HERE / "fake_cupti.c", "-lpthread", "-ldl", *driver],
                [*shared, "-o", made.torch, HERE / "fake_torch.c", "-lpthread", "-ldl"],
                [*shared, "-DUNKNOWN_CODE", "-o", made.unknown_torch, HERE / "fake_torch.c", "-lpthread", "-ldl"],
                [*strict, "-o", made.host, HERE / "host.c", "-lpthread", "-ldl"],
            ):
                subprocess.run([str(part) for part in command], check=True)
    return made


@dataclass
class Record:
    """A stream, taken apart; what isn't whole fails the test."""

    data: bytes
    chunks: list[tuple[Chunk, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.data[: len(form.MAGIC)] == form.MAGIC
        at = len(form.MAGIC)
        while at < len(self.data):
            kind, length = form.CHUNK_HEADER.unpack_from(self.data, at)
            at += form.CHUNK_HEADER.size
            assert length <= form.MAX_PAYLOAD_BYTES
            assert at + length <= len(self.data), "cut within a chunk"
            self.chunks.append((Chunk(kind), self.data[at : at + length]))
            at += length

    @property
    def kinds(self) -> list[Chunk]:
        """Of the chunks, in order."""
        return [kind for kind, _ in self.chunks]

    def one(self, kind: Chunk) -> bytes:
        """The payload of the only chunk of a kind."""
        (payload,) = [payload for found, payload in self.chunks if found == kind]
        return payload

    def rows(self, kind: Chunk) -> np.ndarray:
        """All rows of a kind."""
        parts = [np.frombuffer(payload, ROWS[kind]) for found, payload in self.chunks if found == kind]
        return np.concatenate(parts) if parts else np.empty(0, ROWS[kind])

    def names(self, kind: Chunk = Chunk.NAME) -> dict[int, str]:
        """Names by id."""
        texts = [(int.from_bytes(p[:4], "little"), p[4:].decode()) for found, p in self.chunks if found == kind]
        assert len(dict(texts)) == len(texts), "a name was sent twice"
        return dict(texts)

    @property
    def refusal(self) -> tuple[int, int, str]:
        """Reason, CUPTI's result, sentence."""
        payload = self.one(Chunk.REFUSED)
        return (*form.REFUSED.unpack_from(payload), payload[form.REFUSED.size :].decode())

    @property
    def end(self) -> dict[str, int]:
        """The last chunk."""
        assert self.kinds[-1] == Chunk.END
        clocks = ("cupti", "realtime", "monotonic", "tsc")
        counts = ("reason", "unreturned", "dropped", "records", "bytes", "disabling_ns", "flushing_ns")
        values = form.END.unpack(self.one(Chunk.END))
        return dict(zip(clocks + counts, values, strict=True))

    @property
    def row_count(self) -> int:
        """Of all kinds."""
        return sum(len(self.rows(kind)) for kind in ROWS)


class Line:
    """The monitor's end: one client, spoken to through two descriptors."""

    def __init__(self, commands: int, records: int) -> None:
        self.commands = commands
        self.records = records
        self.data = bytearray()

    def command(self, command: int, kinds: int = 0, start_at: int = 0, window_ns: int = 0, most: int = 0) -> None:
        """Sends one command."""
        os.write(self.commands, form.COMMAND.pack(form.COMMAND_MAGIC, command, kinds, start_at, window_ns, most))

    def window(self, ms: float = 60_000, kinds: Kinds = ALL, most: int = 64 * MIB, start_at: int = 0) -> None:
        """Asks for a window; one of 60 s is there to be stopped."""
        self.command(Command.WINDOW, kinds, start_at, int(ms * 1e6), most)

    def stop(self) -> None:
        """Ends it early."""
        self.command(Command.STOP)

    def read_some(self, until: float) -> bool:
        """Takes what comes next; false once the client has closed."""
        left = until - time.monotonic()
        assert left > 0, f"nothing came; so far {len(self.data)} bytes"
        assert select.select([self.records], [], [], left)[0], f"nothing came; so far {len(self.data)} bytes"
        data = os.read(self.records, 1 << 20)
        self.data += data
        return bool(data)

    def hear(self, kind: Chunk) -> None:
        """Reads until a chunk of that kind has come."""
        until = time.monotonic() + DEADLINE_S
        while not self._has(kind):
            assert self.read_some(until), f"the client closed without {kind!r}"

    def _has(self, kind: Chunk) -> bool:
        at = len(form.MAGIC)
        while at + form.CHUNK_HEADER.size <= len(self.data):
            found, length = form.CHUNK_HEADER.unpack_from(self.data, at)
            at += form.CHUNK_HEADER.size + length
            if found == kind and at <= len(self.data):
                return True
        return False

    def record(self) -> Record:
        """Reads to the end."""
        until = time.monotonic() + DEADLINE_S
        while self.read_some(until):
            pass
        return Record(bytes(self.data))

    def close(self) -> None:
        """The monitor is gone."""
        for descriptor in (self.commands, self.records):
            with contextlib.suppress(OSError):
                os.close(descriptor)


class Host:
    """A running program with the client in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self.process.pid

    def ask(self, line: str) -> list[int]:
        """Tells it to do something; its answer's numbers."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split() if word.lstrip("-").isdigit()]

    def get(self, name: str, index: int = 0) -> int:
        """A long of one of its libraries."""
        return self.ask(f"get {name} {index}")[0]

    def set(self, name: str, value: int) -> None:
        """An int of one of its libraries."""
        self.ask(f"set {name} {value}")

    def call(self, name: str, *arguments: int) -> int:
        """A function of one of its libraries."""
        return self.ask(" ".join(["call", name, *map(str, arguments)]))[0]

    def connect(self) -> Line:
        """Enters the client on a thread of the program, through pipes made there, as an injector does."""
        commands_r, commands_w, records_r, records_w = self.ask("pipes")
        folder = f"/proc/{self.pid}/fd"
        line = Line(os.open(f"{folder}/{commands_w}", os.O_WRONLY), os.open(f"{folder}/{records_r}", os.O_RDONLY))
        self.ask(f"close {commands_w}")
        self.ask(f"close {records_r}")
        self.ask(f"serve {commands_r} {records_w}")
        return line


@contextlib.contextmanager
def hosting(*command: object, **options: object) -> Iterator[Host]:
    """Runs a host; it must still be alive and well when it is told to end."""
    started = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )
    try:
        yield Host(started)
        assert started.poll() is None, f"the target died: {started.poll()}"
        started.stdin.close()
        assert started.wait(DEADLINE_S) == 0
    finally:
        started.kill()
        started.wait()
        started.stdout.close()
