"""What the live commands have in common: their settings, and a session on the right node."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gputop_llm import paths
from gputop_llm.commands import logs
from gputop_llm.config import Config, load
from gputop_llm.errors import UsageError

if TYPE_CHECKING:
    from gputop_llm.demo.simulator import Simulator
    from gputop_llm.model import Frame
    from gputop_llm.session import Session

AUTO_DEMO = "no GPU and no engine was found here"


def settings(arguments: Namespace) -> Config:
    """The settings that hold for a command; also opens the log.

    Raises:
        UsageError: a value, or the config file, can't be used.
    """
    logs.start()
    given = getattr(arguments, "config", None)
    file = Path(given) if given else paths.config_file()
    return load(vars(arguments), file=file, must_exist=given is not None)


def short_settings(arguments: Namespace) -> Config:
    """The settings of a command that ends too soon to tell anybody of what is raised and cleared.

    Raises:
        UsageError: as `settings`, or it is asked to tell somebody.
    """
    config = settings(arguments)
    for flag in ("--exec", "--webhook-file"):
        if flag in config.origins.values():
            raise UsageError(f"{arguments.command} takes no {flag}", "it ends too soon", "use it with watch")
    return replace(config, exec=None, webhook=None)


def several_engines(frame: Frame) -> str:
    """The engines to choose from, in words; nothing where there is no choice, or one was made."""
    from gputop_llm.follow import describe

    found = frame.targets.value.targets if frame.focused is None and frame.targets.value is not None else ()
    several = [describe(one) for one in found if one.attachable is None and one.engine != "cuda"]
    return "; ".join(several) if len(several) > 1 else ""


@contextmanager
def session_on(config: Config, arguments: Namespace, scenario: str | None) -> Iterator[Session]:
    """A session, not yet started, on this node or, given a scenario, on a simulated one; both end with the block.

    Raises:
        UsageError: there is no such scenario.
        GputopError: the simulated node can't be started.
    """
    with simulator_for(arguments, scenario) as simulator, session_with(config, simulator) as session:
        yield session


@contextmanager
def simulator_for(arguments: Namespace, scenario: str | None) -> Iterator[Simulator | None]:
    """The simulator of a scenario, starting while the block begins, and ended with it; None without a scenario.

    Raises:
        UsageError: there is no such scenario.
        GputopError: it can't be started.
    """
    if scenario is None:
        yield None
        return
    from gputop_llm.demo.simulator import start_simulator

    simulator = start_simulator(
        scenario,
        seed=getattr(arguments, "seed", 7),
        gpus=getattr(arguments, "gpus", 1),
        engines=getattr(arguments, "engines", 1),
    )
    try:
        yield simulator
    finally:
        simulator.end()


@contextmanager
def session_with(config: Config, simulator: Simulator | None, why: str = "") -> Iterator[Session]:
    """A session, not yet started, on the simulator's node, or on this one without; ends with the block.

    Args:
        why: why the node is simulated, when the user didn't ask for it.
    """
    from gputop_llm import node
    from gputop_llm.session import Session

    if simulator is None:
        sources = node.real_sources(config)
    else:
        from gputop_llm.demo.sources import DemoNode

        sources = node.demo_sources(DemoNode(simulator), config, why)
    session = Session(config, sources)
    try:
        yield session
    finally:
        session.stop()
