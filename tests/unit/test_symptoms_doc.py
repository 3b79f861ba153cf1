"""The catalogue of rules is consistent in itself, and documented as it is."""

from __future__ import annotations

import pytest

from gputop_llm.symptoms import rules
from gputop_llm.symptoms.baseline import DISTURBING
from gputop_llm.symptoms.catalogue import RULES
from gputop_llm.symptoms.compose import EXPLAINS
from gputop_llm.symptoms.engine import NOT_HELD_BACK
from gputop_llm.symptoms.limits import MEASURED, RULE_OF_THUMB, VENDOR
from gputop_llm.symptoms.table import HOLDS, THRESHOLDS
from tools import symptoms_doc

IDS = {rule.id for rule in RULES}


def test_the_document_is_the_present_one():
    assert symptoms_doc.DOC.read_text(encoding="utf-8") == symptoms_doc.document(), "run tools/symptoms_doc.py"


def test_every_rule_of_every_module_is_in_the_catalogue_once():
    import importlib
    import pkgutil

    modules = [importlib.import_module(f"{rules.__name__}.{m.name}") for m in pkgutil.iter_modules(rules.__path__)]
    defined = [rule for module in modules for rule in getattr(module, "RULES", ())]
    assert sorted(r.id for r in defined) == sorted(r.id for r in RULES)
    assert len(IDS) == len(RULES)


def test_everything_that_names_a_rule_names_one_that_exists():
    named = {threshold.name.partition(".")[0] for threshold in THRESHOLDS} | {hold.rule for hold in HOLDS}
    named |= set(EXPLAINS) | {effect for effects in EXPLAINS.values() for effect in effects}
    assert named | DISTURBING | NOT_HELD_BACK <= IDS


def test_no_two_rules_explain_each_other():
    assert not [(a, b) for a, effects in EXPLAINS.items() for b in effects if a in EXPLAINS.get(b, ())]


@pytest.mark.parametrize("threshold", THRESHOLDS, ids=lambda t: t.name)
def test_every_threshold_has_a_tag_and_a_reason_of_one_line(threshold):
    assert threshold.tag in (VENDOR, MEASURED, RULE_OF_THUMB)
    assert 10 < len(threshold.why) <= 120
    assert "\n" not in threshold.why


def test_thresholds_and_holds_are_stated_once():
    assert len({t.name for t in THRESHOLDS}) == len(THRESHOLDS)
    assert len({h.rule for h in HOLDS}) == len(HOLDS)
