"""What the live commands have in common: their settings, and a session on the right node."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gputop_llm import paths
from gputop_llm.commands import logs
from gputop_llm.config import Config, load
from gputop_llm.session import Session

AUTO_DEMO = "no GPU and no engine was found here"


def settings(arguments: Namespace) -> Config:
    """The settings that hold for a command; also opens the log.

    Raises:
        UsageError: a value, or the config file, can't be used.
    """
    logs.start(getattr(arguments, "verbose", False))
    given = getattr(arguments, "config", None)
    file = Path(given) if given else paths.config_file()
    return load(vars(arguments), file=file, must_exist=given is not None)


@contextmanager
def session_on(config: Config, arguments: Namespace, scenario: str | None, why: str = "") -> Iterator[Session]:
    """A session, not yet started, on this node or, given a scenario, on a simulated one; both end with the block.

    Args:
        why: why the node is simulated, when the user didn't ask for it.

    Raises:
        UsageError: there is no such scenario.
        GputopError: the simulated node can't be started.
    """
    from gputop_llm import node

    if scenario is None:
        session = Session(config, node.real_sources(config))
        try:
            yield session
        finally:
            session.stop()
        return
    from gputop_llm.demo.sources import start_demo

    demo = start_demo(
        scenario,
        seed=getattr(arguments, "seed", 7),
        gpus=getattr(arguments, "gpus", 1),
        engines=getattr(arguments, "engines", 1),
    )
    try:
        session = Session(config, node.demo_sources(demo, config, why))
        try:
            yield session
        finally:
            session.stop()
    finally:
        demo.stop()
