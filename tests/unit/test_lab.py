"""The lab without PyTorch: what its cases claim exists, its page is read as a real one, it is found by its command."""

from __future__ import annotations

import ast
import importlib.util
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gputop_llm import cli, lab
from gputop_llm.errors import GputopError
from gputop_llm.lab.case import NEVER
from gputop_llm.lab.page import Histogram, Page
from gputop_llm.lab.serving import range_name
from gputop_llm.ncu.bound import MEMORY_KINDS
from gputop_llm.sources.engines.lab import read_launch, read_role
from gputop_llm.symptoms.catalogue import RULES
from gputop_llm.verdict.step_marks import Phase, phase_of
from tests.support.captures import read_page

PACKAGE = Path(lab.__file__).parents[1]
CASES = [pytest.param(case, id=name) for name, case in lab.CASES.items()]


def finding_ids(folder):
    """All ids that findings of these modules can have, from the calls that make them."""
    for path in (PACKAGE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                values = [keyword.value for keyword in node.keywords if keyword.arg == "id"]
                yield from (
                    one.value
                    for value in values
                    for one in ast.walk(value)
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )


TIMELINE_IDS = frozenset(finding_ids("verdict"))
KERNEL_IDS = frozenset(finding_ids("ncu")) | {f"kernel-{kind.value.lower()}" for kind in MEMORY_KINDS}
SYMPTOMS = frozenset(rule.id for rule in RULES)


@pytest.mark.parametrize("case", CASES)
def test_what_a_case_expects_is_something_that_the_product_can_say(case):
    truth = case.truth
    assert set(truth.first) <= TIMELINE_IDS
    assert set(truth.kernel) <= KERNEL_IDS
    assert {*truth.symptoms, *truth.never, *NEVER} <= SYMPTOMS
    assert not set(truth.symptoms) & {*truth.never, *NEVER}


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_named_by_a_timeline_or_says_why_none_can(case):
    low, high = case.truth.gain
    assert bool(case.truth.first) != bool(case.truth.unseen)
    assert 0 < low < high < 1
    assert case.cause
    assert case.remedy


def test_cases_are_short_enough_to_be_read_as_examples():
    modules = sorted((PACKAGE / "lab/cases").glob("*.py"))
    assert len(modules) == len(lab.CASES) + 1
    assert [path.name for path in modules if path.read_text().count("\n") > 120] == []


def test_cases_are_listed_without_pytorch(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert cli.main(["lab", "list"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in lab.CASES if name not in listed] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["host-starved"], "this Python has no PyTorch; pip install 'gputop-llm[lab]'"),
        (["launch-bound", "--device", "cpu"], "launch-bound can't run on a CPU: "),
        (["no-such-case"], "there is no case 'no-such-case'; `gputop-llm lab list` lists them"),
    ],
)
def test_a_case_that_can_t_be_run_says_why_in_one_sentence(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["lab", "run", *arguments]) in (1, 2)
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def served_page():
    page = Page("lab:token-sync")
    page.running, page.prompt_tokens, page.generation_tokens, page.finished = 4, 64, 12, 2
    page.inter_token_latency_seconds.add(0.002, times=8)
    page.iteration_tokens_total.add(4, times=3)
    return page


def test_its_page_is_read_as_a_page_of_vllm_and_what_it_lacks_is_unknown():
    reading = read_page(served_page().render())
    (series,) = reading.series
    assert (reading.engine, reading.problem, series.model) == ("vllm", None, "lab:token-sync")
    assert series.running == 4
    assert (series.counters["generation_tokens"], series.counters["steps"]) == (12, 3)
    assert series.histograms["itl"].counts[-1] == 8
    assert series.histograms["itl"].total == pytest.approx(0.016)
    assert "kv_usage_pct" in reading.missing


def test_a_value_on_a_bound_counts_in_the_bucket_that_ends_there():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.add(value)
    assert histogram.counts == [2, 1, 1]


def test_the_page_is_served_under_its_path_and_the_port_only_once():
    server = served_page().serve(0)
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            assert b'vllm:num_requests_running{engine="0",model_name="lab:token-sync"} 4' in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/version", timeout=10)
        with pytest.raises(GputopError, match="already in use; give another --port"):
            served_page().serve(server.server_port)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("step", "phase"),
    [((0, 0, 32), Phase.DECODE), ((1, 4096, 0), Phase.PREFILL), ((1, 128, 31), Phase.MIXED)],
)
def test_its_ranges_tell_a_verdict_the_phase_of_a_step(step, phase):
    assert phase_of(range_name(*step)) is phase


@pytest.mark.parametrize(
    ("line", "model", "url"),
    [
        ("python -m gputop_llm lab run token-sync", "lab:token-sync", "http://127.0.0.1:8010"),
        ("/opt/venv/bin/python3.11 /opt/venv/bin/gputop-llm lab run --fixed gil-thread --port 9000",
         "lab:gil-thread (fixed)", "http://127.0.0.1:9000"),
        ("gputop-llm lab run --seconds 5 moe-padding --port=81", "lab:moe-padding", "http://127.0.0.1:81"),
    ],
)  # fmt: skip
def test_a_case_is_found_by_its_command_line(line, model, url):
    launch = read_launch(line.split())
    assert (launch.model, launch.urls) == (model, (url,))


def test_the_other_rank_of_a_case_is_its_worker():
    line = "python -m gputop_llm.lab.other_rank gputop_llm.lab.cases.rank_straggler cuda cause 41234"
    assert read_role("", line.split()) == ("worker", "TP1")
    assert read_launch(line.split()) is None


@pytest.mark.parametrize("line", ["gputop-llm lab list", "gputop-llm watch --json", "python lab run x", "lab run x"])
def test_other_commands_are_no_case(line):
    assert read_launch(line.split()) is None
