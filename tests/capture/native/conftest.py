"""What the tests of the native client share."""

from __future__ import annotations

import contextlib

import pytest

from tests.capture.native.hosting import Host, Line, hosting


@pytest.fixture
def a_host(native):
    """Starts programs that use CUDA, with the client and the given other libraries (default: CUPTI)."""
    with contextlib.ExitStack() as stack:

        def start(*libraries: object, **options: object) -> Host:
            command = (native.host, native.client, native.cuda, *(libraries or (native.cupti,)))
            return stack.enter_context(hosting(*command, **options))

        yield start


@pytest.fixture
def a_line():
    """Connects to hosts, and hangs up at the end."""
    with contextlib.ExitStack() as stack:

        def connect(host: Host) -> Line:
            line = host.connect()
            stack.callback(line.close)
            return line

        yield connect
