"""The command line. Parses, then imports the one command that was asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from gputop_llm import __version__
from gputop_llm.errors import ExitCode, GputopError, UsageError

# As a shell counts a command that ended by Ctrl-C.
INTERRUPTED = 130

_EXIT_CODES = """\
exit codes: 0 fine; 1 failed; 2 wrong usage; 3 no GPU and no engine, or not the one asked for;
4 partial: something that should be readable was not (standard error says what)
`check` has its own: 0 fine or notes only; 1 warning; 2 critical; 3 can't tell, whatever the reason
"""
_CHECK_CANT_TELL = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. No traceback reaches the user."""
    # Whoever reads the code of `check` takes 1 and 2 for symptoms. What stands behind `run` is another program's.
    words = sys.argv[1:] if argv is None else argv
    is_check = next((word for word in words if word in ("check", "run", "kernel")), None) == "check"
    try:
        arguments = _parser().parse_args(argv)
        return int(importlib.import_module(f"gputop_llm.commands.{arguments.command}").run(arguments))
    except SystemExit as end:  # --help and --version have been printed
        return _flushed(int(end.code or 0))
    except BrokenPipeError:
        return _flushed(ExitCode.OK)
    except KeyboardInterrupt:
        return INTERRUPTED
    except GputopError as failure:
        _complain(failure.sentence())
        return _CHECK_CANT_TELL if is_check else failure.exit_code
    except Exception as failure:  # noqa: BLE001 - the last place that can turn a bug into a sentence
        from gputop_llm.commands.logs import record

        _complain(f"gputop-llm failed: {type(failure).__name__}: {failure}; {record(failure)}")
        return _CHECK_CANT_TELL if is_check else ExitCode.FAILED


class _Parser(argparse.ArgumentParser):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, todo=f"`{self.prog} --help` shows what there is")


