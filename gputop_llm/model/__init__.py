"""The frozen data model: what every layer passes on and none changes.

Names carry their unit (`_s`, `_bytes`, `_pct`, `_per_s`). None is unknown, and
is shown as "–"; it is never 0.
"""

from gputop_llm.model.engine import (
    EngineLive,
    EngineReading,
    EngineSeries,
    EngineWindow,
    Histogram,
    Latency,
    LoraState,
    Quantile,
    SpecDecode,
)
from gputop_llm.model.frame import EngineFrame, Frame, Part, TargetLog
from gputop_llm.model.gpu import Gpm, Gpu, GpuNode, GpuPair, GpuProcess, MigInstance, ThrottleReason, XidEvent
from gputop_llm.model.host import CgroupCpu, Host, ProcessLoad, ThreadLoad
from gputop_llm.model.log import EngineLog, LogSignal
from gputop_llm.model.target import NO_PROCESS_DATA, Target, TargetList, TargetProcess

__all__ = [
    "NO_PROCESS_DATA",
    "CgroupCpu",
    "EngineFrame",
    "EngineLive",
    "EngineLog",
    "EngineReading",
    "EngineSeries",
    "EngineWindow",
    "Frame",
    "Gpm",
    "Gpu",
    "GpuNode",
    "GpuPair",
    "GpuProcess",
    "Histogram",
    "Host",
    "Latency",
    "LogSignal",
    "LoraState",
    "MigInstance",
    "Part",
    "ProcessLoad",
    "Quantile",
    "SpecDecode",
    "Target",
    "TargetList",
    "TargetLog",
    "TargetProcess",
    "ThreadLoad",
    "ThrottleReason",
    "XidEvent",
]
