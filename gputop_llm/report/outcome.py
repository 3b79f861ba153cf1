"""What a frame amounts to: the exit code of a headless command, and the sentences that say why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gputop_llm.config import Config
from gputop_llm.errors import ExitCode
from gputop_llm.model import EngineFrame, Frame, Part, Target

NO_ANSWER = "it has not answered yet"


@dataclass(frozen=True, slots=True)
class Outcome:
    """An exit code, and one sentence for each reason of it."""

    code: ExitCode
    sentences: tuple[str, ...] = ()


def judge(frame: Frame, config: Config, driver_here: bool) -> Outcome:
    """Whether the frame has what it should have: what `--url`, `--pid` or `--gpu` asked for, without them everything.

    Args:
        driver_here: this machine has an NVIDIA driver or device; without one, GPUs
            that can't be read are no failure but a fact.
    """
    failures = tuple(_failures(frame, config, driver_here))
    absent = _asked_for_but_absent(frame, config, driver_here)
    if absent is not None:
        # Of an address that gives nothing the reason is among the failures too.
        return Outcome(ExitCode.NOTHING_FOUND, tuple(dict.fromkeys((absent, *failures))))
    if failures:
        return Outcome(ExitCode.PARTIAL, failures)
    node, found = frame.gpus.value, frame.targets.value
    if not (node and node.gpus) and not (found and found.targets):
        why = f" ({node.problem})" if node and node.problem else ""
        return Outcome(
            ExitCode.NOTHING_FOUND,
            (f"no GPU and no engine found on this node{why}; --demo healthy shows a simulated one",),
        )
    return Outcome(ExitCode.OK)


def asked_about(frame: Frame, config: Config) -> Callable[[str], bool]:
    """Whether a symptom's subject, by its key, is what `--url`, `--pid` or `--gpu` asked about; without them each is.

    What certainly belongs to another engine isn't: a probe of one engine must not act for its neighbour.
    """
    others, its_gpus = _others(frame, config)

    def concerns(subject: str) -> bool:
        kind, _, rest = subject.partition(":")
        if kind == "engine":
            return not any(rest == key or rest.startswith(f"{key}/") for key in others)
        return kind != "gpu" or not its_gpus or rest.partition("/")[0] in {str(gpu) for gpu in its_gpus}

    return concerns


def _others(frame: Frame, config: Config) -> tuple[set[str], set[int]]:
    """(keys of the targets that no flag asks for, the GPUs of the one that a flag asks for).

    No GPUs where none is asked for, or where it isn't known which those are: it may be any of them.
    """
    others = {target.key for target in _targets(frame) if not _may_be_asked_for(target, config)}
    if not _asks_for_a_target(config):
        return others, set()
    return others, {gpu for target in _targets(frame) if target.key not in others for gpu in target.gpus}


def _failures(frame: Frame, config: Config, driver_here: bool) -> Iterator[str]:
    for name, part in (("GPUs", frame.gpus), ("processes", frame.targets), ("host", frame.host)):
        if (error := _error(part)) is not None:
            yield f"{name}: {error}"
    node = frame.gpus.value
    if node is not None and node.problem is not None and driver_here:
        yield f"GPUs: {node.problem}"
    others, its_gpus = _others(frame, config)
    for gpu in node.gpus if node else ():
        if gpu.lost and (not its_gpus or gpu.index in its_gpus):
            yield f"GPU {gpu.index}: lost"
    for engine in frame.engines:
        if engine.target_key not in others:
            yield from _engine_errors(engine)


def _targets(frame: Frame) -> tuple[Target, ...]:
    return frame.targets.value.targets if frame.targets.value else ()


def _asks_for_a_target(config: Config) -> bool:
    return config.url is not None or config.pid is not None


def _may_be_asked_for(target: Target, config: Config) -> bool:
    """False for a target that is certainly another one than a flag names: its silence is not what was asked about."""
    if config.url is not None:
        return target.urls_from == "flag"
    if config.pid is not None:
        return config.pid in target.pids
    return config.gpu is None or not target.gpus or config.gpu in target.gpus


def _engine_errors(engine: EngineFrame) -> Iterator[str]:
    scrape = engine.scrape
    if scrape.error is not None:
        # It names the address itself.
        yield scrape.error
    elif scrape.value is None:
        yield f"engine {engine.url}: {NO_ANSWER}"
    elif scrape.value.problem is not None:
        yield f"engine {engine.url}: {scrape.value.problem}"
    elif scrape.value.unread:
        yield from scrape.value.unread.values()
    elif scrape.polls < 2:
        yield f"engine {engine.url}: it answered only once, and rates need two answers"


def _error(part: Part[Any]) -> str | None:
    if part.error is None and part.value is None:
        return NO_ANSWER
    return part.error


def _asked_for_but_absent(frame: Frame, config: Config, driver_here: bool) -> str | None:
    """A sentence when what a flag names isn't there; None too when it can't be told, which is a failure of its own."""
    node, found = frame.gpus.value, frame.targets.value
    unreadable = node is None or (node.problem is not None and driver_here)
    if config.gpu is not None and node is not None and not node.gpus and not unreadable:
        why = f" ({node.problem})" if node.problem else ""
        return f"there is no GPU {config.gpu} on this node{why}"
    if config.pid is not None and found is not None and not any(config.pid in t.pids for t in found.targets):
        return f"PID {config.pid} belongs to no engine and holds no GPU memory"
    if config.url is not None:
        asked = [e for e in frame.engines if _is_asked_for(frame, e)]
        if asked and all(e.scrape.value is None and e.scrape.error is not None for e in asked):
            return asked[0].scrape.error
    return None


def _is_asked_for(frame: Frame, engine: EngineFrame) -> bool:
    return any(t.key == engine.target_key and t.urls_from == "flag" for t in _targets(frame))
