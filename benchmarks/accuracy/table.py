"""The confusion table as Markdown: expected against first against all, how often it was right, and every miss."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.accuracy.results import ROUTES, Job, Results, all_jobs
from benchmarks.accuracy.score import WITHIN, Score, gain, has_its_cause, score
from gputop_llm.lab import CASES

_MOST_IDS = 6


def markdown(results: Results) -> str:
    """The whole page; cases that lack their cause on this machine are listed and count in no rate."""
    scored = {job: found for job in all_jobs(results.device) if (found := score(results, job)) is not None}
    counted = {job: one for job, one in scored.items() if has_its_cause(results, job.case) is not False}
    return "\n".join(
        [
            f"# Accuracy on {results.device}, commit {results.commit}",
            "",
            *_summary(counted, results.device),
            "",
            *_gains(results),
            "",
            *_confusion(scored),
            "",
            *_misses(counted),
            "",
        ]
    )


def _summary(scored: dict[Job, Score], device: str) -> Iterator[str]:
    yield f"| route | cases right | twins without a fault | shares within ±{100 * WITHIN:.0f} % | failed |"
    yield "|---|---|---|---|---|"
    for route in ROUTES[device]:
        own = {job: one for job, one in scored.items() if job.route == route}
        if own:
            cases = [one.right for job, one in own.items() if not job.fixed and one.right is not None]
            twins = [one.right for job, one in own.items() if job.fixed and one.right is not None]
            near = [one.near for one in own.values() if one.near is not None]
            failed = sum(one.right is None for one in own.values())
            yield f"| {route} | {_rate(cases)} | {_rate(twins)} | {_rate(near)} | {failed} |"


def _rate(answers: list[bool]) -> str:
    if not answers:
        return "–"
    return f"{sum(answers)} of {len(answers)} ({100 * sum(answers) / len(answers):.0f} %)"


def _gains(results: Results) -> Iterator[str]:
    yield "| case | twin saves | must save | of | named by a timeline |"
    yield "|---|---|---|---|---|"
    for case in CASES.values():
        if results.device not in case.devices:
            continue
        share, truth = gain(results, case.name), case.truth
        holds = {True: "", False: " (no cause here: not counted)", None: ""}[has_its_cause(results, case.name)]
        low, high = truth.gain
        bounds = f"{100 * low:.0f}–{100 * high:.0f} %" if results.device == "cuda" else "anything"
        said = "–" if share is None else f"{100 * share:.0f} %"
        yield f"| {case.name} | {said}{holds} | {bounds} | {truth.gain_of} | {truth.unseen or ', '.join(truth.first)} |"


def _confusion(scored: dict[Job, Score]) -> Iterator[str]:
    yield "| case | twin | route | expected | first | all | right | said / gained |"
    yield "|---|---|---|---|---|---|---|---|"
    for job, one in scored.items():
        more = len(one.found) - _MOST_IDS
        found = ", ".join(one.found[:_MOST_IDS]) + (f", {more} more" if more > 0 else "")
        right = {True: "yes", False: "**no**", None: "–"}[one.right]
        shares = (
            "" if one.said_pct is None or one.gained_pct is None else f"{one.said_pct:.0f} / {one.gained_pct:.0f} %"
        )
        twin = "fixed" if job.fixed else "cause"
        cells = (job.case, twin, job.route, one.expected, _cell(one.first), _cell(found), right, shares)
        yield f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "/")


def _misses(scored: dict[Job, Score]) -> Iterator[str]:
    yield "Misses:"
    yield ""
    none = True
    for job, one in scored.items():
        what = f"- {job.case}{' (fixed)' if job.fixed else ''}, {job.route}: "
        if one.right is False:
            none = False
            wrong = f"; must not be there: {', '.join(one.wrong)}" if one.wrong else ""
            yield f"{what}expected {one.expected}, first was {one.first}{wrong}"
        elif one.near is False:
            none = False
            said = "nothing" if one.said_pct is None else f"{one.said_pct:.0f} %"
            yield f"{what}says {said} could be recovered, the twin gained {one.gained_pct:.0f} %"
    if none:
        yield "none"
