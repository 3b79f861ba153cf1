"""Requests, and the limits under which the batching model serves them."""

from __future__ import annotations

from dataclasses import dataclass

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as a client sends it.

    The first `prefix_tokens` of its prompt (whole blocks) are those of every request with the
    same `prefix`. It ends after `output_tokens`, because of `finish_reason`; one that is to end as `REFUSED` is
    answered with status 503 by the front end, and the engine never has it.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    prefix: int | None = None
    prefix_tokens: int = 0
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Limits:
    """The engine's flags that decide scheduling, named as vLLM names them.

    `spec_tokens` is num_speculative_tokens, 0 for none.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 65_536
    num_gpu_blocks: int = 18_000
    block_size: int = 16
    spec_tokens: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """A request inside the engine. While it decodes, `computed` and `generated` are those of `joined_tick`."""

    arrival: Arrival
    serial: int
    queued_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    computed: int = 0
    generated: int = 0
    cached: int = 0
    blocks: int = 0
    shares: bool = False
    preemptions: int = 0
    preemptions_told: int = 0
    joined_tick: int = 0
    spell: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.arrival.prompt_tokens + self.generated

    @property
    def shared_prefix(self) -> int | None:
        """The prefix whose blocks it shares now; None while all its blocks are its own."""
        return self.arrival.prefix if self.shares else None
