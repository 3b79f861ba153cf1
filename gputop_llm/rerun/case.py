"""One operation that a script can run, as the line of Python that makes it."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.ncu.model import GemmShape


@dataclass(frozen=True, slots=True)
class Case:
    """An operation with its inputs.

    Args:
        label: what an engineer calls it, with its shape; unique in a script.
        call: the expression that makes it: a call of a function of `snippets`, which returns what is timed.
        needs: those functions' names.
        bytes: what its tensors take on the GPU.
        origin: where it comes from, as a clause.
        gemm: the product that it computes, where it is one.
    """

    label: str
    call: str
    needs: tuple[str, ...]
    bytes: int
    origin: str
    gemm: GemmShape | None = None
