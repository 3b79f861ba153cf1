"""What the monitor itself costs: CPU, memory, bytes to the terminal, start-up.

Runs the real program in tmux at 120×40 on the demo's simulator, which is a
process of its own and is not counted.

    python benchmarks/monitor.py [--seconds 20] [--runs 3] [--memory-seconds 135] [--json FILE]

CPU is user+system time of the monitor's process from /proc (clock ticks of
10 ms), as a share of one core, median of the runs; bytes are what the program
wrote to its terminal, counted by tmux pipe-pane. First paint is the time from
tmux starting the program until the screen shows readings of every block, polled
every 10 ms; with several engines until it asks which one to watch, with a reading
of each. CPU to first paint is what the process had used by then, all threads
together, in steps of one look at the screen: it says more than the time on a machine
that is busy. RSS is VmRSS at the end of the last run, and once more in a run of
`--memory-seconds` (all cases side by side): whole frames are kept for two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

TICK_HZ = os.sysconf("SC_CLK_TCK")
# Arguments of the demo, words that are on the screen when every block has its readings, CPU % to reach.
CASES = {
    "1 GPU, no engine": (["--gpus", "1", "--engines", "0"], ["DRAM", "memory"], 0.8),
    "1 GPU, 1 engine": (["--gpus", "1", "--engines", "1"], ["DRAM", "TTFT"], 1.3),
    "8 GPUs, 2 engines": (["--gpus", "8", "--engines", "2"], ["Which one to watch"], 2.0),
}


class Tmux:
    """One private tmux server that runs one command."""

    def __init__(self, command: list[str], width: int = 120, height: int = 40) -> None:
        self.label = f"bench-{uuid.uuid4().hex[:8]}"
        self.started = time.monotonic()
        # Compiled modules are kept, as on a user's machine.
        env = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": ""}
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), *command, env=env)

    def _tmux(self, *args: str, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-L", self.label, *args]
        return subprocess.run(
            command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
        ).stdout

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def pid(self) -> int:
        return int(self._tmux("display-message", "-p", "#{pane_pid}"))

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def log_bytes(self, file: Path) -> None:
        self._tmux("pipe-pane", "-O", f"cat >> {file}")

    def wait_for(self, words: list[str], timeout_s: float = 20.0) -> float:
        """Seconds from the start until all words are on the screen."""
        while (elapsed := time.monotonic() - self.started) < timeout_s:
            screen = self.screen()
            if all(word in screen for word in words):
                return elapsed
            time.sleep(0.01)
        raise SystemExit(f"the screen never showed {words}:\n{self.screen()}")

    def close(self) -> None:
        self._tmux("kill-server")


def cpu_s(pid: int) -> float:
    """CPU seconds that the process itself has used (not its children)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK_HZ


def cpu_ms(pid: int) -> float:
    """CPU milliseconds that the process itself has used, by its clock: see clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2) * 1e3


def rss_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"no VmRSS for {pid}")


def measure(args: list[str], words: list[str], seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "bytes"
        tmux = Tmux([*program(), "demo", "healthy", "--seed", "7", *args])
        try:
            paint = tmux.wait_for(words)
            pid = tmux.pid()
            to_paint = cpu_ms(pid)
            choose(tmux, words)
            time.sleep(6)  # warm-up: history lines fill, caches settle
            log.touch()
            tmux.log_bytes(log)
            before, began = cpu_s(pid), time.monotonic()
            time.sleep(seconds)
            used, took = cpu_s(pid) - before, time.monotonic() - began
            return {
                "first_paint_ms": paint * 1e3,
                "cpu_to_paint_ms": to_paint,
                "cpu_pct": 100 * used / took,
                "rss_mb": rss_mb(pid),
                "tty_kib_per_s": log.stat().st_size / 1024 / took,
            }
        finally:
            tmux.close()


def choose(tmux: Tmux, words: list[str]) -> None:
    """Watches the first engine where there is a choice."""
    if "Which one to watch" in words:
        tmux.press("Enter")
        tmux.wait_for(["DRAM", "TTFT"])


def memory(seconds: float) -> dict[str, float]:
    """RSS of each case after `seconds`, in MB; all run at once, which takes them time and no memory."""
    running: dict[str, Tmux] = {}
    try:
        for name, (args, words, _) in CASES.items():
            tmux = running[name] = Tmux([*program(), "demo", "healthy", "--seed", "7", *args])
            tmux.wait_for(words)
            choose(tmux, words)
        time.sleep(seconds)
        return {name: rss_mb(tmux.pid()) for name, tmux in running.items()}
    finally:
        for tmux in running.values():
            tmux.close()


def program() -> list[str]:
    return [sys.executable, "-m", "gputop_llm"]


def help_ms(runs: int = 10) -> float:
    """Median wall time of `--help`."""
    times = []
    for _ in range(runs):
        began = time.monotonic()
        subprocess.run([*program(), "--help"], capture_output=True, check=True)
        times.append((time.monotonic() - began) * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory-seconds", type=float, default=135.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if shutil.which("tmux") is None:
        raise SystemExit("this benchmark needs tmux")
    result: dict[str, object] = {"help_ms": help_ms()}
    print(f"`--help`: {result['help_ms']:.0f} ms (to reach: 100)\n")
    print(
        "| case | CPU % of a core (to reach) | RSS MB (55) | KiB/s to terminal (8) | first paint ms (350)"
        " | CPU to first paint ms |"
    )
    print("|---|---|---|---|---|---|")
    for name, (args, words, goal) in CASES.items():
        runs = [measure(args, words, options.seconds) for _ in range(options.runs)]
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        result[name] = {"median": median, "runs": runs}
        print(
            f"| {name} | {median['cpu_pct']:.2f} ({goal}) | {median['rss_mb']:.1f} |"
            f" {median['tty_kib_per_s']:.1f} | {median['first_paint_ms']:.0f} | {median['cpu_to_paint_ms']:.0f} |",
            flush=True,
        )
    result["rss_mb_later"] = later = memory(options.memory_seconds)
    print(
        f"\nRSS after {options.memory_seconds:.0f} s, MB (55): " + "; ".join(f"{k} {v:.1f}" for k, v in later.items())
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
