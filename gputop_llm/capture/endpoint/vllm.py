"""vLLM's /start_profile and /stop_profile: there only where the server was started with a profiler.

Until 0.12 the environment turns it on, from 0.16 the command line alone, in between either. Until 0.31 a request has no
body, and nothing bounds a window but what was set at the server's start: there our own /stop_profile does.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gputop_llm.capture.endpoint.kinds import Call, Closed, Endpoint, Setup, Wish, option_of

_BODY_SINCE = (0, 32)
_NO_ENVIRONMENT_SINCE = (0, 16)
_CONFIG_SINCE = (0, 13)
_RANK = re.compile(r"rank-?(\d+)")
_FRONT_END = re.compile(r"async_llm")
_OPENS = (
    "start the server with --profiler-config "
    """'{"profiler": "torch", "torch_profiler_dir": "/tmp/traces", "torch_profiler_with_stack": false}'"""
)
_OPENS_OLD = "start the server with VLLM_TORCH_PROFILER_DIR=/tmp/traces and VLLM_TORCH_PROFILER_WITH_STACK=0"


def endpoint_of(setup: Setup, wish: Wish) -> Endpoint:
    """How a window is taken of a vLLM that was started so.

    Raises:
        Closed: it has no profiler, one that writes no trace, or would record stacks that were not asked for.
    """
    config = _configured(setup)
    old = setup.version is not None and setup.version < _CONFIG_SINCE
    opens = _OPENS_OLD if old else _OPENS
    if not config.get("profiler"):
        raise Closed("the server was started without a profiler", opens)
    if config["profiler"] != "torch":
        raise Closed(f"its profiler is {config['profiler']}, which writes no trace of its own", opens)
    folder = str(config.get("torch_profiler_dir") or "")
    if not folder.startswith("/"):
        raise Closed(f"where it writes can't be told ({folder or 'no folder'})", opens)
    if config.get("torch_profiler_with_stack", True) and not wish.stacks:
        raise Closed(
            "the server was started to record Python stacks, which takes it seconds to write",
            "start it with torch_profiler_with_stack false, or ask for stacks",
        )
    takes_body = setup.version is not None and setup.version >= _BODY_SINCE
    at_launch = int(config.get("max_iterations") or 0)
    body = {"profile_prefix": wish.tag, "delay_iterations": 0, "max_iterations": wish.steps} if takes_body else None
    return Endpoint(
        engine="vllm",
        folder=folder,
        owned=False,
        tag=wish.tag if takes_body else "",
        start=Call("/start_profile", body),
        stop=Call("/stop_profile"),
        ends_itself=takes_body or at_launch > 0,
        # The API server's own profiler knows no steps.
        stop_after=True,
        probe="/start_profile",
        rank=_RANK,
        not_a_rank=_FRONT_END,
    )


def _configured(setup: Setup) -> dict[str, Any]:
    """The profiler's settings by their newest names, wherever they were given."""
    config: dict[str, Any] = {}
    environ = setup.environ
    if setup.version is None or setup.version < _NO_ENVIRONMENT_SINCE:
        folder = environ.get("VLLM_TORCH_PROFILER_DIR")
        if folder:
            config = {"profiler": "torch", "torch_profiler_dir": folder}
            config["torch_profiler_with_stack"] = _yes(environ.get("VLLM_TORCH_PROFILER_WITH_STACK", "1"))
            config["max_iterations"] = _count(environ.get("VLLM_PROFILER_MAX_ITERS"))
        elif _yes(environ.get("VLLM_TORCH_CUDA_PROFILE", "0")):
            config = {"profiler": "cuda"}
    given = option_of(setup.argv, "--profiler-config")
    if given is not None:
        try:
            told = json.loads(given)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Closed("its --profiler-config can't be read")
        config |= told
    for word in setup.argv:
        name = word.partition("=")[0].removeprefix("--profiler-config.").replace("-", "_")
        if word.startswith("--profiler-config."):
            value = option_of(setup.argv, word.partition("=")[0])
            config[name] = _yes(value) if name.endswith("with_stack") else value
    config["max_iterations"] = _count(config.get("max_iterations"))
    return config


def _yes(value: object) -> bool:
    return str(value).strip().lower() in ("1", "true", "yes", "on")


def _count(value: object) -> int:
    text = str(value or 0)
    return int(text) if text.isdecimal() else 0
