"""The program as a whole tells others of a symptom, and shows its secrets to nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.fake_sources import until
from tests.support.http_server import HttpServer, page

ROOT = Path(__file__).parents[2]
HOOK = "/services/T0/HUSH-PATH"


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    # Each thread has the children that it started.
    children = [c for path in Path("/proc", str(pid)).glob("task/*/children") for c in path.read_text().split()]
    return [pid, *(below for child in children for below in tree(int(child)))]


def test_a_raised_symptom_reaches_command_and_webhook_and_no_secret_is_in_any_command_line_or_log(tmp_path):
    got, go_on = tmp_path / "got", tmp_path / "go on"
    script = tmp_path / "page me.py"
    script.write_text(
        "import json, os, pathlib, sys, time\n"
        "told = json.load(sys.stdin)\n"
        "words = {k: v for k, v in os.environ.items() if k.startswith('GPUTOP_LLM_')}\n"
        f"new = pathlib.Path({str(got)!r} + '.new')\n"
        "new.write_text(json.dumps([os.getpid(), told, words]))\n"
        f"new.rename({str(got)!r})\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.02)\n"
    )
    config = tmp_path / "config.toml"
    config.write_text("slo_tpot_s = 0.0001\n[thresholds]\ntpot-high.for_s = 1\n")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "GPUTOP_LLM_API_KEY": "HUSH-KEY",
    }
    with HttpServer({HOOK: page("no", 500)}) as server:
        command = [sys.executable, "-m", "gputop_llm", "watch", "--json", "--demo", "healthy", "--period", "0.25"]
        command += ["--config", str(config), "--exec", f"{sys.executable} '{script}' --team inference"]
        environment["GPUTOP_LLM_WEBHOOK"] = f"{server.url}{HOOK}\nAuthorization: Bearer HUSH-HEADER"
        watch = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            pid, told, words = json.loads(until(lambda: got.exists() and got.read_text(), 40))
            posted = until(lambda: server.requests, 20)[0]
            pids = tree(watch.pid)
            assert pid in pids
            assert len(pids) >= 3, "the monitor, the simulator, the command"
            lines = [Path(f"/proc/{p}/cmdline").read_bytes() for p in pids]
            go_on.touch()
            until(lambda: "did not take an event" in log_of(tmp_path))
        finally:
            watch.send_signal(signal.SIGTERM)
            _, errors = watch.communicate(timeout=20)
    assert told["event"] == "raised"
    assert told["symptom"]["id"] == words["GPUTOP_LLM_SYMPTOM"]
    assert told["simulated"] == "simulated: healthy, seed 7"
    assert json.loads(posted.body) == told
    assert posted.headers["authorization"] == "Bearer HUSH-HEADER"
    assert "HUSH" not in json.dumps(words)
    assert not any(b"HUSH" in line for line in lines)
    assert "HUSH" not in log_of(tmp_path) + errors
    assert watch.returncode == 0


def log_of(folder: Path) -> str:
    """Everything that was logged."""
    return "".join(path.read_text() for path in (folder / "state").rglob("*.log"))
