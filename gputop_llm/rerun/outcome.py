"""What a re-run gave, in words and as JSON: which kernels were launched again, and what to do about the others."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_llm import __version__
from gputop_llm.printable import printable
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.rerun.match import Launched, Match, reproduced_pct
from gputop_llm.rerun.place import Chosen, Python
from gputop_llm.rerun.prepare import Prepared
from gputop_llm.rerun.run import ServerCost
from gputop_llm.timeline.launch_shape import Extents
from gputop_llm.units import DASH
from gputop_llm.verdict.kernel_names import Family

SCHEMA = "gputop-llm/rerun/1"
_WIDTH = 80
_BELOW = " " * 10
#: Beyond it a match computes something else, or on other data.
_OTHER_DURATION = 1.5
_ENGINES_OWN = (Family.ATTENTION, Family.KV_WRITE, Family.NORM, Family.ROPE, Family.ACTIVATION)


@dataclass(frozen=True)
class Outcome:
    """A script that was run.

    Args:
        errors: by case why it could not be run.
        device, torch: as the script told them.
        cost: of the server that worked meanwhile; None where none was watched.
    """

    script: Path
    python: Python
    gpu: Chosen
    matches: tuple[Match, ...]
    errors: Mapping[str, str]
    device: str
    torch: str
    cost: ServerCost | None = None


def outcome_lines(prepared: Prepared, outcome: Outcome) -> list[str]:
    """The page."""
    return [line.rstrip() for line in _page(prepared, outcome)]


def outcome_object(prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
    """The same as JSON."""
    cost = outcome.cost
    return {
        "schema": SCHEMA,
        "version": __version__,
        "capture": prepared.source,
        "script": str(outcome.script),
        "python": outcome.python.path,
        "gpu": {"index": outcome.gpu.index, "name": outcome.device, "serving": outcome.gpu.serving},
        "torch": outcome.torch,
        "reproduced_pct": reproduced_pct(outcome.matches),
        "kernels": [_object(match, outcome) for match in outcome.matches]
        + [{**_kernel(one), "again": None, "why_not": why, "todo": todo} for one, why, todo in prepared.refused],
        "errors": dict(outcome.errors),
        "server_tokens_per_s": None
        if cost is None
        else {"before": cost.before, "during": cost.during, "after": cost.after},
        "notes": list(prepared.notes),
    }


def why_not(match: Match, errors: Mapping[str, str]) -> tuple[str, str]:
    """Why a kernel was not launched again, and what to do then."""
    if match.near:
        near = match.near[0]
        return (
            f"the same kernel ran with grid {extents(near.grid)}, block {extents(near.block)} ({near.case})",
            "another shape: edit that case in the script, or add the batch size",
        )
    if late := sum(error.startswith("TimeoutError") for error in errors.values()):
        return f"time was up before the last {late} operations were tried", "run the script by hand, or --kernel NAME"
    family = match.hot.family
    if match.hot.name.startswith("triton_"):
        said = next((error for case, error in errors.items() if case.startswith(f"{match.hot.name},")), None)
        why = "no source of that name could be used" if said is None else f"its source failed ({printable(said, 120)})"
        return f"torch.compile wrote it, and in its cache {why}", "run the model's own code: --repro CMD"
    if family in (Family.MOE_GEMM, Family.MOE_DISPATCH):
        return "operations of experts are not tried", "run the model's own code: --repro CMD"
    failed = next((error for case, error in errors.items() if "vLLM" in case or "norm" in case), None)
    if family in _ENGINES_OWN and failed is not None:
        return f"the engine's own operation could not be called ({printable(failed, 120)})", (
            "run the script by the engine's own Python, or --repro CMD"
        )
    if family is Family.GEMM:
        return (
            "no operation that was tried launched it",
            "another batch size, data type or library version: edit the script, or --repro CMD",
        )
    return (
        "no operation that was tried launched it",
        "record its operator (`capture --with cpu,shapes`), or --repro CMD",
    )


def server_line(cost: ServerCost) -> str:
    """What a re-run cost the server."""
    before, during, after = (
        DASH if rate is None else f"{rate:,.0f}" for rate in (cost.before, cost.during, cost.after)
    )
    change = (
        f" ({round(100 * (cost.during / cost.before - 1)):+d} %)" if cost.before and cost.during is not None else ""
    )
    return f"the server: {before} tokens/s before, {during} meanwhile{change}, {after} after"


def extents(found: Extents | None) -> str:
    """A grid or block: "2×64×1"."""
    return "×".join(map(str, found)) if found else DASH


def _page(prepared: Prepared, outcome: Outcome) -> Iterator[str]:
    share = reproduced_pct(outcome.matches)
    looked = sum(match.hot.busy_pct for match in outcome.matches)
    yield from _wrapped(
        f"Run again: {share:.0f} % of the GPU's time by the same kernel, grid and block, of {looked:.0f} % looked at"
    )
    gpu = f"GPU {outcome.gpu.index} ({outcome.device}){', on which others work' if outcome.gpu.serving else ''}"
    yield from _wrapped(f"{prepared.source}; on {gpu}, torch {outcome.torch}, {outcome.python.whose} Python", "  ")
    yield from _wrapped(f"script: {outcome.script}", "  ")
    if outcome.cost is not None:
        yield from _wrapped(server_line(outcome.cost), "  ")
    yield ""
    yield f"{'of GPU':>6} {'live µs':>8} {'again µs':>8}  kernel"
    for match in outcome.matches:
        hot, best = match.hot, match.best
        again = f"{best.duration_us:.1f}" if best else DASH
        yield f"{hot.busy_pct:>4.1f} % {hot.median_ns / 1e3:>8.1f} {again:>8}  {printable(hot.short, 54)}"
        yield from _wrapped(f"grid {extents(hot.grid)}, block {extents(hot.block)}{_by(match)}", _BELOW)
        if best is None:
            why, todo = why_not(match, outcome.errors)
            yield from _wrapped(f"{why}: {todo}", _BELOW)
    for one, why, todo in prepared.refused:
        yield f"{one.busy_pct:>4.1f} % {one.median_ns / 1e3:>8.1f} {'not run':>8}  {printable(one.short, 54)}"
        yield from _wrapped(f"{why}: {todo}", _BELOW)
    if prepared.notes:
        yield ""
        for note in prepared.notes:
            yield from _wrapped(note, "  - ", "    ")


def _by(match: Match) -> str:
    if match.best is None:
        return ""
    others = len({one.case for one in match.same} - {match.best.case})
    said = f": {match.best.case}{f' (and {others} other cases)' if others else ''}"
    ratio = match.best.duration_us / (match.hot.median_ns / 1e3) if match.hot.median_ns else 1.0
    if not 1 / _OTHER_DURATION <= ratio <= _OTHER_DURATION:
        said += f"; {ratio:.1f} times the live duration: another shape, or other inputs than the live ones"
    return said


def _wrapped(text: str, indent: str = "", later: str | None = None) -> list[str]:
    return textwrap.wrap(
        printable(text), _WIDTH, initial_indent=indent, subsequent_indent=indent if later is None else later
    )


def _object(match: Match, outcome: Outcome) -> dict[str, Any]:
    why = None if match.best else why_not(match, outcome.errors)
    return {
        **_kernel(match.hot),
        "again": _launched(match.best) if match.best else None,
        "others": [_launched(one) for one in (*match.same[1:], *match.near)],
        "why_not": why[0] if why else None,
        "todo": why[1] if why else None,
    }


def _kernel(hot: HotLaunch) -> dict[str, Any]:
    return {
        "name": printable(hot.name),
        "grid": hot.grid,
        "block": hot.block,
        "busy_pct": hot.busy_pct,
        "window_pct": hot.window_pct,
        "calls": hot.calls,
        "by_graph": hot.by_graph,
        "live_us": hot.median_ns / 1e3,
    }


def _launched(one: Launched) -> dict[str, Any]:
    return {"case": one.case, "grid": one.grid, "block": one.block, "duration_us": one.duration_us}
