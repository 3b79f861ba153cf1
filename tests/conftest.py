"""What holds for every test."""

from __future__ import annotations

import time

import pytest

from tests.support.environment import ORIGINAL, scrubbed


@pytest.fixture(scope="session", autouse=True)
def _same_environment_everywhere(tmp_path_factory):
    """No proxy, no settings of the caller's shell, the user's directories in a temporary place."""
    clean = scrubbed(ORIGINAL, tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ORIGINAL.keys() - clean.keys():
            patch.delenv(name, raising=False)
        for name, value in clean.items():
            patch.setenv(name, value)
        time.tzset()
        yield
    time.tzset()
