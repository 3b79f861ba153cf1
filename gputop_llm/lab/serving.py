"""The request loop of every case: prompts are prefilled, the batch is decoded step by step, tokens reach the host.

As many clients as the batch holds, each of which asks again once its answer is whole. Each step lies in an NVTX range
(on a GPU) and in one of torch.profiler, named as vLLM names its steps: by that a capture tells prefill from decode.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gputop_llm.lab.case import Workload
from gputop_llm.lab.page import Page

_WARM_STEPS = 3


@dataclass
class _Cohort:
    """Sequences that began together, so that one entry counts for all of them."""

    size: int
    output: int
    arrived_s: float
    prompt_left: int
    submitted: int = 0
    generated: int = 0
    last_s: float = 0.0


@dataclass(frozen=True)
class Served:
    """What a run came to: `seconds` of serving, `gaps_ms` between deliveries of tokens, in time order."""

    seconds: float
    tokens: int
    steps: int
    gaps_ms: tuple[float, ...]


def range_name(prefilling: int, prompt_tokens: int, decoding: int) -> str:
    """What vLLM calls a step for so many sequences in prefill, of so many tokens, and so many in decode."""
    return f"execute_context_{prefilling}({prompt_tokens})_generation_{decoding}({decoding})"


def gpu_count() -> int:
    """How many GPUs PyTorch can use here."""
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def serve(workload: Workload, device: str, page: Page, seconds: float, stopped: Callable[[], bool]) -> Served:
    """Serves requests for so long, or until `stopped`; counts on the page."""
    import torch

    if device == "cpu":
        # Several threads wait for one another at each operator, and on a busy machine that would be all of its time.
        torch.set_num_threads(1)
    with torch.inference_mode():
        for _ in range(_WARM_STEPS):
            workload.prefill(workload.prompt)
            workload.decode(workload.chunk or 0).tolist()
        return _Loop(workload, device, page).run(seconds, stopped)


class _Loop:
    def __init__(self, workload: Workload, device: str, page: Page) -> None:
        self._work = workload
        self._page = page
        self._gpu = device == "cuda"
        self._cohorts: list[_Cohort] = []
        self._under_way: deque[tuple[list[_Cohort], Any, Any]] = deque()
        self._gaps_ms: list[float] = []
        self._steps = 0
        self._last_s: float | None = None
        self._pinned: list[Any] = []

    def run(self, seconds: float, stopped: Callable[[], bool]) -> Served:
        work, began = self._work, time.perf_counter()
        groups = work.batch if work.staggered else 1
        for number in range(groups):
            output = work.output * (number + 1) // groups
            self._cohorts.append(self._arrival(work.batch // groups, began, output))
        self._page.running = work.batch
        while time.perf_counter() - began < seconds and not stopped():
            self._step()
        while self._under_way:
            self._deliver()
        return Served(time.perf_counter() - began, self._page.generation_tokens, self._steps, tuple(self._gaps_ms))

    def _arrival(self, size: int, now_s: float, output: int) -> _Cohort:
        self._page.prompt_tokens += size * self._work.prompt
        self._page.request_prompt_tokens.add(self._work.prompt, size)
        return _Cohort(size, output, now_s, size * self._work.prompt)

    def _step(self) -> None:
        work = self._work
        for one in self._cohorts if work.chunk is None else ():
            if one.prompt_left:
                with self._range(one.size, one.prompt_left, 0):
                    work.prefill(one.prompt_left)
                self._counted(one.prompt_left)
                one.prompt_left = 0
        beside = min(work.chunk or 0, sum(one.prompt_left for one in self._cohorts))
        prefilling = self._take(beside)
        going = [one for one in self._cohorts if not one.prompt_left and one.submitted < one.output]
        if not going and not beside:
            # The last tokens of all sequences are still on their way.
            self._deliver()
            return
        decoding = sum(one.size for one in going)
        with self._range(prefilling, beside, decoding):
            made = work.decode(beside)
        self._counted(beside + decoding)
        for one in going:
            one.submitted += 1
        self._submit(going, made)

    def _take(self, tokens: int) -> int:
        """Takes so many tokens off the prompts that wait, the oldest first; how many sequences they are of."""
        sequences = 0
        for one in sorted(self._cohorts, key=lambda one: one.arrived_s):
            taken = min(tokens, one.prompt_left)
            one.prompt_left -= taken
            tokens -= taken
            sequences += one.size if taken else 0
        return sequences

    def _counted(self, tokens: int) -> None:
        self._steps += 1
        self._page.iteration_tokens_total.add(tokens)

    @contextmanager
    def _range(self, prefilling: int, prompt_tokens: int, decoding: int) -> Iterator[None]:
        import torch

        name = range_name(prefilling, prompt_tokens, decoding)
        if self._gpu:
            torch.cuda.nvtx.range_push(name)
        with torch.profiler.record_function(name):
            yield
        if self._gpu:
            torch.cuda.nvtx.range_pop()

    def _submit(self, going: list[_Cohort], made: Any) -> None:
        """Sends a step's tokens to the host. By default the host takes those of the step before meanwhile."""
        import torch

        if self._work.deliver is not None or not self._gpu:
            tokens: Any = (self._work.deliver or (lambda made: made.tolist()))(made)
            self._arrived(going, tokens)
            return
        if not self._pinned:
            self._pinned = [torch.empty(made.shape, dtype=made.dtype, pin_memory=True) for _ in range(2)]
        # At most one other step is under way, and it has the other one.
        buffer = self._pinned.pop(0)
        self._pinned.append(buffer)
        buffer.copy_(made, non_blocking=True)
        # A blocking event puts the thread to sleep; the default one keeps it spinning on a core.
        copied = torch.cuda.Event(blocking=True)
        copied.record()
        self._under_way.append((going, buffer, copied))
        if len(self._under_way) > 1:
            self._deliver()

    def _deliver(self) -> None:
        """Waits for the oldest step that is under way; nothing where none is."""
        if self._under_way:
            going, buffer, copied = self._under_way.popleft()
            copied.synchronize()
            self._arrived(going, buffer.tolist())

    def _arrived(self, going: list[_Cohort], tokens: list[int]) -> None:
        page, now_s = self._page, time.perf_counter()
        if self._last_s is not None:
            self._gaps_ms.append(1000.0 * (now_s - self._last_s))
        self._last_s = now_s
        for one in going:
            one.generated += 1
            page.generation_tokens += one.size
            if one.generated == 1:
                page.time_to_first_token_seconds.add(now_s - one.arrived_s, one.size)
            else:
                page.inter_token_latency_seconds.add(now_s - one.last_s, one.size)
            one.last_s = now_s
            if one.generated == one.output:
                page.finished += one.size
                page.e2e_request_latency_seconds.add(now_s - one.arrived_s, one.size)
                page.request_generation_tokens.add(one.output, one.size)
                self._cohorts[self._cohorts.index(one)] = self._arrival(one.size, now_s, self._work.output)
        if self._work.after is not None:
            self._work.after(tokens)
