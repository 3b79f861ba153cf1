"""What nsys was seen to get wrong becomes a cause and a fix, and leaves nothing behind."""

from __future__ import annotations

import os
import sqlite3
import subprocess

import pytest

from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.nsys.collection import Collection, raw_folder, undo
from gputop_llm.capture.nsys.export import clean
from gputop_llm.capture.nsys.failures import explained, meaning_of
from gputop_llm.capture.nsys.tool import Tool, distrusted, expandable, generated
from gputop_llm.errors import GputopError
from tests.capture.nsys.fake_nsys import make


@pytest.fixture
def collection(tmp_path):
    """Makes a collection of an nsys that fails in one way, with its folder."""
    made = []

    def start(failure="", words="", **how):
        folder = CaptureFolder(tmp_path / "captures", "one")
        folder.make()
        made.append(folder)
        tool = Tool(make(tmp_path / "nsys", failure, words, **how))
        return Collection(tool, "4711", folder, [("--session", "4711"), ("--sample", "none"), ("--no-such", "1")])

    yield start
    for folder in made:
        folder.close()


def names(tmp_path):
    """What there is of captures, but for the folder's own lock."""
    return sorted(path.name for path in (tmp_path / "captures").rglob("*") if path.is_file() and path.suffix != ".part")


def test_a_window_becomes_a_record_and_its_report_is_removed(collection, tmp_path):
    window = collection()
    window.start()
    assert window.tool.session("4711").collecting
    window.stop()
    window.remove()

    assert window.events == 1
    assert names(tmp_path) == ["nsys.sqlite"]
    assert "--no-such" not in (tmp_path / "nsys" / "start.json").read_text()


@pytest.mark.parametrize("failure", ["elsewhere", "no-export"])
def test_a_report_that_is_elsewhere_or_not_exported_is_used_all_the_same(failure, collection, tmp_path):
    window = collection(failure)
    window.start()
    window.stop()
    window.remove()

    assert window.events == 1
    assert names(tmp_path) == ["nsys.sqlite"]
    assert not list((tmp_path / "nsys").glob("nsys-report*.sqlite"))


def test_a_start_that_says_nothing_and_does_nothing_is_noticed(collection):
    with pytest.raises(GputopError, match="it said that it had started, and its session is gone"):
        collection("gone").start()


@pytest.mark.parametrize(
    ("failure", "words", "why"),
    [
        ("start", "Configuring is not allowed in this state.", "somebody else collects in this session"),
        ("start", "Failed to find session: x.", "the session is gone"),
        ("start", "Local Endpoint is not available", "nsys lost its agent"),
        ("start", "unrecognised option '--trace=cuda'", "does not know an option"),
        ("start", "no words that anybody knows", "nsys says: no words that anybody knows"),
        ("stop", "write: No space left on device", "the disk is full"),
        ("importer", "", "its importer can't run"),
        ("range", "", "the range never began"),
    ],
)
def test_a_failure_is_explained(failure, words, why, collection, monkeypatch):
    monkeypatch.setattr("gputop_llm.capture.nsys.collection._WRITTEN_WITHIN_S", 0.0)
    window = collection(failure, words)
    if failure != "start":
        window.start()
    with pytest.raises(GputopError) as failed:
        (window.start if failure == "start" else window.stop)()

    assert why in failed.value.why


def test_what_a_dead_worker_left_is_stopped_and_kept(collection, tmp_path):
    window = collection()
    window.start()

    assert undo(window.step) is None
    assert not window.tool.session("4711").collecting
    assert names(tmp_path) == ["nsys.sqlite"]
    assert undo(window.step) is None, "twice is as good as once"


@pytest.mark.parametrize("at", ["start", "stop"])
def test_what_a_dead_worker_had_nsys_do_is_waited_for(at, collection, tmp_path):
    window = collection("slow")
    raw = raw_folder(window._folder)
    raw.mkdir()
    start = ["start", "--session=4711", f"--output={raw}/report"]
    if at == "stop":
        subprocess.run([window.tool.path, *start], check=True)
    # nsys is a session of its own, and outlives whoever ran it.
    arguments = start if at == "start" else ["stop", "--session=4711"]
    with subprocess.Popen([window.tool.path, *arguments], stdout=subprocess.DEVNULL) as left:
        assert undo(window.step) is None
        assert left.wait(10) == 0

    assert not window.tool.session("4711").collecting
    assert names(tmp_path) == ["nsys.sqlite"]
    assert not raw.exists()


