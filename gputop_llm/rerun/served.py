"""Which model a capture's engine served, and how it was split: from the bundle, or while the engine still runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import ModelShape, Parallel
from gputop_llm.modelquant import UnknownModel
from gputop_llm.sources.model_argv import ModelLaunch, read_model_launch
from gputop_llm.sources.model_config import MAX_BYTES, config_of_running, parse
from gputop_llm.sources.procfs import ProcFs

#: Models whose attention adds a bias to queries, keys and values.
_QKV_BIAS = ("qwen2", "gpt_oss")


@dataclass(frozen=True, slots=True)
class Served:
    """What is known of the model; `shape` is None for the reason in `problem`. `notes` are said to the reader."""

    shape: ModelShape | None
    parallel: Parallel = field(default_factory=Parallel)
    qkv_bias: bool = False
    problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """The captured engine, as its bundle has it. `pid` is None where that process is no more; `ranks` were captured."""

    name: str = ""
    argv: tuple[str, ...] = ()
    pid: int | None = None
    config: Mapping[str, Any] | None = None
    ranks: int = 1


def engine_of(capture: Mapping[str, Any], environment: Mapping[str, Any], proc: ProcFs | None = None) -> Engine:
    """The engine of a bundle, from its capture.json and environment.json."""
    plan = _dict(capture.get("plan"))
    argv = environment.get("argv") or plan.get("argv")
    config = environment.get("model_config")
    return Engine(
        name=str(plan.get("engine") or ""),
        argv=tuple(str(word) for word in argv) if isinstance(argv, list) else (),
        pid=_alive(plan, proc or ProcFs()),
        config=config if isinstance(config, dict) else None,
        ranks=len(ranks) if isinstance(ranks := plan.get("ranks"), list) else 1,
    )


def served(engine: Engine, config_file: Path | None = None) -> Served:
    """The model's shape: by the file that was named, else as the bundle has it, else as the running engine sees it.

    Raises:
        GputopError: the named file can't be read.
    """
    launch = read_model_launch(engine.name, engine.argv)
    try:
        config = _named(config_file) if config_file is not None else engine.config or _of_running(engine, launch)
        shape = read_shape(config, launch.dtype, launch.quantization)
    except ValueError as error:
        return Served(None, problem=str(error))
    notes = list(launch.notes)
    if launch.parallel is None:
        notes.append("how the model is split over GPUs is not known: taken as not split")
    if shape.quantisation != "none":
        notes.append(f"weights are stored as {shape.quantisation}: the GEMMs that are tried are those in 16 bits")
    if shape.experts is not None:
        notes.append("grouped GEMMs of experts are not tried")
    bias = str(config.get("model_type")).startswith(_QKV_BIAS) or config.get("attention_bias") is True
    return Served(shape, launch.parallel or Parallel(), bias, notes=tuple(notes))


def _of_running(engine: Engine, launch: ModelLaunch) -> Mapping[str, Any]:
    if launch.problem is not None:
        raise UnknownModel(launch.problem)
    if engine.pid is None:
        raise UnknownModel("the capture has no model config, and its engine has ended")
    return config_of_running(engine.pid, launch)


def _named(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise GputopError(f"cannot read {path}", error.strerror or str(error)) from error
    if len(data) > MAX_BYTES:
        raise GputopError(f"will not read {path}", "a config.json is smaller")
    return parse(data)


def _alive(plan: Mapping[str, Any], proc: ProcFs) -> int | None:
    """The PID of the first captured process, if it still is that process."""
    ranks = plan.get("ranks")
    first = _dict(ranks[0]) if isinstance(ranks, list) and ranks else {}
    pid, ticks = first.get("pid"), first.get("start_ticks")
    if type(pid) is not int or pid <= 0:
        return None
    try:
        return pid if proc.stat(pid).start_ticks == ticks else None
    except (OSError, ValueError):
        return None


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
