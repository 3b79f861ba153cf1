"""Which engine a target is, and how a window is taken by its own profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gputop_llm.capture.endpoint import sglang, trtllm, vllm
from gputop_llm.capture.endpoint.kinds import Closed, Endpoint, Setup, Wish

_DIALECTS: Mapping[str, Callable[[Setup, Wish], Endpoint]] = {
    "vllm": vllm.endpoint_of,
    "sglang": sglang.endpoint_of,
    "trtllm": trtllm.endpoint_of,
}


def endpoint_of(engine: str, setup: Setup, wish: Wish) -> Endpoint:
    """How a window is taken of an engine that was started so.

    Raises:
        Closed: it can't be.
    """
    kind = engine if engine in _DIALECTS else _by_command(setup.argv)
    if kind is None:
        raise Closed("no engine with such an endpoint is known in it (vLLM, SGLang and trtllm-serve have one)")
    return _DIALECTS[kind](setup, wish)


def _by_command(argv: Sequence[str]) -> str | None:
    words = [word.rpartition("/")[2] for word in argv]
    if any(word.startswith("sglang.launch_server") for word in argv) or "sglang" in words[:3]:
        return "sglang"
    if "trtllm-serve" in words:
        return "trtllm"
    return None
