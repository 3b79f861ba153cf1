"""Waits for I/O on the screens: told where they are news, with the reason where they can't be known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import Frame
from gputop_llm.sources.host_process import IO_NOT_COUNTED
from gputop_llm.tui.draw import Line
from gputop_llm.tui.panels.host import host_panel
from gputop_llm.tui.panels.process_rows import process_table
from tests.support import frames

CORE = 624


def words(lines: list[Line]) -> str:
    return " ".join("\n".join("".join(text for text, _ in line) for line in lines).split())


def with_core(io_some_pct: float | None = 0.0, **changed) -> Frame:
    frame = frames.one_gpu_loaded()
    host = frame.host.value
    processes = tuple(
        replace(p, cgroup=replace(p.cgroup, io_some_pct=io_some_pct), **changed) if p.pid == CORE else p
        for p in host.processes
    )
    return replace(frame, host=frames.part(replace(host, processes=processes)))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_host_panel_warns_of_threads_that_wait_for_io(width):
    assert "▲ I/O wait 34 %" in words(host_panel(with_core(io_wait_pct=34.2), width, 8).lines)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_host_panel_warns_of_io_pressure(width):
    assert "▲ stalled on I/O 12 %" in words(host_panel(with_core(12.1), width, 8).lines)


@pytest.mark.parametrize("value", [None, 0.0, 0.4])
def test_no_io_wait_is_no_news(value):
    assert "I/O" not in words(host_panel(with_core(value, io_wait_pct=value), 120, 8).lines)


def test_the_process_table_has_the_share_or_why_it_is_unknown():
    known = process_table(with_core(io_wait_pct=34.2), 80)
    assert " 104 % 34 % 4.6 GiB" in words(known.rows.lines)
    assert "I/O wait" not in words(known.notes)
    unknown = process_table(with_core(io_wait_pct=None, missing={"io_wait_pct": IO_NOT_COUNTED}), 80)
    assert " 104 % – 4.6 GiB" in words(unknown.rows.lines)
    assert f"I/O wait unknown: {IO_NOT_COUNTED}" in words(unknown.notes)
