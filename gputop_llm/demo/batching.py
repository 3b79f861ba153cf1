"""Continuous batching as a discrete-event model: vLLM's V1 scheduler, one step after the other.

Pure and exact in its own terms: same arrivals, same results, however finely time is
advanced. A step in which nothing but decoding happens costs O(1), because every decoding
request gains one token in each step: what each of them holds follows from the step in
which it began to decode.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gputop_llm.demo.kvpool import KvPool
from gputop_llm.demo.observations import Observations
from gputop_llm.demo.pace import USUAL, Pace
from gputop_llm.demo.requests import REFUSED, Arrival, Limits, Request
from gputop_llm.demo.roofline import StepCost, Work

TO_SCHEDULER_S = 0.002
FROM_ENGINE_S = 0.001


@dataclass(slots=True)
class _Step:
    """A step under way: nothing of it is seen before `end_s`.

    Each decoding request gains `gain` tokens in it, for which `taken` blocks were reserved.
    """

    start_s: float
    end_s: float
    work: Work
    decodes: int
    prefills: list[tuple[Request, int]]
    gain: int = 1
    taken: int = 0
    queries: int = 0
    hits: int = 0


@dataclass(slots=True)
class _Decoding:
    """Requests that decode, oldest first, and the sums that spare a walk over them."""

    requests: dict[int, Request] = field(default_factory=dict)
    context_tokens: int = 0
    block_due: list[int] = field(default_factory=list)
    finishing: list[tuple[int, int, int]] = field(default_factory=list)


class Engine:
    """One vLLM engine core under a stream of requests.

    Args:
        limits: the scheduler's limits.
        cost: what a step takes.
        arrivals: requests by rising `at_s`; may be endless.
        start_s: simulated time at which the engine begins, idle.
        pace: the pace of a step that begins at a time, and when that pace ends.
        dice: for speculative decoding.

    `seen` is what it counts, as of `now_s`. A request is always in exactly one of `waiting`,
    running, or finished.
    """

    def __init__(
        self,
        limits: Limits,
        cost: StepCost,
        arrivals: Iterator[Arrival],
        start_s: float = 0.0,
        pace: Callable[[float], tuple[Pace, float]] = lambda _at_s: (USUAL, math.inf),
        dice: random.Random | None = None,
    ) -> None:
        self.limits = limits
        self.cost = cost
        self.now_s = start_s
        self.pool = KvPool(limits.num_gpu_blocks, limits.block_size)
        self.seen = Observations(limits.max_model_len, limits.spec_tokens)
        self.waiting: deque[Request] = deque()
        self.arrived = 0
        self._arrivals = arrivals
        self._next = next(arrivals, None)
        self._pace = pace
        self._dice = dice or random.Random(0)
        self._decoding = _Decoding(block_due=[0] * limits.block_size)
        self._prefilling: Request | None = None
        self._step: _Step | None = None
        self._tick = 0
        self._last_end_s = start_s
        self._done = Work()

    # -- time --------------------------------------------------------------

    def advance(self, to_s: float) -> None:
        """Runs every step that ends by `to_s`."""
        while True:
            if self._step is not None:
                if self._step.end_s > to_s:
                    break
                self.now_s = self._step.end_s
                self._finish_step(self._step)
                self._step = None
            self._take_arrivals()
            self._step = self._begin_step()
            if self._step is None:
                ready_s = self._next.at_s + TO_SCHEDULER_S if self._next is not None else to_s
                self.now_s = max(self.now_s, min(ready_s, to_s))
                if ready_s >= to_s:
                    break
        self.now_s = max(self.now_s, to_s)

    def work(self) -> Work:
        """All work done up to `now_s`; of the step under way, the share that has passed."""
        total = Work()
        total.add(self._done)
        step = self._step
        if step is not None:
            total.add(step.work, (self.now_s - step.start_s) / (step.end_s - step.start_s))
        return total

    @property
    def running(self) -> int:
        """Requests in the running set, those of a step under way included."""
        return len(self._decoding.requests) + (len(self._step.prefills) if self._step else 0)

    def _take_arrivals(self) -> None:
        while self._next is not None and self._next.at_s + TO_SCHEDULER_S <= self.now_s:
            if self._next.finish_reason == REFUSED:
                self.seen.refused += 1
            else:
                self.arrived += 1
                self.waiting.append(Request(self._next, self.arrived, self._next.at_s + TO_SCHEDULER_S))
            self._next = next(self._arrivals, None)

    # -- the beginning of a step: scheduling --------------------------------

    def _begin_step(self) -> _Step | None:
        pace, pace_ends_s = self._pace(self.now_s)
        gain = 1 + self._accepted(pace.acceptance)
        taken, preempted = self._make_room_for_decodes(gain)
        decoding = self._decoding
        decodes = len(decoding.requests)
        step = _Step(self.now_s, 0.0, Work(), decodes, [], gain, taken)
        budget = self.limits.max_num_batched_tokens - decodes
        if self._prefilling is not None:
            budget -= self._continue_prefill(step, self._prefilling, budget)
            preempted = preempted or self._prefilling is None
        if not preempted:
            self._admit(step, budget)
        if not decodes and not step.prefills:
            return None
        chunks = [(chunk, request.computed) for request, chunk in step.prefills]
        verified = 1 + self.limits.spec_tokens
        work = pace.shape(self.cost.step(decodes, decoding.context_tokens + decodes, chunks, verified))
        stands_s = pace_ends_s - self.now_s if pace.stands else 0.0
        step.end_s = self.now_s + stands_s + work.elapsed_s
        if pace.spins:
            work.spin(stands_s)
        step.work = work
        return step

    def _accepted(self, acceptance: float) -> int:
        """How many drafted tokens the next step accepts; the same for all requests in it."""
        for accepted in range(self.limits.spec_tokens):
            if self._dice.random() >= acceptance:
                return accepted
        return self.limits.spec_tokens

    def _make_room_for_decodes(self, gain: int) -> tuple[int, bool]:
        """Takes the blocks that this step's decodes need; preempts the newest requests until they fit.

        Returns how many blocks were taken, and whether a request was preempted.
        """
        size, preempted = self.limits.block_size, False
        while True:
            needed = sum(self._decoding.block_due[(self._tick + ahead) % size] for ahead in range(gain))
            if self.pool.take(needed):
                return needed, preempted
            self._preempt_newest()
            preempted = True

    def _continue_prefill(self, step: _Step, request: Request, budget: int) -> int:
        chunk = min(request.tokens - request.computed, budget)
        more = self._blocks_needed(request, request.computed + chunk)
        if not self.pool.take(more):
            self._preempt_newest()
            return 0
        request.blocks += more
        step.prefills.append((request, chunk))
        return chunk

    def _admit(self, step: _Step, budget: int) -> None:
        seats = self.limits.max_num_seqs - step.decodes - len(step.prefills)
        while self.waiting and budget > 0 and seats > 0:
            request = self.waiting[0]
            prefix = request.arrival.prefix
            hit_blocks = self.pool.cached(prefix)
            whole = self.pool.blocks_for(request.tokens) - hit_blocks
            if whole + self.pool.revival(prefix) > self.pool.free:
                return
            self.waiting.popleft()
            if prefix is not None and hit_blocks:
                self.pool.hold(prefix)
                request.shares = True
            request.computed = hit_blocks * self.limits.block_size
            chunk = min(request.tokens - request.computed, budget)
            request.blocks = self._blocks_needed(request, request.computed + chunk)
            self.pool.take(request.blocks)
            if request.scheduled_s is None:
                request.scheduled_s = self.now_s
                request.cached = request.computed
                step.queries += request.tokens
                step.hits += request.cached
            step.prefills.append((request, chunk))
            budget -= chunk
            seats -= 1

    def _blocks_needed(self, request: Request, tokens: int) -> int:
        return self.pool.blocks_for(tokens) - request.blocks - self.pool.cached(request.shared_prefix)

    def _preempt_newest(self) -> None:
        """Takes all blocks from the request that was admitted last, and queues it first."""
        if self._prefilling is not None:
            request, self._prefilling = self._prefilling, None
        else:
            request = next(reversed(self._decoding.requests.values()))
            self._leave_decoding(request)
        self._free(request)
        request.computed = 0
        request.preemptions += 1
        self.waiting.appendleft(request)

    # -- the end of a step: tokens come out ---------------------------------

    def _finish_step(self, step: _Step) -> None:
        self._done.add(step.work)
        values, tallies = self.seen.values, self.seen.tallies
        if step.decodes:
            tallies["inter_token_latency_seconds"].observe(step.end_s - self._last_end_s, step.decodes)
            self.seen.speculated(step.decodes, step.gain - 1)
        self._last_end_s = step.end_s
        outputs = self._gain_tokens(step)
        self._prefilling = None
        prompt_computed = 0
        for request, chunk in step.prefills:
            request.computed += chunk
            if request.computed < request.tokens:
                self._prefilling = request
                continue
            outputs += 1
            if request.first_token_s is None:
                prompt_computed += self._first_token(request)
            else:
                tallies["inter_token_latency_seconds"].observe(step.end_s - request.last_token_s)
            self._after_prefill(request)
        values["generation_tokens"] += outputs
        values["prefix_cache_queries"] += step.queries
        values["prefix_cache_hits"] += step.hits
        if outputs:
            tallies["iteration_tokens_total"].observe(prompt_computed + outputs)
        values["num_requests_running"] = len(self._decoding.requests) + (self._prefilling is not None)
        values["num_requests_waiting"] = len(self.waiting)
        values["kv_cache_usage_perc"] = self.pool.usage

    def _gain_tokens(self, step: _Step) -> int:
        """Gives each decoding request its tokens; returns how many came out."""
        decoding, unused, outputs = self._decoding, step.taken, 0
        for _ in range(step.gain):
            unused -= decoding.block_due[self._tick % self.limits.block_size]
            self._tick += 1
            outputs += len(decoding.requests)
            decoding.context_tokens += len(decoding.requests)
            self._finish_decodes()
        # Of those that ended before the last token of the step.
        self.pool.give(unused)
        return outputs

    def _finish_decodes(self) -> None:
        decoding = self._decoding
        while decoding.finishing and decoding.finishing[0][0] == self._tick:
            _, serial, spell = heapq.heappop(decoding.finishing)
            request = decoding.requests.get(serial)
            if request is not None and request.spell == spell:
                self._leave_decoding(request)
                self._free(request)
                self._finish(request)

    def _first_token(self, request: Request) -> int:
        """Counts the prompt; returns how many of its tokens were computed."""
        values, prompt = self.seen.values, request.arrival.prompt_tokens
        request.first_token_s = self.now_s
        wait_s = self.now_s + FROM_ENGINE_S - request.arrival.at_s
        self.seen.tallies["time_to_first_token_seconds"].observe(wait_s)
        values["prompt_tokens"] += prompt
        values["prompt_tokens_cached"] += request.cached
        values["prompt_tokens_by_source:local_cache_hit"] += request.cached
        values["prompt_tokens_by_source:local_compute"] += prompt - request.cached
        return prompt - request.cached

    def _after_prefill(self, request: Request) -> None:
        arrival, pool = request.arrival, self.pool
        if arrival.prefix is not None and not request.shares and not pool.cached(arrival.prefix):
            blocks = arrival.prefix_tokens // self.limits.block_size
            pool.publish(arrival.prefix, blocks)
            request.blocks -= blocks
            request.shares = True
        self.seen.values["num_preemptions"] += request.preemptions - request.preemptions_told
        request.preemptions_told = request.preemptions
        request.generated += 1
        request.last_token_s = self.now_s
        if request.generated >= arrival.output_tokens:
            self._free(request)
            self._finish(request)
        else:
            self._join_decoding(request)

    def _join_decoding(self, request: Request) -> None:
        decoding = self._decoding
        request.joined_tick = self._tick
        request.spell += 1
        decoding.requests[request.serial] = request
        decoding.context_tokens += request.computed
        decoding.block_due[(self._tick - request.computed) % self.limits.block_size] += 1
        end = self._tick + request.arrival.output_tokens - request.generated
        heapq.heappush(decoding.finishing, (end, request.serial, request.spell))

    def _leave_decoding(self, request: Request) -> None:
        """Takes the request out, and settles what it has gained since it joined."""
        decoding = self._decoding
        del decoding.requests[request.serial]
        decoding.block_due[(request.joined_tick - request.computed) % self.limits.block_size] -= 1
        gained = self._tick - request.joined_tick
        request.computed += gained
        request.generated += gained
        if gained:
            request.last_token_s = self._last_end_s
        decoding.context_tokens -= request.computed
        request.blocks = self._blocks_held(request)

    def _blocks_held(self, request: Request) -> int:
        return self.pool.blocks_for(request.computed) - self.pool.cached(request.shared_prefix)

    def _free(self, request: Request) -> None:
        self.pool.give(request.blocks)
        request.blocks = 0
        if request.shares and request.arrival.prefix is not None:
            self.pool.release(request.arrival.prefix)
        request.shares = False

    def _finish(self, request: Request) -> None:
        arrival, values, tallies = request.arrival, self.seen.values, self.seen.tallies
        scheduled_s, first_s = request.scheduled_s, request.first_token_s
        assert scheduled_s is not None
        assert first_s is not None
        decode_s = request.last_token_s - first_s
        e2e_s = self.now_s + FROM_ENGINE_S - arrival.at_s
        more_tokens = request.generated - 1
        observed = {
            "e2e_request_latency_seconds": e2e_s,
            "request_queue_time_seconds": scheduled_s - request.queued_s,
            "request_prefill_time_seconds": first_s - scheduled_s,
            "request_inference_time_seconds": request.last_token_s - scheduled_s,
            "request_decode_time_seconds": decode_s,
            "request_time_per_output_token_seconds": decode_s / more_tokens if more_tokens else 0.0,
            "request_num_preemptions": request.preemptions,
            "request_prompt_tokens": arrival.prompt_tokens,
            "request_generation_tokens": request.generated,
            "request_max_num_generation_tokens": request.generated,
            "request_params_n": 1.0,
            "request_params_max_tokens": arrival.max_tokens,
            "request_prefill_kv_computed_tokens": arrival.prompt_tokens - request.cached,
            "http_request_duration_highr_seconds": e2e_s + FROM_ENGINE_S,
            "http_request_duration_seconds": e2e_s + FROM_ENGINE_S,
        }
        for name, value in observed.items():
            tallies[name].observe(value)
        values[f"request_success:{arrival.finish_reason}"] += 1
