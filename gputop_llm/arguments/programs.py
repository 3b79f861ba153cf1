"""The arguments of what starts a program."""

from __future__ import annotations

import argparse

from gputop_llm.arguments.shared import Parser, count, positive, seconds


def add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm run`."""
    prepared = commands.add_parser(
        "run",
        usage="%(prog)s [--nsys] -- COMMAND [ARGUMENT ...]",
        help="start a program so that it can be recorded later",
        description="Starts a program with the recording client in it (through CUDA_INJECTION64_PATH),\n"
        "so that a capture needs no right to inject anything. The client sleeps until one asks.\n"
        "With --nsys it is started under Nsight Systems instead, whose sessions captures then use.",
        epilog="exit codes: the program's own; 126 it can't be executed; 127 it isn't there; 2 wrong usage",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prepared.add_argument("--nsys", action="store_true", help="under Nsight Systems (one row for each graph replay)")
    prepared.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    prepared.set_defaults(command="run")


def add_kernel(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm kernel`."""
    kernel = commands.add_parser(
        "kernel",
        usage="%(prog)s [-k REGEX] [--full] [--watch FILE ...] [OPTION ...] -- COMMAND [ARGUMENT ...]",
        help="a program under Nsight Compute: the verdict on its kernels, again after each save",
        description="Runs a program under ncu and prints in a few lines what limits its kernels, by four sections,\n"
        "or with --full by every one. Passes and time are said before each run. Where the GPU's counters\n"
        "are refused, kernels are timed by a client in the program instead. docs/kernel-verdict.md explains.",
        epilog="exit codes: 0 judged; 1 failed; 2 wrong usage; 4 can't be judged, or times only; 130 Ctrl-C;\n"
        "with --watch 0 on Ctrl-C",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kernel.add_argument("-k", "--kernel", metavar="REGEX", help="only kernels whose name, without arguments, matches")
    kernel.add_argument("--full", action="store_true", help="every section (about 38 passes a launch instead of 11)")
    kernel.add_argument("--launches", type=positive, default=5, metavar="N", help="how many are profiled; default: 5")
    kernel.add_argument("--skip", type=count, default=0, metavar="N", help="matching launches to let through before")
    kernel.add_argument("--warm-l2", action="store_true", help="leave L2 as it is; default: flushed before each pass")
    kernel.add_argument(
        "--within", dest="within_s", type=seconds, default=300.0, metavar="S", help="end it after; default: 300"
    )
    kernel.add_argument("--watch", nargs="+", metavar="FILE", help="run again when one is saved, and say what changed")
    kernel.add_argument("--details", action="store_true", help="the whole verdict instead of a few lines")
    kernel.add_argument("--json", action="store_true", help="JSON instead of text; with --watch an object a line")
    kernel.add_argument("--output", metavar="FILE", help="where the report goes; default: where captures go")
    kernel.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    kernel.set_defaults(command="kernel")


def add_rerun(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm rerun`."""
    again = commands.add_parser(
        "rerun",
        help="a capture's hot kernels again without the server, then under Nsight Compute",
        description="Writes a script with the operations that may have launched a capture's hot kernels, runs it in a\n"
        "process of its own, says which launched the same kernel (name, grid, block), and profiles that by\n"
        "ncu. Says first what it will do, and asks. docs/rerun.md explains.",
        epilog="exit codes: 0 run again and judged; 1 failed or no room; 2 wrong usage, or nobody to ask;\n"
        "4 the hottest was not launched again, or can't be judged; 130 not agreed to",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    again.add_argument("file", metavar="CAPTURE", help="a capture, or the folder of one")
    again.add_argument("--kernel", metavar="REGEX", help="only kernels whose name matches; default: the hottest")
    again.add_argument("--model-config", metavar="FILE", help="the model's config.json, where the capture has none")
    how = again.add_mutually_exclusive_group()
    how.add_argument("--write", metavar="FILE", help="only write the script")
    how.add_argument("--repro", metavar="CMD", help="profile the hottest kernel in this command instead")
    again.add_argument("--gpu", dest="on_gpu", type=count, metavar="N", help="on this one; default: one with room")
    again.add_argument("--yes", action="store_true", help="agree without being asked")
    again.add_argument("--json", action="store_true", help="JSON instead of text (docs/rerun.md)")
    again.set_defaults(command="rerun")


def add_lab(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm lab`."""
    lab = commands.add_parser(
        "lab",
        help="small workloads with a known cause, and their twins without it",
        description="Lists or runs small PyTorch workloads whose bottleneck is known, each with a twin that lacks it:\n"
        "examples, and what diagnoses are checked by. docs/lab.md has all of it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whats = lab.add_subparsers(dest="what", required=True, metavar="list|run", parser_class=Parser)
    whats.add_parser("list", help="the cases, and where they run")
    served = whats.add_parser("run", help="serve one: requests, and a metrics page as vLLM's; needs PyTorch")
    served.add_argument("case", metavar="CASE", help="which one")
    served.add_argument("--fixed", action="store_true", help="its twin, without the cause")
    served.add_argument("--device", choices=("cuda", "cpu"), help="default: a GPU where there is one")
    served.add_argument("--seconds", type=seconds, default=60.0, metavar="N", help="how long; default: 60")
    served.add_argument("--port", type=positive, default=8010, help="of its metrics page; default: 8010")
    lab.set_defaults(command="lab")
