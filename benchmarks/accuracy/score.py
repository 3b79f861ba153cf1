"""A result against the truth of its case."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.accuracy.results import OTHERS, VERDICTS, Job, Result, Results
from gputop_llm.lab import CASES
from gputop_llm.lab.case import NEVER, Truth
from gputop_llm.verdict.capture_cost import NOT_RECOVERED

#: How far what a finding says could be recovered may be from what the twin gains, as a part of that.
WITHIN = 0.3
HEALTHY, CANT_JUDGE = "healthy", "can't judge"
#: Findings about the capture, whatever is captured: they name no cause, and accuse no case.
_OF_THE_CAPTURE = frozenset((NOT_RECOVERED,))

#: What other tools say where they name a cause, generously: by the id of our finding.
_OTHERS_WORDS = {
    "launch-bound": r"small kernel|launch overhead|cpu-bound|gpu_gaps",
    "sync-bound": r"sync",
    "pageable-copies": r"transfer|h2d|pageable|memcpy|transfer-bound",
    "allocator-in-hot-path": r"alloc|cudafree|memory stall",
    "prefill-delays-decode": r"slow iteration|iteration variance|prefill",
    "host-bound": r"cpu-bound|idle|gpu_gaps|thread util",
    "unfused-elementwise": r"small kernel|elementwise|fus",
}


@dataclass(frozen=True)
class Score:
    """`right`: None where it can't be told (the job failed). `wrong` are ids that must not have been there.

    `said_pct` is what the first finding says could be recovered, `gained_pct` what the twin gained; `near` whether the
    two agree, None where they aren't to be compared.
    """

    expected: str
    first: str
    found: tuple[str, ...]
    right: bool | None
    wrong: tuple[str, ...] = ()
    said_pct: float | None = None
    gained_pct: float | None = None
    near: bool | None = None


def gain(results: Results, case: str) -> float | None:
    """The share that a case's twin saves, by the runs that nothing watched; None where one is missing."""
    before, after = (results.get(Job(case, fixed, "pace")) for fixed in (False, True))
    figure = CASES[case].truth.gain_of
    old, new = ((found or {}).get(figure) for found in (before, after))
    if not old or not new:
        return None
    return 1.0 - float(old / new if figure == "tokens_per_s" else new / old)


def has_its_cause(results: Results, case: str) -> bool | None:
    """Whether the twin gains what it must for the case to judge anybody; None where that isn't known.

    The bounds are those of a GPU: on a CPU any gain counts.
    """
    share = gain(results, case)
    if share is None:
        return None
    low, high = CASES[case].truth.gain if results.device == "cuda" else (0.0, 1.0)
    return low <= share <= high


def score(results: Results, job: Job) -> Score | None:
    """How a result compares; None before the job was run, and for a pace."""
    found = results.get(job)
    if found is None or job.route == "pace":
        return None
    truth = CASES[job.case].truth
    if "failed" in found:
        return Score(_expected(job, truth, results.device), f"failed: {found['failed']}", (), None)
    if job.route == "live":
        return _live(job, truth, found, results.device)
    if job.route in OTHERS:
        return _other(job, truth, found)
    if job.route in VERDICTS:
        return _verdict(job, truth, found, gain(results, job.case))
    return _kernel(job, truth, found)


def _expected(job: Job, truth: Truth, device: str) -> str:
    if job.route == "live":
        return " ".join(truth.symptoms) if device == "cuda" and not job.fixed and truth.symptoms else "nothing false"
    ids = truth.kernel if job.route == "ncu" else truth.first
    return HEALTHY if job.fixed or not ids else " or ".join(ids)


def _above_note(found: Result) -> tuple[str, ...]:
    return tuple(one["id"] for one in found["findings"] if one["weight"] != "note" and one["id"] not in _OF_THE_CAPTURE)


def _verdict(job: Job, truth: Truth, found: Result, gained: float | None) -> Score:
    above = _above_note(found)
    first = CANT_JUDGE if not found["judged"] else HEALTHY if found["healthy"] else above[0] if above else HEALTHY
    expected = _expected(job, truth, "cuda")
    ids = tuple(one["id"] for one in found["findings"])
    if job.fixed:
        return Score(expected, first, ids, not above and first != CANT_JUDGE, above)
    right = first in truth.first if truth.first else first == HEALTHY
    said = next((one["recoverable_pct"] for one in found["findings"] if one["id"] == first), None)
    near, gained_pct = None, None if gained is None else 100.0 * gained
    if truth.first and right and not truth.not_compared and gained_pct is not None:
        near = said is not None and abs(said - gained_pct) <= WITHIN * gained_pct
    return Score(expected, first, ids, right, () if truth.first else above, said, gained_pct, near)


def _kernel(job: Job, truth: Truth, found: Result) -> Score:
    ids = tuple(one["id"] for one in found["findings"])
    first = ids[0] if ids else CANT_JUDGE
    if job.fixed:
        # What limits a kernel can always be named; wrong is the case's own cause, called a fault.
        wrong = tuple(id for id in _above_note(found) if id in truth.kernel)
        return Score("not " + " or ".join(truth.kernel), first, ids, not wrong and bool(ids), wrong)
    return Score(_expected(job, truth, "cuda"), first, ids, first in truth.kernel)


def _live(job: Job, truth: Truth, found: Result, device: str) -> Score:
    raised = tuple(found["symptoms"])
    never = {*NEVER, *truth.never, *(truth.symptoms if job.fixed else ())}
    wrong = tuple(id for id in raised if id in never)
    # What a symptom needs of a GPU isn't there on a CPU: only false ones count.
    must = () if job.fixed or device != "cuda" else truth.symptoms
    right = not wrong and all(id in raised for id in must)
    return Score(_expected(job, truth, device), raised[0] if raised else "nothing", raised, right, wrong)


def _other(job: Job, truth: Truth, found: Result) -> Score:
    """By their words. Their first one is their first that isn't for information only; any of them names a cause."""
    told = [one for one in found["findings"] if one["weight"] != "info"]
    first = told[0]["id"] if told else HEALTHY
    ids = tuple(one["id"] for one in found["findings"])
    if job.fixed or not truth.first:
        return Score(HEALTHY, first, ids, not told, tuple(one["id"] for one in told))
    words = "|".join(_OTHERS_WORDS[id] for id in truth.first if id in _OTHERS_WORDS)
    return Score(_expected(job, truth, "cuda"), first, ids, bool(re.search(words, first, re.IGNORECASE)))
