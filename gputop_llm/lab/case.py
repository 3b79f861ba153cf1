"""What a case of the lab is: a workload with a known cause, its twin without it, and the truth about both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Symptoms that no case of the lab has: whoever raises one of these is wrong.
NEVER = ("errors-rising", "stalled", "queue-growing", "kv-pressure", "metrics-stale", "rank-imbalance", "gpu-fault")


@dataclass(frozen=True)
class Workload:
    """What a case runs, as the request loop (`lab.serving`) needs it.

    Args:
        batch: sequences that are decoded together.
        prompt: tokens of each prompt.
        output: tokens that each sequence generates.
        decode: one decode step for the whole batch, with so many tokens of prompts beside it (0 unless `chunk` is
            given): the next token of each sequence, an integer tensor of shape [batch].
        prefill: one step for so many tokens of prompts.
        chunk: prompts are prefilled so many tokens at a time, in decode steps; None: in steps of their own.
        staggered: sequences end one after the other, not all at once.
        deliver: brings a step's tokens to the host; None: by one copy for the batch, looked at a step later.
        after: what the host does for each step once its tokens are there.
    """

    batch: int
    prompt: int
    output: int
    decode: Callable[[int], Any]
    prefill: Callable[[int], object]
    chunk: int | None = None
    staggered: bool = False
    deliver: Callable[[Any], object] | None = None
    after: Callable[[list[int]], object] | None = None


@dataclass(frozen=True)
class Truth:
    """What must be said about a case on a GPU, and about its twin.

    Args:
        first: ids of findings; any of them as the first one of a verdict names the cause. Empty: no capture of the
            timeline tells it, and a healthy verdict is the right one (`unseen` says why).
        kernel: the same of the verdict on its longest kernel; empty: Nsight Compute isn't needed.
        symptoms: that the monitor must raise; none of them may be raised of the twin.
        never: that it must not raise, beside `NEVER`; of the case and the twin.
        gain: least and most share that the twin must save, else the case lacks its cause on this machine and judges
            nothing. Of the time for a token, or of what `gain_of` names.
        gain_of: "tokens_per_s", or "gap_p99_ms" where the twin is to save waiting, and not work.
        unseen: why no verdict on the timeline can name the cause; empty where one can.
        not_compared: why what a finding says could be recovered isn't what the twin gains; empty where it must be.
    """

    first: tuple[str, ...]
    kernel: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    gain: tuple[float, float] = (0.1, 0.98)
    gain_of: str = "tokens_per_s"
    unseen: str = ""
    not_compared: str = ""


@dataclass(frozen=True)
class Case:
    """One case of the lab.

    Args:
        name: as on the command line.
        cause: what is wrong, in a line.
        remedy: what the twin does instead, in a line.
        truth: what a diagnosis must say.
        build: the workload on a device ("cuda" or "cpu"), without its cause if `fixed`; imports torch.
        not_on_cpu: why it can't run without a GPU; empty where it can.
        gpus: how many it needs, where it runs on GPUs.
    """

    name: str
    cause: str
    remedy: str
    truth: Truth
    build: Callable[[str, bool], Workload]
    not_on_cpu: str = ""
    gpus: int = 1

    @property
    def devices(self) -> tuple[str, ...]:
        """Where it runs."""
        return ("cuda",) if self.not_on_cpu else ("cuda", "cpu")
