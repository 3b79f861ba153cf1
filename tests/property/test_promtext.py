"""The reader of metrics text agrees with prometheus_client, which it asks only once per series."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gputop_llm.sources import engines
from gputop_llm.sources.promtext import TextParser
from tests.support.captures import FIELD_CASES, VLLM_PAGES

# Not field case 19: prometheus_client refuses that page as a whole.
PAGES = [*VLLM_PAGES, *sorted(FIELD_CASES.glob("1[1-8]-*/*.txt")), *sorted(FIELD_CASES.glob("34-*/*.txt"))]


def authority(text: str, needed) -> list[tuple[str, tuple, str]]:
    """What prometheus_client reads, as comparable rows; NaN equals NaN."""
    return sorted(
        (sample.name, tuple(sorted(sample.labels.items())), repr(float(sample.value)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in needed
    )


def ours(parser: TextParser, text: str) -> list[tuple[str, tuple, str]]:
    return sorted(
        (name, tuple(sorted(labels.items())), repr(value))
        for name, rows in parser.parse(text).needed.items()
        for labels, value in rows
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name[:2]}-{path.stem}")
def test_recorded_pages_read_as_prometheus_client_reads_them_whole(path):
    text = path.read_text(encoding="utf-8")
    parser = TextParser(engines.NEEDED)
    expected = authority(text, engines.NEEDED)
    assert ours(parser, text) == expected
    assert ours(parser, text) == expected


names = st.sampled_from(["vllm:num_requests_running", "vllm:generation_tokens_total", "other_metric"])
label_names = st.sampled_from(["model_name", "engine", "le", "x"])
label_values = st.text(max_size=12).map(lambda v: v.replace("\r", ""))
numbers = st.one_of(
    st.floats().map(repr), st.integers(-(10**12), 10**12).map(str), st.sampled_from(["NaN", "+Inf", "-Inf", "1e+011"])
)


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@st.composite
def lines(draw) -> str:
    labels = draw(st.dictionaries(label_names, label_values, max_size=4))
    inside = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    series = draw(names) + (f"{{{inside}}}" if labels else "")
    stamp = draw(st.sampled_from(["", " 1795964000500"]))
    return f"{series} {draw(numbers)}{stamp}"


@given(st.lists(lines(), max_size=12))
def test_any_well_formed_page_reads_as_prometheus_client_reads_it_at_every_scrape(page):
    needed = frozenset({"vllm:num_requests_running", "vllm:generation_tokens_total"})
    text = "".join(line + "\n" for line in page)
    parser = TextParser(needed)
    expected = authority(text, needed)
    assert ours(parser, text) == expected
    assert ours(parser, text) == expected
    assert parser.parse(text).skipped_lines == 0


junk = st.text(alphabet=st.sampled_from(list('vllm:a{}="\\ ,#0123.eE+-_naN\t\r\x00é')), max_size=40)


@settings(max_examples=300)
@given(st.lists(st.one_of(junk, st.text(max_size=40).map(lambda t: t.replace("\n", " ")), lines()), max_size=12))
def test_no_text_makes_it_fail_and_every_line_is_read_or_counted(page):
    parser = TextParser(frozenset({"vllm:num_requests_running", "vllm:generation_tokens_total", "a"}))
    text = "\n".join(page)
    first = parser.parse(text)
    content = [line for line in text.split("\n") if line.strip() and not line.strip().startswith("#")]
    assert first.read_lines + first.skipped_lines == len(content)
    again = parser.parse(text)
    assert (again.read_lines, again.skipped_lines) == (first.read_lines, first.skipped_lines)
    assert all(isinstance(value, float) for rows in again.needed.values() for _, value in rows)


@given(st.lists(lines(), max_size=8), junk)
def test_a_bad_line_costs_nothing_but_itself(page, bad):
    needed = frozenset({"vllm:num_requests_running", "vllm:generation_tokens_total"})
    clean = "".join(line + "\n" for line in page)
    spoiled = clean + 'vllm:num_requests_running{model_name="' + bad.replace('"', "") + "\n" + clean
    assert ours(TextParser(needed), spoiled) == sorted(ours(TextParser(needed), clean) * 2)


def test_an_endless_number_is_infinite_and_no_error():
    ((_, value),) = TextParser(frozenset({"a"})).parse("a 1e999\n").needed["a"]
    assert value == math.inf
