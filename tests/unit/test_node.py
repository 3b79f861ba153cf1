"""Which node is watched, and when there is nothing to watch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm import node
from gputop_llm.commands import tui
from gputop_llm.config import Config
from gputop_llm.errors import SourceError, UsageError
from gputop_llm.model import GpuNode, TargetList
from gputop_llm.sources import discover, nvml
from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.host import HostSource
from gputop_llm.sources.metrics import MetricsSource
from gputop_llm.sources.nvml import NvmlSource
from tests.support.fake_sources import FakeSource, a_gpu, a_target

NO_DRIVER = GpuNode(problem="no NVIDIA driver library on this machine")
NOTHING = TargetList()


@pytest.mark.parametrize("trace", ["dev/nvidia0", "dev/nvidia15", "dev/dxg", "proc/driver/nvidia/version"])
def test_a_driver_or_device_is_seen_by_its_files(tmp_path: Path, trace: str):
    (tmp_path / "dev").mkdir()
    assert not node.driver_here(tmp_path)
    (tmp_path / trace).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / trace).touch()
    assert node.driver_here(tmp_path)


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia-uvm", "nvidia-modeset"])
def test_files_that_stand_for_no_device_are_none(tmp_path: Path, name: str):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / name).touch()
    assert not node.driver_here(tmp_path)


@pytest.fixture
def machine(monkeypatch):
    """Sets what this machine has: `machine(gpus=…, targets=…, driver_here=…)`; returns its two sources."""

    def has(gpus=NO_DRIVER, targets=NOTHING, driver_here=False):
        sources = FakeSource("nvml", gpus), FakeSource("discovery", targets)
        monkeypatch.setattr(node, "driver_here", lambda: driver_here)
        monkeypatch.setattr(nvml, "NvmlSource", lambda: sources[0])
        monkeypatch.setattr(discover, "DiscoverySource", lambda _gpus, probe: sources[1])
        return sources

    return has


def test_nothing_is_here_without_gpu_and_engine(machine):
    gpus, found = machine()
    assert node.nothing_here()
    assert (gpus.polls, gpus.closes, found.polls) == (1, 1, 1)


def test_a_gpu_or_an_engine_is_something(machine):
    machine(gpus=GpuNode(gpus=(a_gpu(0),)))
    assert not node.nothing_here()
    machine(targets=TargetList(targets=(a_target(),)))
    assert not node.nothing_here()


def test_where_processes_are_hidden_there_may_be_something(machine):
    machine(targets=TargetList(notes=("/proc is mounted with hidepid=2",)))
    assert not node.nothing_here()


def test_a_driver_that_can_not_be_read_is_something_and_nothing_is_asked(machine):
    gpus, found = machine(driver_here=True)
    assert not node.nothing_here()
    assert (gpus.polls, found.polls) == (0, 0)


def test_when_processes_can_not_be_looked_at_there_may_be_something(machine):
    machine(targets=SourceError("cannot look for engines"))
    assert not node.nothing_here()


def test_a_look_that_hangs_is_given_up_and_something_may_be_there(machine, monkeypatch):
    gpus, _ = machine()
    gpus.hanging = True
    monkeypatch.setattr(node, "_LOOK_S", 0.05)

    assert not node.nothing_here()
    gpus.abort()


def test_a_bug_in_the_look_is_told_as_any_other(machine):
    machine(gpus=RuntimeError("a bug"))

    with pytest.raises(RuntimeError, match="a bug"):
        node.nothing_here()


def test_the_sources_of_the_real_node_are_the_real_ones():
    sources = node.real_sources(Config(api_key="sk-1"))
    assert isinstance(sources.gpus(), NvmlSource)
    assert isinstance(sources.discovery(lambda: None), DiscoverySource)
    assert isinstance(sources.host(tuple), HostSource)
    assert isinstance(sources.metrics("http://127.0.0.1:8000"), MetricsSource)
    assert sources.simulated is None


@pytest.fixture
def shown(monkeypatch):
    """What the full-screen monitor was started with: (session, config) each time."""
    started: list = []
    monkeypatch.setattr(tui.terminal, "check", lambda env, config: None)
    monkeypatch.setattr("gputop_llm.tui.app.run", lambda session, config: started.append((session, config)) or 0)
    return started


def run_monitor(*arguments: str) -> int:
    from gputop_llm.cli import main

    return main(list(arguments))


def test_where_nothing_is_the_demo_starts_by_itself_and_says_why(shown, monkeypatch):
    monkeypatch.setattr(node, "nothing_here", lambda: True)
    assert run_monitor() == 0
    assert shown[0][0].sources.simulated == "simulated: healthy, seed 7; no GPU and no engine was found here"


def test_where_something_is_it_is_shown(shown, monkeypatch):
    monkeypatch.setattr(node, "nothing_here", lambda: False)
    assert run_monitor() == 0
    assert shown[0][0].sources.simulated is None


@pytest.mark.parametrize("flag", [("--pid", "1"), ("--url", "h:8000"), ("--gpu", "0")])
def test_who_asks_for_something_gets_no_demo_instead(shown, monkeypatch, flag):
    monkeypatch.setattr(node, "nothing_here", lambda: pytest.fail("it was looked for"))
    assert run_monitor(*flag) == 0
    assert shown[0][0].sources.simulated is None


def test_the_demo_that_was_asked_for_is_the_one_that_is_shown(shown):
    assert run_monitor("demo", "overload", "--seed", "3", "--gpus", "2", "--engines", "2", "--period", "2") == 0
    session, config = shown[0]
    assert session.sources.simulated == "simulated: overload, seed 3"
    assert config.period_s == 2.0


def test_without_a_terminal_nothing_is_started_or_looked_for(monkeypatch, capsys):
    def no_terminal(env, config):
        raise UsageError("cannot draw the full-screen display")

    monkeypatch.setattr(tui.terminal, "check", no_terminal)
    monkeypatch.setattr(node, "nothing_here", lambda: pytest.fail("it was looked for"))
    monkeypatch.setattr("gputop_llm.demo.simulator.start_simulator", lambda *_, **__: pytest.fail("it was started"))
    assert run_monitor() == 2
    assert run_monitor("demo") == 2
    assert capsys.readouterr().err.count("cannot draw") == 2


def test_the_label_of_a_demo_is_kept_when_there_is_no_reason_to_give():
    class Node:
        label = "simulated: healthy, seed 7"
        gpu_source = host_source = discovery_source = None

    assert node.demo_sources(Node(), Config()).simulated == Node.label
    assert node.demo_sources(Node(), Config(), "because").simulated == f"{Node.label}; because"
    assert replace(node.demo_sources(Node(), Config()), simulated=None).simulated is None
