"""The load of the overhead benchmark: several processes send one round's requests, each once, as one result."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from benchmarks.overhead import measure
from benchmarks.spread_load import SpreadLoad, combined
from tests.real.load import LoadResult, requests_of
from tests.support.completions import complete, refuse
from tests.support.http_server import HttpServer

PATH = "/v1/completions"


@pytest.fixture
def server():
    with HttpServer({PATH: complete}) as one:
        yield one


def sent(server, begin=0, end=None):
    return Counter(exchange.body for exchange in server.asked(PATH)[begin:end])


def test_every_request_of_a_round_is_sent_once_and_the_next_round_of_that_number_sends_the_same(server):
    with SpreadLoad(streams=5, processes=2) as load:
        result, busy_pct = load.run(server.port, requests=23, seed=3)
        load.run(server.port, requests=23, seed=3)
        load.run(server.port, requests=23, seed=4)

    asked = [json.loads(body) for body in requests_of(23, seed=3)]
    assert sent(server, 0, 23) == sent(server, 23, 46) == Counter(requests_of(23, seed=3))
    assert sent(server, 46) == Counter(requests_of(23, seed=4))
    assert result.errors == []
    assert len(result.ttft_s) == len(result.e2e_s) == 23
    assert result.generation_tokens == sum(one["max_tokens"] for one in asked)
    assert result.prompt_tokens == sum(len(one["prompt"].split()) for one in asked)
    # A chunk is a token here: between two of them lies one gap.
    assert len(result.itl_s) == result.generation_tokens - 23
    assert busy_pct > 0


def test_no_more_processes_than_streams_and_none_waits_for_a_request_that_is_not_there(server):
    with SpreadLoad(streams=3, processes=8) as load:
        result, _ = load.run(server.port, requests=2)

    assert load.processes == 3
    assert len(result.e2e_s) == 2


def test_a_request_that_failed_ends_the_benchmark_with_its_reason():
    with (
        HttpServer({PATH: refuse}) as server,
        SpreadLoad(streams=2, processes=2) as load,
        pytest.raises(SystemExit, match=r"a request failed: .*status 404: b'no such model'"),
    ):
        measure(load, server.port, "tiny", 2, 1)


def test_parts_are_added_up_and_last_from_the_first_begin_to_the_last_end():
    parts = [
        LoadResult(4.0, 100.0, [0.1], [0.01, 0.02], [4.0], 10, 3),
        LoadResult(5.0, 101.0, [0.2, 0.3], [0.03], [2.0, 3.0], 20, 5, ["broken"]),
    ]

    assert combined(parts) == LoadResult(
        6.0, 100.0, [0.1, 0.2, 0.3], [0.01, 0.02, 0.03], [4.0, 2.0, 3.0], 30, 8, ["broken"]
    )
    assert combined(parts[:1]) == parts[0]
