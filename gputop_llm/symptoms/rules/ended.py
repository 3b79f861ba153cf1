"""Engines that can't serve any more although something is left of them: a part of `stalled`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gputop_llm.model import Frame, LogSignal, Target
from gputop_llm.model.log import root_error
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Subject, Symptom
from gputop_llm.printable import printable
from gputop_llm.symptoms.checks import Check, State, judged
from gputop_llm.symptoms.evidence import limit
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.processes import label
from gputop_llm.symptoms.view import EngineView, NodeView
from gputop_llm.units import size, uptime

RULE = "stalled"
_BEFORE_ITS_END_S = 60.0
# Of the log's words in a headline; the evidence has more of them.
_HEADLINE = 90


def checks(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Engine processes that outlived their API server, and engines that ended while requests ran."""
    found = view.now.targets.value
    targets = found.targets if found else ()
    orphans = [target for target in targets if target.orphan]
    for orphan in orphans:
        so_s = _orphan_for_s(view, orphan)
        before = next((e for e in view.ended if e.target and _same_processes(e.target, orphan)), None)
        make = partial(_orphaned, view.names.subject(orphan), orphan, so_s, before, limits)
        yield judged(RULE, view.names.subject(orphan), _state(so_s, limits), "", make)
    for engine in view.ended:
        running, served = _running(engine), _served_to_the_end(engine)
        if not (running or served) or any(
            engine.target and _same_processes(engine.target, orphan) for orphan in orphans
        ):
            continue
        ago_s = view.now.mono_s - engine.past[-1][0]
        back = any(engine.frame.url in target.urls for target in targets)
        state = State.CLEAR if back else _state(ago_s, limits)
        yield judged(RULE, engine.subject, state, "", partial(_gone, view.now, engine, running, ago_s, limits))


def _state(for_s: float, limits: Limits) -> State:
    """Raised only after a while: a server that is being stopped or replaced looks alike for a moment."""
    return State.RAISED if for_s >= limits.value(f"{RULE}.no_progress_s") else State.BETWEEN


def _running(engine: EngineView | None) -> float:
    """Requests that ran when the engine was last heard."""
    reading = engine.frame.scrape.value if engine else None
    return sum(one.running or 0.0 for one in reading.series) if reading else 0.0


def _served_to_the_end(engine: EngineView) -> bool:
    """Whether it made tokens in the last window heard: gauges that say 0 may be older than the last request."""
    return engine.live is not None and (engine.live.generation_tokens_per_s or 0.0) > 0


def _same_processes(one: Target, other: Target) -> bool:
    return not set(one.pids).isdisjoint(other.pids)


def _orphan_for_s(view: NodeView, orphan: Target) -> float:
    since = view.now.mono_s
    for frame in reversed(view.frames):
        found = frame.targets.value
        if found is None or not any(t.key == orphan.key and t.orphan for t in found.targets):
            break
        since = frame.mono_s
    return view.now.mono_s - since


def _orphaned(subject: Subject, orphan: Target, so_s: float, before: EngineView | None, limits: Limits) -> Symptom:
    running = _running(before)
    held = [p.mem_bytes for p in orphan.processes if p.mem_bytes is not None]
    pids = [str(p.pid) for p in orphan.processes if p.pid is not None]
    count = f"{len(pids)} orphaned process{'es' if len(pids) != 1 else ''}"
    headline = f"the API server is gone: {count} left"
    if held:
        headline += f", holding {size(sum(held))} of GPU memory"
    if running:
        headline += f"; {running:.0f} requests ran"
    return Symptom(
        id=RULE,
        subject=subject,
        severity=Severity.CRITICAL,
        headline=headline,
        evidence=(
            Evidence("without an API server for", so_s, "s", "/proc", **limit(limits, f"{RULE}.no_progress_s")),
            Evidence(
                "running when last heard",
                running or None,
                "",
                "/metrics",
                missing="not watched" if not running else None,
            ),
            Evidence(
                "GPU memory held",
                float(sum(held)) if held else None,
                "B",
                "NVML",
                missing=None if held else "NVML names no memory of these processes",
            ),
            *(Evidence(label(p), None, "", "/proc", text=f"state {p.state or 'unknown'}") for p in orphan.processes),
        ),
        causes=(
            Cause("the API server was killed: by the OOM killer, a supervisor, or by hand", ("its children live on",)),
        ),
        advice=(
            Advice(f"if their state matters, dump their stacks first; then end them: kill {' '.join(pids)}"),
            Advice(
                "start the engine so that a supervisor ends its whole process group (systemd: KillMode=control-group)"
            ),
        ),
        refuted_by="a server that serves through these processes under another root",
        next_capture="py-spy",
        agreeing=2,
        signals=2,
        chart=before.series("generation_tokens_per_s") if before else None,
        chart_threshold=0.0,
    )


def _last_error(now: Frame, target_key: str, ago_s: float) -> LogSignal | None:
    """The failure that its log told as it ended; none that it survived."""
    log = now.log_of(target_key)
    if log is None or log.value is None:
        return None
    since_s = now.at_s - ago_s - _BEFORE_ITS_END_S
    return root_error(s for s in log.value.signals if s.at_s is not None and s.at_s >= since_s)


def _gone(now: Frame, engine: EngineView, running: float, ago_s: float, limits: Limits) -> Symptom:
    processes = engine.target.processes if engine.target else ()
    rate, window_s = (engine.live.generation_tokens_per_s, engine.live.window_s) if engine.live else (None, None)
    how = f" with {running:.0f} requests running" if running else ", seconds after its last token"
    error = _last_error(now, engine.frame.target_key, ago_s)
    said = "" if error is None else f": {printable(error.text, _HEADLINE)}"
    return Symptom(
        id=RULE,
        subject=engine.subject,
        # A server that was drained looks like this too, where its last request has only just ended.
        severity=Severity.CRITICAL if running else Severity.WARNING,
        headline=f"the engine ended {uptime(ago_s)} ago{how}{said}",
        evidence=(
            Evidence("gone for", ago_s, "s", "/proc", **limit(limits, f"{RULE}.no_progress_s")),
            Evidence("running when last heard", running, "", f"{engine.kind} /metrics"),
            Evidence(
                "generated when last heard",
                rate,
                "tok/s",
                f"{engine.kind} /metrics",
                window_s,
                missing="no window of it was seen" if rate is None else None,
            ),
            *(Evidence(label(p), None, "", "/proc", text="gone") for p in processes),
        ),
        causes=(
            Cause(
                "a worker died, and the engine with it: out of memory, an Xid, a crash",
                () if error is None else (f"its log: {error.text}",),
            ),
            Cause("it was stopped or replaced on purpose, without letting its requests end"),
        ),
        advice=(
            Advice("look into the engine's log and the kernel log (OOM killer, Xid) at that time"),
            Advice("drain before stopping: take it out of the router, wait until nothing runs"),
        ),
        refuted_by="it serves under another address, and its clients saw no error",
        agreeing=2,
        signals=2,
        chart=engine.series("generation_tokens_per_s"),
        chart_threshold=0.0,
    )
