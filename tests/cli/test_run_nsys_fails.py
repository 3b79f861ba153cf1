"""`gputop-llm run --nsys` with an nsys that fails as real ones were seen to."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from gputop_llm.sources.procfs import ProcFs
from tests.support.cli import environment

NSYS = r"""#!PYTHON
import pathlib, subprocess, sys, time
HERE = pathlib.Path(__file__).parent
argv = sys.argv[1:]
if "--help" in argv: print("\t--session-new=\n\t--trace=")
elif argv[0] == "launch":
    name = next(one for one in argv if one.startswith("--session-new=")).partition("=")[2]
    (HERE / f"launched-{name}").touch()
    if FAILS == "trips" and len(list(HERE.glob("launched-*"))) == 1:
        agent = subprocess.Popen([__file__, "--start-agent", f"--session-name={name}"])
        (HERE / "agent").write_text(str(agent.pid))
        sys.exit("sem_open: no such file")
    code = subprocess.run([one for one in argv[1:] if not one.startswith("--")], close_fds=False).returncode
    while FAILS == "hangs": time.sleep(0.05)
    sys.exit(code)
elif argv[0] == "--start-agent": time.sleep(60)
elif argv[0] == "sessions": print("ID TIME STATE LAUNCH NAME")
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program under an nsys that fails in one way."""

    def start(failure, *argv):
        path = tmp_path / "nsys"
        path.write_text(NSYS.replace("#!PYTHON", f"#!{sys.executable}").replace("FAILS", repr(failure)))
        path.chmod(0o755)
        script = (
            "import sys; from gputop_llm.commands import run_nsys; from gputop_llm.errors import GputopError\n"
            "run_nsys._HANGS_S = 0.3\n"
            "try: sys.exit(run_nsys.launch(sys.argv[1:]))\n"
            "except GputopError as failure: print(failure.sentence()); sys.exit(failure.exit_code)\n"
        )
        return subprocess.run(
            [sys.executable, "-c", script, *argv], capture_output=True, text=True, timeout=60,
            env={**environment(), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )  # fmt: skip

    return start


def test_an_nsys_that_does_not_end_with_its_program_is_not_waited_for(run):
    ended = run("hangs", "/bin/echo", "done")

    assert (ended.stdout, ended.returncode) == ("done\n", 1), "an exit code that nobody knows is no success"


def test_what_could_not_be_started_is_told_whatever_nsys_does(run, tmp_path):
    ended = run("hangs", str(tmp_path))

    assert (ended.stdout, ended.returncode) == (f"cannot start {tmp_path}: permission denied\n", 126)


def test_a_second_try_has_a_session_of_its_own(run, tmp_path):
    ended = run("trips", "/bin/echo", "done")

    assert (ended.stdout, ended.returncode) == ("done\n", 0)
    with contextlib.suppress(OSError):
        # A zombie has none.
        assert ProcFs().argv(int((tmp_path / "agent").read_text())) == (), "its agent would stay for good"
    assert len(list(tmp_path.glob("launched-*"))) == 2
