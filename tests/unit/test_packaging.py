"""The wheel: what it holds, and what it asks for."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def checkout_in(folder):
    """This checkout as far as a wheel is made of it: builds in one folder would meet each other's half-made files."""
    shutil.copytree(ROOT / "gputop_llm", folder / "gputop_llm", ignore=shutil.ignore_patterns("__pycache__", ".lib*"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return checkout_in(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    """The wheel of this checkout, opened."""
    directory = tmp_path_factory.mktemp("wheel")
    # The build backend itself: what `pip wheel` would run, without a network.
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
    subprocess.run(command, cwd=checkout, check=True)
    (path,) = directory.glob("gputop_llm-*-py3-none-*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def requirements(metadata, extra):
    """Names of the requirements with that extra ("" for none)."""
    parsed = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    needed = [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": extra, "python_version": "3.10"})]
    return {requirement.name for requirement in needed}


def test_the_wheel_holds_the_package_whole_and_nothing_else(checkout, wheel):
    in_checkout = {
        path.relative_to(checkout).as_posix()
        for path in (checkout / "gputop_llm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == in_checkout


def test_the_wheel_is_for_the_platform_of_its_library(wheel):
    (tags,) = [name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL")]

    assert wheel.read("gputop_llm/capture/native/libgputop_client.so").startswith(b"\x7fELF")
    assert "Tag: py3-none-manylinux_2_28_x86_64\n" in wheel.read(tags).decode()
    assert "Root-Is-Purelib: false\n" in wheel.read(tags).decode()


def test_without_a_compiler_there_is_a_pure_wheel_and_a_warning(tmp_path):
    copy = checkout_in(tmp_path)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    environment = {**os.environ, "CC": "no-such-compiler"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=True)
    (path,) = tmp_path.glob("gputop_llm-*.whl")

    assert path.name.endswith("-py3-none-any.whl")
    assert "built without its native client: no-such-compiler" in done.stdout + done.stderr
    with zipfile.ZipFile(path) as archive:
        assert [name for name in archive.namelist() if name.endswith(".so")] == []


def test_the_monitor_needs_neither_torch_nor_nvtx_and_the_extras_bring_them(metadata):
    assert requirements(metadata, "") == {
        "textual",
        "nvidia-ml-py",
        "psutil",
        "py-spy",
        "prometheus-client",
        "urllib3",
        "platformdirs",
        "numpy",
        "msgspec",
        "tomli",
    }
    assert requirements(metadata, "agent") - requirements(metadata, "") == {"torch", "nvtx"}
    assert requirements(metadata, "lab") - requirements(metadata, "") == {"torch"}


def test_nothing_is_pinned_that_an_engine_may_hold_at_another_version(metadata):
    upper_bounds = {
        requirement.name
        for requirement in map(Requirement, metadata.get_all("Requires-Dist"))
        for specifier in requirement.specifier
        if specifier.operator in ("<", "<=", "==", "~=")
    }

    # No engine depends on textual.
    assert upper_bounds == {"textual"}


def test_the_command_is_the_command_line_and_python_3_10_will_do(wheel, metadata):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]

    assert "gputop-llm = gputop_llm.cli:main" in wheel.read(name).decode()
    assert metadata["Requires-Python"] == ">=3.10"
