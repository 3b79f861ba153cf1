"""The monitor's side of the demo: reads the simulator through the interface of every source."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from gputop_llm.demo.simulator import Simulator, start_simulator
from gputop_llm.demo.wire import Answer
from gputop_llm.errors import SourceError
from gputop_llm.model import GpuNode, Host, TargetList, TargetProcess

_WHAT = "cannot read the simulated node"
_ANSWER_WITHIN_S = 1.5
_DEADLINE_S = 2.0
_SHARED_FOR_S = 0.2


class _Client:
    """Reads `/node`; sources that ask within `_SHARED_FOR_S` of each other share one answer."""

    def __init__(self, simulator: Simulator) -> None:
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

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._client = _Client(simulator)
        self.label = simulator.label

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
    """Starts the simulator, as `start_simulator` does, and reads it.

    Raises:
        UsageError: no such scenario, or more engines than GPUs.
        GputopError: no process can be started.
    """
    return DemoNode(start_simulator(scenario, seed, gpus, engines))
