"""A host of several addresses, or one whose name is looked up for ever: one deadline for all of it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from gputop_llm.errors import SourceError
from gputop_llm.sources.metrics import MetricsSource
from tests.support.fake_sources import until
from tests.support.http_server import CA_FILE, HttpServer, page, tls_context

RUNNING_3 = 'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'


@pytest.fixture
def silent():
    """Makes addresses that take no connection and refuse none: sockets that listen, with their queues full."""
    with contextlib.ExitStack() as opened:

        def make(host: str) -> tuple[str, int]:
            full = opened.enter_context(socket.socket())
            full.bind((host, 0))
            full.listen(0)
            for _ in range(8):
                filler = opened.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            return full.getsockname()

        yield make


@pytest.fixture
def named(monkeypatch):
    """Gives the name "engine.test" to addresses; other names are looked up as ever."""
    real = socket.getaddrinfo

    def name(*addresses: tuple[str, int], wait=lambda: None) -> None:
        def getaddrinfo(host, port, *args, **kwargs):
            if host != "engine.test":
                return real(host, port, *args, **kwargs)
            if kwargs.get("flags"):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            wait()
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return name


def polled(url: str, deadline_s: float, **options):
    """What a poll gives (a reading, or the sentence of its failure), and its seconds."""
    source = MetricsSource(url, **options)
    source.deadline_s = deadline_s
    began = time.monotonic()
    try:
        return source.poll(), time.monotonic() - began
    except SourceError as error:
        return error.sentence(), time.monotonic() - began
    finally:
        source.close()


def test_silent_addresses_share_one_deadline(named, silent):
    named(*(silent(f"127.0.0.{n}") for n in range(1, 7)))
    sentence, took_s = polled("http://engine.test:8000", 1.0)
    assert sentence == (
        "cannot read http://engine.test:8000/metrics: no connection within 1 s; "
        "is the host up, and does a firewall let this pass?"
    )
    assert 0.9 < took_s < 3.0


def test_a_silent_address_leaves_time_for_the_one_that_answers(named, silent):
    with HttpServer({"/metrics": page(RUNNING_3)}) as server:
        named(silent("127.0.0.2"), (server.host, server.port))
        reading, took_s = polled("http://engine.test:8000", 1.0)
    assert reading.series[0].running == 3
    assert 0.4 < took_s < 3.0


def test_an_address_that_refuses_is_passed_over_at_once(named):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = listener.getsockname()
    with HttpServer({"/metrics": page(RUNNING_3)}) as server:
        named(refusing, (server.host, server.port))
        assert polled("http://engine.test:8000", 5.0)[0].series[0].running == 3
        assert server.asked("/metrics")[0].headers["host"] == "engine.test:8000"


def test_all_addresses_that_refuse_are_told_as_one(named):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = listener.getsockname()
    named(refusing, refusing)
    assert "nothing listens there (connection refused)" in polled("http://engine.test:8000", 5.0)[0]


def test_a_name_without_addresses_is_a_failure_in_words(named):
    named()
    assert "the host's name is not known" in polled("http://engine.test:8000", 5.0)[0]


def test_the_certificate_must_be_for_the_name_and_not_for_the_address_behind_it(named):
    with HttpServer({"/metrics": page(RUNNING_3)}, tls=tls_context()) as server:
        named((server.host, server.port))
        sentence, _ = polled("https://engine.test", 5.0, ca_file=CA_FILE)
        assert "its certificate is not trusted" in sentence
        assert not server.requests


def test_a_lookup_that_hangs_meets_the_deadline_and_is_not_asked_twice(named):
    released = threading.Event()
    asked = []

    def wait():
        asked.append(threading.current_thread())
        released.wait(60)

    with HttpServer({"/metrics": page(RUNNING_3)}) as server:
        named((server.host, server.port), wait=wait)
        source = MetricsSource("http://engine.test:8000")
        source.deadline_s = 0.2
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(SourceError, match=r"not looked up within 0.2 s; does the name server answer\?"):
                source.poll()
            assert time.monotonic() - began < 2.0
        assert len(asked) == 1
        released.set()
        source.deadline_s = 10.0
        assert source.poll().series[0].running == 3
        assert len(asked) == 1
        source.close()


def test_abort_ends_the_wait_for_a_lookup(named):
    released, asked = threading.Event(), threading.Event()

    def wait():
        asked.set()
        released.wait(60)

    named(("127.0.0.1", 9), wait=wait)
    source = MetricsSource("http://engine.test:8000")
    source.deadline_s = 60.0
    ended = threading.Event()

    def poll():
        with contextlib.suppress(SourceError):
            source.poll()
        ended.set()

    threading.Thread(target=poll, daemon=True).start()
    assert asked.wait(10)
    source.abort()
    assert ended.wait(10)
    released.set()


def test_abort_ends_the_walk_over_silent_addresses(named, silent):
    named(*(silent(f"127.0.0.{n}") for n in range(1, 4)))
    source = MetricsSource("http://engine.test:8000")
    source.deadline_s = 60.0
    ended = threading.Event()

    def poll():
        with contextlib.suppress(SourceError):
            source.poll()
        ended.set()

    threading.Thread(target=poll, daemon=True).start()
    until(lambda: source._http._socket is not None)
    source.abort()
    assert ended.wait(10)
