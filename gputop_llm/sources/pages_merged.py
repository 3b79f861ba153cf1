"""Several pages of one engine as one reading, with nothing counted twice. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gputop_llm.model import EngineReading, EngineSeries, LoraState

_Key = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Merged:
    """The reading of several pages; how many registries they were of, and whether ranks are named by their ports."""

    reading: EngineReading
    registries: int
    by_port: bool


def merged(pages: Mapping[str, EngineReading], by_port: bool = False) -> Merged:
    """All pages together.

    Servers that share one registry (PROMETHEUS_MULTIPROC_DIR) each show the whole of it: pages with the same series
    that were begun at the same time, or both don't say when, are one and count once. Pages of other servers with the
    same series are ranks that don't know their number.

    Args:
        pages: by port, in order; at least one.
        by_port: name the ranks by port in any case.
    """
    own = _without_copies(pages)
    keys = [key for page in own.values() for key in _keys(page)]
    by_port = by_port or len(set(keys)) < len(keys)
    series = [
        replace(one, rank=f"{one.rank or ''}@{port}") if by_port else one
        for port, page in own.items()
        for one in page.series
    ]
    readings = tuple(pages.values())
    first = readings[0]
    return Merged(
        replace(
            first,
            series=tuple(sorted(series, key=_order)),
            version=next((page.version for page in readings if page.version is not None), None),
            lora=_lora(own),
            sleeping=next((page.asleep for page in readings if page.asleep is not None), first.sleeping),
            not_narrowed=next((page.not_narrowed for page in readings if page.not_narrowed is not None), None),
            notes=tuple(dict.fromkeys(note for page in readings for note in page.notes)),
            missing={name: why for name, why in first.missing.items() if all(name in p.missing for p in readings)},
            skipped_lines=sum(page.skipped_lines for page in readings),
            first_skipped=next((page.first_skipped for page in readings if page.first_skipped is not None), None),
        ),
        len(own),
        by_port,
    )


def _without_copies(pages: Mapping[str, EngineReading]) -> dict[str, EngineReading]:
    kept: dict[str, EngineReading] = {}
    registries = set()
    for port, page in pages.items():
        registry = (frozenset(_keys(page)), page.started_s)
        if registry not in registries:
            registries.add(registry)
            kept[port] = page
    return kept


def _keys(page: EngineReading) -> list[_Key]:
    return [(one.model, one.rank) for one in page.series]


def _order(one: EngineSeries) -> tuple[str, int, str]:
    rank = one.rank or ""
    return one.model or "", int(rank) if rank.isdecimal() else -1, rank


def _lora(pages: Mapping[str, EngineReading]) -> LoraState | None:
    states = [page.lora for page in pages.values() if page.lora is not None]
    if not states:
        return None
    return LoraState(
        running=tuple(dict.fromkeys(name for state in states for name in state.running)),
        waiting=tuple(dict.fromkeys(name for state in states for name in state.waiting)),
        max_adapters=states[0].max_adapters,
    )
