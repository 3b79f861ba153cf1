"""Every command, declared once: its keys, its label on the status line, its help, its name in the palette."""

from __future__ import annotations

from dataclasses import dataclass

PERIODS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Command:
    """One thing the user can ask for.

    `footer` is its place on the status line, the lowest first; 0 keeps it off.
    """

    name: str
    keys: tuple[str, ...]
    shown_key: str
    label: str
    help: str
    group: str
    footer: int = 0


COMMANDS = (
    Command("overview", ("1",), "1", "overview", "Overview: the essence on one screen", "Screens", 1),
    Command("gpus", ("2",), "2", "GPUs", "GPUs: every value of every GPU, and why one is missing", "Screens", 2),
    Command("engine", ("3",), "3", "engine", "Engine: everything it says of itself, ranks side by side", "Screens", 3),
    Command(
        "processes", ("4",), "4", "processes", "Processes: engines, their ranks, and who else is there", "Screens", 4
    ),
    Command("targets", ("t",), "t", "target", "Choose which engine or process to watch", "Watching", 7),
    Command("pause", ("space", "p"), "space", "pause", "Freeze the display; collecting goes on", "Watching", 6),
    Command("faster", ("plus", "equals_sign"), "+", "faster", "Look more often", "Watching", 10),
    Command("slower", ("minus",), "-", "slower", "Look less often", "Watching", 11),
    Command("export_text", ("x",), "x", "export", "Save this screen as text", "Saving", 9),
    Command("export_svg", ("X",), "X", "export SVG", "Save this screen as an SVG picture", "Saving"),
    Command("help", ("question_mark", "h"), "?", "help", "Show all keys and what the words mean", "Program", 5),
    Command("palette", ("ctrl+p", "colon"), ":", "commands", "Find a command by name", "Program", 12),
    Command("suspend", ("ctrl+z",), "ctrl+z", "to shell", "Back to the shell; `fg` returns", "Program"),
    Command("quit", ("q", "ctrl+c"), "q", "quit", "Leave; what is watched runs on untouched", "Program", 8),
)


def step_period(period_s: float, faster: bool) -> float:
    """The next shorter or longer period of the ladder; the same at its end."""
    if faster:
        return max((p for p in PERIODS_S if p < period_s - 1e-9), default=min(PERIODS_S))
    return min((p for p in PERIODS_S if p > period_s + 1e-9), default=max(PERIODS_S))
