"""What tests of several GPUs share: how many there are, a server's page, and what the product says about it."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

import pynvml

from tests.support.cli import COMMAND, environment


def gpu_count():
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return 0


def told(name, *arguments, good=(0,)):
    """The JSON that a command of the product prints, kept in the folder of records."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=environment(), timeout=300, check=False
    )
    folder = Path(os.environ["GPUTOP_TEST_RECORDS"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(done.stdout)
    (folder / f"{name}.err").write_text(done.stderr)
    assert done.returncode in good, done.stderr
    return json.loads(done.stdout)


def page(url):
    """The metrics page; empty where none answers."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def wait_until(check, what, within_s=600.0):
    end = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.5)
