"""Every command, declared once: its keys, its label on the status line, its help, its name in the palette."""

from __future__ import annotations

from dataclasses import dataclass

PERIODS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Command:
    """One thing the user can ask for.

    `footer` is its claim to room on the status line, the lowest first; 0 keeps it off.
    """

    name: str
    keys: tuple[str, ...]
    shown_key: str
    label: str
    help: str
    group: str
    footer: int = 0


COMMANDS = (
    Command("overview", ("1",), "1", "overview", "Overview: the essence on one screen", "Screens", 6),
    Command("gpus", ("2",), "2", "GPUs", "GPUs: every value of every GPU, and why one is missing", "Screens", 1),
    Command("engine", ("3",), "3", "engine", "Engine: everything it says of itself, ranks side by side", "Screens", 2),
    Command(
        "processes", ("4",), "4", "processes", "Processes: engines, their ranks, and who else is there", "Screens", 3
    ),
    Command(
        "symptoms", ("5",), "5", "symptoms", "Symptoms: what is wrong, since when, and what can't be told", "Screens", 4
    ),
    Command(
        "limits", ("6",), "6", "limits", "Limits: MBU and MFU with every input, and the floor of TPOT", "Screens", 10
    ),
    Command(
        "capture",
        ("c",),
        "c",
        "capture",
        "Capture: asks first, then records what the GPU does, for half a second",
        "Captures",
        6,
    ),
    Command(
        "stacks",
        ("s",),
        "s",
        "stacks",
        "Stacks: where the Python code of every rank is, side by side; r records it",
        "Captures",
    ),
    Command(
        "arm",
        ("a",),
        "a",
        "arm",
        "Arm, on a symptom's page: asks, then captures once when it holds; again: disarm",
        "Captures",
    ),
    Command(
        "doctor",
        ("d",),
        "d",
        "doctor",
        "Doctor: which ways to capture are open, why the others are not, what opens them",
        "Captures",
    ),
    Command("captures", ("v",), "v", "verdicts", "Captures of this session, and the verdict of each", "Captures", 11),
    Command("targets", ("t",), "t", "target", "Choose which engine or process to watch", "Watching", 8),
    Command("pause", ("space", "p"), "space", "pause", "Freeze the display; collecting goes on", "Watching", 9),
    Command("faster", ("plus", "equals_sign"), "+", "faster", "Look more often", "Watching", 12),
    Command("slower", ("minus",), "-", "slower", "Look less often", "Watching", 13),
    Command("export_text", ("x",), "x", "export", "Save this screen as text", "Saving", 11),
    Command("export_svg", ("X",), "X", "export SVG", "Save this screen as an SVG picture", "Saving"),
    Command("help", ("question_mark", "h"), "?", "help", "Show all keys and what the words mean", "Program", 1),
    Command("palette", ("ctrl+p", "colon"), ":", "commands", "Find a command by name", "Program", 14),
    Command("suspend", ("ctrl+z",), "ctrl+z", "to shell", "Back to the shell; `fg` returns", "Program"),
    Command("quit", ("q", "ctrl+c"), "q", "quit", "Leave; what is watched runs on untouched", "Program", 7),
)


def step_period(period_s: float, faster: bool) -> float:
    """The next shorter or longer period of the ladder; the same at its end."""
    if faster:
        return max((p for p in PERIODS_S if p < period_s - 1e-9), default=min(PERIODS_S))
    return min((p for p in PERIODS_S if p > period_s + 1e-9), default=max(PERIODS_S))
