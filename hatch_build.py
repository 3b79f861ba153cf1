"""Compiles the client (gputop_llm/capture/native) into the package, for wheels and for editable installs.

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
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "gputop_llm/capture/native"
LIBRARY = f"{NATIVE}/libgputop_client.so"
#: Every symbol that is used is in glibc 2.28 and older (tests/capture/native/test_library.py).
TAG = "py3-none-manylinux_2_28_x86_64"
#: Warnings are errors in the tests only: a newer compiler has new ones.
FLAGS = (
    *("-O2", "-std=c11", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong"),
    # They would run code when the library is loaded.
    "-nostartfiles",
    *("-Wl,-soname,libgputop_client.so", "-Wl,--build-id=none", "-Wl,--no-as-needed", "-Wl,-z,defs"),
    # CUPTI keeps its callbacks: the library must never be unloaded.
    *("-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack"),
)
# By file name: where glibc has merged them into libc.so.6, its development files have them no more.
LIBRARIES = ("-l:libpthread.so.0", "-l:libdl.so.2")


class CustomBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it packs a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the library to the wheel, when it can be made."""
        target = Path(self.root, LIBRARY)
        why = build(Path(self.root, NATIVE), target)
        if why:
            target.unlink(missing_ok=True)
            self.app.display_warning(f"gputop-llm is built without its native client: {why}")
            return
        # Git ignores it, and so would hatchling.
        build_data["artifacts"].append(LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = TAG


def build(sources: Path, target: Path) -> str:
    """Compiles all C files of a folder into one library, which appears when it is whole; "" or why it can't be."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return f"it is for Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return "there is no C compiler (cc, gcc) on the PATH"
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(descriptor)
    try:
        command = [*compiler.split(), *FLAGS, "-o", temporary, *map(str, sorted(sources.glob("*.c"))), *LIBRARIES]
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
