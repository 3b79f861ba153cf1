"""Configs of well-known models, as published (what matters of them), and a model's shape from them."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import ModelShape

_FILE = Path(__file__).parents[1] / "fixtures" / "model_configs.json"


@cache
def _all() -> dict[str, dict[str, Any]]:
    configs: dict[str, dict[str, Any]] = json.loads(_FILE.read_text())
    return configs


def names() -> tuple[str, ...]:
    """All models."""
    return tuple(_all())


def config(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a model, with some values changed."""
    return {**deepcopy(_all()[name]), **changes}


def shape(name: str, **changes: Any) -> ModelShape:
    """The shape of a model, with some values of its config changed."""
    return read_shape(config(name, **changes))
