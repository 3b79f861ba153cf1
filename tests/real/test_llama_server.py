"""The monitor on a real llama-server: what its clients count is what is shown. Run by hand, with two variables set:

GPUTOP_LLM_LLAMA_SERVER=…/llama-server GPUTOP_LLM_GGUF=…/small.gguf pytest -m real tests/real/test_llama_server.py
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import urllib.request
from collections import Counter

import pytest

from gputop_llm.config import Config
from gputop_llm.errors import SourceError
from gputop_llm.node import real_sources
from gputop_llm.session import Session
from gputop_llm.sources.metrics import MetricsSource
from tests.support.fake_sources import until

SERVER, MODEL = os.environ.get("GPUTOP_LLM_LLAMA_SERVER"), os.environ.get("GPUTOP_LLM_GGUF")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not (SERVER and MODEL), reason="GPUTOP_LLM_LLAMA_SERVER and GPUTOP_LLM_GGUF name no server"),
]
SLOTS, CLIENTS = 2, 5
DEADLINE_S = 60.0


class LlamaServer:
    """One llama-server with two slots on a port of its own."""

    def __init__(self, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        words = [SERVER, "-m", MODEL, "--alias", "org/small", "-np", str(SLOTS), "-t", "1", "-c", "2048"]
        self.process = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", str(self.port), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._healthy, DEADLINE_S)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def complete(self, prompt: list[int], tokens: int) -> Counter[str]:
        """One answer; what the server told its client of it."""
        asked = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "cache_prompt": True}
        request = urllib.request.Request(f"{self.url}/completion", json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            told = json.load(answer)
        timings = told["timings"]
        return Counter(
            computed=timings["prompt_n"],
            cached=timings["cache_n"],
            generated=told["tokens_predicted"],
            generation_ms=timings["predicted_ms"],
        )

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Load:
    """Clients that ask again as soon as they are answered, until told to stop."""

    def __init__(self, server: LlamaServer) -> None:
        self.counted: Counter[str] = Counter()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(server, n)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, server: LlamaServer, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            told = server.complete([3 + (number * 31 + turn * 7 + n) % 200 for n in range(40)], 60)
            self.counted += told

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)


@pytest.fixture
def serving():
    made: list[LlamaServer] = []

    def start(*options: str) -> LlamaServer:
        made.append(LlamaServer(*options))
        return made[-1]

    yield start
    for server in made:
        server.stop()


@pytest.fixture
def watched(serving):
    """A server, and a session that found it by its process."""
    server = serving("--metrics")
    session = Session(Config(pid=server.process.pid, period_s=0.5, window_s=4.0), real_sources(Config()))
    session.start()
    yield server, session
    session.stop()


def live(session):
    frame = session.latest
    engine = frame.focused_engine if frame else None
    return engine.window.total if engine and engine.window and engine.window.total.window_s else None


def lacking(session):
    return {one.id: one.needs for one in session.latest.symptoms.cant_tell}


def test_it_is_found_and_its_load_is_shown_as_its_clients_see_it(watched):
    server, session = watched
    idle = until(lambda: live(session), DEADLINE_S)
    target = session.latest.focused
    assert (target.engine, target.model, target.urls) == ("llamacpp", "org/small", (server.url,))
    assert (idle.running, idle.waiting, idle.steps_per_s) == (0, 0, 0)

    load = Load(server)
    full = until(lambda: (now := live(session)) and now.window_s >= 3.5 and now.running == SLOTS and now, DEADLINE_S)
    assert 0 < full.waiting <= CLIENTS - SLOTS
    assert full.steps_per_s > 0
    assert full.prompt_tokens_per_s == pytest.approx(
        full.prompt_computed_tokens_per_s + full.prompt_cached_tokens_per_s
    )
    assert full.latency["itl"].mean_s > 0
    assert full.generation_tokens_per_s is None
    # It is one process, whose threads are the engine's.
    until(lambda: "aren't watched" not in lacking(session).get("host-bound", ""), DEADLINE_S)
    assert all(lacking(session).values()), "whatever can't be told has its reason"

    load.stop()
    source = MetricsSource(server.url)
    (series,) = source.poll().series
    source.close()
    assert series.counters["prompt_tokens_computed"] == load.counted["computed"]
    assert series.counters["prompt_tokens_cached"] == load.counted["cached"]
    assert series.counters["generation_tokens"] == load.counted["generated"]
    assert series.histograms["itl"].total == pytest.approx(load.counted["generation_ms"] / 1000, rel=0.01)
    until(lambda: (now := live(session)) and (now.running, now.waiting, now.steps_per_s) == (0, 0, 0), DEADLINE_S)


def test_metrics_that_are_off_are_said_to_be_off(serving):
    source = MetricsSource(serving().url)
    with pytest.raises(SourceError, match="--metrics"):
        source.poll()
    source.close()
