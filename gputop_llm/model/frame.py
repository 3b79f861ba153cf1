"""One tick: the newest reading of each source, each with its own time and age."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gputop_llm.model.engine import EngineReading, EngineWindow
from gputop_llm.model.gpu import GpuNode
from gputop_llm.model.host import Host
from gputop_llm.model.limits import EngineLimits
from gputop_llm.model.log import EngineLog
from gputop_llm.model.symptom import SymptomReport
from gputop_llm.model.target import Target, TargetList

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """The last good value of one source and how fresh it is.

    `at_s` (wall) and `at_mono_s` are when the last good poll ended, `age_s` how long ago that was
    when the frame was made, `took_s` how long the newest attempt took. `error` is one sentence
    when that failed, or is overdue; the value is then the last good one.
    `period_s` is the source's present period, longer than asked for when it backs off.
    """

    value: T | None = None
    at_s: float | None = None
    at_mono_s: float | None = None
    age_s: float | None = None
    took_s: float | None = None
    error: str | None = None
    period_s: float | None = None
    polls: int = 0

    def aged(self, now_mono_s: float) -> Part[T]:
        """The same part seen at `now_mono_s`."""
        age = None if self.at_mono_s is None else max(0.0, now_mono_s - self.at_mono_s)
        return replace(self, age_s=age)


@dataclass(frozen=True, slots=True)
class EngineFrame:
    """One engine at one tick; `window` covers the time up to `scrape.at_mono_s`.

    `url` is the first one of an engine with a page for each rank (its target has all).

    `limits` are MBU and MFU; None where nobody looks for the model (a replay without it).
    """

    target_key: str
    url: str
    scrape: Part[EngineReading]
    window: EngineWindow | None = None
    limits: EngineLimits | None = None


@dataclass(frozen=True, slots=True)
class TargetLog:
    """The log of a target at one tick, for some time after its end too."""

    target_key: str
    log: Part[EngineLog]


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything known at one tick. `focus` is the key of the attached target.

    `symptoms` is None where the rules have not been asked: frames of the history, or a failure of all rules.
    """

    seq: int
    at_s: float
    mono_s: float
    period_s: float
    gpus: Part[GpuNode]
    host: Part[Host]
    targets: Part[TargetList]
    engines: tuple[EngineFrame, ...] = ()
    focus: str | None = None
    simulated: str | None = None
    notes: tuple[str, ...] = ()
    symptoms: SymptomReport | None = None
    logs: tuple[TargetLog, ...] = ()

    @property
    def focused(self) -> Target | None:
        """The attached target, if it is still there."""
        for target in self.targets.value.targets if self.targets.value else ():
            if target.key == self.focus:
                return target
        return None

    def log_of(self, target_key: str | None) -> Part[EngineLog] | None:
        """The log of a target, if somebody looks for it."""
        return next((one.log for one in self.logs if one.target_key == target_key), None)

    @property
    def focused_engine(self) -> EngineFrame | None:
        """The attached target's endpoint."""
        for engine in self.engines:
            if engine.target_key == self.focus:
                return engine
        return None
