"""Programs to inject into and libraries to inject, built once for each test process."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.inject.support import HERE, READY, Target, compile_c, until


@pytest.fixture(scope="session")
def built() -> Iterator[Path]:
    """A folder that everybody may read, with the programs and libraries."""
    # Other users run these: pytest's own temporary folders are closed to them.
    folder = Path(tempfile.mkdtemp(prefix="gputop-inject-"))
    folder.chmod(0o755)
    compile_c(HERE / "target.c", folder / "target", "-O1", "-mavx", "-pthread", "-Wno-infinite-recursion")
    for name in ("hello", "other"):
        flags = ("-O1", "-shared", "-fPIC", f'-DHELLO="{name}"')
        compile_c(HERE / "client.c", folder / f"{name}.so", *flags)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def library(built) -> bytes:
    """A client that says "hello"."""
    return (built / "hello.so").read_bytes()


@pytest.fixture
def other_library(built) -> bytes:
    """Another version of it, which says "other"."""
    return (built / "other.so").read_bytes()


@pytest.fixture
def start(built, tmp_path):
    """Starts target.c with these words; `program`, `before` and `user` change how."""
    running = []

    def run(*words, program=None, before=(), pid_of=None, **popen):
        path = built / f"counters-{os.getpid()}-{len(running)}"
        path.write_bytes(bytes(4096))
        path.chmod(0o666)
        process = subprocess.Popen([*before, program or built / "target", path, *words], **popen)
        running.append(process)
        with open(path, "r+b") as file:
            counters = mmap.mmap(file.fileno(), 4096)
        until(lambda: process.poll() is None and counters[READY * 8], "the start of the target")
        return Target(process, counters, words, pid_of(process.pid) if pid_of else None)

    yield run
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def start_python():
    """Starts Python with this code, and waits for it to print a line."""
    running = []

    def run(code):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout.readline()
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()
