"""Which engine a metrics page or a process belongs to, and its page as an engine-neutral reading.

Every module here that declares an `ENGINE` is one; how to add another: docs/new-engine.md.
"""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules

from gputop_llm.model import EngineReading
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.promtext import Samples


def _engines() -> dict[str, Engine]:
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    engines = [engine for module in modules if isinstance(engine := getattr(module, "ENGINE", None), Engine)]
    return {engine.name: engine for engine in engines}


ENGINES = _engines()
NEEDED = frozenset(name for engine in ENGINES.values() for name in engine.needed)


def _own(prefix: str) -> int:
    """How sure a name is an engine's own, best first: adapters and gateways put theirs on an engine's page too."""
    return 0 if prefix.endswith(":") else 1 if prefix.endswith("_") else 2


_NAMES = [(prefix, engine.name) for engine in ENGINES.values() for prefix in engine.prefixes]
_PREFIXES = dict(sorted(_NAMES, key=lambda pair: _own(pair[0])))
# The last one: Dynamo passes an engine's own names through.
_PREFIXES["dynamo_"] = "dynamo"
_FIRST_WORDS = re.compile(rf"^(?:# (?:HELP|TYPE) )?({'|'.join(map(re.escape, _PREFIXES))})", re.MULTILINE)
_PROCESS_ONLY = re.compile(r"^(?:python|process)_", re.MULTILINE)


def recognise(text: str) -> str | None:
    """The engine whose names a metrics page has ("vllm", "sglang", …); None if there are none."""
    found = set(_FIRST_WORDS.findall(text))
    return next((engine for prefix, engine in _PREFIXES.items() if prefix in found), None)


def read(samples: Samples, text: str, version: str | None = None) -> EngineReading:
    """A page as a reading; `problem` says so when it holds no metrics of an engine that is known here."""
    there = (name for prefix, name in _PREFIXES.items() if any(needed.startswith(prefix) for needed in samples.needed))
    if (name := next(there, None)) is not None:
        return ENGINES[name].read(samples, version)
    engine = recognise(text)
    return EngineReading(
        engine=engine or "unknown",
        version=version,
        problem=_problem(samples, text, engine),
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
    )


def read_json(page: object) -> EngineReading | None:
    """A page that is JSON as a reading; None if it is no engine's."""
    for engine in ENGINES.values():
        if engine.read_json is not None:
            try:
                return engine.read_json(page)
            except ValueError:
                continue
    return None


def _problem(samples: Samples, text: str, engine: str | None) -> str:
    if not samples.read_lines:
        return "no metrics yet: the page is empty so far"
    if engine in ENGINES:
        return f"the page has names of {engine}, but {ENGINES[engine].nothing}"
    if engine is not None:
        return f"this is a page of {engine}, which is not read yet"
    if _PROCESS_ONLY.search(text):
        return (
            "the page has process metrics but none of an engine: statistics are off (look for --disable-log-stats), "
            "this is another process's page, or several API servers lost theirs (PROMETHEUS_MULTIPROC_DIR)"
        )
    return "the page has metrics, but of no engine that is known here"
