"""Writes docs/gpus.md from the table of GPUs."""

from pathlib import Path

from gputop_llm.gpus import all_specs
from gputop_llm.report.gpus_text import markdown

if __name__ == "__main__":
    path = Path(__file__).parents[1] / "docs" / "gpus.md"
    path.write_text(markdown(all_specs()), encoding="utf-8")
    print(f"wrote {path}")
