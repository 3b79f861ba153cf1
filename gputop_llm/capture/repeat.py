"""The command that takes a capture once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_llm.capture import native_way
from gputop_llm.capture.plan import GPU_KINDS
from gputop_llm.capture.ways import WAYS

#: Words of `--with`, and the options that they turn on; "gpu" turns all of them off (a native window: the API calls).
WITH = {"gpu": "", "cpu": "cpu", "shapes": "shapes", "memory": "memory", "python-stacks": "stacks"}


def command_of(plan: Mapping[str, Any]) -> str | None:
    """The command, by a plan's JSON as anybody may have written it; None where that names no process."""
    ranks = [one for one in _list(plan.get("ranks")) if isinstance(one, Mapping)]
    pid = ranks[0].get("pid") if ranks else None
    if type(pid) is not int or pid <= 0:
        return None
    steps = plan.get("steps")
    long = f"--steps {steps}" if type(steps) is int and steps > 0 else f"--seconds {plan.get('window_s')}"
    words = ["gputop-llm capture", f"--pid {pid}", long]
    way = next((one for one in WAYS if one.key == plan.get("route")), None)
    if way is not None:
        words.append(f"--route {way.key}")
        words += _options(way.options, plan.get("options"))
        if way.key == native_way.KEY and plan.get("kinds") == list(GPU_KINDS):
            words.append("--with gpu")
    if plan.get("some_ranks") is True:
        words.append(f"--ranks {','.join(str(one.get('number')) for one in ranks)}")
    return " ".join(words)


def _options(defaults: Mapping[str, Any], told: object) -> list[str]:
    """What was asked for that the way doesn't do by itself."""
    if not isinstance(told, Mapping):
        return []
    wanted = {name: told.get(name, default) for name, default in defaults.items()}
    words = []
    if "cpu" not in defaults:
        words += ["--stacks"] if wanted.get("stacks") is True else []
    elif any(wanted[name] != default for name, default in defaults.items() if name in WITH.values()):
        named = [word for word, name in WITH.items() if name and wanted.get(name) is True]
        words.append(f"--with {','.join(named) or 'gpu'}")
    if wanted.get("stage") in ("prefill", "decode"):
        words.append(f"--at {wanted['stage']}")
    return words


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
