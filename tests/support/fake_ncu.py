"""An ncu that is none: it really runs the program, and then does what it was told, with recorded reports and words.

`install` puts it into a folder as `ncu`. Each run takes the next step of its plan, the last one for ever:
`report` is copied to where the report is wanted, `log` and `says` are written to the log file and to standard error,
`code` is its exit status, `hangs` makes it and a child of it sleep. What it was called with is kept in `calls`.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

OPTIONS = (
    "--export", "--log-file", "--target-processes", "--clock-control", "--cache-control", "--launch-skip",
    "--launch-count", "--kernel-name", "--set", "--section", "--import", "--page", "--nvtx", "--nvtx-include",
)  # fmt: skip
SECTIONS = ("LaunchStats", "MemoryWorkloadAnalysis", "Occupancy", "SourceCounters", "SpeedOfLight")
VALUES = {"--csv": 0, "--nvtx": 0}


class FakeNcu:
    """One that was installed; `folder` is what has to stand in PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plan(self, *steps: dict[str, object]) -> None:
        """What its next runs do."""
        (self.folder / "plan.json").write_text(json.dumps(steps, default=str))

    def calls(self) -> list[list[str]]:
        """The command lines of the runs so far."""
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def install(folder: Path, *steps: dict[str, object], without: tuple[str, ...] = ()) -> FakeNcu:
    """Puts one into a folder; it doesn't know the options in `without`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ncu"
    path.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text(encoding='utf-8')}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "without.json").write_text(json.dumps(without))
    made = FakeNcu(folder)
    made.plan(*steps)
    return made


def _main(words: list[str]) -> int:
    here = Path(sys.argv[0]).resolve().parent
    lacking = json.loads((here / "without.json").read_text())
    if words == ["--version"]:
        print("A profiler\nVersion 2025.3.1.0 (build 1) (public-release)")
        return 0
    if words == ["--help"]:
        short = {"--export": "o", "--kernel-name": "k", "--launch-count": "c"}
        for name in OPTIONS:
            if name not in lacking:
                print(f"  -{short[name]} [ {name} ] arg     Says --what it does." if name in short else f"  {name} arg")
        return 0
    if words == ["--list-sections"]:
        print(f"{'-' * 24} {'-' * 24}\n{'Identifier':24} {'Display Name':24} Enabled Filename\n{'-' * 24} {'-' * 24}")
        for name in SECTIONS:
            print(f"{name:24} {name + ' of it':24} {'yes' if name == 'Occupancy' else 'no ':7} ...{name}.section")
        return 0
    return _run(here, words, lacking)


def _run(here: Path, words: list[str], lacking: list[str]) -> int:
    given: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] in lacking:
            print(f"==ERROR== unrecognised option '{words[at]}'. Use --help for further details.")
            return 1
        given[words[at]] = words[at + 1] if VALUES.get(words[at], 1) else ""
        at += 1 + VALUES.get(words[at], 1)
    steps = json.loads((here / "plan.json").read_text())
    calls = here / "calls"
    done = len(calls.read_text().splitlines()) if calls.exists() else 0
    step = steps[min(done, len(steps) - 1)]
    if "--import" in given:
        print(Path(step["csv"]).read_text(), end="")
        return 0
    with open(calls, "a") as file:
        file.write(json.dumps(words) + "\n")
    if step.get("hangs"):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        print('==PROF== Profiling "ncclDevKernel_AllReduce" - 0: 0%', flush=True)
        time.sleep(600)
    program = subprocess.run(words[at:], check=False).returncode if step.get("runs", True) else 0
    words = step.get("log", '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 11 passes') + "\n"
    if program:
        words += f"==ERROR== The application returned an error code ({program}).\n"
    if "--log-file" in given:
        Path(given["--log-file"]).write_text(words)
    else:
        print(words, end="")
    sys.stderr.write(step.get("says", ""))
    if step.get("report"):
        shutil.copyfile(step["report"], given["--export"].replace("%%", "%") + ".ncu-rep")
    return step.get("code", program)


if __name__ == "__main__" and os.path.basename(sys.argv[0]) == "ncu":
    sys.exit(_main(sys.argv[1:]))