def test_a_record_that_was_half_made_is_made_again(collection, tmp_path):
    window = collection()
    window.start()
    os.close(window._folder.open_record("nsys.sqlite"))
    subprocess.run([window.tool.path, "stop", "--session=4711"], check=True, stdout=subprocess.DEVNULL)

    assert undo(window.step) is None
    assert names(tmp_path) == ["nsys.sqlite"]


def test_a_session_that_is_at_rest_is_not_stopped(collection, tmp_path):
    window = collection("stop", "must not be called")

    assert undo(window.step) is None
    assert names(tmp_path) == []


def test_a_binary_that_others_may_write_is_not_run(tmp_path):
    path = make(tmp_path / "nsys")
    assert distrusted(path) is None
    path.chmod(0o777)
    assert distrusted(path) == f"{path} can be written by everybody"
    path.chmod(0o755)
    path.parent.chmod(0o777)
    assert distrusted(path) == f"{path.parent} can be written by everybody"
    assert "no such file" in distrusted(tmp_path / "nowhere")


SAID = [
    ("No CUDA events collected. Does the process use CUDA?", "wraps another process"),
    ("SKIPPED: a.sqlite does not contain CUDA kernel data", "wraps another process"),
    ("Installed CUDA driver version (13.3) is not supported by this build", "older than the driver"),
    ("CUPTI buffers: 49 of 50. Some CUPTI events might be missing", "buffers ran over"),
    ("Not all CUDA events might have been collected.", "buffers ran over"),
    ("perf event paranoid level is 2", "no CPU samples"),
    ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "another profiler"),
    ("ERR_NVGPUCTRPERM", "administrators only"),
    ("GPU metrics: device already in use", "somebody else reads the GPU's counters"),
    ("perf_event_open: Operation not permitted", "seccomp"),
    ("Wrong event order has been detected", "wrong order"),
    ("Connection to Agent lost", "lost its agent"),
    ("Exportation error: Report was created in Nsight Systems version (2026.1), newer than your current version",
     "newer nsys"),
    ("Number of incomplete CUPTI events dropped: 812", "hardware trace"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "why"), SAID)
def test_each_known_text_has_its_cause_and_fix(text, why):
    meaning = explained(f"[1/2] [==  40%] x\r\n{text}\n")

    assert why in meaning.why
    assert meaning.todo


def test_good_words_mean_nothing():
    assert meaning_of("Generating '/tmp/x.qdstrm'\nGenerated:\n    /tmp/x.nsys-rep\n") is None


def test_paths_are_told_from_progress_and_survive_nsys_replacements(tmp_path):
    said = (
        "x\rGenerating '/tmp/q.qdstrm'\n\r[2/2] [===100%] a.sqlite\nGenerated:\n    /a b/r.nsys-rep\n\t/a b/r.sqlite\n"
    )

    assert [str(path) for path in generated(said)] == ["/a b/r.nsys-rep", "/a b/r.sqlite"]
    assert generated("Generated:\n") == []
    assert expandable(tmp_path / "%h%q{HOME}").endswith("/%%h%%q{HOME}")


def test_an_export_keeps_events_and_their_names_and_no_secret(tmp_path):
    raw = tmp_path / "raw #?%.sqlite"
    db = sqlite3.connect(raw)
    db.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
        "INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'HF_TOKEN=verysecret');"
        "INSERT INTO StringIds VALUES (3, 'serve --api-key hf_aaaaaaaaaaaaaaaaaaaa');"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, shortName INTEGER, deviceId INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 1, 2), (3, 4, 3, 2);"
        "CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);"
        "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'A=verysecret'), ('RATE_HZ', '0');"
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);"
        "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', 'verysecret');"
    )
    db.commit()
    db.close()

    assert clean(raw, tmp_path / "clean.sqlite") == 2
    kept = (tmp_path / "clean.sqlite").read_bytes()
    assert b"verysecret" not in kept
    assert b"hf_aaaaaaaa" not in kept
    assert b"gemm" in kept
    assert b"RATE_HZ" in kept
