"""The arguments of what takes captures, looks into the engine, and reads captures."""

from __future__ import annotations

import argparse

from gputop_llm.arguments.shared import Parser, any_seconds, live, positive, seconds, simulated


def add_verdict(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm verdict`."""
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


def add_open(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm open`."""
    opened = commands.add_parser(
        "open",
        help="the same, full-screen, with a picture of the window",
        description="Reads captures as `verdict` does, and shows full-screen what they say, with a timeline.",
    )
    opened.add_argument("files", nargs="+", metavar="FILE", help="a capture; several are ranks of one run")
    opened.add_argument("--ascii", action="store_true", default=argparse.SUPPRESS, help="draw with ASCII only")
    opened.set_defaults(command="open")


def add_capture(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm capture`."""
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
    long.add_argument("--seconds", type=any_seconds, metavar="S", help="how long; default: 0.5, at most 60")
    long.add_argument("--steps", type=positive, metavar="N", help="about so many steps of the engine")
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
        help="besides the GPU: cpu, shapes, memory, python-stacks (slow), comma-separated; gpu: nothing else (with "
        "--route native: no API calls, which leaves less behind in the engine)",
    )
    wishes.add_argument("--at", choices=("prefill", "decode"), help="begin at such a step")
    capture.add_argument("--ranks", metavar="LIST", help="only these processes: 0,3; default: all")
    armed = capture.add_argument_group("armed: waits for a symptom, and captures then (docs/capture.md)")
    armed.add_argument("--when", metavar="SYMPTOM", help="capture when it holds, at any hour; needs --yes")
    armed.add_argument(
        "--for",
        dest="for_s",
        type=seconds,
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
    simulated(capture)
    live(capture, tells=False)


def add_stacks(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm stacks`."""
    stacks = commands.add_parser(
        "stacks",
        help="the Python stacks of every rank side by side: who stands elsewhere",
        description="Reads the Python stacks of all processes of the running engine from outside, without stopping\n"
        "them, and says what is the same and who differs. docs/stacks.md explains it.",
        epilog="exit codes: 0 read; 1 none could be read; 2 wrong usage; 3 no target;\n"
        "4 some could not be read; 130 Ctrl-C",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stacks.add_argument("--json", action="store_true", help="JSON instead of text (docs/stacks.md)")
    stacks.add_argument(
        "--record",
        type=seconds,
        metavar="SECONDS",
        help="sample for so long instead: functions by self and total",
    )
    stacks.set_defaults(command="stacks")
    live(stacks, tells=False)


def add_doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    """`gputop-llm doctor`."""
    doctor = commands.add_parser(
        "doctor",
        help="which captures are possible here, what is in the way, what crashes have left",
        description="Says for each way to capture the engine whether it is open, and if not, why and what opens it.",
    )
    doctor.add_argument("--json", action="store_true", help="JSON instead of text")
    doctor.add_argument("--leftovers", action="store_true", help="find and remove what captures that crashed have left")
    doctor.add_argument("--output", action="append", metavar="DIR", help="another place that captures go to")
    doctor.set_defaults(command="doctor")
    live(doctor, tells=False)
