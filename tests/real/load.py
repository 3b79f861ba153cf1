"""A load generator that measures what a client of the server sees."""

from __future__ import annotations

import http.client
import itertools
import json
import queue
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "tell", "me", "about", "gpus", "and", "caches")


@dataclass
class LoadResult:
    """What the client measured; every time in seconds."""

    duration_s: float = 0.0
    #: When the first request was sent, by the monotonic clock that all processes share.
    begun_s: float = 0.0
    #: Request sent to first streamed chunk, one per request that succeeded.
    ttft_s: list[float] = field(default_factory=list)
    #: Between one streamed chunk and the next of the same request.
    itl_s: list[float] = field(default_factory=list)
    #: Request sent to end of the answer.
    e2e_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    generation_tokens: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def ttft_mean_s(self) -> float:
        return statistics.fmean(self.ttft_s)

    @property
    def itl_mean_s(self) -> float:
        """By token, not by chunk: a server that is behind merges several tokens into a chunk."""
        return sum(self.itl_s) / (self.generation_tokens - len(self.ttft_s))


def requests_of(
    requests: int, max_tokens: int = 64, prompt_words: int = 100, model: str = "tiny", seed: int = 7
) -> list[bytes]:
    """The bodies of that many completions, the same for the same arguments.

    Prompts of `prompt_words`/2 to `prompt_words` words and answers of `max_tokens`/2 to
    `max_tokens` tokens follow from `seed` alone. The requests carry no seed of their
    own: with one, vLLM 0.32's CPU engine dies in chunked prefill.
    """
    dice = random.Random(seed)
    bodies = []
    for _ in range(requests):
        words = dice.randint(prompt_words // 2, prompt_words)
        request = {
            "model": model,
            "prompt": " ".join(dice.choice(WORDS) for _ in range(words)),
            "max_tokens": dice.randint(max_tokens // 2, max_tokens),
            "ignore_eos": True,
            "temperature": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        bodies.append(json.dumps(request).encode())
    return bodies


def run_load(
    port: int,
    requests: int,
    concurrency: int,
    max_tokens: int = 64,
    prompt_words: int = 100,
    model: str = "tiny",
    seed: int = 7,
    stop: threading.Event | None = None,
) -> LoadResult:
    """Sends `requests_of` these arguments, `concurrency` at a time, and returns when all have ended.

    Once `stop` is set, what is under way is given up, like an error.
    """
    return send(port, requests_of(requests, max_tokens, prompt_words, model, seed), concurrency, stop)


def send(port: int, bodies: Sequence[bytes], concurrency: int, stop: threading.Event | None = None) -> LoadResult:
    """Sends each of these completions once, `concurrency` at a time, and returns when all have ended."""
    stop = stop or threading.Event()
    left: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for body in bodies:
        left.put(body)
    result, lock = LoadResult(begun_s=time.monotonic()), threading.Lock()

    def client() -> None:
        while not stop.is_set():
            try:
                body = left.get_nowait()
            except queue.Empty:
                return
            try:
                sent, chunk_times, usage = _complete(port, body, stop)
            except (OSError, http.client.HTTPException, ValueError) as error:
                with lock:
                    result.errors.append(repr(error))
                continue
            with lock:
                result.ttft_s.append(chunk_times[0] - sent)
                result.itl_s.extend(b - a for a, b in itertools.pairwise(chunk_times))
                result.e2e_s.append(chunk_times[-1] - sent)
                result.prompt_tokens += usage["prompt_tokens"]
                result.generation_tokens += usage["completion_tokens"]

    clients = [threading.Thread(target=client, daemon=True) for _ in range(concurrency)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    result.duration_s = time.monotonic() - result.begun_s
    return result


def _complete(port: int, body: bytes, stop: threading.Event) -> tuple[float, list[float], dict[str, int]]:
    """When the request was sent, when each chunk with text came (monotonic seconds), and the usage."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        sent = time.monotonic()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.read(300)!r}")
        chunk_times: list[float] = []
        usage: dict[str, int] = {}
        for line in answer:
            if stop.is_set():
                raise ValueError("given up")
            if line.startswith(b"data: {"):
                arrived = time.monotonic()
                chunk = json.loads(line[len(b"data: ") :])
                if chunk.get("error"):
                    raise ValueError(f"the server answered {chunk['error']}")
                if chunk["choices"]:
                    chunk_times.append(arrived)
                usage = chunk.get("usage") or usage
        if not chunk_times or not usage:
            raise ValueError("the stream ended before its end")
        return sent, chunk_times, usage
    finally:
        connection.close()
