"""An engine with a page for each rank, in the session: one engine of several ranks, whatever its pages are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm import session as session_module
from gputop_llm.config import Config
from gputop_llm.model import EngineReading
from gputop_llm.session import Session
from tests.support.fake_sources import FakeNode, FakeSource, a_target, an_engine_reading, until

URLS = tuple(f"http://127.0.0.1:{port}" for port in (8000, 8001, 8002))


class Node(FakeNode):
    """Each page has the rank that its port tells."""

    def _make_engine(self, url: str) -> FakeSource:
        source = super()._make_engine(url)
        source.answer = rank_reading(url[-1])
        return source


def rank_reading(rank: str) -> EngineReading:
    reading = an_engine_reading()
    return replace(reading, series=tuple(replace(one, rank=rank) for one in reading.series))


@pytest.fixture
def watching(monkeypatch):
    monkeypatch.setattr(session_module, "DISCOVERY_PERIOD_S", 0.05)
    sessions = []

    def make(node: FakeNode) -> Session:
        sessions.append(Session(Config(period_s=0.05), node.sources))
        sessions[-1].start()
        return sessions[-1]

    yield make
    for session in sessions:
        session.stop()


def engines(session: Session):
    return session.latest.engines if session.latest else ()


def test_the_ranks_of_an_engine_with_several_pages_are_one_engine_in_the_frame(watching):
    node = Node((a_target(urls=URLS),))
    session = watching(node)
    (engine,) = until(lambda: [e for e in engines(session) if e.window])
    assert (engine.target_key, engine.url) == (a_target().key, URLS[0])
    assert list(node.engines) == list(URLS)
    assert [rank.rank for rank in engine.window.ranks] == ["0", "1", "2"]
    assert engine.window.total.running == 3 * 35


def test_an_engine_whose_pages_become_more_is_asked_at_all_of_them(watching):
    node = Node((a_target(urls=URLS[:1]),))
    session = watching(node)
    until(lambda: [e for e in engines(session) if e.window])
    node.set_targets(a_target(urls=URLS))
    until(lambda: [e for e in engines(session) if e.window and len(e.window.ranks) == 3])
    assert len(engines(session)) == 1


def test_a_session_stops_in_time_while_a_page_hangs(watching):
    node = Node((a_target(urls=URLS),))
    session = watching(node)
    until(lambda: len(node.engines) == 3 and node.engines[URLS[1]].polls)
    node.engines[URLS[1]].hanging = True
    until(lambda: any(e.scrape.value and e.scrape.value.unread for e in engines(session)))
    session.stop()
    until(lambda: all(source.closes == 1 for source in node.engines.values()))
