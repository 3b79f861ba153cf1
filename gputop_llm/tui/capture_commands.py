"""Every command of the display of a capture, declared once, as for the monitor."""

from __future__ import annotations

from gputop_llm.tui.commands import Command

CAPTURE_COMMANDS = (
    Command("verdict", ("1",), "1", "verdict", "Verdict: what limits the GPU, ranked by what fixing it could give",
            "Screens", 1),
    Command("timeline", ("2",), "2", "timeline", "Timeline: the window as a picture", "Screens", 2),
    Command("gap", ("g",), "g", "gap", "Go to the longest gap; again: to the next longest", "Timeline", 3),
    Command("step", ("s",), "s", "slow step", "Go to the slowest step; again: to the next slowest", "Timeline", 4),
    Command("kernel", ("k",), "k", "hot kernel", "Go to the longest run of the hottest kernel; again: to the next",
            "Timeline", 5),
    Command("zoom_in", ("plus", "equals_sign"), "+", "closer", "Show half as much time", "Timeline", 6),
    Command("zoom_out", ("minus",), "-", "wider", "Show twice as much time", "Timeline", 7),
    Command("left", ("left",), "←", "earlier", "Show what was before; at a finding: the one before", "Timeline"),
    Command("right", ("right",), "→", "later", "Show what came after; at a finding: the next one", "Timeline"),
    Command("reset", ("0",), "0", "all", "Show the whole window", "Timeline", 8),
    Command("rerun", ("n",), "n", "run again", "On a kernel's row: run it again without the server, by ncu; asks first",
            "Kernels"),
    Command("perfetto", ("P",), "P", "Perfetto", "Save what is in view as a trace for Perfetto", "Saving", 11),
    Command("export_text", ("x",), "x", "export", "Save this screen as text", "Saving", 12),
    Command("export_svg", ("X",), "X", "export SVG", "Save this screen as an SVG picture", "Saving"),
    Command("help", ("question_mark", "h"), "?", "help", "Show all keys and what the words mean", "Program", 1),
    Command("suspend", ("ctrl+z",), "ctrl+z", "to shell", "Back to the shell; `fg` returns", "Program"),
    Command("quit", ("q", "ctrl+c"), "q", "quit", "Leave; while a capture is read: give up", "Program", 10),
)  # fmt: skip
