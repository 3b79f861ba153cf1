"""The API key goes to whom the user named, to root's engines and to one's own: anybody can look like an engine."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from gputop_llm.config import Config
from gputop_llm.session import Session
from gputop_llm.sources.owner import user_name
from tests.support.fake_sources import FakeNode, FakeSource, a_target, an_engine_reading, until


@pytest.mark.parametrize(
    ("user", "config", "with_key"),
    [
        ("root", Config(), True),
        (user_name(os.geteuid()), Config(), True),
        ("mallory", Config(), False),
        (None, Config(), False),
        ("mallory", Config(pid=4711), True),
        ("mallory", Config(url="http://127.0.0.1:8000"), True),
    ],
)
def test_who_is_asked_with_the_key(user, config, with_key):
    target = replace(a_target(4711), user=user, urls=("http://127.0.0.1:8000",))
    node = FakeNode()
    node.discovery.answer = replace(node.discovery.poll(), targets=(target,))
    without_key = []

    def stranger(url):
        without_key.append(url)
        return FakeSource(url, an_engine_reading())

    session = Session(config, replace(node.sources, strangers=stranger))
    session.start()
    try:
        until(lambda: session.latest and session.latest.engines)
    finally:
        session.stop()
    assert bool(without_key) is not with_key


def test_no_page_of_a_stranger_s_ranks_gets_the_key():
    urls = tuple(f"http://127.0.0.1:{port}" for port in (8000, 8001))
    node = FakeNode((replace(a_target(4711), user="mallory", urls=urls),))
    without_key = []

    def stranger(url):
        without_key.append(url)
        return FakeSource(url, an_engine_reading())

    session = Session(Config(), replace(node.sources, strangers=stranger))
    session.start()
    try:
        until(lambda: session.latest and session.latest.engines)
    finally:
        session.stop()
    assert tuple(without_key) == urls
    assert not node.engines
