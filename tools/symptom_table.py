"""Writes docs/symptom-scenarios.md: runs every demo scenario and tells which symptoms it raises, and when."""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gputop_llm.demo.scenarios import SCENARIOS
from tests.support.fast_demo import run
from tests.support.symptom_table import DOCUMENT, document

if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        found = dict(zip(SCENARIOS, pool.map(run, SCENARIOS), strict=True))
    DOCUMENT.write_text(document(found), encoding="utf-8")
    print(f"wrote {DOCUMENT}")
