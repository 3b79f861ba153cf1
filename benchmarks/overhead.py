"""What watching and capturing cost a real vLLM, as its clients measure it: paired rounds under the same requests.

    python -m benchmarks.overhead --url http://127.0.0.1:8000 [--model NAME] [--rounds 6] [--requests 64] [--streams 16]
                                  [--processes N] [--tell 2] [--route native]… [--json FILE]

The server is one that runs already. In each round every arm gets the same requests (prompts and lengths follow from the
round's number), in an order that is drawn anew, and is compared with "off" of the same round:

    off          nothing of ours runs
    1 Hz, 4 Hz   `gputop-llm watch` at that pace
    ROUTE        one capture of 0.5 s by that route, a third into the round (at the pace of the round before it)
    idle client  nothing runs, but the native client lies in the engine: after the first capture by "native" it stays
                 there, so these rounds come last; they get the same requests as "off" had at the beginning

The requests come from several processes, so that one Python's speed isn't measured in place of the server's; what the
busiest of them took of a core is told. That GPM counters can't be turned off is why there is no arm without them.

Given are means over rounds, the standard error of the paired differences, the least difference that these rounds can
tell (at 95 %), and how far "off" itself varies; no round is left out. A round should take 20 s or more.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from benchmarks.paired import Seen, noise, table
from benchmarks.spread_load import SpreadLoad, default_processes

MONITOR = (sys.executable, "-m", "gputop_llm")
OFF, IDLE = "off", "idle client"
WATCHING = {"1 Hz": 1.0, "4 Hz": 0.25}
CAPTURE_S = 0.5


def measure(load: SpreadLoad, port: int, model: str, requests: int, seed: int) -> Seen:
    """Sends a round's requests.

    Raises:
        SystemExit: one of them failed.
    """
    seen, busy_pct = load.run(port, requests, model, seed)
    if seen.errors:
        raise SystemExit(f"a request failed: {seen.errors[0]}")
    gaps = sorted(seen.itl_s)
    return Seen(
        seen.duration_s,
        seen.generation_tokens / seen.duration_s,
        1e3 * seen.ttft_mean_s,
        1e3 * seen.itl_mean_s,
        1e3 * gaps[len(gaps) * 99 // 100],
        1e3 * gaps[-1],
        busy_pct,
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


def rounds(asked: argparse.Namespace, load: SpreadLoad, arms: Sequence[str], numbers: range) -> dict[str, list[Seen]]:
    """Every arm in every round; an arm that failed once is left out from then on."""
    found: dict[str, list[Seen]] = {arm: [] for arm in arms}
    left, port, third_s = list(arms), urlsplit(asked.url).port or 80, 3.0
    for number in numbers:
        random.Random(number).shuffle(left)
        for arm in tuple(left):
            with arm_at_work(arm, asked.url, third_s) as failed:
                seen = measure(load, port, asked.model, asked.requests, number)
            if failed:
                print(f"{arm} is left out: {failed[0]}", file=sys.stderr)
                left.remove(arm)
                continue
            found[arm].append(seen)
            third_s = seen.seconds / 3
            print(f"round {number}, {arm}: {seen.tokens_per_s:.0f} tokens/s", file=sys.stderr, flush=True)
    return found


def told(asked: argparse.Namespace, found: dict[str, list[Seen]]) -> str:
    """The table and what can't be read from it."""
    return "\n".join((*table(found, OFF), "", *noise(found, OFF, asked.tell)))


def main() -> None:
    """Runs all rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="tiny", help="as the server calls it; default: tiny")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=64, help="in a round; default: 64")
    parser.add_argument("--streams", type=int, default=16, help="at once; default: 16")
    parser.add_argument(
        "--processes", type=int, default=default_processes(), help="that send; default: half of the cores"
    )
    parser.add_argument(
        "--tell", type=float, default=2.0, metavar="PERCENT", help="difference that is asked; default: 2"
    )
    parser.add_argument("--route", action="append", default=[], help="of captures; may be given several times")
    parser.add_argument("--json", metavar="FILE", help="also write every round's figures")
    asked = parser.parse_args()
    with SpreadLoad(asked.streams, asked.processes) as load:
        # What loads on first use isn't the first arm's cost.
        measure(load, urlsplit(asked.url).port or 80, asked.model, asked.requests, 0)
        found = rounds(asked, load, [OFF, *WATCHING], range(1, asked.rounds + 1))
        if asked.route:
            captured = rounds(asked, load, [OFF, *asked.route], range(asked.rounds + 1, 2 * asked.rounds + 1))
            # Each against "off" of its own rounds.
            print(told(asked, captured) + "\n")
            if captured.get("native"):
                found[IDLE] = rounds(asked, load, [IDLE], range(1, asked.rounds + 1))[IDLE]
    print(told(asked, found))
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as out:
            json.dump({arm: [one._asdict() for one in seen] for arm, seen in found.items()}, out, indent=1)


if __name__ == "__main__":
    main()
