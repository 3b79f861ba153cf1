"""`gputop-llm doctor`: which ways are open, why the others are not, what is left and what stays."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gputop_llm.capture.conflicts import other_profiler
from gputop_llm.cli import main
from gputop_llm.sources.procfs import ProcFs
from tests.capture.native.hosting import built
from tests.capture.support import capture, last_of, plan_for, serving


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return built((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native")


@pytest.fixture
def unprepared(native, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_LIBRARY", str(native.client))
    monkeypatch.setattr("gputop_llm.capture.native.library_path", lambda: Path(native.client))
    with serving(tmp_path, cupti=native.cupti) as target:
        yield target


def doctor(capsys, *arguments):
    code = main(["doctor", "--period", "0.25", *arguments])
    output = capsys.readouterr()
    assert "Traceback" not in output.out + output.err
    return code, output.out, output.err


def routes(told):
    (process,) = told["processes"]
    return {route["key"]: route for route in process["routes"]}


def test_every_way_is_named_and_those_that_are_open_are_tried(unprepared, capsys):
    code, out, _ = doctor(capsys, "--pid", str(unprepared.pid), "--json")

    assert code == 0
    found = routes(json.loads(out))
    assert list(found)[:2] == ["native-ptrace", "native-run"]
    assert found.keys() >= {
        "remote-exec",
        "engine-endpoint",
        "kineto-agent",
        "kineto-daemon",
        "ncu-rerun",
        "ncu-attach",
    }
    assert found["native-ptrace"]["state"] == "open"
    assert found["native-run"]["state"] == "closed"
    assert "gputop-llm run" in found["native-run"]["opens"]
    assert found["remote-exec"]["state"] == ("open" if sys.version_info >= (3, 14) else "closed")
    assert sys.version_info >= (3, 14) or "remote_exec came with 3.14" in found["remote-exec"]["why"]
    assert all(route["why"] for route in found.values() if route["state"] != "open")
    assert unprepared.serves()


def test_what_is_in_the_way_is_said_with_what_lifts_it(target, capsys):
    code, out, _ = doctor(capsys, "--pid", str(target.pid))

    assert code == 0
    assert "no     native window, injected: it doesn't use CUDA -> choose a process on a GPU" in out
    lines = out.splitlines()
    (later,) = [number for number, line in enumerate(lines) if "not built yet" in line]
    assert "  later  not built yet: " in lines[later]
    assert "Nsight Compute attached to the server" in lines[later]
    assert lines[later + 1] == "", "what is there comes first"
    assert "capture lock   " in out


def test_a_process_that_is_not_there_is_said(capsys):
    code, _, err = doctor(capsys, "--pid", "4194303")

    assert code == 3
    assert err == "there is no process 4194303: it has ended, or is hidden from this user\n"


def test_what_stays_is_listed(unprepared, captures, capsys):
    with capture(plan_for(unprepared, folder=captures)) as run:
        assert last_of(run).outcome == "done"
    _, out, _ = doctor(capsys, "--leftovers", "--json")

    (mapped,) = [one for one in json.loads(out)["mapped"] if one["pid"] == unprepared.pid]
    assert mapped["libraries"][0].startswith("gputop-llm-client-")
    assert f"PID {unprepared.pid} " in doctor(capsys, "--leftovers")[1]


def test_leftovers_are_removed_where_they_are_said_to_be(captures, capsys):
    (captures / ".one.partial").mkdir(parents=True, mode=0o700)
    os.utime(captures / ".one.partial", (0, 0))
    code, out, _ = doctor(capsys, "--leftovers", "--output", str(captures))

    assert code == 0
    assert f"{captures / '.one.partial'}: removed: nothing was recorded" in out
    assert "no leftovers" in doctor(capsys, "--leftovers", "--output", str(captures))[1]


@pytest.mark.parametrize(
    ("mapping", "whose"),
    [
        ("/opt/nvidia/nsight-systems/2025.3.1/target-linux-x64/libToolsInjection64.so", "Nsight Systems"),
        ("/opt/nvidia/nsight-compute/2025.3/target/libcuda-injection.so", "Nsight Compute"),
        ("/usr/local/cuda/compute-sanitizer/libsanitizer-collection.so", "Compute Sanitizer"),
        ("/usr/lib/libcupti.so.13", None),
        ("/usr/lib/python3/site-packages/torch/lib/libkineto.so", None),
    ],
)
def test_other_profilers_are_known_by_what_they_load(mapping, whose, tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_text(f"7f0000000000-7f0000001000 r-xp 00000000 fe:00 7    {mapping}\n")

    assert other_profiler(7, ProcFs(str(tmp_path))) == whose