class _NoSecret(argparse.Action):
    """`--api-key KEY` and `--webhook URL`, which must not be."""

    def __call__(self, *_: object) -> NoReturn:
        flag = self.option_strings[0]
        raise UsageError(
            f"{flag} is not taken",
            "every user of this node can read a command line",
            f"set GPUTOP_LLM_{self.dest.upper()}, or name a file with {flag}-file; "
            "and replace the secret that was just shown",
        )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gputop-llm",
        description="Finds the LLM server that runs on this node and shows live what it, its GPUs and the\n"
        "host do. Attaches read-only. Without a command: the full-screen monitor.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gputop-llm {__version__}")
    _live(parser)
    parser.set_defaults(command="tui")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    snapshot = commands.add_parser(
        "snapshot", help="two samples as text or JSON, then ends", description="Takes two samples, prints them, ends."
    )
    snapshot.add_argument("--json", action="store_true", help="JSON instead of text (docs/headless.md)")
    snapshot.set_defaults(command="snapshot")

    watch = commands.add_parser(
        "watch", help="one JSON object a line until stopped", description="Prints one JSON object a line until stopped."
    )
    watch.add_argument("--json", action="store_true", help="the form (there is no other one yet)")
    watch.add_argument("--count", type=_positive, metavar="N", help="end after N lines")
    watch.set_defaults(command="watch")

    check = commands.add_parser(
        "check",
        help="one line per symptom, exit code by severity; for cron, Nagios, probes",
        description="Watches for some seconds, prints one line per symptom, ends with an exit code by severity:\n"
        "0 nothing or notes only; 1 warning; 2 critical; 3 can't tell.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("--json", action="store_true", help="JSON instead of lines (docs/headless.md)")
    check.add_argument(
        "--for", dest="for_s", type=_seconds, metavar="SECONDS", default=15.0, help="how long to watch; default: 15"
    )
    check.add_argument(
        "--severity",
        choices=("note", "warning", "critical"),
        default="note",
        help="the least that is printed and counts; default: note",
    )
    check.set_defaults(command="check")

    gpus = commands.add_parser(
        "gpus",
        help="what NVIDIA GPUs can do at most, with sources",
        description="Prints memory, bandwidth, dense peaks, power and links of NVIDIA GPUs; with a name all of it.",
    )
    gpus.add_argument("name", nargs="*", metavar="NAME", help='all figures of what is called so: h100, "RTX 4090"')
    gpus.add_argument("--json", action="store_true", help="JSON instead of text")
    gpus.set_defaults(command="gpus")

    for command in (snapshot, watch, check):
        command.add_argument("--demo", metavar="SCENARIO", help="of a simulated node")

    demo = commands.add_parser(
        "demo", help="the monitor on a simulated node", description="Runs the monitor on a simulated node."
    )
    demo.add_argument("demo", nargs="?", metavar="SCENARIO", default="healthy", help="which one; default: healthy")
    demo.add_argument("--list", action="store_true", help="list the scenarios")
    demo.set_defaults(command="demo")

    verdict = commands.add_parser(
        "verdict",
        help="what a capture says: Nsight Systems, Nsight Compute, torch.profiler, or a bundle",
        description="Reads captures (.sqlite or .nsys-rep of Nsight Systems, .json or .json.gz of torch.profiler,\n"
        "native .gtw; plain, .gz or .xz; or the folder of a capture) and prints what limits the GPU,\n"
        "ranked by what fixing it could give. Several files are ranks of one run.\n"
        "A profile of Nsight Compute (.ncu-rep, or what `ncu --csv` printed) gives the verdict on its kernels;\n"
        "beside a capture also what they could give at best. docs/verdict.md and docs/kernel-verdict.md explain.",
        epilog="exit codes: 0 judged, healthy or with findings; 1 unreadable; 2 wrong usage; 4 can't be judged",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verdict.add_argument("files", nargs="+", metavar="FILE", help="a capture; several are ranks of one run")
    form = verdict.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="JSON instead of text (docs/verdict.md)")
    form.add_argument("--markdown", action="store_true", help="a Markdown page instead of text")
    verdict.add_argument("--kernel", metavar="NAME", help="of a profile: only kernels with this in their name")
    verdict.add_argument("--perfetto", metavar="OUT", help="also write it as a trace for Perfetto: .json or .json.gz")
    verdict.set_defaults(command="verdict")

    opened = commands.add_parser(
        "open",
        help="the same, full-screen, with a picture of the window",
        description="Reads captures as `verdict` does, and shows full-screen what they say, with a timeline.",
    )
    opened.add_argument("files", nargs="+", metavar="FILE", help="a capture; several are ranks of one run")
    opened.add_argument("--ascii", action="store_true", default=argparse.SUPPRESS, help="draw with ASCII only")
    opened.set_defaults(command="open")

    prepared = commands.add_parser(
        "run",
        usage="%(prog)s -- COMMAND [ARGUMENT ...]",
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
    kernel.add_argument("--launches", type=_positive, default=5, metavar="N", help="how many are profiled; default: 5")
    kernel.add_argument("--skip", type=_count, default=0, metavar="N", help="matching launches to let through before")
    kernel.add_argument("--warm-l2", action="store_true", help="leave L2 as it is; default: flushed before each pass")
    kernel.add_argument(
        "--within", dest="within_s", type=_seconds, default=300.0, metavar="S", help="end it after; default: 300"
    )
    kernel.add_argument("--watch", nargs="+", metavar="FILE", help="run again when one is saved, and say what changed")
    kernel.add_argument("--details", action="store_true", help="the whole verdict instead of a few lines")
    kernel.add_argument("--json", action="store_true", help="JSON instead of text; with --watch an object a line")
    kernel.add_argument("--output", metavar="FILE", help="where the report goes; default: where captures go")
    kernel.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    kernel.set_defaults(command="kernel")

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
    again.add_argument("--gpu", dest="on_gpu", type=_count, metavar="N", help="on this one; default: one with room")
    again.add_argument("--yes", action="store_true", help="agree without being asked")
    again.add_argument("--json", action="store_true", help="JSON instead of text (docs/rerun.md)")
    again.set_defaults(command="rerun")

    capture = commands.add_parser(
        "capture",
        help="records a bounded window in the running engine, then its verdict",
        description="Records for half a second what the GPUs of the running engine do, and prints the verdict.\n"
        "Says first what it will do and what that costs, and asks. docs/capture.md has all of it.",
        epilog="exit codes: 0 judged; 1 refused or failed; 2 wrong usage, or nobody to ask; 3 no target;\n"
        "4 not whole, or can't be judged; 130 not agreed to, or cancelled",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    long = capture.add_mutually_exclusive_group()
    long.add_argument("--seconds", type=_any_seconds, metavar="S", help="how long; default: 0.5, at most 60")
    long.add_argument("--steps", type=_positive, metavar="N", help="about so many steps of the engine")
    capture.add_argument(
        "--route", metavar="NAME", help="how: native, nsys-session, …; default: the best open one (see doctor)"
    )
    capture.add_argument(
        "--stacks", action="store_true", help="also sample Python stacks: which line the host was at in idle gaps"
    )
    wishes = capture.add_argument_group("torch.profiler's routes (kineto-daemon, kineto-agent, engine-endpoint)")
    wishes.add_argument(
        "--with",
        dest="including",
        metavar="LIST",
        help="besides the GPU: cpu, shapes, memory, python-stacks (slow), comma-separated; gpu: nothing else",
    )
    wishes.add_argument("--at", choices=("prefill", "decode"), help="begin at such a step")
    capture.add_argument("--ranks", metavar="LIST", help="only these processes: 0,3; default: all")
    armed = capture.add_argument_group("armed: waits for a symptom, and captures then (docs/capture.md)")
    armed.add_argument("--when", metavar="SYMPTOM", help="capture when it holds, at any hour; needs --yes")
    armed.add_argument(
        "--for",
        dest="for_s",
        type=_seconds,
        metavar="SECONDS",
        help="that it must have held; default: once it is raised",
    )
    often = armed.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="one capture, waited for 24 h at most; the default")
    often.add_argument("--budget", metavar="LIMITS", help="captures=N,wait=12h,disk=2G: any of them")
    capture.add_argument("--demo", metavar="SCENARIO", help="of a simulated node")
    capture.add_argument("--yes", action="store_true", help="agree without being asked")
    capture.add_argument("--json", action="store_true", help="JSON instead of text (docs/capture.md)")
    capture.add_argument("--output", metavar="DIR", help="where captures go; default: the user's data directory")
    capture.set_defaults(command="capture")

    stacks = commands.add_parser(
        "stacks",
        help="the Python stacks of every rank side by side: who stands elsewhere",
        description="Reads the Python stacks of all processes of the running engine from outside, without stopping\n"
        "them, and says what is the same and who differs. docs/stacks.md explains it.",
        epilog="exit codes: 0 read; 1 none could be read; 2 wrong usage; 3 no target; 4 some could not be read",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stacks.add_argument("--json", action="store_true", help="JSON instead of text (docs/stacks.md)")
    stacks.add_argument(
        "--record", type=_seconds, metavar="SECONDS", help="sample for so long instead: functions by self and total"
    )
    stacks.set_defaults(command="stacks")

    doctor = commands.add_parser(
        "doctor",
        help="which captures are possible here, what is in the way, what crashes have left",
        description="Says for each way to capture the engine whether it is open, and if not, why and what opens it.",
    )
    doctor.add_argument("--json", action="store_true", help="JSON instead of text")
    doctor.add_argument("--leftovers", action="store_true", help="find and remove what captures that crashed have left")
    doctor.add_argument("--output", action="append", metavar="DIR", help="another place that captures go to")
    doctor.set_defaults(command="doctor")

    lab = commands.add_parser(
        "lab",
        help="small workloads with a known cause, and their twins without it",
        description="Lists or runs small PyTorch workloads whose bottleneck is known, each with a twin that lacks it:\n"
        "examples, and what diagnoses are checked by. docs/lab.md has all of it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whats = lab.add_subparsers(dest="what", required=True, metavar="list|run", parser_class=_Parser)
    whats.add_parser("list", help="the cases, and where they run")
    served = whats.add_parser("run", help="serve one: requests, and a metrics page as vLLM's; needs PyTorch")
    served.add_argument("case", metavar="CASE", help="which one")
    served.add_argument("--fixed", action="store_true", help="its twin, without the cause")
    served.add_argument("--device", choices=("cuda", "cpu"), help="default: a GPU where there is one")
    served.add_argument("--seconds", type=_seconds, default=60.0, metavar="N", help="how long; default: 60")
    served.add_argument("--port", type=_positive, default=8010, help="of its metrics page; default: 8010")
    lab.set_defaults(command="lab")

    for command in (stacks, doctor):
        _live(command)

    for command in (snapshot, watch, check, demo, capture):
        simulated = command.add_argument_group("simulated node")
        simulated.add_argument(
            "--seed", type=_integer, default=7, help="the same seed gives the same traffic; default: 7"
        )
        simulated.add_argument("--gpus", type=_positive, default=1, metavar="N", help="default: 1")
        simulated.add_argument("--engines", type=_count, default=1, metavar="N", help="0 or more; default: 1")
        _live(command)
    return parser


def _live(parser: argparse.ArgumentParser) -> None:
    """The flags of every live command, before and after its name."""
    group = parser.add_argument_group("what to watch", argument_default=argparse.SUPPRESS)
    group.add_argument("--pid", help="the engine that this process belongs to")
    group.add_argument("--url", help="the engine at this address: http://HOST:PORT")
    group.add_argument("--gpu", metavar="N", help="only this GPU, and the engine on it")
    group.add_argument("--model", metavar="NAME", help="only this one of several models that a server has")
    group = parser.add_argument_group("how", argument_default=argparse.SUPPRESS)
    group.add_argument(
        "--period", dest="period_s", metavar="SECONDS", help="between two samples; default: 1, least: 0.25"
    )
    group.add_argument("--window", dest="window_s", metavar="SECONDS", help="of rates and quantiles; default: 10")
    group.add_argument("--api-key-file", metavar="FILE", help="has the engine's API key (or: GPUTOP_LLM_API_KEY)")
    group.add_argument("--api-key", action=_NoSecret, nargs="?", help=argparse.SUPPRESS)
    group.add_argument("--ca-file", metavar="FILE", help="authorities to trust for https, in PEM")
    group.add_argument("--config", metavar="FILE", help="settings in TOML instead of the user's own file")
    group.add_argument("--ascii", action="store_true", help="draw with ASCII only")
    group = parser.add_argument_group("symptoms", argument_default=argparse.SUPPRESS)
    group.add_argument("--slo-ttft", dest="slo_ttft_s", metavar="SECONDS", help="that p95 TTFT should keep to")
    group.add_argument("--slo-tpot", dest="slo_tpot_s", metavar="SECONDS", help="so with p95 time per output token")
    group.add_argument("--params", metavar="N", help="the model's size for MBU and MFU, read whole each step: 8B")
    group.add_argument("--bytes-per-param", metavar="BYTES", help="that each takes; both win over its config.json")
    group.add_argument("--exec", metavar="COMMAND", help="run it on raise and clear (docs/headless.md)")
    group.add_argument("--webhook-file", metavar="FILE", help="has the URL to post to (or: GPUTOP_LLM_WEBHOOK)")
    group.add_argument("--webhook", action=_NoSecret, nargs="?", help=argparse.SUPPRESS)


def _positive(text: str) -> int:
    return _count(text, least=1)


def _count(text: str, least: int = 0) -> int:
    number = _integer(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"must be between 1 and 3600 s, got {text!r}")
    return number


def _any_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text!r}") from None


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None


def _complain(sentence: str) -> None:
    from gputop_llm.commands.output import complain

    complain([sentence])


def _flushed(code: int) -> int:
    """The exit code, with nothing left that Python would write, and complain about, at its own end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
