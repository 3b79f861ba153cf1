"""The first and the last line of every screen: who is watched, and which keys there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputop_llm.model import NO_PROCESS_DATA, Frame
from gputop_llm.printable import printable
from gputop_llm.tui.commands import COMMANDS, Command
from gputop_llm.tui.draw import Line, Run, cells, fit, joined, pad, width_of
from gputop_llm.tui.panels.common import address, clock_text, engine_name, engines_of, gpus_text, labelled, period_text
from gputop_llm.units import DASH, uptime


@dataclass(frozen=True, slots=True)
class State:
    """What the app itself has to say."""

    screen: str
    period_s: float
    paused_s: float | None = None
    stalled_s: float | None = None
    simulated: str | None = None
    armed: str | None = None
    message: str | None = None
    more_below: int = 0


def header_line(frame: Frame | None, state: State, width: int) -> Line:
    """Engine, model, PIDs, GPUs, uptime on the left; period and time of day on the right."""
    if frame is None:
        return fit([("gputop-llm", "strong"), (" starting …", "dim")], width)
    right: Line = [(f"every {period_text(state.period_s)}  ", "dim"), (clock_text(frame.at_s), "")]
    room = width - width_of(right) - 2
    left = joined(_identity(frame, max(24, room // 2)), room)
    return [*fit(left, room), ("  ", ""), *right]


def _identity(frame: Frame, model_width: int) -> list[list[Run]]:
    target = frame.focused
    if target is None:
        return _nobody(frame)
    reading = frame.focused_engine.scrape.value if frame.focused_engine else None
    name = target.engine
    if name == "unknown" and reading is not None:
        name = reading.engine
    version = target.version or (reading.version if reading else None)
    who: list[Run] = [(engine_name(name) if name != "cuda" else "CUDA process", "strong")]
    if version:
        who.append((f" {printable(version)}", ""))
    parts: list[list[Run]] = [who]
    served = {one.model for one in reading.series if one.model is not None} if reading else set()
    if len(served) > 1:
        parts.append([(f"{len(served)} models", "strong")])
    elif model := next(iter(served), target.model):
        # What clients call it, where the page tells.
        model = printable(short_model(model))
        parts.append([(pad(model, min(cells(model), model_width)), "strong")])
    age_s = None if target.started_s is None else frame.at_s - target.started_s
    if target.root_pid is not None or not target.urls:
        parts.append(labelled("pid", DASH if target.root_pid is None else str(target.root_pid)))
    else:
        parts.append(labelled("at", address(target.urls[0])))
    if target.remote:
        parts.append([(NO_PROCESS_DATA, "dim")])
        return parts
    parts.append(labelled("GPU", gpus_text(target)))
    engines = engines_of(frame)
    if len(engines) > 1:
        parts.append([(f"1 of {len(engines)} engines", "dim")])
    parts.append(labelled("up", uptime(age_s)))
    if target.container:
        # Whoever looks for the pod doesn't need the container's number.
        parts.append([(printable(target.container.rpartition(", ")[2]), "dim")])
    if target.user:
        parts.append([(printable(target.user), "dim")])
    return parts


def _nobody(frame: Frame) -> list[list[Run]]:
    if frame.focus is not None:
        return [[("the attached engine has exited", "warn")], [("waiting for it to come back", "dim")]]
    if frame.targets.value is None:
        return [[("gputop-llm", "strong")], [("looking for engines", "dim")]]
    engines = engines_of(frame)
    others = len(frame.targets.value.targets) - len(engines)
    if engines:
        first: list[Run] = [(f"{len(engines)} engines found, none attached", "strong")]
    else:
        first = [("no engine found on this node", "strong")]
    if not others:
        return [first]
    return [first, [(f"{others} other CUDA process{'' if others == 1 else 'es'}", "dim")]]


def short_model(model: str) -> str:
    """A model's name; of a path only the last part."""
    return model.rstrip("/").rsplit("/", 1)[-1] or model if model.startswith("/") else model


@dataclass(frozen=True, slots=True)
class StatusLine:
    """The last line, and which of its cells belong to which command."""

    line: Line
    zones: tuple[tuple[int, int, str], ...]


def status_line(state: State, width: int, commands: Sequence[Command] = COMMANDS) -> StatusLine:
    """What must always be seen (simulated, paused, stalled, armed), then keys as far as there is room."""
    line: Line = []
    if state.simulated is not None:
        line += [(f" SIMULATED: {printable(state.simulated.removeprefix('simulated: '))} ", "badge"), (" ", "")]
    if state.paused_s is not None:
        line += [(f" PAUSED {uptime(state.paused_s)} ", "badge"), (" ", "")]
    if state.stalled_s is not None:
        line += [(f" NO NEW DATA for {uptime(state.stalled_s)} ", "badge"), (" ", "")]
    if state.armed is not None:
        line += [(f" ARMED {printable(state.armed)} ", "badge"), (" ", "")]
    if state.message is not None:
        line.append((printable(state.message), "strong"))
        return StatusLine(fit(line, width), ())
    zones: list[tuple[int, int, str]] = []
    used = width_of(line)
    tail: Line = [(f" {state.more_below} more lines ↓", "dim")] if state.more_below else []
    room = width - width_of(tail)
    for command in _with_room(commands, state, room - used):
        runs = _key_runs(command, state)
        size = width_of(runs)
        zones.append((used, used + size, command.name))
        line += [*runs, ("  ", "")]
        used += size + 2
    if zones:
        line.pop()
    return StatusLine(fit([*fit(line, room), *tail], width), tuple(zones))


def _with_room(commands: Sequence[Command], state: State, room: int) -> list[Command]:
    """The commands that fit into `room`, in the order of the table."""
    found: set[str] = set()
    for command in sorted((c for c in commands if c.footer), key=lambda c: _claim(c, state)):
        size = width_of(_key_runs(command, state))
        if size <= room:
            found.add(command.name)
            room -= size + 2
    return [c for c in commands if c.name in found]


def _claim(command: Command, state: State) -> int:
    # Whoever paused must see how to go on.
    return 0 if command.name == "pause" and state.paused_s is not None else command.footer


def _key_runs(command: Command, state: State) -> list[Run]:
    label = "resume" if command.name == "pause" and state.paused_s is not None else command.label
    if command.name == state.screen:
        return [(f"{command.shown_key} {label}", "selected")]
    return [(command.shown_key, "key"), (f" {label}", "dim")]
