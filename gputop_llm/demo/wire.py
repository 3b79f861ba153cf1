"""The reading of the simulated node on its way from the simulator's process to the monitor: JSON of the model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from gputop_llm.errors import SourceError
from gputop_llm.model import (
    CgroupCpu,
    Gpm,
    Gpu,
    GpuNode,
    GpuPair,
    GpuProcess,
    Host,
    ProcessLoad,
    Target,
    TargetList,
    TargetProcess,
    ThreadLoad,
    ThrottleReason,
    XidEvent,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeReading:
    """Everything about the node but what the engines' own pages say."""

    gpus: GpuNode
    host: Host
    targets: TargetList


def encode(reading: NodeReading) -> bytes:
    """The reading as JSON, field for field."""
    return json.dumps(reading, default=_fields, separators=(",", ":")).encode()


class Answer:
    """A reading as it came over the wire; each part is only built when it is asked for.

    Raises:
        SourceError: from the constructor and from every part, if the text is no reading.
    """

    def __init__(self, text: bytes) -> None:
        with _understanding():
            self._data = json.loads(text)

    def gpus(self) -> GpuNode:
        with _understanding():
            return _build(GpuNode, self._data["gpus"], gpus=_each(_gpu), pairs=_each(_plain(GpuPair)))

    def host(self) -> Host:
        with _understanding():
            return _build(Host, self._data["host"], processes=_each(_load))

    def targets(self) -> TargetList:
        with _understanding():
            return _build(TargetList, self._data["targets"], targets=_each(_target))


@contextmanager
def _understanding() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError("cannot read the simulated node", f"its answer is not a reading ({error!r})") from error


def _fields(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__dataclass_fields__}


def _build(make: Callable[..., T], data: dict[str, Any], **parts: Callable[[Any], Any]) -> T:
    """`make` of the fields; those in `parts` are made of their JSON first, lists become tuples."""
    values = {name: tuple(value) if isinstance(value, list) else _shared(value) for name, value in data.items()}
    for name, part in parts.items():
        if data[name] is not None:
            values[name] = part(data[name])
    return make(**values)


def _each(part: Callable[[Any], T]) -> Callable[[list[Any]], tuple[T, ...]]:
    return lambda items: tuple(part(item) for item in items)


def _plain(make: Callable[..., T]) -> Callable[[Any], T]:
    return lambda data: make(**{name: _shared(value) for name, value in data.items()})


def _shared(value: Any) -> Any:
    """The same text once: names and reasons stand in every one of the frames that the history keeps."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {name: _shared(part) for name, part in value.items()}
    return value


def _gpu(data: dict[str, Any]) -> Gpu:
    return _build(
        Gpu,
        data,
        gpm=_plain(Gpm),
        throttle=_each(_plain(ThrottleReason)),
        processes=_each(_plain(GpuProcess)),
        xids=_each(_plain(XidEvent)),
    )


def _load(data: dict[str, Any]) -> ProcessLoad:
    return _build(ProcessLoad, data, top_threads=_each(_plain(ThreadLoad)), cgroup=_plain(CgroupCpu))


def _target(data: dict[str, Any]) -> Target:
    return _build(Target, data, processes=_each(lambda process: _build(TargetProcess, process)))
