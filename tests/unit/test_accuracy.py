"""The harness of the accuracy benchmark: what it runs again, and how it counts."""

from __future__ import annotations

import json

import pytest

from benchmarks.accuracy.results import ROUTES, Job, Results, all_jobs
from benchmarks.accuracy.routes import TAKES_S, fired_rules, symptoms_of
from benchmarks.accuracy.score import gain, has_its_cause, score
from benchmarks.accuracy.table import markdown
from gputop_llm.lab import CASES


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path, "abc", "cuda")


def finding(id, weight="finding", pct=None):
    return {"id": id, "weight": weight, "recoverable_pct": pct, "recoverable_of": "window", "headline": ""}


def verdict(*findings, judged=True):
    above = [one for one in findings if one["weight"] != "note"]
    return {"judged": judged, "healthy": not above if judged else None, "findings": list(findings)}


def paced(results, case, before, after):
    for fixed, pace in ((False, before), (True, after)):
        results.put(Job(case, fixed, "pace"), {"tokens_per_s": pace, "gap_p99_ms": 1000.0 / pace})


def test_what_has_a_result_is_not_run_again_and_what_failed_only_when_asked(results):
    jobs = all_jobs("cuda", ["token-sync"], ["native", "nsys"])
    assert len(jobs) == 4
    results.put(jobs[0], verdict())
    results.put(jobs[1], {"failed": "no GPU"})
    assert results.left(jobs, retry=False) == jobs[2:]
    assert results.left(jobs, retry=True) == jobs[1:]
    assert Results(results.place.parents[1], "def", "cuda").left(jobs, retry=False) == jobs, "another commit"


def test_a_result_says_what_it_is_of_and_leaves_nothing_half_written(results):
    job = Job("token-sync", True, "native")
    results.put(job, verdict())
    (path,) = results.place.iterdir()
    told = json.loads(path.read_text())
    assert path.name == "token-sync.fixed.native.json"
    assert (told["case"], told["fixed"], told["route"], told["commit"], told["device"]) == (
        "token-sync", True, "native", "abc", "cuda",
    )  # fmt: skip


def test_jobs_leave_out_what_makes_no_sense():
    assert {job.route for job in all_jobs("cuda", ["token-sync"])} == {*ROUTES["cuda"]} - {"ncu"}
    assert {job.route for job in all_jobs("cuda", ["small-grid"])} == {*ROUTES["cuda"]}
    assert all_jobs("cpu", ["token-sync"]) == []
    assert {job.case for job in all_jobs("cpu")} == {name for name, case in CASES.items() if not case.not_on_cpu}
    assert set(TAKES_S) == {*ROUTES["cuda"]}


def test_others_are_run_after_the_export_that_they_read():
    order = ROUTES["cuda"]
    assert order.index("nsys") < min(order.index("nsys-ai"), order.index("nsys-analyze"))


@pytest.mark.parametrize(
    ("findings", "first", "right"),
    [
        ([finding("sync-bound", pct=40.0), finding("tiny-copies", pct=5.0)], "sync-bound", True),
        ([finding("steps", "note"), finding("sync-bound", "severe", 40.0)], "sync-bound", True),
        ([finding("tiny-copies", pct=50.0), finding("sync-bound", pct=40.0)], "tiny-copies", False),
        ([finding("steps", "note")], "healthy", False),
    ],
)
def test_a_case_is_right_if_the_first_finding_above_a_note_names_its_cause(results, findings, first, right):
    job = Job("token-sync", False, "native")
    results.put(job, verdict(*findings))
    found = score(results, job)
    assert (found.first, found.right) == (first, right)


def test_a_healthy_verdict_is_right_where_no_timeline_can_name_the_cause(results):
    healthy, named = Job("moe-padding", False, "native"), Job("moe-padding", False, "nsys")
    results.put(healthy, verdict(finding("hot-kernels", "note")))
    results.put(named, verdict(finding("host-bound", pct=20.0)))
    assert score(results, healthy).right is True
    assert (score(results, named).right, score(results, named).wrong) == (False, ("host-bound",))


def test_any_finding_above_a_note_is_wrong_of_a_twin_and_so_is_no_judgement(results):
    clean, accused, unjudged = (Job("token-sync", True, route) for route in ("native", "kineto", "nsys"))
    results.put(clean, verdict(finding("steps", "note")))
    results.put(accused, verdict(finding("launch-bound", pct=6.0)))
    results.put(unjudged, verdict(judged=False))
    assert score(results, clean).right is True
    assert (score(results, accused).right, score(results, accused).wrong) == (False, ("launch-bound",))
    assert (score(results, unjudged).first, score(results, unjudged).right) == ("can't judge", False)


def test_that_the_engine_was_not_back_at_its_pace_is_about_the_capture_and_not_the_case(results):
    slow = finding("not-recovered", "severe")
    named, unseen = Job("token-sync", False, "native"), Job("moe-padding", False, "native")
    results.put(named, verdict(slow, finding("sync-bound", pct=40.0)))
    results.put(unseen, verdict(slow))
    assert (score(results, named).first, score(results, named).right) == ("sync-bound", True)
    assert "not-recovered" in score(results, named).found
    assert (score(results, unseen).first, score(results, unseen).right) == ("healthy", True)
    twin = Job("token-sync", True, "native")
    results.put(twin, verdict(slow))
    assert (score(results, twin).right, score(results, twin).wrong) == (True, ())


