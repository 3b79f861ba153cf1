"""`gputop-llm verdict`: forms, exit codes, ranks, progress, Ctrl-C, and foreign names that stay inert."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import pytest

from gputop_llm.cli import INTERRUPTED, main
from tests.support.captures import CAPTURES, field_case
from tests.support.cli import run_cli, start_cli
from tests.support.synth import Simulation
from tests.support.synth_kineto import to_kineto
from tests.support.synth_native import to_native
from tests.support.synth_nsys import to_nsys_sqlite

VLLM = str(CAPTURES / "h200/nsys-2025.3.1_vllm-0.24-graphs.sqlite.xz")
HEALTHY = str(CAPTURES / "public/tl_vllm_decode.json.gz")
NATIVE = str(CAPTURES / "h200/native_vllm-0.24_kernels+api_0.5s.gtw.xz")
VIDEO = str(CAPTURES / "public/nsysai_h100_2gpu_1s.sqlite.xz")
UNUSABLE = str(CAPTURES / "public/lt_gemm.sqlite")
DEADLINE_S = 60

HOSTILE = "\x1b[31mgemm\x1b]0;owned\x07[bold]x[/bold]<script>alert(1)</script>|[y](http://e.x)`z`\u202eevil\n# heading"


def busy_schedule(name="gemm", ranks=1, steps=60):
    """Each rank launches `steps` kernels with a pause before each, and copies a few bytes."""
    simulation = Simulation()
    for rank in range(ranks):
        process = simulation.process(4000 + rank, name)
        host = simulation.host(process, device=rank, name=name)
        for _ in range(steps):
            with host.op(name), host.range(name):
                host.launch(7, 400_000, name)
                host.run(900_000)
                host.sync(7)
    return simulation.schedule()


def verdict(capsys, *arguments):
    code = main(["verdict", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_findings_exit_with_0_and_the_first_line_is_the_first_finding(capsys):
    code, out, err = verdict(capsys, VLLM)

    assert (code, err) == (0, "")
    assert out.startswith("Launch-bound: the GPU waits 35 % of the window")
    assert "GPU busy: 52.2" in out


def test_a_healthy_capture_exits_with_0(capsys):
    code, out, _ = verdict(capsys, HEALTHY)

    assert code == 0
    assert out.startswith("healthy, GPU-bound")


def test_a_capture_that_cannot_be_judged_exits_with_4_and_says_what_to_do(capsys):
    code, out, err = verdict(capsys, UNUSABLE)

    assert (code, err) == (4, "")
    assert out.startswith("can't judge: ")
    assert "update nsys" in out


@pytest.mark.parametrize("name", [VLLM, HEALTHY, VIDEO, UNUSABLE])
def test_no_line_of_the_text_is_wider_than_100_columns(capsys, name):
    _, out, _ = verdict(capsys, name)

    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("name", [VLLM, HEALTHY, VIDEO, UNUSABLE, NATIVE])
def test_json_has_the_documented_names_and_no_nan(capsys, name):
    _, out, _ = verdict(capsys, name, "--json")
    said = json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))

    assert said["schema"] == "gputop-llm/verdict/1"
    assert out.isascii()
    document = (CAPTURES.parent / "docs" / "verdict.md").read_text(encoding="utf-8")
    for place in (said, said["capture"], *said["findings"][:1], *said["facts"][:1]):
        assert [key for key in place if f"`{key}`" not in document] == []
    for table in said["tables"]:
        assert f"`{table}`" in document


@pytest.mark.parametrize("name", [VLLM, VIDEO])
def test_markdown_has_five_parts_for_each_finding(capsys, name):
    _, out, _ = verdict(capsys, name, "--markdown")
    count = len(re.findall(r"^## \d+\. ", out, re.MULTILINE))

    assert count >= 2
    for part in ("Symptom", "Evidence", "Conclusion", "Remedy", "How to verify"):
        assert out.count(f"**{part}.**") == count


def test_the_form_is_told_by_content_and_not_by_name(capsys, tmp_path):
    trace = to_kineto(busy_schedule(), tmp_path / "trace.sqlite", gz=True)
    export = to_nsys_sqlite(busy_schedule(), tmp_path / "export.json")

    assert json.loads(verdict(capsys, str(trace), "--json")[1])["capture"]["format"] == "kineto"
    assert json.loads(verdict(capsys, str(export), "--json")[1])["capture"]["format"] == "nsys"


def test_perfetto_writes_a_trace_that_reads_back_with_the_same_verdict(capsys, tmp_path):
    written = tmp_path / "out.json.gz"
    code, out, err = verdict(capsys, HEALTHY, "--perfetto", str(written))
    again = verdict(capsys, str(written))

    assert (code, err) == (0, "")
    assert again[1].splitlines()[0] == out.splitlines()[0]


def test_perfetto_never_overwrites_the_capture(capsys, tmp_path):
    trace = to_kineto(busy_schedule(), tmp_path / "trace.json")
    before = trace.read_bytes()
    code, out, err = verdict(capsys, str(trace), "--perfetto", str(tmp_path / "." / "trace.json"))

    assert (code, out) == (2, "")
    assert "the capture itself" in err
    assert trace.read_bytes() == before


def test_open_without_a_terminal_is_wrong_usage_and_reads_nothing():
    done = run_cli("open", "no-such-file.json")

    assert done.returncode == 2
    assert "not a terminal; `gputop-llm verdict` prints" in done.stderr


def test_several_traces_are_ranks_of_one_run(capsys, tmp_path):
    schedule = busy_schedule(ranks=2)
    paths = [str(to_kineto(schedule, tmp_path / f"rank{n}.json", process=n, rank=n)) for n in range(2)]
    code, out, _ = verdict(capsys, *paths, "--json")
    said = json.loads(out)

    assert code == 0
    assert [row["device"] for row in said["tables"]["coverage"]] == [0, 1]
    assert len(said["capture"]["files"]) == 2


@pytest.mark.parametrize("write", [to_kineto, to_nsys_sqlite, to_native])
def test_a_rank_that_recorded_no_gpu_work_is_named(capsys, tmp_path, write):
    quiet = Simulation()
    host = quiet.host(quiet.process(4001, "python"))
    with host.op("aten::empty"):
        host.run(40_000_000)
    paths = [write(busy_schedule(), tmp_path / "rank0"), write(quiet.schedule(), tmp_path / "rank1")]
    code, out, _ = verdict(capsys, *map(str, paths))

    assert code == 0
    assert "rank1: no GPU activity in it" in out
    assert "rank0: no GPU activity" not in out


def test_traces_that_share_no_moment_are_no_ranks_of_one_run(capsys):
    code, out, err = verdict(capsys, HEALTHY, str(CAPTURES / "public/tl_h100_qwen.json.gz"))

    assert (code, out) == (1, "")
    assert "share no moment" in err


def test_captures_of_two_kinds_are_wrong_usage(capsys):
    code, out, err = verdict(capsys, VLLM, HEALTHY)

    assert (code, out) == (2, "")
    assert "different kinds" in err


def test_one_file_named_twice_is_wrong_usage(capsys):
    assert verdict(capsys, VLLM, VLLM)[0] == 2


def test_a_copy_of_a_trace_is_no_further_rank(capsys, tmp_path):
    copy = shutil.copy(HEALTHY, tmp_path / "rank1.json.gz")
    code, out, err = verdict(capsys, HEALTHY, str(copy))

    assert (code, out) == (2, "")
    assert "hold the same" in err


def test_no_file_is_wrong_usage(capsys):
    assert verdict(capsys)[0] == 2


@pytest.mark.parametrize("write", [to_kineto, to_nsys_sqlite, to_native])
@pytest.mark.parametrize("form", [(), ("--markdown",), ("--json",)])
def test_hostile_names_are_shown_inert(capsys, tmp_path, write, form):
    path = write(busy_schedule(HOSTILE), tmp_path / "\x1b[2Jtrace<b>|`x`.json")
    code, out, err = verdict(capsys, str(path), *form)

    assert code == 0, err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", out + err)
    if form == ("--markdown",):
        assert "<" not in out
        assert not re.search(r"(?<!\\)\[y", out)
        assert not re.search(r"(?<!\\)`", out)
        assert [line for line in out.splitlines() if line.startswith("# ")] == out.splitlines()[:1]
        (width,) = {
            len(re.findall(r"(?<!\\)\|", line))
            for line in out.split("## GPU coverage")[1].split("##")[0].splitlines()
            if line
        }
        assert width > 2


def test_a_report_without_an_nsys_on_this_machine_says_what_to_run(capsys, tmp_path, monkeypatch):
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report" + bytes(200))
    monkeypatch.setattr("gputop_llm.timeline.nsys_export.find_nsys", list)
    code, out, err = verdict(capsys, str(report))

    assert (code, out) == (1, "")
    assert "nsys export --type sqlite" in err


def test_the_command_loads_no_screen(tmp_path):
    code = (
        "import sys; from gputop_llm.cli import main; main(sys.argv[1:]); "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'textual', 'rich', 'psutil', 'urllib3', 'pynvml'}))"
    )
    done = subprocess.run(
        [os.sys.executable, "-c", code, "verdict", HEALTHY], capture_output=True, text=True, timeout=DEADLINE_S
    )

    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory):
    """A trace that takes seconds to read."""
    path = tmp_path_factory.mktemp("long") / "trace.json"
    event = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":1,"args":{"device":0,"stream":7}}'
    path.write_text('{"traceEvents":[' + ",".join(event % at for at in range(600_000)) + "]}")
    return path


def until(fd, wanted):
    """What the terminal shows until it shows this."""
    shown, give_up = b"", time.monotonic() + DEADLINE_S
    while wanted not in shown and time.monotonic() < give_up:
        if select.select([fd], [], [], 0.1)[0]:
            shown += os.read(fd, 4096)
    return shown


def test_a_terminal_sees_progress_and_ctrl_c_ends_it_cleanly(long_trace):
    ours, theirs = pty.openpty()
    process = start_cli("verdict", str(long_trace), stderr=theirs)
    os.close(theirs)
    try:
        shown = until(ours, b"%")
        process.send_signal(signal.SIGINT)
        shown += until(ours, b"\r\x1b[K")
        out, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        os.close(ours)

    assert b"reading" in shown
    assert b"Traceback" not in shown
    assert (process.returncode, out) == (INTERRUPTED, "")


def test_a_terminal_sees_the_analysis_advance_too(long_trace):
    ours, theirs = pty.openpty()
    process = start_cli("verdict", str(long_trace), "--json", stderr=theirs)
    os.close(theirs)
    try:
        shown = until(ours, b"analysing")
        shown += until(ours, b"\r\x1b[K")
        out, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        os.close(ours)

    assert shown.index(b"reading") < shown.index(b"analysing   0 %")
    assert process.returncode == 0
    assert json.loads(out)["judged"]


def test_no_progress_where_standard_error_is_no_terminal():
    done = run_cli("verdict", str(field_case(28) / "trace.json"))

    assert (done.returncode, done.stderr) == (0, "")
