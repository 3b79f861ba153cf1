"""A metrics page with vLLM's names: what the request loop counted, and nothing else."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gputop_llm.errors import GputopError

_SECONDS = tuple(round(m * 10.0**e, 9) for e in range(-4, 2) for m in (1, 1.5, 2, 3, 5, 7))
_TOKENS = tuple(float(2**e) for e in range(15))


class Histogram:
    """Observations by bucket. Adding costs less than a microsecond: it is done in the loop that is measured."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Counts a value so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Page:
    """What the loop counts; `render` writes it as vLLM does. No KV cache is there, so none is told."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.started_s = time.time()
        self.running = self.waiting = 0
        self.prompt_tokens = self.generation_tokens = self.finished = 0
        self.time_to_first_token_seconds = Histogram(_SECONDS)
        self.inter_token_latency_seconds = Histogram(_SECONDS)
        self.e2e_request_latency_seconds = Histogram(_SECONDS)
        self.request_prompt_tokens = Histogram(_TOKENS)
        self.request_generation_tokens = Histogram(_TOKENS)
        self.iteration_tokens_total = Histogram(_TOKENS)

    def render(self) -> str:
        """The page as it is now, in Prometheus' text form."""
        labels = f'engine="0",model_name="{self.model}"'
        lines = [f"process_start_time_seconds {self.started_s}"]
        for name, kind, value in (
            ("num_requests_running", "gauge", self.running),
            ("num_requests_waiting", "gauge", self.waiting),
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("generation_tokens_total", "counter", self.generation_tokens),
        ):
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {value}"]
        reason = f'{labels},finished_reason="length"'
        lines += [
            "# TYPE vllm:request_success_total counter",
            f"vllm:request_success_total{{{reason}}} {self.finished}",
        ]
        for name, histogram in vars(self).items():
            if isinstance(histogram, Histogram):
                lines += _histogram(f"vllm:{name}", labels, histogram)
        return "\n".join(lines) + "\n"

    def serve(self, port: int) -> ThreadingHTTPServer:
        """Answers GET /metrics on 127.0.0.1, on a thread of its own, until it is shut down.

        Raises:
            GputopError: the port can't be had.
        """

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                found = handler.path == "/metrics"
                body = self.render().encode() if found else b""
                handler.send_response(200 if found else 404)
                handler.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(handler, *_: object) -> None:
                pass

        try:
            server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise GputopError(
                f"cannot serve metrics on port {port}", (error.strerror or str(error)).lower(), "give another --port"
            ) from error
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server


def _histogram(name: str, labels: str, histogram: Histogram) -> list[str]:
    # What is added meanwhile isn't in the copy, so that buckets and count go together.
    counts, lines, so_far = list(histogram.counts), [f"# TYPE {name} histogram"], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), counts, strict=True):
        so_far += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {so_far}')
    return [*lines, f"{name}_count{{{labels}}} {so_far}", f"{name}_sum{{{labels}}} {histogram.total}"]
