"""`gputop-llm kernel -- CMD`: what a kernel's developer sees, with an ncu that replays recorded reports."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from gputop_llm.cli import main
from tests.ncu.test_failures import TEXTS
from tests.support.captures import CAPTURES
from tests.support.cli import start_cli
from tests.support.fake_ncu import install
from tests.support.kernels import ALONE, SHARED, TINY

DEADLINE_S = 60.0
DOCUMENT = (CAPTURES.parent / "docs" / "kernel-verdict.md").read_text(encoding="utf-8")


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """One that is found first; runs write below the test's own folder."""
    fake = install(tmp_path / "bin", {"report": ALONE})
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return fake


def kernel(capsys, *arguments):
    code = main(["kernel", "--output", "r", *map(str, arguments), "--", "sh", "-c", "echo from the program"])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_verdict_is_twelve_lines_and_what_it_takes_is_said_before(capsys, ncu, tmp_path):
    code, out, err = kernel(capsys, "-k", "nvjet")

    assert code == 0
    assert len(out.splitlines()) <= 12
    assert "Latency-bound: small grid" in out
    assert out.splitlines()[-1] == f"all of it: gputop-llm verdict {tmp_path}/r.ncu-rep; --full: every section"
    assert "about 11 passes × 5 launches" in err
    assert "from the program" not in out + err
    assert (tmp_path / "r.log").read_text() == "from the program\n"


def test_json_has_the_documented_names(capsys, ncu):
    out = kernel(capsys, "--json")[1]
    said = json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))

    assert (said["schema"], said["counters"], said["changes"]) == ("gputop-llm/kernel/1", True, [])
    assert said["verdict"]["schema"] == "gputop-llm/verdict/1"
    assert said["run"]["passes"] == 11
    names = [*said, *said["run"], *said["kernels"][0]]
    assert [name for name in names if f"`{name}`" not in DOCUMENT] == []


def test_details_on_request_and_what_cannot_be_judged_exits_with_4(capsys, ncu):
    ncu.plan({"report": TINY})
    code, out, _ = kernel(capsys, "--details")

    assert code == 4
    assert "\nProfiled kernels\n" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--"], "kernel needs a command"),
        (["-k", "gemm(", "--", "true"], "no regular expression"),
        (["--watch", "nowhere.cu", "--", "true"], "can't watch nowhere.cu: it is not there"),
        (["--watch", ".", "--", "true"], "it is a folder"),
        (["--full", "--launches", "1000", "--", "true"], "1000 launches are too many"),
    ],
)
def test_what_cannot_be_is_wrong_usage(capsys, ncu, arguments, said):
    code = main(["kernel", *arguments])
    out, err = capsys.readouterr()

    assert (code, out) == (2, "")
    assert said in err
    assert ncu.calls() == []


def test_a_failure_is_one_sentence(capsys, ncu):
    ncu.plan({"code": 1, "runs": False, "log": f"{TEXTS['lock-file']}\n"})
    code, out, err = kernel(capsys)

    assert (code, out) == (1, "")
    assert "set TMPDIR to a folder of your own" in err


@pytest.mark.parametrize("why", ["refused", "no ncu"])
def test_without_counters_the_programs_kernels_are_timed(capsys, ncu, monkeypatch, why):
    """What is timed, and how, is tested with the client itself."""
    from gputop_llm.capture.timed import TimedKernel

    asked = []

    def time_kernels(argv, log, within_s):
        asked.append(argv)
        gemm = TimedKernel("void gemm<4>(int)", (64, 2, 1), (256, 1, 1), (9_000, 9_100, 9_500))
        return [gemm, TimedKernel("norm", None, None, (2_000,))], 0

    monkeypatch.setattr("gputop_llm.commands.kernel.time_kernels", time_kernels)
    if why == "refused":
        ncu.plan({"code": 1, "log": TEXTS["permission"]})
    else:
        (ncu.folder / "ncu").unlink()
        monkeypatch.setattr("gputop_llm.ncu.tool._PLACES", ())
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code, out, err = kernel(capsys, "-k", "gem+")

    assert code == 4
    assert asked == [("sh", "-c", "echo from the program")]
    assert ("NVreg_RestrictProfilingToAdminUsers=0" if why == "refused" else "install Nsight Compute") in err
    assert "times only" in err
    assert [line.split()[0] for line in out.splitlines()] == ["median", "9.10"]
    assert "norm" not in out


