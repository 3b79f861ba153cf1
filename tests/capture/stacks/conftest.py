"""Python processes whose stacks are known."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import pytest

#: What each rank runs: `all_reduce` waits for all, `load_weights` is where one of them hangs.
RANK = """
import sys, threading, time

def all_reduce():
    print("ready", flush=True)
    threading.Event().wait()

def load_weights():
    print("ready", flush=True)
    time.sleep(3600)

def step():
    load_weights() if sys.argv[1] == "hangs" else all_reduce()

def feed():
    threading.Event().wait()

threading.Thread(target=feed, daemon=True).start()
step()
"""

#: One thread that keeps the interpreter's lock, beside ten that want it.
BUSY = """
import threading

def spin():
    count = 0
    while True:
        for number in range(1000):
            count += number * number

def waits():
    threading.Event().wait()

for _ in range(10):
    threading.Thread(target=waits, daemon=True).start()
print("ready", flush=True)
spin()
"""


@pytest.fixture
def python():
    """Starts a Python process that runs some code, and waits until it says that it is where it should be."""
    with ExitStack() as stack:

        def start(code: str, *arguments: str) -> int:
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process.pid

        yield start
