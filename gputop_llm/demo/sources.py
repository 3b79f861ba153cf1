"""The monitor's side of the demo: starts the simulator and reads it through the interface of every source."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import gputop_llm
from gputop_llm.demo import scenarios
from gputop_llm.demo.wire import Answer
from gputop_llm.errors import GputopError, SourceError
from gputop_llm.model import GpuNode, Host, TargetList, TargetProcess

_WHAT = "cannot read the simulated node"
_ANSWER_WITHIN_S = 1.5
_DEADLINE_S = 2.0
_SHARED_FOR_S = 0.2
_START_WITHIN_S = 15.0
_STOP_WITHIN_S = 2.0


class _Simulator:
    """The simulator's process. Its ports are only waited for when somebody needs them."""

    def __init__(self, flags: list[str]) -> None:
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


class _Client:
    """Reads `/node`; sources that ask within `_SHARED_FOR_S` of each other share one answer."""

    def __init__(self, simulator: _Simulator) -> None:
        self._simulator = simulator
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        self._newest: Answer | None = None
        self._newest_at_s = 0.0

    def read(self) -> Answer:
        """The newest answer.

        Raises:
            SourceError: the simulator has ended, or does not answer.
        """
        with self._lock:
            if self._newest is None or time.monotonic() - self._newest_at_s > _SHARED_FOR_S:
                self._newest = None
                self._newest = Answer(self._fetch())
                self._newest_at_s = time.monotonic()
            return self._newest

    def _fetch(self) -> bytes:
        port, _ = self._simulator.ports()
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_WITHIN_S)
        try:
            self._connection.request("GET", "/node")
            return self._connection.getresponse().read()
        except TimeoutError as error:
            self._connection.close()
            raise SourceError(_WHAT, f"the simulator did not answer within {_ANSWER_WITHIN_S:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            why = self._simulator.fate() or f"the connection to the simulator broke ({error or type(error).__name__})"
            raise SourceError(_WHAT, why, "start the demo again") from error

    def abort(self) -> None:
        """Makes a `read` that is under way fail."""
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _DemoSource:
    """What the three sources have in common; the client outlives each of them."""

    name = "demo"
    deadline_s = _DEADLINE_S

    def __init__(self, client: _Client) -> None:
        self._client = client

    def abort(self) -> None:
        self._client.abort()

    def close(self) -> None:
        """Nothing of its own to let go of."""


class DemoGpuSource(_DemoSource):
    """The simulated GPUs."""

    name = "gpu"

    def poll(self) -> GpuNode:
        return self._client.read().gpus()


class DemoHostSource(_DemoSource):
    """The simulated host, with the processes that `watched` names; all, without it."""

    name = "host"

    def __init__(self, client: _Client, watched: Callable[[], tuple[TargetProcess, ...]] | None = None) -> None:
        super().__init__(client)
        self._watched = watched

    def poll(self) -> Host:
        host = self._client.read().host()
        if self._watched is None:
            return host
        pids = {process.pid for process in self._watched()}
        return replace(host, processes=tuple(load for load in host.processes if load.pid in pids))


class DemoDiscoverySource(_DemoSource):
    """The simulated engines."""

    name = "discovery"

    def poll(self) -> TargetList:
        return self._client.read().targets()


class DemoNode:
    """A running simulator; `label` says what it is ("simulated: healthy, seed 7")."""

    def __init__(self, simulator: _Simulator, label: str) -> None:
        self._simulator = simulator
        self._client = _Client(simulator)
        self.label = label

    @property
    def pid(self) -> int:
        """PID of the simulator."""
        return self._simulator.pid

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the engines, for the same metrics source that reads real ones.

        Raises:
            SourceError: the simulator did not start.
        """
        return tuple(f"http://127.0.0.1:{port}" for port in self._simulator.ports()[1])

    def gpu_source(self) -> DemoGpuSource:
        return DemoGpuSource(self._client)

    def host_source(self, watched: Callable[[], tuple[TargetProcess, ...]] | None = None) -> DemoHostSource:
        return DemoHostSource(self._client, watched)

    def discovery_source(self) -> DemoDiscoverySource:
        return DemoDiscoverySource(self._client)

    def stop(self) -> None:
        """Ends the simulator. Safe to call twice."""
        self._simulator.end()


def start_demo(scenario: str, seed: int = 7, gpus: int = 1, engines: int = 1) -> DemoNode:
    """Starts the simulator in a process of its own, which ends when this one does. Does not wait for it.

    Raises:
        UsageError: no such scenario, or more engines than GPUs.
        GputopError: no process can be started.
    """
    scenarios.scenario(scenario)
    scenarios.gpus_per_engine(gpus, engines)
    flags = ["--scenario", scenario, "--seed", str(seed), "--gpus", str(gpus), "--engines", str(engines)]
    return DemoNode(_Simulator(flags), f"simulated: {scenario}, seed {seed}")
