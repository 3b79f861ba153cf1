"""How close the engine is to what its GPUs can do at most: in a few words, and with all that goes into it."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.model import EngineFrame, Frame
from gputop_llm.model.limits import EngineLimits, LimitEstimate, LimitInput
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Line, bar, beside, cells, fit, pad, rule, wrapped
from gputop_llm.tui.panels.common import small_pct
from gputop_llm.tui.panels.symptom_words import figure
from gputop_llm.tui.plan import TWO_COLUMNS
from gputop_llm.units import DASH, number, seconds

GAP = 2
LABEL = 10
VALUE = 14
_WHAT = {"MBU": "memory bandwidth, while it decodes", "MFU": "arithmetic, while it prefills"}


def share(estimate: LimitEstimate, digits: int = 1) -> str:
    """ "34 %", "≥34 %" where a part can't be known, "–"; below 10 with so many decimals."""
    value = estimate.value_pct
    text = small_pct(value) if digits or value is None else "<1 %" if 0 < value < 0.95 else f"{value:.0f} %"
    return f"≥{text}" if estimate.at_least and value is not None else text


def in_short(limits: EngineLimits | None, room: int) -> str:
    """Both shares in at most `room` cells; empty when neither is known, or there is no room."""
    known = [e for e in (limits.mbu, limits.mfu) if e.value_pct is not None] if limits else []
    if not known:
        return ""
    text = " ".join(f"{e.name} {share(e, 0)}" for e in known)
    for trial in (f"{text} of the limit", text):
        if cells(trial) <= room:
            return trial
    return ""


def limit_lines(limits: EngineLimits, width: int) -> list[Line]:
    """One line each, for a page that has more to say."""
    lines: list[Line] = []
    for estimate in (limits.mbu, limits.mfu):
        if estimate.value_pct is None:
            text = f"{DASH} {printable(estimate.unknown or '')}"
        else:
            text = f"{share(estimate)} of the limit: {_WHAT.get(estimate.name, '')}"
        if estimate.floor_tpot_s is not None:
            text += f"; TPOT can't be under {seconds(estimate.floor_tpot_s)}"
        rows = wrapped(text, max(width - LABEL, 10))
        lines += [[(pad(estimate.name if at == 0 else "", LABEL), "dim"), *row] for at, row in enumerate(rows)]
    return lines


def limits_page(frame: Frame, width: int) -> list[Line]:
    """Both estimates of the attached engine with their inputs; side by side where the terminal is wide."""
    engine = frame.focused_engine
    if engine is None:
        return wrapped("no engine is attached, or it has no address that answers: t shows what there is", width, "dim")
    if engine.limits is None:
        return wrapped("nothing is known of the model that this engine serves", width, "dim")
    if width < TWO_COLUMNS:
        return [*_estimate(engine, engine.limits.mbu, width), *_estimate(engine, engine.limits.mfu, width)]
    left = (width - GAP) // 2
    mbu, mfu = _estimate(engine, engine.limits.mbu, left), _estimate(engine, engine.limits.mfu, width - GAP - left)
    return beside(mbu, mfu, left, width, GAP)


def _estimate(engine: EngineFrame, estimate: LimitEstimate, width: int) -> list[Line]:
    what = _WHAT.get(estimate.name)
    lines: list[Line] = [rule([(estimate.name, "title"), (f" {what}" if what else "", "dim")], width)]
    if estimate.value_pct is not None:
        text = f"{share(estimate)} of the limit"
        lines.append([(pad(text, 22), "strong"), *bar(estimate.value_pct, min(40, max(width - 24, 0)), "mem")])
    if estimate.unknown is not None:
        lines += _labelled("not known", f"▲ {printable(estimate.unknown)}", width, "warn")
    if estimate.at_least:
        lines += _labelled("", "at least: a part of it can't be known and is left out", width)
    lines += _labelled("formula", printable(estimate.formula), width)
    if estimate.floor_tpot_s is not None:
        lines += _labelled("TPOT", _floor(engine, estimate.floor_tpot_s), width)
    for one in estimate.inputs:
        lines += _input(one, estimate.inputs, width)
    for note in estimate.notes:
        lines += _labelled("note", printable(note), width, "dim")
    return lines


def _floor(engine: EngineFrame, floor_s: float) -> str:
    """The floor beside what is measured."""
    text = f"can't be under {seconds(floor_s)} per token with this batch on these GPUs"
    latency = engine.window.total.latency if engine.window else {}
    found = latency.get("tpot") or latency.get("itl")
    if found is None or found.mean_s is None:
        return text
    times = f", {number(found.mean_s / floor_s)} times that" if floor_s > 0 else ""
    return f"{text}; its mean is {seconds(found.mean_s)}{times}"


def _input(one: LimitInput, all_: Sequence[LimitInput], width: int) -> list[Line]:
    label = min(max(cells(printable(i.name)) for i in all_), max(width // 3, 12))
    name = wrapped(printable(one.name), label)
    facts = " · ".join(printable(text) for text in (one.text, one.source) if text)
    rest = wrapped(facts, max(width - label - VALUE - 2, 10), "dim")
    lines: list[Line] = []
    for at in range(max(len(name), len(rest))):
        head = "".join(text for text, _ in name[at]) if at < len(name) else ""
        value = _value(one) if at == 0 else ""
        line: Line = [(pad(head, label), ""), (pad(value, VALUE, right=True), "dim" if value == DASH else "strong")]
        lines.append(fit([*line, ("  ", ""), *(rest[at] if at < len(rest) else [])], width))
    return lines


def _value(one: LimitInput) -> str:
    """Bandwidth and arithmetic in the decimal units of data sheets, all else as everywhere."""
    if one.value is None:
        return DASH
    for unit, short in (("B/s", "B/s"), ("FLOP/s", "FLOP/s")):
        if one.unit == unit:
            return f"{one.value / 1e12:.4g} T{short}" if one.value >= 1e12 else f"{one.value / 1e9:.4g} G{short}"
    if one.unit == "" and one.value >= 1e9:
        return f"{one.value / 1e9:.4g} billion"
    return figure(one.value, one.unit)


def _labelled(label: str, text: str, width: int, role: str = "") -> list[Line]:
    rows = wrapped(text, max(width - LABEL, 10), role)
    return [[(pad(label if at == 0 else "", LABEL), "dim"), *row] for at, row in enumerate(rows)]