@pytest.mark.parametrize("finds_ncu", [True, False])
def test_a_report_that_has_no_place_is_one_sentence(capsys, ncu, monkeypatch, finds_ncu):
    if not finds_ncu:
        (ncu.folder / "ncu").unlink()
        monkeypatch.setattr("gputop_llm.ncu.tool._PLACES", ())
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code = main(["kernel", "--output", "/proc/none/r", "--", "true"])

    assert code == 1
    assert "cannot write /proc/none/r" in capsys.readouterr().err.splitlines()[-1]


class Watched:
    """A watch loop whose output is read as it comes."""

    def __init__(self, *arguments):
        self.process = start_cli("kernel", "--output", "r", *arguments)
        self.said = {"stdout": "", "stderr": ""}
        for name in self.said:
            threading.Thread(target=self._read, args=(name,), daemon=True).start()

    def _read(self, name):
        for line in getattr(self.process, name):
            self.said[name] += line

    def until(self, pattern, count=1, stream="stdout"):
        """Waits until it has said so."""
        until = time.monotonic() + DEADLINE_S
        while len(re.findall(pattern, self.said[stream])) < count:
            assert time.monotonic() < until, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.02)

    def idle(self, count):
        """Waits until it has run so many times."""
        self.until("waiting for the next save", count, "stderr")

    def end(self):
        """By Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(DEADLINE_S)


def test_each_save_is_another_run_and_says_what_changed(ncu, tmp_path):
    source, header = tmp_path / "gemm.cu", tmp_path / "gemm.h"
    source.write_text("one")
    header.write_text("one")
    ncu.plan({"report": ALONE}, {"report": SHARED}, {"log": "", "code": 0}, {"report": SHARED})
    watched = Watched("--watch", str(source), str(header), "--", "cat", str(source))
    watched.idle(1)
    assert "since the last run" not in watched.said["stdout"]

    # As editors do that write another file and put it in the place of the first.
    (tmp_path / "other").write_text("two")
    os.replace(tmp_path / "other", source)
    watched.until("since the last run: slower, 9.02 µs → 12.74 µs")
    watched.idle(2)
    assert (tmp_path / "r.log").read_text() == "two"

    # One that fails is told, and the next is compared with the last that worked.
    header.write_text("three, away for a moment")
    watched.until("ncu recorded nothing", stream="stderr")
    watched.idle(3)
    os.rename(source, tmp_path / "away")
    (tmp_path / "away").write_text("four")
    os.rename(tmp_path / "away", source)
    watched.until("no change beyond the noise, 12.74 µs → 12.74 µs")
    watched.idle(4)

    assert watched.end() == 0
    assert len(ncu.calls()) == 4
    assert "Traceback" not in watched.said["stderr"]


def test_ctrl_c_during_a_run_ends_the_program_too(ncu, tmp_path):
    (tmp_path / "gemm.cu").write_text("one")
    ncu.plan({"report": ALONE})
    script = f"echo $$ > {tmp_path}/pid; exec sleep 600"
    watched = Watched("--watch", "gemm.cu", "--json", "--", "sh", "-c", script)
    until = time.monotonic() + DEADLINE_S
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert time.monotonic() < until
        time.sleep(0.02)

    assert watched.end() == 0
    assert not runs(int((tmp_path / "pid").read_text()))
    assert watched.said["stdout"] == ""


def runs(pid):
    """Whether a process goes on; one that has ended may not have been waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (["vllm", "serve", "m", "--tensor-parallel-size", "2"], 2),
        (["vllm", "serve", "m", "-tp", "2", "-pp", "2"], 4),
        (["python", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "2"], 2),
    ],
)
def test_an_engine_of_several_ranks_is_refused_with_the_reason(capsys, ncu, command, ranks):
    code = main(["kernel", "-k", "gemm", "--", *command])

    told = capsys.readouterr().err
    assert code == 2
    assert told.startswith(
        f"kernel doesn't profile an engine of {ranks} ranks: while one is held for a replay the others"
    )
    assert "gputop-llm rerun" in told
    assert ncu.calls() == []
