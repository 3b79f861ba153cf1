"""A verdict that was written down is read back as it was, and damage is no verdict."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_llm.report.verdict_json import verdict_object, verdict_text
from gputop_llm.report.verdict_read import verdict_of
from gputop_llm.report.verdict_text import verdict_text as page
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict.assemble import judge
from tests.support.captures import CAPTURES

RECORD = sorted(path for path in CAPTURES.rglob("*.gtw*"))[0]


@pytest.fixture(scope="module")
def verdict():
    return judge(read_capture([RECORD]))


def test_its_page_is_the_same(verdict):
    read = verdict_of(json.loads(verdict_text(verdict)))

    assert read is not None
    # Numbers are written with fewer digits: a last one may round the other way.
    assert re.sub(r"\d", "#", page(read)) == re.sub(r"\d", "#", page(verdict))
    assert verdict_object(read) == verdict_object(verdict)


@pytest.mark.parametrize("told", [{}, {"schema": "gputop-llm/verdict/2"}, {"schema": "gputop-llm/verdict/1"}])
def test_another_schema_or_half_of_one_is_none(told):
    assert verdict_of(told) is None


@given(st.data())
@settings(max_examples=50)
def test_damage_never_raises(verdict, data):
    told = json.loads(verdict_text(verdict))
    name = data.draw(st.sampled_from(sorted(told)))
    told[name] = data.draw(st.sampled_from([None, 7, "x", [7], {"a": 7}, [{"facts": 7}], [[]]]))

    read = verdict_of(told)
    assert read is None or page(read)
