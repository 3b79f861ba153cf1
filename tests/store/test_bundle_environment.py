"""What a capture was taken in: known from what was seen, read from the target's own files safely, without secrets."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from gputop_llm.sources.procfs import ProcFs
from gputop_llm.store.bundle_environment import commit_of, environment, kept_variables
from tests.support.captures import CAPTURES

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def frame():
    with gzip.open(CAPTURES / "h200/frames_vllm-0.24_load.jsonl.gz", "rt") as lines:
        return json.loads(next(lines))


def process(tmp_path, environ, cwd="/srv/app"):
    """A /proc with one process whose root is a folder here."""
    root = tmp_path / "root"
    folder = tmp_path / "proc" / "77"
    root.mkdir(exist_ok=True)
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes("\0".join(f"{k}={v}" for k, v in environ.items()).encode() + b"\0")
    os.symlink(cwd, folder / "cwd")
    os.symlink(root, folder / "root")
    return ProcFs(str(tmp_path / "proc")), root


def repository(root, head, folder="srv/app", **files):
    git = root / folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    for name, text in files.items():
        path = git / name.replace("__", "/").replace("_refs", "-refs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return git


def test_gpus_driver_and_engine_are_those_of_the_frame(frame, tmp_path):
    told = environment(frame, "vllm:546:4823", None, sysfs=tmp_path)

    assert told["node"] == {"driver": "580.159.04", "cuda": "13.0", "problem": None, "vgpu_guest": False}
    assert [gpu["name"] for gpu in told["gpus"]] == ["NVIDIA H200"]
    assert told["gpus"][0]["throttle"]
    assert told["engine"]["version"] == "0.24.0"
    assert told["argv"][:3] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert told["git"] is None
    assert told["missing"]["git"] == "no process is known"


def test_the_numa_node_of_a_gpu_is_that_of_its_bus(frame, tmp_path):
    folder = tmp_path / "bus/pci/devices/0000:00:06.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")

    assert environment(frame, "vllm:546:4823", None, sysfs=tmp_path)["gpus"][0]["numa_node"] == 1
    assert environment(frame, "vllm:546:4823", None, sysfs=tmp_path / "none")["gpus"][0]["numa_node"] is None


def test_without_a_frame_it_says_what_is_missing(tmp_path):
    told = environment(None, None, None, argv=["vllm", "serve", "x"])

    assert told["gpus"] == []
    assert told["argv"] == ["vllm", "serve", "x"]
    assert set(told["missing"]) == {"gpus", "environment", "git", "model_config"}


def test_only_variables_that_change_how_an_engine_runs_are_kept():
    kept = kept_variables(
        {
            "CUDA_VISIBLE_DEVICES": "0,1",
            "NCCL_DEBUG": "INFO",
            "VLLM_API_KEY": "planted-1",
            "VLLM_PROXY": "http://bob:planted-2@proxy/?token=planted-3",
            "NCCL_NOTE": "Bearer planted-4-abcdefgh",
            "HF_TOKEN": "hf_planted5planted5planted5",
            "DATABASE": "planted-6",
            "AWS_SECRET_ACCESS_KEY": "planted-7",
            "SGLANG_SECRET": "planted-8",
            "LD_PRELOAD": "/x.so",
        }
    )

    assert "planted" not in json.dumps(kept)
    assert kept["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert kept["VLLM_API_KEY"] == "***"
    assert set(kept) >= {"NCCL_DEBUG", "LD_PRELOAD", "SGLANG_SECRET"}
    assert set(kept) & {"HF_TOKEN", "DATABASE", "AWS_SECRET_ACCESS_KEY"} == set()


def test_the_commit_is_read_from_a_branch_a_packed_branch_and_a_detached_head(tmp_path):
    repository(tmp_path / "a", "ref: refs/heads/main\n", refs__heads__main=f"{COMMIT}\n")
    repository(tmp_path / "b", "ref: refs/heads/x/y\n", packed_refs=f"# pack-refs\n{COMMIT} refs/heads/x/y\n")
    repository(tmp_path / "c", f"{COMMIT}\n")

    assert commit_of(str(tmp_path / "a"), "/srv/app/deep/er") == {"commit": COMMIT, "branch": "main"}
    assert commit_of(str(tmp_path / "b"), "/srv/app") == {"commit": COMMIT, "branch": "x/y"}
    assert commit_of(str(tmp_path / "c"), "/srv/app") == {"commit": COMMIT}
    assert commit_of(str(tmp_path / "c"), "/srv") is None


@pytest.mark.parametrize(
    "head",
    ["ref: refs/../../../secret", "ref: refs/heads/\x1b[2J", "root:x:0:0", "ref: refs/heads/main", "", "x" * 4000],
)
def test_a_repository_that_lies_shows_nothing(tmp_path, head):
    (tmp_path / "secret").write_text("planted")
    repository(tmp_path / "root", head, refs__heads__main="planted, no commit")

    assert commit_of(str(tmp_path / "root"), "/srv/app") is None


def test_a_repository_behind_a_link_is_looked_for_in_the_targets_own_tree(tmp_path):
    outside = repository(tmp_path / "host", f"{COMMIT}\n", folder="x")
    (tmp_path / "root/srv/app").mkdir(parents=True)
    os.symlink(outside, tmp_path / "root/srv/app/.git")

    assert commit_of(str(tmp_path / "root"), "/srv/app") is None


def test_of_a_work_tree_elsewhere_no_other_repository_is_told(tmp_path):
    repository(tmp_path / "root", f"{COMMIT}\n", folder="srv")
    (tmp_path / "root/srv/app").mkdir()
    (tmp_path / "root/srv/app/.git").write_text("gitdir: /elsewhere\n")

    assert commit_of(str(tmp_path / "root"), "/srv/app") is None


def test_environment_and_commit_of_a_process(tmp_path):
    proc, root = process(tmp_path, {"CUDA_VISIBLE_DEVICES": "1", "OPENAI_API_KEY": "planted"})
    repository(root, f"{COMMIT}\n")
    told = environment(None, None, 77, proc=proc)

    assert told["environment"] == {"CUDA_VISIBLE_DEVICES": "1"}
    assert told["git"] == {"commit": COMMIT}
    assert "planted" not in json.dumps(told)


def test_a_process_that_has_gone_is_no_failure(tmp_path):
    (tmp_path / "proc").mkdir()
    told = environment(None, None, 77, proc=ProcFs(str(tmp_path / "proc")))

    assert (told["environment"], told["git"]) == (None, None)
    assert told["missing"]["environment"] == "No such file or directory"


def test_the_models_config_is_kept_and_why_it_is_not(tmp_path):
    """Kernels' shapes follow from it, on a machine that has no such model."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 2048}))
    told = environment(None, None, os.getpid(), ["vllm", "serve", str(tmp_path)], "vllm")
    other = environment(None, None, os.getpid(), ["vllm", "serve", str(tmp_path / "none")], "vllm")

    assert told["model_config"] == {"model_type": "llama", "hidden_size": 2048}
    assert other["model_config"] is None
    assert "no such file" in other["missing"]["model_config"]
