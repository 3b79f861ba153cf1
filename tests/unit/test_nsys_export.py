"""Reports become exports with the newest nsys there is, or one sentence says why not."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.timeline import nsys_export
from gputop_llm.timeline.nsys_export import export_nsys_rep, find_nsys, report_version
from gputop_llm.timeline.read_nsys import read_nsys
from tests.support.nsys_figures import counts, decode
from tests.support.nsys_files import fake_nsys, report
from tests.support.synth_nsys import to_nsys_sqlite

HELP = "-f, --force-overwrite=\n-l, --lazy=\n-o, --output=\n-t, --type="
FAIL = "print({!r}, file=sys.stderr); sys.exit(1)"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose only nsys are those that a test puts there."""
    for folder in ("tmp", "path"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(nsys_export, "_PLACES", (str(tmp_path / "opt" / "**" / "bin" / "nsys"),))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    yield tmp_path
    assert list((tmp_path / "tmp").iterdir()) == []


def exporting(machine):
    """Behaviour that copies a real export to where it was asked to."""
    source = to_nsys_sqlite(decode(), machine / "source.sqlite")
    return f"import shutil; shutil.copy({str(source)!r}, output)"


def refusal(path, **more):
    with pytest.raises(GputopError) as caught:
        read_nsys([path], **more)
    return caught.value.sentence()


def test_a_report_is_exported_and_read(machine):
    fake_nsys(machine / "path", "2025.3.1.90", exporting(machine), HELP)
    timeline = read_nsys([report(machine / "capture.nsys-rep")])

    assert counts(timeline) == (3, 6, 3, 3)
    assert timeline.origin.files == (str(machine / "capture.nsys-rep"),)


def test_without_any_nsys_it_says_what_to_run_where(machine):
    sentence = refusal(report(machine / "capture.nsys-rep"))

    assert "there is no nsys on this machine" in sentence
    assert "nsys export --type sqlite" in sentence


def test_the_newest_of_several_is_taken(machine):
    fake_nsys(machine / "path", "2023.4.4.54", FAIL.format("too old"), HELP)
    fake_nsys(machine / "opt" / "2025.3.1" / "bin", "2025.3.1.90", exporting(machine), HELP)
    fake_nsys(machine / "opt" / "2024.10.2" / "bin", "2024.10.2.1", FAIL.format("too old"), HELP)

    assert [found.version[:2] for found in find_nsys()] == [(2025, 3), (2024, 10), (2023, 4)]
    assert counts(read_nsys([report(machine / "capture.nsys-rep")])) == (3, 6, 3, 3)


def test_one_that_does_not_run_is_passed_over(machine):
    broken = fake_nsys(machine / "opt" / "2026.1.1" / "bin", "2026.1.1.1", "", HELP)
    broken.write_text("#!/no/such/interpreter\n")
    fake_nsys(machine / "path", "2025.3.1.90", exporting(machine), HELP)

    assert [found.version[0] for found in find_nsys()] == [2025]


def test_links_to_one_program_are_one(machine):
    program = fake_nsys(machine / "opt" / "2025.3.1" / "bin", "2025.3.1.90", "", HELP)
    (machine / "path" / "nsys").symlink_to(program)

    assert [found.path for found in find_nsys()] == [program]


@pytest.mark.parametrize(
    "said",
    [
        "Exportation error: Version number is invalid: 2026@1@1@1-234433681190v0",
        "Exportation error: Report was created in Nsight Systems version (X), newer than your current version (Y)",
    ],
)
def test_a_report_newer_than_every_nsys_says_both_versions(machine, said):
    fake_nsys(machine / "path", "2022.4.2.1", FAIL.format(said), HELP)
    sentence = refusal(report(machine / "capture.nsys-rep", "2026@1@1@1-234433681190v0"))

    assert "(2026.1.1) is newer than the newest nsys here (2022.4.2)" in sentence
    assert "update nsys" in sentence


def test_its_own_words_are_told_when_it_fails(machine):
    words = "Processing 5056 events: [===12%                       ]\\rExportation error: Section Table magic mismatch."
    behaviour = f"sys.stderr.write('{words}'); sys.exit(1)"
    fake_nsys(machine / "path", "2025.3.1.90", behaviour, HELP)
    sentence = refusal(report(machine / "capture.nsys-rep"))

    assert "(Exportation error: Section Table magic mismatch.)" in sentence


def test_a_missing_library_is_told(machine):
    words = "nsys: error while loading shared libraries: libdw.so.1: cannot open shared object file"
    fake_nsys(machine / "path", "2025.3.1.90", FAIL.format(words), HELP)

    assert "libdw.so.1" in refusal(report(machine / "capture.nsys-rep"))


def test_an_export_that_writes_nothing_is_no_success(machine):
    fake_nsys(machine / "path", "2025.3.1.90", "print('Importer error status')", HELP)

    assert "Importer error status" in refusal(report(machine / "capture.nsys-rep"))


def test_escapes_in_its_words_are_inert(machine):
    fake_nsys(machine / "path", "2025.3.1.90", FAIL.format("\x1b[31mred"), HELP)

    assert "\x1b" not in refusal(report(machine / "capture.nsys-rep"))


def test_only_flags_that_it_lists_are_given(machine):
    behaviour = "open(output + '.args', 'w').write(' '.join(sys.argv)); " + exporting(machine)
    fake_nsys(machine / "path", "2022.1.1.1", behaviour, "-t, --type=\n-o, --output=\n--force-overwrite=")
    folder = machine / "out"
    folder.mkdir()
    made = export_nsys_rep(report(machine / "capture.nsys-rep"), folder)

    arguments = Path(f"{made}.args").read_text()
    assert "--force-overwrite=true" in arguments
    assert "--lazy" not in arguments


def test_cancelling_ends_the_export_and_its_process(machine):
    behaviour = "import os, time; open(output + '.pid', 'w').write(str(os.getpid())); time.sleep(60)"
    fake_nsys(machine / "path", "2025.3.1.90", behaviour, HELP)
    pids = []

    def running():
        for started in (machine / "tmp").glob("*/capture.sqlite.pid"):
            pids.extend(started.read_text().split())
        return bool(pids)

    assert "was cancelled" in refusal(report(machine / "capture.nsys-rep"), cancelled=running)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids[0]), 0)