@pytest.mark.parametrize(("said", "near"), [(50.0, True), (64.0, True), (36.0, True), (66.0, False), (34.0, False)])
def test_the_share_must_be_within_a_third_of_what_the_twin_gained(results, said, near):
    paced(results, "token-sync", 500.0, 1000.0)
    job = Job("token-sync", False, "native")
    results.put(job, verdict(finding("sync-bound", pct=said)))
    assert score(results, job).near is near
    assert score(results, job).gained_pct == pytest.approx(50.0)


def test_a_share_that_means_something_else_is_not_compared(results):
    paced(results, "prefill-blocks", 500.0, 1000.0)
    job = Job("prefill-blocks", False, "native")
    results.put(job, verdict(finding("prefill-delays-decode", pct=5.0)))
    assert (score(results, job).right, score(results, job).near) == (True, None)


def test_a_case_whose_twin_gains_too_little_lacks_its_cause(results):
    assert has_its_cause(results, "token-sync") is None
    paced(results, "token-sync", 990.0, 1000.0)
    assert has_its_cause(results, "token-sync") is False
    results.put(Job("token-sync", False, "native"), verdict())
    assert "**no**" in markdown(results)
    assert "no cause here: not counted" in markdown(results)
    assert "Misses:\n\nnone" in markdown(results)


def test_waiting_that_a_twin_saves_is_measured_by_the_longest_gaps(results):
    for fixed, gap in ((False, 40.0), (True, 10.0)):
        results.put(Job("prefill-blocks", fixed, "pace"), {"tokens_per_s": 100.0, "gap_p99_ms": gap})
    assert gain(results, "prefill-blocks") == pytest.approx(0.75)


def test_live_symptoms_must_be_there_and_false_ones_must_not(results):
    cause, twin = Job("launch-bound", False, "live"), Job("launch-bound", True, "live")
    results.put(cause, {"symptoms": ["host-bound", "tpot-high"]})
    results.put(twin, {"symptoms": ["host-bound"]})
    assert score(results, cause).right is True
    assert (score(results, twin).right, score(results, twin).wrong) == (False, ("host-bound",))
    results.put(cause, {"symptoms": ["host-bound", "stalled"]})
    assert score(results, cause).wrong == ("stalled",)
    results.put(cause, {"symptoms": []})
    assert score(results, cause).right is False


def test_symptoms_of_other_engines_on_the_node_are_not_the_case_s():
    keys = {"engine:lab:7:99": "host-bound", "engine:lab:77:5": "stalled", "engine:vllm:3:1": "tpot-high"}
    keys |= {"engine:lab:7:99/rank:0": "rank-imbalance", "gpu:0": "power-capped"}
    active = [{"id": id, "subject": {"key": key}} for key, id in keys.items()]
    active.append({"id": "warming-up", "subject": {"key": "engine:lab:7:99"}})
    found = symptoms_of({"symptoms": {"active": active}}, 7)
    assert sorted(found) == ["host-bound", "power-capped", "rank-imbalance"]


def test_a_kernel_is_judged_by_what_limits_it(results):
    cause, twin = Job("small-grid", False, "ncu"), Job("small-grid", True, "ncu")
    results.put(cause, verdict(finding("kernel-small-grid")))
    results.put(twin, verdict(finding("kernel-dram-bound", "note")))
    assert (score(results, cause).right, score(results, twin).right) == (True, True)
    results.put(twin, verdict(finding("kernel-small-grid")))
    assert score(results, twin).right is False


def test_other_tools_are_right_if_their_first_warning_names_the_cause_in_their_words(results):
    job = Job("launch-bound", False, "nsys-ai")
    hotspot = {"id": "Hotspot: nvjet", "weight": "info"}
    small = {"id": "Small Kernel Overhead: elementwise", "weight": "warning"}
    results.put(job, {"findings": [hotspot, small]})
    assert score(results, job).right is True
    results.put(job, {"findings": [{"id": "Large HtoD Transfer (2 MB)", "weight": "warning"}, small]})
    assert score(results, job).right is False


def test_the_table_counts_each_route_and_lists_misses(results):
    results.put(Job("token-sync", False, "native"), verdict(finding("sync-bound", pct=40.0)))
    results.put(Job("allocator", False, "native"), verdict(finding("sync-bound", pct=40.0)))
    results.put(Job("allocator", True, "native"), {"failed": "refused"})
    page = markdown(results)
    assert "| native | 1 of 2 (50 %) | – | – | 1 |" in page
    assert "- allocator, native: expected allocator-in-hot-path, first was sync-bound" in page
    assert "failed: refused" in page


def test_rules_of_nsys_analyze_fire_where_they_list_something():
    told = """
 ** CUDA Async Memcpy with Pageable Memory (cuda_memcpy_async):

The following APIs use PAGEABLE memory ...

 Duration (ns)  Start (ns)
 -------------  ----------
          1000           5

 ** CUDA Synchronization APIs (cuda_api_sync):

There were no problems detected related to synchronization APIs.
"""
    assert fired_rules(told) == ["cuda_memcpy_async"]
