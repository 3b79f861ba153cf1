"""The arguments of what watches a node, and of what is known of GPUs."""

from __future__ import annotations

import argparse

from gputop_llm.arguments.shared import Parser, live, positive, seconds, simulated


def add_snapshot(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm snapshot`."""
    snapshot = commands.add_parser(
        "snapshot", help="two samples as text or JSON, then ends", description="Takes two samples, prints them, ends."
    )
    snapshot.add_argument("--json", action="store_true", help="JSON instead of text (docs/headless.md)")
    snapshot.set_defaults(command="snapshot")
    snapshot.add_argument("--demo", metavar="SCENARIO", help="of a simulated node")
    simulated(snapshot)
    live(snapshot, tells=False)


def add_watch(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm watch`."""
    watch = commands.add_parser(
        "watch", help="one JSON object a line until stopped", description="Prints one JSON object a line until stopped."
    )
    watch.add_argument("--json", action="store_true", help="the form (there is no other one yet)")
    watch.add_argument("--count", type=positive, metavar="N", help="end after N lines")
    watch.set_defaults(command="watch")
    watch.add_argument("--demo", metavar="SCENARIO", help="of a simulated node")
    simulated(watch)
    live(watch)


def add_check(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm check`."""
    check = commands.add_parser(
        "check",
        help="one line per symptom, exit code by severity; for cron, Nagios, probes",
        description="Watches for some seconds, prints one line per symptom, ends with an exit code by severity:\n"
        "0 nothing or notes only; 1 warning; 2 critical; 3 can't tell.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("--json", action="store_true", help="JSON instead of lines (docs/headless.md)")
    check.add_argument(
        "--for",
        dest="for_s",
        type=seconds,
        metavar="SECONDS",
        default=15.0,
        help="how long to watch; default: 15",
    )
    check.add_argument(
        "--severity",
        choices=("note", "warning", "critical"),
        default="note",
        help="the least that is printed and counts; default: note",
    )
    check.set_defaults(command="check")
    check.add_argument("--demo", metavar="SCENARIO", help="of a simulated node")
    simulated(check)
    live(check, tells=False)


def add_gpus(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm gpus`."""
    gpus = commands.add_parser(
        "gpus",
        help="what NVIDIA GPUs can do at most, with sources",
        description="Prints memory, bandwidth, dense peaks, power and links of NVIDIA GPUs; with a name all of it.",
    )
    gpus.add_argument("name", nargs="*", metavar="NAME", help='all figures of what is called so: h100, "RTX 4090"')
    gpus.add_argument("--json", action="store_true", help="JSON instead of text")
    gpus.set_defaults(command="gpus")


def add_demo(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm demo`."""
    demo = commands.add_parser(
        "demo", help="the monitor on a simulated node", description="Runs the monitor on a simulated node."
    )
    demo.add_argument("demo", nargs="?", metavar="SCENARIO", default="healthy", help="which one; default: healthy")
    demo.add_argument("--list", action="store_true", help="list the scenarios")
    demo.set_defaults(command="demo")
    simulated(demo)
    live(demo)
