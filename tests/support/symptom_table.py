"""The table of symptoms and scenarios, as docs/symptom-scenarios.md shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gputop_llm.demo.scenarios import MAIN, SCENARIOS, SYMPTOMS
from gputop_llm.demo.script import Scenario
from gputop_llm.symptoms.catalogue import RULES
from tests.support.fast_demo import LIMITS, Episode

DOCUMENT = Path(__file__).parents[2] / "docs" / "symptom-scenarios.md"

INTRO = """\
# Symptoms and the scenarios that raise them

Written by `python tools/symptom_table.py`; a test runs every scenario and compares. Each scenario is a simulated
node (seed 7) that anybody can watch: `gputop-llm demo NAME`. Times are seconds of the scenario.

A symptom has to be raised by *latest*: when its cause begins, plus the time in which the figures come to show
it (10 s windows; longer where a cache or a batch has to fill first), plus the rule's hold time. It has to be
cleared by *latest* counted alike from the end of its cause. What follows from a symptom is shown below it,
indented on the screen; the table gives it as *raised–cleared*, with the symptom that it was shown under.
"""


def latest(script: Scenario) -> tuple[float, float]:
    """By when the symptom of a scenario has to be raised, and to be cleared."""
    for_s, clear_s = LIMITS.hold(script.raises or "")
    return script.when[0] + script.shows_s + for_s, script.when[1] + script.lingers_s + clear_s


def row(script: Scenario, found: Sequence[Episode]) -> str:
    """The row of a scenario, in the table that it belongs to."""
    others = "; ".join(_episode(e) for e in found if e.id != script.raises) or "–"
    if script.raises is None:
        return f"| `{script.name}` | {script.about} | {others} |"
    own = [e for e in found if e.id == script.raises]
    by_raise, by_clear = latest(script)
    raised = f"{min(e.raised_s for e in own):.0f}" if own else "never"
    cleared = "never"
    if own and all(e.cleared_s is not None for e in own):
        cleared = f"{max(e.cleared_s or 0.0 for e in own):.0f}"
    cause = f"{script.when[0]:.0f}–{script.when[1]:.0f}"
    where = ", ".join(dict.fromkeys(e.subject for e in own)) or "–"
    return (
        f"| `{script.name}` | {script.about} | {cause} | {raised} | {by_raise:.0f} | {cleared} | {by_clear:.0f} "
        f"| {where} | {others} |"
    )


def document(found: Mapping[str, Sequence[Episode]]) -> str:
    """The whole document, of what each scenario (by name) raised."""
    parts = [
        INTRO,
        "## Scenarios that raise a symptom\n",
        "| scenario | what happens | cause | raised | latest | cleared | latest | on | what follows |",
        "|---|---|---|---:|---:|---:|---:|---|---|",
        *(row(s, found[s.name]) for s in SYMPTOMS if s.raises),
        "\n## Scenarios that must raise nothing\n",
        "Each does nearly what raises the symptom that it is named after, but not quite.\n",
        "| scenario | what happens | raised |",
        "|---|---|---|",
        *(row(s, found[s.name]) for s in SYMPTOMS if s.nearly),
        "\n## Other scenarios\n",
        "| scenario | what happens | raised |",
        "|---|---|---|",
        *(row(s, found[s.name]) for s in MAIN),
        "\n## By symptom\n",
        "| symptom | what it says | raised as root in | raised as a consequence in |",
        "|---|---|---|---|",
        *(_by_symptom(rule.id, rule.title, found) for rule in RULES),
    ]
    return "\n".join(parts) + "\n"


def _episode(episode: Episode) -> str:
    cleared = "" if episode.cleared_s is None else f"{episode.cleared_s:.0f}"
    root = f" under `{episode.root}`" if episode.root else ""
    return f"`{episode.id}` {episode.raised_s:.0f}–{cleared}{root}"


def _by_symptom(rule: str, title: str, found: Mapping[str, Sequence[Episode]]) -> str:
    def names(as_root: bool) -> str:
        of = [name for name in SCENARIOS if any(e.id == rule and (e.root is None) is as_root for e in found[name])]
        return ", ".join(f"`{name}`" for name in of) or "–"

    return f"| `{rule}` | {title} | {names(True)} | {names(False)} |"
