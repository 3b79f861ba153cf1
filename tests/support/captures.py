"""The recorded data that the tests read."""

from __future__ import annotations

import json
from pathlib import Path

from gputop_llm.model import EngineReading
from gputop_llm.sources import engines
from gputop_llm.sources.promtext import TextParser

CAPTURES = Path(__file__).parents[2] / "captures"
SCRAPES = CAPTURES / "scrapes"
FIELD_CASES = CAPTURES / "field-cases"
VLLM_PAGES = sorted(path for path in SCRAPES.glob("vllm-*.txt") if "ps-trees" not in path.name)
OTHER_PAGES = sorted(path for path in SCRAPES.glob("*.txt") if not path.name.startswith("vllm-"))


def field_case(number: int) -> Path:
    """The folder of a field case."""
    (found,) = FIELD_CASES.glob(f"{number:02d}-*")
    return found


def scrape(name: str) -> str:
    """A recorded metrics page."""
    return (SCRAPES / f"{name}.txt").read_text(encoding="utf-8")


def case_page(number: int, name: str = "metrics") -> str:
    """A metrics page of a field case."""
    return (field_case(number) / f"{name}.txt").read_text(encoding="utf-8")


def case_json(number: int, name: str):
    return json.loads((field_case(number) / f"{name}.json").read_text(encoding="utf-8"))


def read_page(text: str, version: str | None = None) -> EngineReading:
    """A metrics page as the engine source reads it."""
    return engines.read(TextParser(engines.NEEDED).parse(text), text, version)
