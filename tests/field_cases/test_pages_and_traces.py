"""Cases 21 to 28: what stands behind a metrics address, and traces of every age, told by the program itself."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest

from gputop_llm import node as node_module
from gputop_llm.cli import main
from gputop_llm.sources.metrics import MetricsSource
from gputop_llm.timeline.read import read_capture
from tests.support.captures import case_json, field_case
from tests.support.fake_sources import FakeNode
from tests.support.http_server import HttpServer

KEY = "sk-do-not-show-this-0123456789"
ANSWERS = {case["name"]: case for case in case_json(21, "responses")}


@pytest.fixture
def snapshot(monkeypatch, capsys):
    """Asks an address that answers as the case says: exit code, text, JSON, and who was given the key."""

    def take(name: str):
        case = ANSWERS[name]
        pages = {"/metrics": lambda asked: asked.reply(case["body"], case["status"], case["headers"])}
        if then := case.get("then"):
            pages[then["path"]] = lambda asked: asked.reply(then["body"], then["status"], then["headers"])
        with HttpServer(pages) as server:
            said = []
            for how in ((), ("--json",)):
                node = FakeNode()
                sources = replace(node.sources, metrics=lambda url: MetricsSource(url, api_key=KEY))
                monkeypatch.setattr(node_module, "real_sources", lambda config, sources=sources: sources)
                code = main(["snapshot", "--period", "0.25", "--url", server.url, *how])
                said.append((code, capsys.readouterr()))
        (code, text), (_, told) = said
        assert KEY not in text.out + text.err + told.out + told.err
        return code, text.out, text.err, json.loads(told.out)

    return take


NO_METRICS = {
    "login": "the address gives a web page (a sign-in?), not metrics",
    "redirect-elsewhere": "it redirects to another server (sso.invalid), which is not given the API key",
    "unauthorised": "it does not accept the API key (401)",
    "json": "the address gives JSON, not metrics",
    "empty": "no metrics yet",
    "comments-only": "no metrics yet",
}


@pytest.mark.parametrize("name", NO_METRICS)
def test_21_what_is_no_page_of_metrics_is_no_healthy_idle_engine(snapshot, name):
    code, text, err, frame = snapshot(name)

    assert NO_METRICS[name] in err
    assert code != 0
    assert "<" not in text + err
    (engine,) = frame["engines"] or [{}]
    total = engine.get("total") or {}
    assert (total.get("running"), total.get("waiting")) == (None, None)
    assert "running 0" not in text
    assert "can't tell" in text


def test_21_a_redirect_within_the_server_is_followed_and_what_a_page_lacks_has_its_own_reason(snapshot):
    code, text, _, frame = snapshot("redirect")

    assert code == 0
    assert frame["engines"][0]["total"]["running"] == 3
    # One gauge says nothing of how many servers share the page.
    assert "several API servers" not in text


@pytest.fixture
def judged(capsys):
    """The verdict on files: exit code, text and JSON."""

    def judge(*paths):
        said = []
        for how in ((), ("--json",)):
            code = main(["verdict", *map(str, paths), *how])
            said.append(capsys.readouterr().out)
        return code, said[0], json.loads(said[1])

    return judge


def facts_of(verdict):
    return {fact["name"]: fact["value"] for fact in verdict["facts"]}


def test_22_each_of_four_gpus_is_named_with_its_own_share_and_the_mean_is_called_so(judged):
    _, text, verdict = judged(field_case(22) / "capture.sqlite")
    (talked,) = verdict["tables"]["communication"]

    assert [(row["device"], round(row["busy_pct"], 1)) for row in verdict["tables"]["coverage"]] == [
        (gpu, 86.1) for gpu in range(4)
    ]
    assert {name: round(value, 1) for name, value in facts_of(verdict).items() if "busy" in name} == {
        "GPU 0 busy": 86.1,
        "GPU 0 busy, first to last activity": 87.3,
        "GPU busy, mean of 4 devices": 86.1,
    }
    assert "86.1 % on each" in text
    for wrong in ("258", "126", "344"):
        assert f"{wrong} %" not in text
    assert {(row["device"], row["stream"]) for row in verdict["tables"]["streams"]} == {
        (0, 7), (0, 20), (1, 17), (2, 17), (3, 17),
    }  # fmt: skip
    assert (talked["device"], talked["communication_ms"], talked["exposed_ms"]) == (0, 40.0, 0.0)


def test_23_old_and_future_say_the_same_of_the_same_kernels(judged):
    (_, old_text, old), (_, new_text, new) = (judged(field_case(23) / f"{age}.sqlite") for age in ("old", "future"))
    (kernel,) = old["tables"]["kernels"]
    (covered,) = old["tables"]["coverage"]

    assert old["headline"] == new["headline"]
    assert (kernel["kernel"], kernel["calls"], kernel["mean_us"]) == ("gemm_a", 10, 4000.0)
    assert (round(covered["busy_pct"], 1), covered["busy_ms"], old["capture"]["window_ms"]) == (42.6, 40.0, 94.0)
    assert {row["length_us"] for row in old["tables"]["gaps"]} == {6000.0}
    assert "comes just in time (queue delay 0 µs, median)" in " ".join(old_text.split())
    assert covered["name"] is None
    assert "Nsight Systems 2023.1.2.43 · schema 3.1.2" in old_text
    assert "Nsight Systems 2027.1.1.10 · schema 3.40.0" in new_text
    assert "schema 3.40.0 is newer than the newest that was tested" in " ".join(new_text.split())
    unknown = [note for note in old["notes"] if note.startswith("not known")]
    assert any("names of the GPUs" in note for note in unknown)
    assert any("no column graphNodeId" in note for note in unknown)


@pytest.mark.parametrize("column", ["deviceId", "start"])
def test_23_a_column_that_is_needed_and_missing_is_named(tmp_path, capsys, column):
    path = tmp_path / "cut.sqlite"
    path.write_bytes((field_case(23) / "old.sqlite").read_bytes())
    with sqlite3.connect(path) as database:
        database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN {column} TO somethingElse")
    database.close()
    code = main(["verdict", str(path)])
    out, err = capsys.readouterr()

    assert code in (1, 4)
    assert f"CUPTI_ACTIVITY_KIND_KERNEL has no column {column}" in " ".join((out + err).split())


def test_24_backslashes_that_are_no_escapes_stay_in_names_and_the_repair_is_said_once(judged, tmp_path):
    path = field_case(24) / "trace.json"
    _, _, verdict = judged(path)
    (kernel,) = verdict["tables"]["kernels"]

    assert (kernel["calls"], round(kernel["work_ms"], 6)) == (3, 0.09)
    assert round(verdict["tables"]["coverage"][0]["busy_pct"], 1) == 31.0
    assert sum("mended" in note for note in verdict["notes"]) == 1
    # Frames are not judged; the same names on ranges are.
    ranges = tmp_path / "ranges.json"
    ranges.write_bytes(path.read_bytes().replace(b"python_function", b"user_annotation"))
    timeline = read_capture([ranges])
    assert {timeline.name(one) for one in timeline.ranges.name_id} == {
        r"torch\cuda\streams.py(58): wait",
        r"C:\users\dev\app.py(3): f",
    }


@pytest.mark.parametrize(
    ("name", "says"), [("meta", "no events were recorded"), ("cpu-only", "no GPU activity was recorded")]
)
def test_25_without_device_activity_nothing_is_judged_and_the_way_to_a_trace_is_told(judged, name, says):
    code, text, verdict = judged(field_case(25) / f"{name}.json")

    assert code == 4
    assert verdict["headline"].startswith(f"can't judge: {says}")
    assert "CUDA activity was off, or the window closed too early" in verdict["headline"]
    assert "record again with ProfilerActivity.CUDA" in verdict["headline"]
    assert verdict["findings"] == []
    assert verdict["tables"] == {}
    for word in ("idle", "CPU-bound", "100 %", "Traceback"):
        assert word not in text
    # Of no event there is no time.
    assert (verdict["capture"]["window_ms"] is None) == (name == "meta")


def test_26_a_fifth_of_a_microsecond_has_its_digits(judged):
    _, text, verdict = judged(field_case(26) / "trace.json")
    (kernel,) = verdict["tables"]["kernels"]
    (covered,) = verdict["tables"]["coverage"]

    assert kernel["mean_us"] == kernel["longest_us"] == pytest.approx(0.2)
    assert kernel["work_ms"] == pytest.approx(0.01)
    assert round(covered["busy_pct"], 1) == 10.2
    assert verdict["capture"]["window_ms"] == pytest.approx(0.0982)
    assert facts_of(verdict)["kernels under 5 µs"] == 100.0
    assert "kernel duration, mean: 0.200 µs" in text


def test_27_the_old_profilers_array_is_read_and_what_it_lacks_is_unknown(judged):
    _, text, verdict = judged(field_case(27) / "trace.json")
    (covered,) = verdict["tables"]["coverage"]

    assert [row["work_ms"] for row in verdict["tables"]["kernels"]] == pytest.approx([0.1342, 0.060])
    assert (round(covered["busy_pct"], 1), verdict["capture"]["window_ms"]) == (78.6, pytest.approx(0.247))
    assert "a trace of the old autograd profiler: streams and launches are not recorded" in " ".join(text.split())
    assert [row["stream"] for row in verdict["tables"]["streams"]] == [None]
    assert [row["streams"] for row in verdict["tables"]["kernels"]] == [[], []]
    assert " -1" not in text


def test_28_many_kernels_of_one_launch_are_all_counted_and_correlation_0_joins_nothing(judged):
    _, text, verdict = judged(field_case(28) / "trace.json")
    found = {finding["id"]: finding for finding in verdict["findings"]}
    notes = {fact["name"]: fact for fact in found["not-launch-bound"]["facts"]}

    assert "GPU-bound" in verdict["headline"]
    assert "18 of 19 device rows come from 1 graph launch" in found["not-launch-bound"]["headline"]
    assert "launch-bound" not in found
    assert round(verdict["tables"]["coverage"][0]["busy_pct"], 1) == 98.1
    assert {row["kernel"]: row["calls"] for row in verdict["tables"]["kernels"]} == {
        "norm": 9,
        "moe_gemm": 9,
        "ncclDevKernel_Generic": 1,
    }
    assert "1 launches with a known row" in notes["queue delay, median"]["rows"]
    assert "hipGraphLaunch" not in verdict["headline"]
    assert {row["device"] for rows in verdict["tables"].values() for row in rows if "device" in row} == {9}
    assert "GPU 0" not in text
