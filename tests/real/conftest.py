"""A real vLLM for the tests in this folder; one server at a time, they run serially."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.real.vllm_cpu import VllmServer
from tests.real.vllm_venv import CannotRunVllm, vllm_venv

SERVERS = ("vllm_tiny", "vllm_small", "vllm_tp2", "vllm_dp2", "vllm_api2")


class Slot:
    """Holds the one server: the same for as long as the tests ask for the same kind."""

    def __init__(self) -> None:
        self.kind: dict[str, Any] = {}
        self.server: VllmServer | None = None

    def get(self, **kind: Any) -> VllmServer:
        """A healthy server of that kind (arguments of VllmServer)."""
        if self.server is None or self.kind != kind or not self.server.is_healthy():
            self.clear()
            server = VllmServer(**kind)
            server.__enter__()
            self.server, self.kind = server, kind
        return self.server

    def clear(self) -> None:
        """Stops the server, if there is one."""
        if self.server is not None:
            self.server.__exit__()
            self.server = None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the same server follow each other, from where the first of them stands: a start takes half a minute."""
    first: dict[str, int] = {}
    for number, item in enumerate(items):
        first.setdefault(_server_of(item), number)
    items.sort(key=lambda item: first[_server_of(item)])


def _server_of(item: pytest.Item) -> str:
    """The fixture of the server that a test uses; its own name where it uses none."""
    return next((name for name in getattr(item, "fixturenames", ()) if name in SERVERS), item.nodeid)


@pytest.fixture(scope="session")
def engine_venv():
    """The environment that vLLM is installed in."""
    try:
        return vllm_venv()
    except CannotRunVllm as reason:
        # In CI a test that quietly never runs would prove nothing.
        if os.environ.get("CI") == "true":
            pytest.fail(f"the real engine cannot run here: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def vllm_slot(engine_venv):
    """Starts servers on demand, one at a time."""
    slot = Slot()
    yield slot
    slot.clear()


@pytest.fixture
def vllm_tiny(vllm_slot):
    """The 2-layer model, started the old way: `python -m vllm.entrypoints.openai.api_server`."""
    return vllm_slot.get(model="tiny", as_module=True)


@pytest.fixture
def vllm_small(vllm_slot):
    """The 12-layer model under `vllm serve`; its latencies are long enough to compare."""
    return vllm_slot.get(model="small")


@pytest.fixture
def vllm_tp2(vllm_slot):
    """The 2-layer model on two tensor-parallel workers."""
    return vllm_slot.get(model="tiny", tp=2)


@pytest.fixture
def vllm_dp2(vllm_slot):
    """Two data-parallel engines behind two API servers (vLLM's default)."""
    return vllm_slot.get(model="tiny", dp=2)


@pytest.fixture
def vllm_api2(vllm_slot):
    """One engine behind two API servers."""
    return vllm_slot.get(model="tiny", api_servers=2)
