"""Scraping a real server that misbehaves: one clear sentence each, in time, and the next poll is unharmed."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
import tracemalloc
import zlib

import pytest

from gputop_llm.errors import SourceError
from gputop_llm.sources.metrics import MetricsSource
from tests.support.http_server import (
    CA_FILE,
    HttpServer,
    drip,
    hang,
    in_turn,
    page,
    raw,
    redirect,
    tls_context,
)

RUNNING_3 = 'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def failure(url: str, deadline_s: float = 5.0, **options) -> str:
    """The sentence of a poll that fails."""
    source = MetricsSource(url, **options)
    source.deadline_s = deadline_s
    try:
        with pytest.raises(SourceError) as caught:
            source.poll()
    finally:
        source.close()
    sentence = caught.value.sentence()
    assert sentence.startswith("cannot read http")
    assert sentence.isprintable()
    return sentence


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, "it needs authorisation (401); give its API key in GPUTOP_LLM_API_KEY"),
        (403, "it refuses to answer (403); give its API key in GPUTOP_LLM_API_KEY"),
        (404, "there is no such page (404); check the address, and the server's --root-path"),
        (418, "it answers (418 I'm a Teapot)"),
        (429, "it answers (429 Too Many Requests)"),
        (
            500,
            "the server failed (500 Internal Server Error); see the server's own log; is its PROMETHEUS_MULTIPROC_DIR, "
            "if it has one, on a local disk?",
        ),
        (501, "its metrics are switched off (501)"),
        (503, "the server failed (503 Service Unavailable)"),
        (599, "the server failed (599 unknown status)"),
    ],
)
def test_a_status_is_told_in_words_and_the_body_is_not_shown(status, sentence):
    with HttpServer({"/metrics": page("<b>Oops</b>", status, "text/html")}) as server:
        text = failure(server.url)
    assert f"cannot read {server.url}/metrics: {sentence}" in text
    assert "Oops" not in text


@pytest.mark.parametrize(
    ("status", "sentence"), [(401, "does not accept the API key"), (403, "check the key's rights")]
)
def test_a_key_that_is_refused_is_not_asked_for_again(status, sentence):
    with HttpServer({"/metrics": page("", status)}) as server:
        assert sentence in failure(server.url, api_key="sk-1")


def test_a_key_that_the_server_sends_back_is_not_shown():
    with HttpServer({"/metrics": page("echo sk-secret-1 sk-secret-1")}) as server:
        assert "sk-secret-1" not in failure(server.url, api_key="sk-secret-1")
    with HttpServer({"/metrics": page(f"echo sk-secret-1 is bad\n{RUNNING_3}")}) as server:
        source = MetricsSource(server.url, api_key="sk-secret-1")
        assert source.poll().first_skipped == "echo … is bad"
        source.close()


def test_nothing_listening_is_said():
    assert "nothing listens there (connection refused)" in failure(f"http://127.0.0.1:{closed_port()}")


def test_a_name_that_is_not_known_is_said():
    assert "the host's name is not known" in failure("http://no-such-host.invalid:8000")


def test_a_name_that_can_be_none_is_said():
    assert "the host's name is not known" in failure(f"http://{'a' * 64}.invalid:8000")


def test_what_the_system_says_is_told_in_its_words():
    assert failure("http://255.255.255.255:9").endswith(": network is unreachable")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (page("<!doctype html><title>x</title>", content_type="text/html"), "a web page (a sign-in?)"),
        (page("  <html></html>", content_type="text/plain"), "a web page (a sign-in?)"),
        (page('{"a": 1}', content_type="application/json"), "gives JSON"),
        (page("[]", content_type="text/plain"), "gives JSON"),
        (page("good morning\nand welcome\n"), "no line of it is a metric (the first: good morning)"),
        (page(b"\x00\x01\xff\x1b[31m\n"), r"no line of it is a metric (the first: \x00\x01\xff\x1b[31m)"),
    ],
)
def test_what_is_no_metrics_page_is_named(body, sentence):
    with HttpServer({"/metrics": body}) as server:
        assert sentence in failure(server.url)


def test_redirects_in_a_circle_end():
    with HttpServer({"/metrics": redirect("/a"), "/a": redirect("/metrics")}) as server:
        assert "it redirects more than 3 times" in failure(server.url)
        assert len(server.requests) == 4


@pytest.mark.parametrize("location", ["ftp://h/metrics", "http://[::1", "javascript:alert(1)", "http://h:0/"])
def test_a_redirect_to_no_http_address_is_said(location):
    with HttpServer({"/metrics": redirect(location)}) as server:
        assert "redirects to an address that is not HTTP" in failure(server.url)


def test_a_redirect_to_nowhere_is_said():
    with HttpServer({"/metrics": page("", 302)}) as server:
        assert "it redirects to nowhere" in failure(server.url)


def test_a_redirect_to_an_odd_path_is_followed():
    odd = "/mé tr\x7fics/%41"
    with HttpServer({"/metrics": redirect(odd), "/m%C3%A9%20tr%7Fics/%41": page(RUNNING_3)}) as server:
        server.behaviours["/metrics"] = redirect(odd.encode().decode("latin-1"))
        assert "404" in failure(server.url)


# -- time ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "awaited"),
    [
        (hang, "no answer"),
        (drip(b"", HEAD * 100), "no answer"),
        (drip(HEAD, b"X-Slow: 1\r\n" * 100), "no complete answer"),
        (drip(HEAD + b"Content-Length: 100000\r\n\r\n", b"a" * 1000), "no complete answer"),
        (drip(HEAD + b"\r\n", b"# a\n" * 1000), "no complete answer"),
        (drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\n# \r\n" * 1000), "no complete answer"),
    ],
    ids=["never", "first byte on", "headers", "body", "body without length", "chunks"],
)
def test_a_server_that_is_too_slow_meets_the_deadline_of_the_whole_poll(behaviour, awaited):
    with HttpServer({"/metrics": behaviour}) as server:
        began = time.monotonic()
        sentence = failure(server.url, deadline_s=0.3)
        took = time.monotonic() - began
    assert f"{awaited} within 0.3 s; the server may be overloaded or hung" in sentence
    assert 0.25 < took < 2.0


def test_redirects_share_one_deadline():
    def slowly(exchange):
        exchange.wait(0.2)
        redirect("/metrics")(exchange)

    with HttpServer({"/metrics": slowly}) as server:
        began = time.monotonic()
        assert "within 0.3 s" in failure(server.url, deadline_s=0.3)
        assert time.monotonic() - began < 2.0


def test_a_server_that_accepts_nothing_is_no_connection():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(8)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            sentence = failure(f"http://127.0.0.1:{address[1]}", deadline_s=0.3)
        finally:
            for filler in fillers:
                filler.close()
    assert "no connection within 0.3 s" in sentence or "no answer within 0.3 s" in sentence


def test_a_tls_handshake_that_never_ends_meets_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sentence = failure(f"https://127.0.0.1:{listener.getsockname()[1]}", deadline_s=0.3, ca_file=CA_FILE)
    assert "no connection within 0.3 s; is the host up, and does the port speak TLS?" in sentence


def test_after_a_slow_poll_the_next_one_is_as_good_as_ever():
    with HttpServer({"/metrics": in_turn(hang, page(RUNNING_3))}) as server:
        source = MetricsSource(server.url)
        source.deadline_s = 0.2
        with pytest.raises(SourceError):
            source.poll()
        source.deadline_s = 5.0
        assert source.poll().series[0].running == 3
        source.close()


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("behaviour", [hang, drip(HEAD + b"\r\n", b"# a\n" * 1000)], ids=["no answer", "body"])
def test_abort_from_another_thread_ends_a_poll(behaviour, tls):
    asked = threading.Event()

    def behave(exchange):
        asked.set()
        behaviour(exchange)

    with HttpServer({"/metrics": behave}, tls=tls_context() if tls else None) as server:
        source = MetricsSource(server.url, ca_file=CA_FILE)
        source.deadline_s = 60.0
        sentences = []

        def poll():
            try:
                source.poll()
            except SourceError as error:
                sentences.append(error.sentence())

        poller = threading.Thread(target=poll)
        poller.start()
        assert asked.wait(10)
        source.abort()
        poller.join(10)
        assert not poller.is_alive()
        assert len(sentences) == 1
        source.close()


def test_no_thread_and_no_socket_is_left_behind():
    with HttpServer({"/metrics": in_turn(hang, page(RUNNING_3))}) as server:
        before = {thread.name for thread in threading.enumerate() if "Timer" in thread.name}
        failure(server.url, deadline_s=0.1)
        source = MetricsSource(server.url)
        source.poll()
        source.close()
        deadline = time.monotonic() + 5
        while (
            left := [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
        ) and time.monotonic() < deadline:
            left[0].join(0.1)
        assert not left, before


# -- size and broken answers -----------------------------------------------


def endless(exchange):
    exchange.keep = False
    exchange.send(HEAD + b"\r\n")
    block = b"# a comment that says nothing at all\n" * 2000
    while exchange.sent < 100 * 2**20 and not exchange.over.is_set():
        exchange.send(block)


def test_a_page_of_100_mb_is_capped_and_says_so():
    with HttpServer({"/metrics": endless}) as server:
        tracemalloc.start()
        sentence = failure(server.url)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        sent = server.requests[0].sent
    assert "larger than 4 MiB and is not read further" in sentence
    assert peak < 16 * 2**20
    assert sent < 64 * 2**20


def test_a_gigabyte_in_a_megabyte_is_capped_as_well():
    pack = zlib.compressobj(9, wbits=31)
    packed = b"".join(pack.compress(bytes(2**20)) for _ in range(200)) + pack.flush()
    with HttpServer({"/metrics": raw(HEAD + b"Content-Encoding: gzip\r\n\r\n" + packed)}) as server:
        tracemalloc.start()
        sentence = failure(server.url)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "larger than 4 MiB" in sentence
    assert peak < 16 * 2**20


def test_a_page_just_under_the_cap_is_read():
    text = "# " + "a" * (4 * 2**20 - 200) + "\n" + RUNNING_3
    with HttpServer({"/metrics": page(text)}) as server:
        source = MetricsSource(server.url)
        source.deadline_s = 30
        assert source.poll().series[0].running == 3
        source.close()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the answer is not HTTP"),
        (b"\x16\x03\x01\x00\x00", "the answer is not HTTP"),
        (b"HTTP/1.1 banana OK\r\n\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 200 + b"\r\n", "the answer is not HTTP"),
        (HEAD + b"Content-Length: 1000\r\n\r\n" + RUNNING_3.encode(), "the answer broke off"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nvllm:", "the answer broke off"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "the answer broke off"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nvllm:", "the answer is not HTTP"),
        (HEAD + b"Content-Encoding: gzip\r\n\r\nnot gzip at all", "the answer's compression is broken"),
        (HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(RUNNING_3.encode())[:-9], "the answer broke off"),
        (HEAD + b"Content-Encoding: gzip, gzip\r\n\r\n", "compressed in a way that was not asked for"),
        (HEAD + b"Content-Encoding: br\r\n\r\n", "compressed in a way that was not asked for"),
    ],
)
def test_a_broken_answer_is_told_in_words(answer, sentence):
    with HttpServer({"/metrics": raw(answer)}) as server:
        assert sentence in failure(server.url)


def test_an_answer_that_is_cut_by_a_reset_broke_off():
    def reset(exchange):
        exchange.keep = False
        exchange.send(HEAD + b"Content-Length: 1000\r\n\r\nvllm:")
        exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        exchange.connection.close()

    with HttpServer({"/metrics": reset}) as server:
        assert "the answer broke off" in failure(server.url)


def test_https_asked_of_a_port_without_tls_is_said():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server = threading.Thread(target=refuse, daemon=True)
        server.start()
        sentence = failure(f"https://127.0.0.1:{listener.getsockname()[1]}", ca_file=CA_FILE)
        server.join(5)
    assert "the port does not speak TLS; try http://" in sentence


def test_http_asked_of_a_port_with_tls_is_said():
    with HttpServer({"/metrics": page(RUNNING_3)}, tls=tls_context()) as server:
        assert "http or https?" in failure(server.url.replace("https://", "http://"))


def test_a_certificate_for_another_name_is_refused():
    with HttpServer({"/metrics": page(RUNNING_3)}, tls=tls_context(), host="127.0.0.2") as server:
        assert "certificate is not trusted (IP address mismatch" in failure(server.url, ca_file=CA_FILE)


def test_a_tls_version_that_is_too_old_is_said():
    old = tls_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("AES128-SHA")
    with HttpServer({"/metrics": page(RUNNING_3)}, tls=old) as server:
        assert "TLS failed" in failure(server.url, ca_file=CA_FILE)
