"""The program's own lab (`gputop-llm lab run CASE`): its process. Its page has vLLM's names, and is read as such."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.sources.engines import vllm
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.launch import Launch, count_of, last_name, options_of, without_python

NAME = "lab"
DEFAULT_PORT = 8010
_OTHER_RANK = "gputop_llm.lab.other_rank"


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The case that a command line runs."""
    module, rest = without_python(argv)
    if module is None and rest and last_name(rest[0]) == "gputop-llm":
        rest = rest[1:]
    elif module != "gputop_llm":
        return None
    if rest[:2] != ["lab", "run"]:
        return None
    # The one option without a value, which would take the case for its own.
    options, words = options_of([word for word in rest[2:] if word != "--fixed"])
    if not words:
        return None
    fixed = " (fixed)" if "--fixed" in rest else ""
    return Launch(
        model=f"lab:{words[0]}{fixed}", port=count_of(options, "--port", none=DEFAULT_PORT), engine_in_root=True
    )


def read_role(_title: str, argv: Sequence[str]) -> tuple[str, str | None] | None:
    """The process that serves also launches kernels; in cases of tensor parallelism a second one only does that."""
    if without_python(argv)[0] == _OTHER_RANK:
        return "worker", "TP1"
    return None if read_launch(argv) is None else ("engine-core", None)


ENGINE = Engine(name=NAME, prefixes=(), needed=frozenset(), read=vllm.read, launch=read_launch, role=read_role)
