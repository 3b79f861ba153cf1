"""A capture becomes a bundle: verdict, surroundings, name, no secrets; a full disk harms nothing."""

from __future__ import annotations

import errno
import gzip
import json
import os

import pytest

from gputop_llm.capture.bundling import bundled
from gputop_llm.cli import main
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.store import bundle
from gputop_llm.tui.viewer import opened
from tests.support.bundles import capture_folder, pace
from tests.support.captures import CAPTURES

SECRETS = ("hf_plantedplantedplanted", "planted-key", "planted-pass", "planted-token", "sk-plantedplantedplanted")
ARGV = (
    *("vllm", "serve", "meta/llama-1b", "--api-key", SECRETS[1], f"--hf-token={SECRETS[0]}"),
    *("--otlp", f"https://bob:{SECRETS[2]}@host/x?token={SECRETS[3]}", SECRETS[4]),
)


@pytest.fixture
def proc(tmp_path):
    """A /proc whose only process is the captured one, with secrets in its environment."""
    folder = tmp_path / "proc" / "4000"
    root = tmp_path / "root"
    (root / "srv").mkdir(parents=True)
    folder.mkdir(parents=True)
    variables = {"CUDA_VISIBLE_DEVICES": "0", "VLLM_API_KEY": SECRETS[1], "HF_TOKEN": SECRETS[0], "MY": SECRETS[2]}
    (folder / "environ").write_bytes("\0".join(f"{k}={v}" for k, v in variables.items()).encode())
    os.symlink("/srv", folder / "cwd")
    os.symlink(root, folder / "root")
    return ProcFs(str(tmp_path / "proc"))


def frames():
    with gzip.open(CAPTURES / "h200/frames_vllm-0.24_load.jsonl.gz", "rt") as lines:
        return [line.strip().replace("vllm:546:4823", "vllm:1:2") for line in lines][:3]


def taken(tmp_path, **more):
    engine = pace(lambda at: 1000.0, itl=lambda at: 0.02, recovered=True)
    return capture_folder(tmp_path / "captures" / "window", answers=engine, argv=ARGV, **more)


def test_the_bundle_holds_everything_and_says_what_it_is(tmp_path, proc):
    folder = taken(tmp_path, ranks=2, frames=frames())
    path = bundled(folder, proc=proc)

    names = ["capture.json", "engine.jsonl", "environment.json", "frames.jsonl", "verdict.json", "verdict.md"]
    names += ["rank0_pid4000.gtw", "rank1_pid4001.gtw"]
    assert sorted(p.name for p in path.iterdir()) == sorted(names)
    assert path.name.startswith("llama-1b_H200_")
    assert path.name.endswith("_2ranks-32running_unknown-commit_20260921T141320Z")
    assert [p.name for p in folder.parent.iterdir()] == [path.name]
    opened = bundle.read(path)
    assert opened.verdict["schema"] == "gputop-llm/verdict/1"
    assert opened.capture["repeat"] == "gputop-llm capture --pid 4000 --seconds 0.5"
    assert opened.capture["formats"]["record"] == 1
    assert [frame["seq"] for frame in opened.frames()] == [json.loads(frame)["seq"] for frame in frames()]
    surroundings = json.loads((path / "environment.json").read_text())
    assert surroundings["node"]["driver"] == "580.159.04"
    assert surroundings["environment"] == {"CUDA_VISIBLE_DEVICES": "0", "VLLM_API_KEY": "***"}
    assert opened.verdict["capture"]["files"] == ["rank0_pid4000.gtw", "rank1_pid4001.gtw"]
    page = (path / "verdict.md").read_text()
    assert all(f"**{part}.**" in page for part in ("Symptom", "Evidence", "Conclusion", "Remedy", "How to verify"))


def test_no_secret_is_in_it(tmp_path, proc):
    (frame, *_) = frames()
    told = json.loads(frame)
    told["targets"][0] |= {"argv": list(ARGV), "notes": [f"asked {ARGV[-2]} with Bearer {SECRETS[3]}"]}
    path = bundled(taken(tmp_path, frames=[json.dumps(told)]), proc=proc)

    everything = "".join(p.read_bytes().decode("latin-1") for p in path.iterdir())
    assert [secret for secret in SECRETS if secret in everything] == []
    assert "meta/llama-1b" in everything


def test_the_verdict_of_a_bundle_is_that_of_its_records_with_the_cost(tmp_path, proc, capsys):
    path = bundled(taken(tmp_path), proc=proc)

    code = main(["verdict", "--json", str(path)])
    told = json.loads(capsys.readouterr().out)

    assert code == 0
    assert told["headline"] == bundle.read(path).verdict["headline"]
    (cost,) = [finding for finding in told["findings"] if finding["id"] == "capture-cost"]
    assert cost["headline"].startswith("The capture cost: token rate")


def test_what_of_a_bundle_was_not_read_is_among_the_notes(tmp_path, proc, capsys):
    path = bundled(taken(tmp_path), proc=proc)
    (path / "capture.json").write_text("{")

    main(["verdict", str(path)])
    shown = opened([path], lambda _phase, _share: None, lambda: False)

    note = "capture.json is damaged and was not used"
    assert f"  - {note}\n" in capsys.readouterr().out
    assert note in shown.verdict.notes


def test_a_capture_behind_a_link_is_not_touched(tmp_path, proc):
    folder = taken(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(folder)

    with pytest.raises(GputopError, match="cannot read"):
        bundled(link, proc=proc)

    assert (folder / "rank0_pid4000.gtw").exists()


def test_the_display_opens_a_bundle_as_well(tmp_path, proc):
    path = bundled(taken(tmp_path), proc=proc)

    shown = opened([path], lambda _phase, _share: None, lambda: False)

    assert shown.verdict.headline == bundle.read(path).verdict["headline"]
    assert "capture-cost" in {finding.id for finding in shown.verdict.findings}


def test_a_capture_that_ended_early_says_so_in_its_name(tmp_path, proc):
    assert bundled(taken(tmp_path, facts={"outcome": "incomplete"}), proc=proc).name.endswith("Z-incomplete")


def test_a_disk_that_fills_up_leaves_the_capture_as_it_was(tmp_path, proc, monkeypatch):
    folder = taken(tmp_path)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def full(_fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GputopError, match="no space left on device"):
        bundled(folder, proc=proc)

    assert [p.name for p in folder.parent.iterdir()] == ["window"]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_records_that_cannot_be_read_leave_the_capture_as_it_was(tmp_path, proc):
    folder = taken(tmp_path)
    (folder / "rank0_pid4000.gtw").write_bytes(b"GPUTOPW1")

    with pytest.raises(GputopError, match="holds no window"):
        bundled(folder, proc=proc)

    assert [p.name for p in folder.parent.iterdir()] == ["window"]


def test_a_folder_that_is_no_bundle_is_told_in_a_sentence(tmp_path, capsys):
    code = main(["verdict", str(tmp_path)])

    assert code == 1
    assert "it is a folder without a record" in capsys.readouterr().err