def test_an_export_that_hangs_is_ended(machine, monkeypatch):
    monkeypatch.setattr(nsys_export, "_DEADLINE_S", 0.2)
    fake_nsys(machine / "path", "2025.3.1.90", "import time; time.sleep(60)", HELP)

    assert "took over" in refusal(report(machine / "capture.nsys-rep"))


def test_a_disk_that_fills_up_ends_it(machine, monkeypatch):
    monkeypatch.setattr(nsys_export, "_SPARE_BYTES", 1 << 60)
    fake_nsys(machine / "path", "2025.3.1.90", "import time; time.sleep(60)", HELP)

    assert "nearly full" in refusal(report(machine / "capture.nsys-rep"))


def test_its_progress_is_passed_on(machine):
    wait = "import time, os; sys.stderr.write('Processing: [==50%   ]'); sys.stderr.flush()\n"
    wait += f"while not os.path.exists({str(machine / 'seen')!r}): time.sleep(0.01)\n"
    fake_nsys(machine / "path", "2025.3.1.90", wait + exporting(machine), HELP)
    told: list[float] = []

    def tell(share):
        told.append(share)
        (machine / "seen").touch()

    read_nsys([report(machine / "capture.nsys-rep")], tell)

    assert told[0] == pytest.approx(0.3)
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.parametrize(
    ("text", "version"),
    [("2023@4@4@54-234433681190v0", (2023, 4, 4, 54)), ("2025@6@1@190-1v0", (2025, 6, 1, 190)), ("1", ())],
)
def test_the_version_of_a_report_stands_in_its_first_bytes(tmp_path, text, version):
    assert report_version(report(tmp_path / "capture.nsys-rep", text)) == version
