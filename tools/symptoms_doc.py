#!/usr/bin/env python3
"""Writes docs/symptoms.md: every rule with its thresholds, from the rules' own tables."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gputop_llm.symptoms import past  # noqa: E402
from gputop_llm.symptoms.baseline import DISTURBING, FALLS, QUARANTINE_S, STEP_S  # noqa: E402
from gputop_llm.symptoms.catalogue import RULES  # noqa: E402
from gputop_llm.symptoms.compose import EXPLAINS  # noqa: E402
from gputop_llm.symptoms.engine import NOT_HELD_BACK, Rule  # noqa: E402
from gputop_llm.symptoms.limits import Limits, Threshold  # noqa: E402
from gputop_llm.symptoms.table import HOLDS, THRESHOLDS  # noqa: E402

DOC = ROOT / "docs" / "symptoms.md"

_INTRO = """\
# Symptoms

What the monitor calls wrong, or worth knowing, and by which numbers. This page is made from the rules' own tables by
`python tools/symptoms_doc.py`; don't edit it here.

- A rule looks at the newest two minutes of readings, and answers for each engine, model, rank or GPU: the condition
  holds, it doesn't, or it **can't tell**, and then it says what it would need. It never guesses from what is missing.
- A condition must hold for a while before its symptom is raised, and be gone for a while before it is cleared. Between
  a threshold and its clear value nothing changes, so that noise around either makes nothing flap. What is raised gets
  worse at once, but better only when it was no worse for its clear time.
- **Notes** say what the limit is, and that this is normal. Warnings and critical symptoms are for somebody to act on.
- What explains other symptoms is their **root** and stands above them; the table below says what can explain what. They
  must concern the same engine.
- While an engine warms up, other rules are held back and say so, but for {not_held_back}.
- Confidence is high when three independent signals agree, or all of at least two; medium with two; else low.

## Changing a threshold

Each has a name. The config file (`~/.config/gputop-llm/config.toml`) takes any of them, and the times of any rule:

```toml
slo_ttft_s = 0.8              # the same as "ttft-high.p95_s"
slo_tpot_s = 0.05             # the same as "tpot-high.p95_s"

[thresholds]
"kv-pressure.kv_pct" = 98     # its clear value follows in proportion
"kv-pressure.for_s" = 30      # seconds to hold until it is raised
"kv-pressure.clear_s" = 60    # seconds to be gone until it is cleared
```

What was changed is shown beside the symptoms.

## The baseline

Without an SLO, "high" is also what is far above the engine's own healthy recent past: the median of at least {least}
and at most {points} windows of {step:.0f} s (20 minutes), apart for loads that differ by a power of two in running
requests, mean prompt and mean output tokens. An SLO that you give wins over it.

- It learns from healthy time only: not while any of {disturbing} holds for the engine, raised or not yet, and not
  within {quarantine:.0f} s before or a window after; nor while a hit rate is cold that was not always (`{falls}`).
- A load that has not been seen yet borrows the latency of a heavier one; or of a lighter one if no more tokens are
  generated than there: then more requests run because they take longer, and not because there is more work.
- It is kept per model and hardware in `~/.local/state/gputop-llm/baselines/`, for a week, so that it survives restarts
  of the monitor and of the engine. To forget one (the engine's configuration changed, say), delete its file.
"""


def document() -> str:
    """The whole of docs/symptoms.md."""
    intro = _INTRO.format(
        not_held_back=_codes(sorted(NOT_HELD_BACK)),
        least=past.LEAST,
        points=past.POINTS,
        step=STEP_S,
        quarantine=QUARANTINE_S,
        disturbing=_codes(sorted(DISTURBING)),
        falls=FALLS,
    )
    intro = "".join(f"{_wrapped(line)}\n" for line in intro.splitlines())
    parts = [intro, "## Rules\n", _overview(), "## Thresholds\n", *(part for rule in RULES for part in _details(rule))]
    return "\n".join(parts).rstrip() + "\n"


def _wrapped(line: str) -> str:
    indent = "  " if line.startswith(("- ", "  ")) else ""
    return line if len(line) <= 120 else textwrap.fill(line, 120, subsequent_indent=indent, break_on_hyphens=False)


def _overview() -> str:
    rows = []
    for rule in RULES:
        for_s, clear_s = Limits(THRESHOLDS, HOLDS).hold(rule.id)
        above = [cause for cause, effects in EXPLAINS.items() if rule.id in effects]
        rows.append(
            (f"[`{rule.id}`](#{rule.id})", rule.title, f"{for_s:g} s", f"{clear_s:g} s", _codes(above, "nothing else"))
        )
    return _table(("rule", "says", "raised after", "cleared after", "can be explained by"), rows)


def _details(rule: Rule) -> Iterator[str]:
    yield f"### {rule.id}\n"
    own = [threshold for threshold in THRESHOLDS if threshold.name.startswith(f"{rule.id}.")]
    yield f"{rule.title[0].upper()}{rule.title[1:]}.\n"
    if own:
        yield _table(("name", "begins beyond", "ends beyond", "from", "because"), [_row(t) for t in own])


def _row(threshold: Threshold) -> tuple[str, ...]:
    return f"`{threshold.name}`", f"{threshold.value:g}", f"{threshold.clear:g}", threshold.tag, threshold.why


def _codes(names: Sequence[str], none: str = "") -> str:
    return ", ".join(f"`{name}`" for name in names) or none


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    DOC.write_text(document(), encoding="utf-8")
