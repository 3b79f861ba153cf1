"""What watching and capturing cost a real vLLM, as its clients measure it: paired rounds under the same requests.

    python -m benchmarks.overhead --url http://127.0.0.1:8000 [--model NAME] [--rounds 6] [--requests 64] [--streams 16]
                                  [--route native]… [--json FILE]

The server is one that runs already. In each round every arm gets the same requests (prompts and lengths follow from the
round's number), in an order that is drawn anew, and is compared with "off" of the same round:

    off          nothing of ours runs
    1 Hz, 4 Hz   `gputop-llm watch` at that pace
    ROUTE        one capture of 0.5 s by that route, a third into the round (at the pace of the round before it)
    idle client  nothing runs, but the native client lies in the engine: after the first capture by "native" it stays
                 there, so these rounds come last; they get the same requests as "off" had at the beginning

That GPM counters can't be turned off is why there is no arm without them. Given are means over rounds with the standard
error of the paired differences; a difference below twice that is no difference. A round should take 20 s or more.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.real.load import run_load

MONITOR = (sys.executable, "-m", "gputop_llm")
OFF, IDLE = "off", "idle client"
WATCHING = {"1 Hz": 1.0, "4 Hz": 0.25}
CAPTURE_S = 0.5


class Seen(NamedTuple):
    """What the clients of one arm saw in one round; times in ms."""

    seconds: float
    tokens_per_s: float
    ttft_mean: float
    itl_mean: float
    itl_p99: float
    longest: float


def measure(port: int, model: str, requests: int, streams: int, seed: int) -> Seen:
    """Sends a round's requests.

    Raises:
        SystemExit: one of them failed.
    """
    load = run_load(port, requests, streams, model=model, seed=seed)
    if load.errors:
        raise SystemExit(f"a request failed: {load.errors[0]}")
    gaps = sorted(load.itl_s)
    return Seen(
        load.duration_s,
        load.generation_tokens / load.duration_s,
        1e3 * load.ttft_mean_s,
        1e3 * load.itl_mean_s,
        1e3 * gaps[len(gaps) * 99 // 100],
        1e3 * gaps[-1],
    )


@contextmanager
def arm_at_work(arm: str, url: str, third_s: float) -> Iterator[list[str]]:
    """What the arm does, for the length of the block; the list gets why it failed."""
    failed: list[str] = []
    if arm in (OFF, IDLE):
        yield failed
    elif arm in WATCHING:
        watch = [*MONITOR, "watch", "--json", "--url", url, "--period", f"{WATCHING[arm]:g}"]
        child = subprocess.Popen(watch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield failed
        finally:
            if child.poll() is not None:
                failed.append(f"watch ended with {child.returncode}")
            child.terminate()
            child.wait()
    else:
        timer = threading.Timer(third_s, _capture, (url, arm, failed))
        timer.start()
        try:
            yield failed
        finally:
            timer.join()


def _capture(url: str, route: str, failed: list[str]) -> None:
    command = [*MONITOR, "capture", "--yes", "--json", "--seconds", f"{CAPTURE_S:g}", "--url", url, "--route", route]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4):
        failed.append(done.stderr.strip().rpartition("\n")[2])


def rounds(asked: argparse.Namespace, arms: Sequence[str], numbers: range) -> dict[str, list[Seen]]:
    """Every arm in every round; an arm that failed once is left out from then on."""
    found: dict[str, list[Seen]] = {arm: [] for arm in arms}
    left, port, third_s = list(arms), urlsplit(asked.url).port or 80, 3.0
    for number in numbers:
        random.Random(number).shuffle(left)
        for arm in tuple(left):
            with arm_at_work(arm, asked.url, third_s) as failed:
                seen = measure(port, asked.model, asked.requests, asked.streams, number)
            if failed:
                print(f"{arm} is left out: {failed[0]}", file=sys.stderr)
                left.remove(arm)
                continue
            found[arm].append(seen)
            third_s = seen.seconds / 3
            print(f"round {number}, {arm}: {seen.tokens_per_s:.0f} tokens/s", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, list[Seen]]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| arm | rounds | tokens/s | against off | TTFT | mean ITL | p99 ITL | longest gap |"
    yield "|---|---|---|---|---|---|---|---|"
    base = found[OFF]
    for arm, seen in found.items():
        if not seen:
            yield f"| {arm} | 0 | – | – | – | – | – | – |"
            continue
        means = Seen(*(statistics.fmean(values) for values in zip(*seen, strict=True)))
        times = " | ".join(f"{value:.2f} ms" for value in means[2:])
        against = "–" if arm == OFF else _against(base, seen)
        yield f"| {arm} | {len(seen)} | {means.tokens_per_s:.0f} | {against} | {times} |"


def _against(base: Sequence[Seen], seen: Sequence[Seen]) -> str:
    """The mean of the differences in tokens/s, round by round, and its standard error, in percent."""
    # An arm that is left out at some round has none of the later ones.
    changes = [100.0 * (b.tokens_per_s / a.tokens_per_s - 1.0) for a, b in zip(base, seen, strict=False)]
    error = f" ± {statistics.stdev(changes) / len(changes) ** 0.5:.2f}" if len(changes) > 1 else ""
    return f"{statistics.fmean(changes):+.2f} %{error}"


def main() -> None:
    """Runs all rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="tiny", help="as the server calls it; default: tiny")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=64, help="in a round; default: 64")
    parser.add_argument("--streams", type=int, default=16, help="at once; default: 16")
    parser.add_argument("--route", action="append", default=[], help="of captures; may be given several times")
    parser.add_argument("--json", metavar="FILE", help="also write every round's figures")
    asked = parser.parse_args()
    # What loads on first use isn't the first arm's cost.
    measure(urlsplit(asked.url).port or 80, asked.model, asked.requests, asked.streams, 0)
    found = rounds(asked, [OFF, *WATCHING], range(1, asked.rounds + 1))
    if asked.route:
        captured = rounds(asked, [OFF, *asked.route], range(asked.rounds + 1, 2 * asked.rounds + 1))
        # Each against "off" of its own rounds.
        print("\n".join(table(captured)) + "\n")
        if captured.get("native"):
            found[IDLE] = rounds(asked, [IDLE], range(1, asked.rounds + 1))[IDLE]
    print("\n".join(table(found)))
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as out:
            json.dump({arm: [one._asdict() for one in seen] for arm, seen in found.items()}, out, indent=1)


if __name__ == "__main__":
    main()
