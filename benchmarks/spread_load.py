"""Requests sent by several processes, so that what a server gives isn't limited by one Python that reads it."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain

from tests.real.load import LoadResult, requests_of, send

#: A process that reads for more of its time than this may be what the streams wait for.
BUSY_PCT = 80.0
_START_S = 60.0


def default_processes() -> int:
    """About half of the cores that this process may use: the server needs the others."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


class SpreadLoad:
    """Sends rounds of requests from several processes, which live until the end of the `with` block.

    Args:
        streams: requests under way at once, of all processes together.
        processes: no more than streams are used.
    """

    def __init__(self, streams: int, processes: int) -> None:
        self.streams, self.processes = streams, min(streams, processes)
        # Forking is no choice here: threads that start captures may run.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            self.processes, context, initializer=_begin, initargs=(context.Barrier(self.processes),)
        )

    def __enter__(self) -> SpreadLoad:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, port: int, requests: int, model: str = "tiny", seed: int = 7) -> tuple[LoadResult, float]:
        """Sends each of the `requests_of` this seed once, and returns when all have ended.

        Stream s is one of process s mod `processes`, and gets every `streams`-th request from the s-th on, at first:
        the streams of a process share what is left of theirs.

        Returns:
            What the clients saw, all together, and what the busiest process took of a core, in percent.
        """
        bodies = requests_of(requests, model=model, seed=seed)
        started = [
            self._pool.submit(
                _share,
                port,
                [body for at, body in enumerate(bodies) if at % self.streams % self.processes == one],
                len(range(one, self.streams, self.processes)),
            )
            for one in range(self.processes)
        ]
        parts, busy = zip(*(one.result() for one in started), strict=True)
        return combined(parts), max(busy)


def combined(parts: Sequence[LoadResult]) -> LoadResult:
    """Several results as one: from the first request's begin to the last one's end."""
    begun = min(part.begun_s for part in parts)
    return LoadResult(
        duration_s=max(part.begun_s + part.duration_s for part in parts) - begun,
        begun_s=begun,
        ttft_s=list(chain.from_iterable(part.ttft_s for part in parts)),
        itl_s=list(chain.from_iterable(part.itl_s for part in parts)),
        e2e_s=list(chain.from_iterable(part.e2e_s for part in parts)),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        generation_tokens=sum(part.generation_tokens for part in parts),
        errors=list(chain.from_iterable(part.errors for part in parts)),
    )


_all_here: threading.Barrier | None = None


def _begin(barrier: threading.Barrier) -> None:
    """Runs once in each process."""
    global _all_here
    _all_here = barrier


def _share(port: int, bodies: Sequence[bytes], streams: int) -> tuple[LoadResult, float]:
    """A process's part, begun when all are there, and what it took of a core, in percent."""
    assert _all_here is not None
    # While one waits here it can't take another's part.
    _all_here.wait(_START_S)
    cpu_s = time.process_time()
    result = send(port, bodies, streams)
    return result, 100.0 * (time.process_time() - cpu_s) / result.duration_s if bodies else 0.0
