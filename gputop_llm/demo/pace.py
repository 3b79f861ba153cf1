"""What makes the steps of an engine other than its GPU and model alone would: slow kernels, gaps, a standstill."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.demo.roofline import Work


@dataclass(frozen=True, slots=True)
class Pace:
    """One state of an engine.

    Args:
        kernels: the GPU time of a step as a multiple, for the same work: above 1 its units idle more while it
            counts as busy, below 1 the kernels get more out of it.
        wait_s: time in each step in which the GPU has nothing to do.
        cpu_s: time that the engine core computes in each step beyond what is usual.
        acceptance: the chance that a drafted token is accepted when those before it were.
        stands: no step that begins ends while this lasts.
        spins: while it stands its GPUs count as busy, as in a collective that waits for a rank.
    """

    kernels: float = 1.0
    wait_s: float = 0.0
    cpu_s: float = 0.0
    acceptance: float = 0.8
    stands: bool = False
    spins: bool = False

    def shape(self, work: Work) -> Work:
        """The work of a step at this pace."""
        work.elapsed_s += (self.kernels - 1) * work.busy_s + self.wait_s
        work.busy_s *= self.kernels
        work.host_s += self.cpu_s
        return work


USUAL = Pace()
