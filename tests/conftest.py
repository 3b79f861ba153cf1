"""What holds for every test."""

from __future__ import annotations

import signal
import time

import hypothesis
import pytest

from tests.support.environment import ORIGINAL, scrubbed

# A shell's background jobs ignore Ctrl-C, and so would every program that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long one example takes says how busy the machine is, and nothing else.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


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
