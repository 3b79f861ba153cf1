"""A real nsys on a machine without a GPU: unpacked once into ~/.cache/gputop-llm-tests (8 to 25 s, 400 MB each)."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.real.vllm_venv import cache_root

INSTALLER = Path(__file__).with_name("install_nsys.sh")
#: What Debian has of it, by suite.
VERSIONS = {"trixie": "2023.4.4", "bookworm": "2022.4.2"}


def real_nsys(suite: str = "trixie") -> Path:
    """Its binary; skips the test where it can't be had, and in CI fails it."""
    if sys.platform != "linux" or shutil.which("apt-get") is None:
        _cannot("a real nsys is unpacked from Debian's packages")
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"nsys-{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["bash", str(INSTALLER), str(root / f"nsys-{suite}"), suite],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
    if done.returncode != 0:
        _cannot(f"nsys can't be unpacked here: {done.stderr[-300:]}")
    return Path(done.stdout.strip())


def _cannot(why: str) -> NoReturn:
    # In CI a test that quietly never runs would prove nothing.
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)
