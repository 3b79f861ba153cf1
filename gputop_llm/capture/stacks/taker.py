"""A capture with samples of the Python stacks of each rank beside its record."""

from __future__ import annotations

from typing import Any

from gputop_llm.capture.stacks import pyspy
from gputop_llm.capture.stacks.sampler import LONGEST_S, Sampler
from gputop_llm.capture.way import Recorded, Setting, Taker
from gputop_llm.errors import GputopError
from gputop_llm.timeline.stack_samples import SAMPLES, samples_name

_WRITE_S = 10.0


class SampledTaker:
    """Takes what another taker does, and samples meanwhile. Samples that can't be had cost the capture nothing else.

    Args:
        taker: that takes the capture.
    """

    def __init__(self, setting: Setting, taker: Taker) -> None:
        self._setting = setting
        self._taker = taker
        self._samplers: list[Sampler] = []
        self._facts: list[dict[str, Any]] = []

    @property
    def starts_ns(self) -> int | None:
        return self._taker.starts_ns

    @property
    def bytes(self) -> int:
        return self._taker.bytes

    def prepare(self) -> None:
        pyspy.program()
        self._taker.prepare()

    def begin(self) -> None:
        plan = self._setting.plan
        self._setting.tell("start", "beginning to sample Python stacks")
        self._samplers = [Sampler(rank.pid, plan.window_s) for rank in plan.ranks]
        for sampler in self._samplers:
            if self._setting.cancelled():
                return
            self._setting.deadline(LONGEST_S)
            sampler.start()
        self._taker.begin()

    def follow(self) -> Recorded:
        return self._taker.follow()

    def stop(self) -> str | None:
        missing = self._taker.stop()
        for rank, sampler in zip(self._setting.plan.ranks, self._samplers, strict=True):
            self._setting.deadline(LONGEST_S + _WRITE_S)
            told: dict[str, Any] = {"pid": rank.pid, "file": samples_name(rank.file)}
            try:
                samples = sampler.stop()
                self._setting.folder.write_json(samples_name(rank.file), samples)
                told |= {name: samples[name] for name in ("rate_hz", "samples_per_thread", "errors", "cpu_s")}
            except GputopError as failure:
                told["error"] = failure.sentence()
            except OSError as error:
                told["error"] = f"the samples can't be written: {error.strerror or error}"
            self._facts.append(told)
        return missing

    def recorded(self) -> bool:
        return self._taker.recorded()

    def facts(self) -> dict[str, Any]:
        return {**self._taker.facts(), SAMPLES: self._facts}

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()
        self._taker.close()
