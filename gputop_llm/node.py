"""Where a session's readings come from: this node, or the simulated one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gputop_llm.captures import CaptureRoute
from gputop_llm.config import Config
from gputop_llm.model import EngineReading, GpuNode, Host, Target, TargetList, TargetProcess
from gputop_llm.sampling.log_watch import LogSource
from gputop_llm.session import Sources
from gputop_llm.sources.base import Source

if TYPE_CHECKING:
    from gputop_llm.demo.sources import DemoNode
    from gputop_llm.modelmath import ServedModel

#: Far longer than a look takes on a busy machine.
_LOOK_S = 3.0


def real_sources(config: Config) -> Sources:
    """The sources of this node. What each needs is imported when it is made."""

    def gpus() -> Source[GpuNode]:
        from gputop_llm.sources.nvml import NvmlSource

        return NvmlSource()

    def discovery(newest: Callable[[], GpuNode | None]) -> Source[TargetList]:
        from gputop_llm.sources.discover import DiscoverySource

        return DiscoverySource(newest, _probe)

    def host(watch: Callable[[], tuple[TargetProcess, ...]]) -> Source[Host]:
        from gputop_llm.sources.host import HostSource

        return HostSource(watch)

    def model(target: Target) -> ServedModel:
        from gputop_llm.sources.model_config import ModelConfigReader

        return ModelConfigReader().read(target)

    def captures() -> CaptureRoute:
        from gputop_llm.capture.node_route import NodeRoute

        return NodeRoute(config)

    def logs(target: Target) -> LogSource:
        from gputop_llm.sources.engine_log import EngineLogSource

        return EngineLogSource(target)

    strangers = _metrics(replace(config, api_key=None))
    return Sources(gpus, discovery, host, _metrics(config), model, strangers=strangers, captures=captures, logs=logs)


def demo_sources(node: DemoNode, config: Config, why: str = "") -> Sources:
    """The sources of a simulated node; its engines are scraped over HTTP as real ones are.

    Args:
        why: why it is simulated, to be said beside what is simulated.
    """

    def model(target: Target) -> ServedModel:
        from gputop_llm.demo.model import served_model

        return served_model(target)

    return Sources(
        gpus=node.gpu_source,
        discovery=lambda _newest: node.discovery_source(),
        host=node.host_source,
        metrics=_metrics(config),
        model=model,
        simulated=f"{node.label}; {why}" if why else node.label,
        captures=_simulated_captures,
        logs=_simulated_log,
    )


def _simulated_log(target: Target) -> LogSource:
    from gputop_llm.demo.log import DemoLogSource

    return DemoLogSource(target)


def _simulated_captures() -> CaptureRoute:
    from gputop_llm.demo.captures import SimulatedRoute

    return SimulatedRoute()


def driver_here(root: Path = Path("/")) -> bool:
    """Whether this machine has an NVIDIA driver or device, working or not."""
    if (root / "proc/driver/nvidia").exists() or (root / "dev/dxg").exists():
        return True
    return any((root / "dev").glob("nvidia[0-9]*"))


def nothing_here() -> bool:
    """Whether there is no GPU and no engine on this node, by one quick look (30 ms where that is so).

    A look that hangs, in a driver's library say, is given up after `_LOOK_S` and left behind: something is there.
    """
    if driver_here():
        return False
    found: list[bool | Exception] = []

    def look() -> None:
        try:
            found.append(_nothing_found())
        except Exception as failure:  # noqa: BLE001 - raised below, unless nobody waits for it any more
            found.append(failure)

    looking = threading.Thread(target=look, name="first look", daemon=True)
    looking.start()
    looking.join(_LOOK_S)
    first = found[0] if found else False
    if isinstance(first, Exception):
        raise first
    return first


def _nothing_found() -> bool:
    from gputop_llm.errors import GputopError
    from gputop_llm.sources.discover import DiscoverySource
    from gputop_llm.sources.nvml import NvmlSource

    nvml = NvmlSource()
    try:
        if nvml.poll().gpus:
            return False
    finally:
        nvml.close()
    try:
        # That an engine is there is enough here: its ports need no asking.
        found = DiscoverySource(lambda: None, lambda _url: False).poll()
    except GputopError:
        return False
    # A note says that something can't be seen from here.
    return not found.targets and not found.notes


def _metrics(config: Config) -> Callable[[str], Source[EngineReading]]:
    def make(url: str) -> Source[EngineReading]:
        # Imported on the thread that found an engine.
        from gputop_llm.sources.metrics import MetricsSource

        return MetricsSource(url, api_key=config.api_key, ca_file=config.ca_file)

    return make


def _probe(url: str) -> bool:
    from gputop_llm.sources.metrics import probe

    return probe(url)
