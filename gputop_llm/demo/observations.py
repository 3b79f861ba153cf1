"""What vLLM counts and when: its counters, gauges and histograms, filled by the batching model.

Keys of `values` are wire names without prefix and `_total`, with `:<label value>` where a
family has one label of its own. Three habits of vLLM are kept: prompt tokens count when
the first token comes out (not as chunks run), a preemption counts when the request next
yields a token, and request times count when the request ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_TIME = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_TIME = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_ITERATION = (1.0, *(float(8 << i) for i in range(12)))
_HTTP_FINE = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 7.5, 10.0, 30.0, 60.0),
)


def one_two_five(highest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to `highest`: vLLM's bounds for token counts."""
    bounds: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > highest:
                return tuple(bounds)
            bounds.append(float(digit * power))
        power *= 10


class Tally:
    """A histogram that is still being filled; `counts` are per bucket, the last one is above all bounds."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.total += value * times


def together(tallies: Sequence[Mapping[str, Tally]]) -> Mapping[str, Tally]:
    """The histograms of several engines as one."""
    if len(tallies) == 1:
        return tallies[0]
    sums = {name: Tally(tally.bounds) for name, tally in tallies[0].items()}
    for name, total in sums.items():
        for of_one in tallies:
            tally = of_one[name]
            total.counts = [a + b for a, b in zip(total.counts, tally.counts, strict=True)]
            total.count += tally.count
            total.total += tally.total
    return sums


class Observations:
    """Everything that one engine counts, and how many requests its front end `refused`.

    Args:
        max_model_len: decides the bounds for token counts.
        spec_tokens: tokens drafted for each request in each step; 0 without speculative decoding.
    """

    def __init__(self, max_model_len: int, spec_tokens: int = 0) -> None:
        self.spec_tokens = spec_tokens
        self.refused = 0
        tokens = one_two_five(max_model_len)
        self.values: dict[str, float] = {
            "num_requests_running": 0.0,
            "num_requests_waiting": 0.0,
            "kv_cache_usage_perc": 0.0,
            "prefix_cache_queries": 0.0,
            "prefix_cache_hits": 0.0,
            "num_preemptions": 0.0,
            "prompt_tokens": 0.0,
            "prompt_tokens_cached": 0.0,
            "prompt_tokens_by_source:local_compute": 0.0,
            "prompt_tokens_by_source:local_cache_hit": 0.0,
            "generation_tokens": 0.0,
            "request_success:stop": 0.0,
            "request_success:length": 0.0,
            "request_success:abort": 0.0,
        }
        self.tallies = {
            "request_prompt_tokens": Tally(tokens),
            "request_generation_tokens": Tally(tokens),
            "iteration_tokens_total": Tally(_ITERATION),
            "request_max_num_generation_tokens": Tally(tokens),
            "request_params_n": Tally((1.0, 2.0, 5.0, 10.0, 20.0)),
            "request_params_max_tokens": Tally(tokens),
            "time_to_first_token_seconds": Tally(_TTFT),
            "inter_token_latency_seconds": Tally(_TOKEN_TIME),
            "request_time_per_output_token_seconds": Tally(_TOKEN_TIME),
            "e2e_request_latency_seconds": Tally(_REQUEST_TIME),
            "request_queue_time_seconds": Tally(_REQUEST_TIME),
            "request_inference_time_seconds": Tally(_REQUEST_TIME),
            "request_prefill_time_seconds": Tally(_REQUEST_TIME),
            "request_decode_time_seconds": Tally(_REQUEST_TIME),
            "request_num_preemptions": Tally((1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)),
            "request_prefill_kv_computed_tokens": Tally(tokens),
            "http_request_duration_highr_seconds": Tally(_HTTP_FINE),
            "http_request_duration_seconds": Tally((0.1, 0.5, 1.0)),
        }

    def speculated(self, drafts: int, accepted: int) -> None:
        """Counts a step in which `drafts` requests had tokens drafted, `accepted` each of them accepted."""
        if not self.spec_tokens:
            return
        self._count("num_drafts", drafts)
        self._count("num_draft_tokens", drafts * self.spec_tokens)
        self._count("num_accepted_tokens", drafts * accepted)
        for position in range(self.spec_tokens):
            self._count(f"num_accepted_tokens_per_pos:{position}", drafts if position < accepted else 0)

    def _count(self, what: str, more: int) -> None:
        name = f"spec_decode_{what}"
        self.values[name] = self.values.get(name, 0.0) + more

    @property
    def finished(self) -> int:
        """Requests that have ended."""
        return self.tallies["e2e_request_latency_seconds"].count
