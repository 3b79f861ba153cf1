"""The simulator's process. It is started before the rest of the monitor is imported, and so imports next to nothing."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time

import gputop_llm
from gputop_llm.demo.choice import check_scenario, gpus_per_engine
from gputop_llm.errors import GputopError, SourceError

_START_WITHIN_S = 15.0
_STOP_WITHIN_S = 2.0


class Simulator:
    """The simulator's process. Its ports are only waited for when somebody needs them."""

    def __init__(self, flags: list[str], label: str) -> None:
        self.label = label
        home = os.path.dirname(os.path.dirname(os.path.abspath(gputop_llm.__file__)))
        path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH")) if part)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gputop_llm.demo.server", *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                # `-m` puts the working directory first on the path: a user's own random.py must not get in.
                cwd="/",
            )
        except OSError as error:
            raise GputopError("cannot start the simulated node", error.strerror or str(error)) from error
        self._lock = threading.Lock()
        self._ports: tuple[int, tuple[int, ...]] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ports(self) -> tuple[int, tuple[int, ...]]:
        """The port of `/node`, and those of the engines.

        Raises:
            SourceError: the simulator does not say them.
        """
        with self._lock:
            if self._ports is None:
                said = json.loads(self._first_line())
                self._ports = (said["node"], tuple(said["engines"]))
            return self._ports

    def _first_line(self) -> bytes:
        out = self._process.stdout
        assert out is not None
        until_s = time.monotonic() + _START_WITHIN_S
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([out], [], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                raise SourceError("cannot start the simulated node", f"nothing heard of it for {_START_WITHIN_S:g} s")
            more = os.read(out.fileno(), 4096)
            if not more:
                raise SourceError("cannot start the simulated node", self.fate() or "it closed its output")
            line += more
        return line

    def fate(self) -> str | None:
        """How it ended, as a clause; None if it lives."""
        try:
            # A connection may break a moment before the process counts as ended.
            status = self._process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            return None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the simulator (PID {self.pid}) {how}"

    def end(self) -> None:
        """Ends it: by closing its stdin, or by force."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock:
            self._process.stdout.close()
            self._ports = self._ports or (0, ())


def start_simulator(scenario: str, seed: int, gpus: int, engines: int) -> Simulator:
    """Starts the simulator in a process of its own, which ends when this one does. Does not wait for it.

    Raises:
        UsageError: no such scenario, or more engines than GPUs.
        GputopError: no process can be started.
    """
    check_scenario(scenario)
    gpus_per_engine(gpus, engines)
    flags = ["--scenario", scenario, "--seed", str(seed), "--gpus", str(gpus), "--engines", str(engines)]
    return Simulator(flags, f"simulated: {scenario}, seed {seed}")
