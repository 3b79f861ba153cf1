"""What tests of captures share."""

from __future__ import annotations

import contextlib
import os

import pytest

from tests.capture.native.hosting import built
from tests.capture.support import Serving, serving, use_patched_worker


@pytest.fixture(autouse=True)
def _own_worker(monkeypatch, tmp_path):
    use_patched_worker(monkeypatch, tmp_path)


@pytest.fixture
def target(tmp_path):
    """A target that records as asked."""
    with serving(tmp_path) as started:
        yield started


@pytest.fixture
def a_target(tmp_path):
    """Starts a target of some behaviour."""
    with contextlib.ExitStack() as stack:

        def start(behaviour: str) -> Serving:
            return stack.enter_context(serving(tmp_path, behaviour))

        yield start


@pytest.fixture
def captures(tmp_path):
    """Where captures go."""
    return tmp_path / "captures"


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """The client and what tests put around it; one folder for all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    return built((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native")


@pytest.fixture
def unprepared(native, tmp_path, monkeypatch):
    """Starts targets without a client, each with what is to be in its environment."""
    monkeypatch.setenv("GPUTOP_TEST_LIBRARY", str(native.client))
    with contextlib.ExitStack() as stack:
        yield lambda **environment: stack.enter_context(serving(tmp_path, cupti=native.cupti, environment=environment))
