"""One event as it is handed on: JSON, and a few words for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gputop_llm import __version__
from gputop_llm.notify.announcer import Event
from gputop_llm.printable import printable
from gputop_llm.report.jsonform import iso, plain

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Notice:
    """`body` is JSON in ASCII; `words` are the same in a few variables."""

    body: bytes
    words: Mapping[str, str]


def notice(event: Event, node: str, simulated: str | None) -> Notice:
    """The event for a command or a webhook.

    Args:
        node: this machine's name.
        simulated: the label of a demo.
    """
    symptom = event.symptom
    what = "raised" if event.raised else "cleared"
    told = {
        "schema": SCHEMA,
        "version": __version__,
        "event": what,
        "at": iso(event.at_s),
        "at_s": plain(event.at_s),
        "node": plain(node),
        "simulated": plain(simulated),
        "dropped": event.dropped,
        "explains": plain(event.explains),
        "symptom": plain(symptom),
    }
    words = {
        "EVENT": what,
        "SYMPTOM": symptom.id,
        "SEVERITY": symptom.severity.name.lower(),
        "SUBJECT": symptom.subject.label,
        "HEADLINE": symptom.headline,
        "NODE": node,
    }
    return Notice(
        json.dumps(told, allow_nan=False).encode("ascii"),
        {f"GPUTOP_LLM_{name}": printable(text) for name, text in words.items()},
    )
