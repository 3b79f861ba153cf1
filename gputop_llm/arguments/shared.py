"""What the arguments of several commands are made of: the parser, flags, and what a value may be."""

from __future__ import annotations

import argparse

from gputop_llm.errors import UsageError

# As in `typing`, which takes longer to load than all of the arguments to be put together.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Raises what can't be parsed as a `UsageError`, and takes no flag that is cut short."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, todo=f"`{self.prog} --help` shows what there is")


class NoSecret(argparse.Action):
    """`--api-key KEY` and `--webhook URL`, which must not be."""

    def __call__(self, *_: object) -> NoReturn:
        flag = self.option_strings[0]
        raise UsageError(
            f"{flag} is not taken",
            "every user of this node can read a command line",
            f"set GPUTOP_LLM_{self.dest.upper()}, or name a file with {flag}-file; "
            "and replace the secret that was just shown",
        )


def simulated(parser: Parser) -> None:
    """What a simulated node is made of."""
    group = parser.add_argument_group("simulated node")
    group.add_argument("--seed", type=integer, default=7, help="the same seed gives the same traffic; default: 7")
    group.add_argument("--gpus", type=positive, default=1, metavar="N", help="default: 1")
    group.add_argument("--engines", type=count, default=1, metavar="N", help="0 or more; default: 1")


def live(parser: Parser, tells: bool = True) -> None:
    """The flags of every live command, before and after its name.

    Args:
        tells: whether it runs for long enough to tell somebody what is raised and cleared. The flags for that are
            taken and then refused with the reason where it does not, and its help doesn't offer them.
    """
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
    group.add_argument("--api-key", action=NoSecret, nargs="?", help=argparse.SUPPRESS)
    group.add_argument("--ca-file", metavar="FILE", help="authorities to trust for https, in PEM")
    group.add_argument("--config", metavar="FILE", help="settings in TOML instead of the user's own file")
    group.add_argument("--ascii", action="store_true", help="draw with ASCII only")
    group = parser.add_argument_group("symptoms", argument_default=argparse.SUPPRESS)
    group.add_argument("--slo-ttft", dest="slo_ttft_s", metavar="SECONDS", help="that p95 TTFT should keep to")
    group.add_argument("--slo-tpot", dest="slo_tpot_s", metavar="SECONDS", help="so with p95 time per output token")
    group.add_argument("--params", metavar="N", help="the model's size for MBU and MFU, read whole each step: 8B")
    group.add_argument("--bytes-per-param", metavar="BYTES", help="that each takes; both win over its config.json")
    command, address = "run it on raise and clear (docs/headless.md)", "has the URL to post to (or: GPUTOP_LLM_WEBHOOK)"
    group.add_argument("--exec", metavar="COMMAND", help=command if tells else argparse.SUPPRESS)
    group.add_argument("--webhook-file", metavar="FILE", help=address if tells else argparse.SUPPRESS)
    group.add_argument("--webhook", action=NoSecret, nargs="?", help=argparse.SUPPRESS)


def positive(text: str) -> int:
    return count(text, least=1)


def count(text: str, least: int = 0) -> int:
    number = integer(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"must be between 1 and 3600 s, got {text!r}")
    return number


def any_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text!r}") from None


def integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
