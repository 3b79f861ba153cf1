"""Webhooks against a real server: what is posted, what is refused, and that the address stays secret."""

from __future__ import annotations

import json
import time

import pytest

from gputop_llm.errors import GputopError, UsageError
from gputop_llm.notify.announcer import Event
from gputop_llm.notify.notice import notice
from gputop_llm.notify.outbox import Outbox
from gputop_llm.notify.webhook import Webhook
from tests.support.fake_sources import until
from tests.support.http_server import CA_FILE, HttpServer, drip, hang, page, raw, redirect, tls_context
from tests.support.symptom_reports import a_symptom

PATH = "/services/T0/B0/SECRET"
EVENT = notice(Event(False, a_symptom(headline="Größe 99 %"), 1.7e9, ("a", "b"), 3), "gpu-node-7", "simulated: x")


def refused(text: str, **options) -> str:
    with pytest.raises(UsageError) as caught:
        Webhook(text, "GPUTOP_LLM_WEBHOOK", **options)
    return caught.value.sentence()


def failed(text: str, **options) -> str:
    with pytest.raises(GputopError) as caught:
        Webhook(text, "test", **{"deadline_s": 5.0, **options}).deliver(EVENT)
    sentence = caught.value.sentence()
    assert "SECRET" not in sentence
    return sentence


def test_the_event_is_posted_as_json_with_the_given_headers():
    with HttpServer({PATH: page("ok")}) as server:
        Webhook(f"# pager\n{server.url}{PATH}?q=1\n\nAuthorization: Bearer abc\nX-Team: inference\n", "test").deliver(
            EVENT
        )
        (request,) = server.requests
    assert request.path == f"{PATH}?q=1"
    assert request.headers["authorization"] == "Bearer abc"
    assert request.headers["x-team"] == "inference"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("gputop-llm/")
    told = json.loads(request.body)
    assert (told["event"], told["dropped"], told["explains"]) == ("cleared", 3, ["a", "b"])
    assert told["symptom"]["headline"] == "Größe 99 %"
    assert told["simulated"] == "simulated: x"


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_2xx_is_success(status):
    with HttpServer({PATH: page("", status)}) as server:
        Webhook(f"{server.url}{PATH}", "test").deliver(EVENT)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_any_other_status_is_a_failure_and_not_repeated(status):
    with HttpServer({PATH: page("SECRET", status)}) as server:
        assert failed(f"{server.url}{PATH}").endswith(f"it answered with status {status}")
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_wherever_it_goes(status):
    with HttpServer({"/": page("ok")}) as other, HttpServer({}) as server:
        server.behaviours[PATH] = redirect(f"{other.url}/SECRET", status)
        said = failed(f"{server.url}{PATH}\nAuthorization: Bearer SECRET")
        assert "it redirects" in said
        assert other.requests == []


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (hang, "no answer within 0.3 s"),
        (drip(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 500, every_s=0.05), "no answer within 0.3 s"),
        (raw(b"not http at all\r\n\r\n"), "it gave no proper answer"),
        (raw(b""), "it gave no proper answer"),
    ],
)
def test_a_server_that_misbehaves_costs_the_deadline_at_most(behaviour, said):
    with HttpServer({PATH: behaviour}) as server:
        began = time.monotonic()
        assert said in failed(f"{server.url}{PATH}", deadline_s=0.3)
        assert time.monotonic() - began < 5


def test_a_body_that_never_ends_is_not_waited_for():
    endless = drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x" * 1000)
    with HttpServer({PATH: endless}) as server:
        Webhook(f"{server.url}{PATH}", "test", deadline_s=5.0).deliver(EVENT)


def test_nobody_there_and_no_such_host_are_sentences():
    with HttpServer({}) as server:
        gone = server.url
    assert failed(f"{gone}{PATH}") == f"the webhook at {gone} did not take an event: connection refused"
    assert "can't be resolved" in failed(f"http://no-such-host.invalid{PATH}")


def test_https_needs_a_certificate_that_is_trusted():
    with HttpServer({PATH: page("ok")}, tls=tls_context()) as server:
        assert "certificate is not trusted" in failed(f"{server.url}{PATH}")
        assert server.requests == []
        Webhook(f"{server.url}{PATH}", "test", ca_file=CA_FILE).deliver(EVENT)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a remark",
        "ftp://h/SECRET",
        "h/SECRET",
        "http://",
        "http://h:0/",
        "http://[::1/SECRET",
        "http://h/SEC RET",
        "http://h/\u00e9SECRET",
    ],
)
def test_an_address_that_can_not_be_used_is_refused_without_being_shown(text):
    said = refused(text)
    assert said.startswith("GPUTOP_LLM_WEBHOOK: the webhook's URL can't be used")
    assert "SECRET" not in said
    assert "h/" not in said


def test_a_password_in_the_url_and_a_broken_header_are_refused_without_being_shown():
    assert "SECRET" not in refused("http://u:SECRET@h/")
    for line in ("SECRET", "Bad Name: SECRET", "X: SECRET\x00", ": SECRET"):
        said = refused(f"http://h/\n{line}")
        assert "no header" in said
        assert "SECRET" not in said


def test_a_ca_file_without_a_certificate_is_refused(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    assert "it holds no certificate" in refused("https://h/", ca_file=str(tmp_path / "ca.pem"))


def test_neither_log_nor_repr_shows_path_or_headers(caplog):
    with HttpServer({PATH: page("", 500)}) as server:
        hook = Webhook(f"{server.url}{PATH}\nAuthorization: Bearer SECRET", "test")
        outbox = Outbox(hook)
        outbox.put(EVENT)
        outbox.close(5.0)
        assert caplog.messages == [f"the webhook at {server.url} did not take an event: it answered with status 500"]
    assert "SECRET" not in repr(hook) + caplog.text


def test_abort_ends_a_post_that_hangs_at_once():
    with HttpServer({PATH: hang}) as server:
        outbox = Outbox(Webhook(f"{server.url}{PATH}", "test", deadline_s=60.0))
        outbox.put(EVENT)
        until(lambda: server.requests)
        began = time.monotonic()
        outbox.close(0.05)
        until(lambda: not outbox._thread.is_alive())
        assert time.monotonic() - began < 5
