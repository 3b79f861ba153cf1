"""errors-rising: requests that end by abort or error, or that are answered with an HTTP 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from gputop_llm.model import EngineLive
from gputop_llm.model.engine import FAILED_REASONS
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.checks import Check, State, all_of, any_of, at_least, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import limit, ranked, when
from gputop_llm.symptoms.fresh import unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import EngineView, NodeView
from gputop_llm.units import number, pct, seconds

RULE = "errors-rising"


@dataclass(frozen=True, slots=True)
class _Failed:
    """What failed in a window, per second and as a share of all in percent; both None while it isn't known."""

    per_s: float | None
    share_pct: float | None

    @classmethod
    def of(cls, failed_per_s: float, total_per_s: float | None) -> _Failed:
        if total_per_s is None:
            return cls(None, None)
        return cls(failed_per_s, 100.0 * failed_per_s / total_per_s if total_per_s > 0 else 0.0)

    def state(self, window_s: float, limits: Limits) -> State:
        """Whether that is too much."""
        return all_of(
            over(self.share_pct, limits, f"{RULE}.share_pct"),
            at_least(None if self.per_s is None else self.per_s * window_s, limits, f"{RULE}.failures"),
        )


def errors_rising(view: NodeView, limits: Limits) -> Iterator[Check]:
    """More than a few requests in a hundred end by abort or error, or more than a few answers in a hundred are 5xx."""
    for engine in view.engines:
        live, lacking = engine.live, unreadable(engine, limits)
        if live is None or lacking:
            yield Check(RULE, engine.subject, State.UNKNOWN, lacking or "")
            continue
        counted = None if "failures" in live.missing else live.requests_per_s
        ended = _Failed.of(sum(live.finished_per_s.get(reason, 0.0) for reason in FAILED_REASONS), counted)
        answers = engine.frame.window.http_per_s if engine.frame.window else {}
        http = _Failed.of(answers.get("5xx", 0.0), sum(answers.values()) if answers else None)
        window_s = live.window_s or 0.0
        states = [found.state(window_s, limits) for found in (ended, http) if found.per_s is not None]
        if not states:
            why = _missing(live, "")
            yield Check(RULE, engine.subject, State.UNKNOWN, f"requests by how they ended ({why})")
            continue
        yield judged(RULE, engine.subject, any_of(*states), "", partial(_symptom, engine, live, ended, http, limits))


def _symptom(engine: EngineView, live: EngineLive, ended: _Failed, http: _Failed, limits: Limits) -> Symptom:
    source = f"{engine.kind} /metrics"
    reasons = {reason: rate for reason in FAILED_REASONS if (rate := live.finished_per_s.get(reason))}
    told = ", ".join(f"{reason} {number(rate)}/s" for reason, rate in reasons.items())
    aborted, errors, refused = reasons.get("abort", 0.0), reasons.get("error", 0.0), http.per_s or 0.0
    ttft = live.latency.get("ttft")
    slow = ttft is not None and ttft.mean_s is not None and ttft.mean_s > limits.value("ttft-high.p95_s")
    waits = f"TTFT mean {seconds(ttft.mean_s if ttft else None)}, {live.waiting or 0:.0f} waiting"
    share, by_http = max((ended.share_pct or 0.0, False), (http.share_pct or 0.0, True))
    answered = f"HTTP 5xx {number(refused)}/s"
    return Symptom(
        id=RULE,
        subject=engine.subject,
        severity=Severity.CRITICAL if share > limits.value(f"{RULE}.critical_pct") else Severity.WARNING,
        headline=f"{pct(share, 1)} of the answers are failures: {answered}"
        if by_http
        else f"{pct(share, 1)} of the requests fail: {told}",
        evidence=(
            _share(live, "failed share", ended, source, limits),
            _count(live, "failed in the window", ended, source, limits),
            *(
                Evidence(f"finished: {reason}", rate, "/s", source, live.window_s)
                for reason, rate in sorted(live.finished_per_s.items())
            ),
            _share(live, "HTTP 5xx, of all answers", http, source, limits),
            _count(live, "HTTP 5xx in the window", http, source, limits),
        ),
        causes=ranked(
            Cause(
                "clients give up: their timeout is shorter than the wait",
                when(aborted > errors, f"abort {number(aborted)}/s") + when(slow or bool(live.waiting), waits),
                when(errors > aborted, f"error {number(errors)}/s: the engine ended them, not the clients")
                + when(refused > aborted, f"{answered}: the server answered them, no client gave up")
                + when(aborted > 0 and not slow and live.waiting == 0, waits),
            ),
            Cause(
                "the engine fails requests: out of memory, a bad input, a failed KV transfer",
                when(errors > 0, f"error {number(errors)}/s"),
                when(errors == 0 and ended.per_s is not None, "none ended by error"),
            ),
            Cause(
                "the front end fails them before the engine has them: a queue limit (503), a dead engine, a bug (500)",
                when(refused > errors, f"{answered}, and of those that the engine had {number(errors)}/s end by error"),
                when(http.per_s == 0, "no answer was a 5xx"),
            ),
        ),
        advice=(
            Advice("read the engine's log at these times: each error is told there with its request"),
            Advice(
                "refuse early what can't be served in time, instead of letting clients time out",
                {"vllm": "--max-num-queued-reqs (vLLM 0.32)", "sglang": "--max-queued-requests"},
            ),
        ),
        refuted_by="the clients count no failures in the same minute: they stopped the requests themselves",
        agreeing=1 + (errors > 0 or refused > 0) + (slow or bool(live.waiting)),
        signals=3,
        chart=engine.series("http_5xx_pct" if by_http else "failed_pct"),
        chart_threshold=limits.value(f"{RULE}.share_pct"),
    )


def _share(live: EngineLive, name: str, failed: _Failed, source: str, limits: Limits) -> Evidence:
    missing = None if failed.share_pct is not None else _missing(live, name)
    return Evidence(
        name, failed.share_pct, "%", source, live.window_s, missing=missing, **limit(limits, f"{RULE}.share_pct")
    )


def _count(live: EngineLive, name: str, failed: _Failed, source: str, limits: Limits) -> Evidence:
    count = None if failed.per_s is None else failed.per_s * (live.window_s or 0.0)
    missing = None if count is not None else _missing(live, name)
    return Evidence(name, count, "", source, live.window_s, missing=missing, **limit(limits, f"{RULE}.failures"))


def _missing(live: EngineLive, name: str) -> str:
    if name.startswith("HTTP"):
        return "the page does not count answers by status"
    return live.missing.get("failures", live.missing.get("finished_per_s", "not on the page"))


RULES = (Rule(RULE, "requests fail", errors_rising),)
