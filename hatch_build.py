"""Compiles the client and what runs the agent (gputop_llm/capture/native, kineto), for wheels and editable installs.

Without a C compiler, or on anything but Linux on x86-64, the wheel is a pure one: all works but recording inside
a process, which then says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "gputop_llm/capture/native"
LIBRARY = f"{NATIVE}/libgputop_client.so"
#: What runs the Python agent in a target; it looks at its neighbours as the client does.
RUNNER_SOURCES = ("gputop_llm/capture/kineto/runner.c", f"{NATIVE}/others.c")
RUNNER = "gputop_llm/capture/kineto/libgputop_runner.so"
#: Every symbol that is used is in glibc 2.28 and older (tests/capture/native/test_library.py).
TAG = "py3-none-manylinux_2_28_x86_64"
#: Warnings are errors in the tests only: a newer compiler has new ones.
FLAGS = (
    *("-O2", "-std=c11", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong"),
    # They would run code when the library is loaded.
    "-nostartfiles",
    *("-Wl,--build-id=none", "-Wl,--no-as-needed", "-Wl,-z,defs"),
    # CUPTI keeps its callbacks: the library must never be unloaded.
    *("-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack"),
)
# By file name: where glibc has merged them into libc.so.6, its development files have them no more.
LIBRARIES = ("-l:libpthread.so.0", "-l:libdl.so.2")


class CustomBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it packs a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the libraries to the wheel, when they can be made."""
        libraries = {
            LIBRARY: sorted(Path(self.root, NATIVE).glob("*.c")),
            RUNNER: [Path(self.root, source) for source in RUNNER_SOURCES],
        }
        for library, sources in libraries.items():
            why = build(sources, Path(self.root, library))
            if why:
                for each in libraries:
                    Path(self.root, each).unlink(missing_ok=True)
                self.app.display_warning(f"gputop-llm is built without its native client: {why}")
                return
        # Git ignores them, and so would hatchling.
        build_data["artifacts"] += list(libraries)
        build_data["pure_python"] = False
        build_data["tag"] = TAG


def build(sources: Sequence[Path], target: Path) -> str:
    """Compiles C files into one library, which appears when it is whole; "" or why it can't be."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return f"it is for Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return "there is no C compiler (cc, gcc) on the PATH"
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(descriptor)
    try:
        command = [*compiler.split(), *FLAGS, f"-Wl,-soname,{target.name}", "-o", temporary]
        command += [*map(str, sources), *LIBRARIES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip() or done.returncode}"
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        return f"{compiler}: {error}"
    finally:
        Path(temporary).unlink(missing_ok=True)
    return ""
