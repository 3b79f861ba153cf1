"""`tools/dev.py`: when `.venv` is made, completed, used again, and what a newcomer is told when that fails."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with nothing but the tools and a pyproject.toml, and its dev module; installing is only noted."""
    shutil.copytree(TOOLS, tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "hatch_build.py").touch()
    (tmp_path / "gputop_llm/capture/native").mkdir(parents=True)
    (tmp_path / "gputop_llm/capture/native/client.c").touch()
    monkeypatch.syspath_prepend(tmp_path / "tools")
    monkeypatch.delitem(sys.modules, "dev", raising=False)
    dev = importlib.import_module("dev")
    dev.installed = []
    monkeypatch.setattr(dev, "install", dev.installed.append)
    # pip takes seconds and is not what is looked at here.
    monkeypatch.setattr(dev, "put_pip", lambda: None)
    yield dev
    sys.modules.pop("dev", None)


def test_the_second_start_finds_everything_done(checkout):
    checkout.set_up("run")
    checkout.set_up("run")

    assert checkout.installed == ["run"]


def test_tests_add_their_packages_to_the_same_environment_and_the_program_then_needs_nothing(checkout):
    checkout.set_up("run")
    kept = Path(checkout.VENV, "kept")
    kept.touch()
    checkout.set_up("dev")
    checkout.set_up("run")

    assert checkout.installed == ["run", "dev"]
    assert kept.exists()


def test_a_changed_pyproject_installs_again_into_the_same_environment(checkout):
    checkout.set_up("run")
    kept = Path(checkout.VENV, "kept")
    kept.touch()
    Path(checkout.ROOT, "pyproject.toml").write_text("[project]\nname = 'y'\n")
    checkout.set_up("run")

    assert checkout.installed == ["run", "run"]
    assert kept.exists()


@pytest.mark.parametrize(
    "changed", ["hatch_build.py", "gputop_llm/capture/native/client.c", "gputop_llm/capture/native/new.h"]
)
def test_a_changed_client_is_compiled_again(checkout, changed):
    checkout.set_up("run")
    Path(checkout.ROOT, changed).write_text("changed")
    checkout.set_up("run")
    checkout.set_up("run")

    assert checkout.installed == ["run", "run"]


@pytest.mark.parametrize("damage", ["interrupted", "python gone", "moved here"])
def test_an_environment_that_cannot_work_is_made_anew(checkout, damage, monkeypatch):
    leftover = Path(checkout.VENV, "leftover")
    if damage == "interrupted":

        def interrupted(level):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(checkout, "install", interrupted)
            with pytest.raises(KeyboardInterrupt):
                checkout.set_up("run")
    else:
        checkout.set_up("run")
    if damage == "python gone":
        Path(checkout.PYTHON).unlink()
    if damage == "moved here":
        stamp = Path(checkout.STAMP)
        stamp.write_text(stamp.read_text().replace(checkout.VENV, "/elsewhere/.venv"))
    leftover.touch()
    checkout.set_up("run")

    assert not leftover.exists()
    assert subprocess.run([checkout.PYTHON, "-c", ""], check=False).returncode == 0
    assert checkout.is_ready("run")


def test_an_environment_that_someone_made_by_hand_is_completed_not_replaced(checkout):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout.VENV], check=True)
    kept = Path(checkout.VENV, "kept")
    kept.touch()
    checkout.set_up("run")

    assert kept.exists()
    assert checkout.installed == ["run"]


def test_the_second_start_costs_less_than_150_ms(checkout):
    checkout.set_up("run")
    command = [sys.executable, str(Path(checkout.ROOT, "tools/dev.py")), "run"]
    # The program that it starts stands aside: here it is a package that ends at once.
    Path(checkout.ROOT, "gputop_llm").mkdir(exist_ok=True)
    Path(checkout.ROOT, "gputop_llm/__main__.py").write_text("print('started')")

    def seconds(command):
        begun = time.perf_counter()
        done = subprocess.run(command, cwd=checkout.ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == "started\n"
        return time.perf_counter() - begun

    # The least of several: other tests run at the same time.
    with_set_up = min(seconds(command) for _ in range(7))
    without = min(seconds([checkout.PYTHON, "-m", "gputop_llm"]) for _ in range(7))

    assert with_set_up - without < 0.150


def test_an_old_python_is_told_what_to_do():
    old = f"import runpy, sys; sys.version_info = (3, 8, 10); runpy.run_path({str(TOOLS / 'dev.py')!r})"
    done = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("gputop-llm needs Python 3.10 or newer and this is 3.8: install")
    assert "make run PYTHON=" in done.stderr
    assert done.stderr.count("\n") == 1
    # It can only say so if it compiles there at all.
    ast.parse((TOOLS / "dev.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('...: Failed to "
            "establish a new connection: [Errno 111] Connection refused')': /simple/textual/\n"
            "ERROR: No matching distribution found for textual",
            "connect to the network, or set PIP_INDEX_URL",
        ),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "set PIP_CERT"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "disk is full"),
        ("Collecting x\nERROR: No matching distribution found for textual>=8\n", "found for textual>=8"),
        ("", "printed nothing"),
    ],
)
def test_what_pip_prints_becomes_one_clause(checkout, printed, told):
    assert told in checkout.reason(printed)
    assert "\n" not in checkout.reason(printed)


def test_a_failure_to_install_is_one_sentence_and_no_traceback(checkout, monkeypatch, capsys):
    def failing(level):
        checkout.run_quietly([sys.executable, "-c", "import sys; sys.exit('ERROR: the moon is missing')"], "cannot fly")

    monkeypatch.setattr(checkout, "install", failing)

    assert checkout.main(["run"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "cannot fly: ERROR: the moon is missing"


@pytest.mark.parametrize("arguments", [[], ["fly"], ["test", "now"]])
def test_an_unknown_command_gets_the_usage_and_makes_nothing(checkout, arguments, capsys):
    assert checkout.main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: python3 tools/dev.py run")
    assert not Path(checkout.VENV).exists()
