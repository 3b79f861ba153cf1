"""What tests of captures share."""

from __future__ import annotations

import pytest

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
    import contextlib

    with contextlib.ExitStack() as stack:

        def start(behaviour: str) -> Serving:
            return stack.enter_context(serving(tmp_path, behaviour))

        yield start


@pytest.fixture
def captures(tmp_path):
    """Where captures go."""
    return tmp_path / "captures"
