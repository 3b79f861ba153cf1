"""The config.json of a target's model, found as the engine finds it, in a tree that may be hostile."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gputop_llm.model import Target
from gputop_llm.modelmath import Parallel
from gputop_llm.sources.model_config import MAX_BYTES, ModelConfigReader
from gputop_llm.sources.procfs import ProcFs
from tests.support.fake_proc import FakeProc
from tests.support.models import config, shape

PID = 4321
LLAMA = json.dumps(config("llama-3.1-8b"))
HASH = "0123456789abcdef0123456789abcdef01234567"


class Box:
    """An engine in a container: `root` is what it sees as /."""

    def __init__(self, path, kernel):
        self.proc = FakeProc(path / "proc")
        self.root = path / "container"
        self.kernel = kernel
        self.environ = {}
        self.cwd = "/app"
        self.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nserver:x:1000:1000::/home/server:/bin/sh\n")
        (path / "host").mkdir()
        (path / "host/config.json").write_text(LLAMA)

    def write(self, name, content):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def link(self, name, target):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, file)

    def read(self, line="vllm serve /models/m", engine="vllm", uid=1000, **changes):
        argv = line.split()
        self.proc.add(PID, argv, uid=uid, environ=self.environ)
        os.symlink(self.root, self.proc.path / f"{PID}/root")
        os.symlink(self.cwd, self.proc.path / f"{PID}/cwd")
        target = Target(**{"key": "k", "engine": engine, "root_pid": PID, "argv": tuple(argv), **changes})
        return ModelConfigReader(self.proc.root, self.kernel).read(target)

    def cached(self, hub, model="org/m", refs=("main",), names=(HASH,), content=LLAMA):
        """Puts a model into a Hugging Face cache, links and all."""
        folder = f"{hub}/models--{model.replace('/', '--')}"
        self.write(f"{folder}/blobs/b10b", content)
        for name in names:
            self.link(f"{folder}/snapshots/{name}/config.json", "../../blobs/b10b")
        for ref in refs:
            self.write(f"{folder}/refs/{ref}", names[0])


@pytest.fixture(params=[True, False], ids=["openat2", "walk"])
def box(request, tmp_path):
    return Box(tmp_path, request.param)


# -- found ---------------------------------------------------------------------


def test_a_model_in_a_folder_is_read_as_the_engine_sees_it(box):
    box.write("models/m/config.json", LLAMA)
    found = box.read("vllm serve /models/m --served-model-name x -tp 2")
    assert found.shape == shape("llama-3.1-8b")
    assert found.parallel == Parallel(2, 1, 1, 2)
    assert found.path == "/models/m/config.json"
    assert found.problem is None


@pytest.mark.parametrize("model", ["m", "./m", "../app/m"])
def test_a_relative_path_is_taken_from_its_working_directory(box, model):
    box.write("app/m/config.json", LLAMA)
    assert box.read(f"vllm serve {model}").shape is not None


@pytest.mark.parametrize(
    ("environ", "hub"),
    [
        ({"HOME": "/home/server"}, "home/server/.cache/huggingface/hub"),
        ({}, "home/server/.cache/huggingface/hub"),  # the passwd file of the container
        ({"HF_HOME": "/data/hf", "HOME": "/home/server"}, "data/hf/hub"),
        ({"HF_HOME": "~/hf", "HOME": "/home/server"}, "home/server/hf/hub"),
        ({"HF_HUB_CACHE": "/data/hub", "HF_HOME": "/data/hf"}, "data/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/data/old", "HF_HOME": "/data/hf"}, "data/old"),
        ({"XDG_CACHE_HOME": "/xdg"}, "xdg/huggingface/hub"),
        ({"HF_HOME": "here"}, "app/here/hub"),
    ],
)
def test_a_model_of_the_hub_is_found_in_the_cache_of_its_environment(box, environ, hub):
    box.environ = environ
    box.cached(hub)
    found = box.read("vllm serve org/m")
    assert found.shape == shape("llama-3.1-8b")
    assert found.path == f"/{hub}/models--org--m/snapshots/{HASH}/config.json"


def test_sglang_too(box):
    box.environ = {"HOME": "/root"}
    box.cached("root/.cache/huggingface/hub")
    found = box.read("python3 -m sglang.launch_server --model-path org/m --tp 2 --kv-cache-dtype fp8_e5m2", "sglang")
    assert found.shape is not None
    assert found.kv_dtype == "fp8_e5m2"


def test_the_revision_decides_between_snapshots(box):
    box.environ = {"HF_HOME": "/hf"}
    other = "f" * 40
    box.cached("hf/hub", refs=("main",), names=(HASH, other))
    box.write("hf/hub/models--org--m/refs/v2", other)
    assert HASH in box.read("vllm serve org/m").path
    assert other in box.read("vllm serve org/m --revision v2").path
    assert other in box.read(f"vllm serve org/m --revision {other}").path


def test_without_a_ref_the_only_snapshot_counts_and_of_two_none(box):
    box.environ = {"HF_HOME": "/hf"}
    box.cached("hf/hub", refs=(), names=(HASH,))
    assert box.read("vllm serve org/m").shape is not None
    box.link(f"hf/hub/models--org--m/snapshots/{'e' * 40}/config.json", "../../blobs/b10b")
    assert "which of the 2 snapshots" in box.read("vllm serve org/m").problem


def test_a_folder_of_that_name_wins_over_the_hub(box):
    box.environ = {"HF_HOME": "/hf"}
    box.cached("hf/hub", content=json.dumps(config("qwen2.5-7b")))
    box.write("app/org/m/config.json", LLAMA)
    assert box.read("vllm serve org/m").shape.model_type == "llama"


def test_a_config_given_apart_from_the_weights_wins(box):
    box.write("models/m/config.json", LLAMA)
    box.write("other/config.json", json.dumps(config("qwen2.5-7b")))
    assert box.read("vllm serve /models/m --hf-config-path /other").shape.model_type == "qwen2"


def test_the_flags_of_the_engine_count(box):
    box.write("models/m/config.json", LLAMA)
    found = box.read("vllm serve /models/m --quantization fp8 --dtype half")
    assert (found.shape.dtype, found.shape.multiplies_in) == ("fp16", "fp8")


# -- hostile -------------------------------------------------------------------


@pytest.mark.parametrize("target", ["../../../../../host/config.json", "/host/config.json", "{tmp}/host/config.json"])
def test_a_link_out_of_the_container_reads_nothing_of_the_host(box, tmp_path, target):
    box.link("models/m/config.json", target.format(tmp=tmp_path))
    found = box.read()
    assert found.shape is None
    assert found.problem == "/models/m/config.json can't be read: there is no such file"


def test_a_folder_that_leads_out_of_the_container_reads_nothing_of_the_host(box, tmp_path):
    box.link("models/m", str(tmp_path / "host"))
    box.link("hf/hub/models--org--m", "../../../host")
    box.environ = {"HF_HOME": "/hf"}
    assert box.read().shape is None
    assert box.read("vllm serve org/m").shape is None
    assert box.read("vllm serve ../../../host").shape is None


def test_the_passwd_file_of_the_host_is_not_taken(box):
    (box.root / "etc/passwd").unlink()
    box.link("etc/passwd", "../../../../../../etc/passwd")
    box.cached("root/.cache/huggingface/hub")
    # Without a passwd file of its own: root's home, inside.
    assert box.read("vllm serve org/m", uid=0).path.startswith("/root/.cache")


def test_a_pipe_in_place_of_the_file_hangs_nobody(box):
    (box.root / "models/m").mkdir(parents=True)
    os.mkfifo(box.root / "models/m/config.json")
    assert box.read().problem == "/models/m/config.json can't be read: not a regular file"


def test_a_folder_in_place_of_the_file(box):
    (box.root / "models/m/config.json").mkdir(parents=True)
    assert "not a regular file" in box.read().problem


def test_a_gigabyte_is_not_read(box):
    file = box.write("models/m/config.json", LLAMA)
    with open(file, "r+b") as sparse:
        sparse.truncate(1 << 30)
    assert box.read().problem == f"/models/m/config.json can't be read: larger than {MAX_BYTES} bytes"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"\x00" * 100, "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"NaN", "not a JSON object"),
        (b"{}", "no model_type"),
        (b"[" * 500_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b"]" * 1000, "not valid JSON"),
        (LLAMA.replace("4096", "NaN").encode(), "hidden_size is nan"),
        (LLAMA.replace("4096", "-Infinity").encode(), "hidden_size is -inf"),
        (LLAMA.replace("4096", "-1").encode(), "hidden_size is -1"),
        (LLAMA.replace("4096", "1e400").encode(), "hidden_size is inf"),
        (LLAMA.replace('"llama"', '"\\u001b]0;owned\\u0007"').encode(), "is not known here"),
    ],
)
def test_what_is_no_config_is_unknown_with_the_reason(box, content, problem):
    box.write("models/m/config.json", content)
    found = box.read()
    assert found.shape is None
    assert problem in found.problem
    assert found.problem.isprintable()
    assert found.parallel == Parallel()


# -- a real process ------------------------------------------------------------

_ENTER = "import os, sys, time; os.chroot(sys.argv[1]); os.chdir('/'); print('in', flush=True); time.sleep(60)"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to put a process into a root of its own")
@pytest.mark.parametrize("kernel", [True, False], ids=["openat2", "walk"])
def test_a_real_process_in_a_root_of_its_own(tmp_path, kernel):
    inside = tmp_path / "inside"
    (inside / "models/m").mkdir(parents=True)
    (inside / "models/m/config.json").write_text(LLAMA)
    (tmp_path / "config.json").write_text(LLAMA)
    (inside / "out").mkdir()
    os.symlink(tmp_path / "config.json", inside / "out/config.json")
    with subprocess.Popen([sys.executable, "-c", _ENTER, str(inside)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "in\n"
            proc = ProcFs()
            started_s = proc.start_s(proc.stat(process.pid).start_ticks)
            reader = ModelConfigReader(kernel=kernel)

            def read(path):
                argv = ("vllm", "serve", path)
                return reader.read(Target(key="k", engine="vllm", root_pid=process.pid, argv=argv, started_s=started_s))

            assert read("/models/m").shape == shape("llama-3.1-8b")
            assert "no such file" in read("/out").problem
            assert "no such file" in read(str(tmp_path)).problem
        finally:
            process.kill()


# -- not there -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("vllm serve /models/none", "/models/none/config.json can't be read: there is no such file"),
        ("vllm serve org/none", "/snapshots can't be read: there is no such file"),
        ("vllm serve s3://bucket/m", "its model is at s3://…, which is not read"),
        ("vllm serve /models/m.gguf", "a GGUF file"),
        ("vllm serve a/b/c", "/app/a/b/c/config.json can't be read"),
        ("vllm serve m --config x.yaml", "a file of settings"),
        ("python3 own.py", "a program of its own"),
    ],
)
def test_why_there_is_no_model(box, line, problem):
    assert problem in box.read(line).problem


def test_an_engine_on_another_node(box):
    assert "runs elsewhere" in ModelConfigReader().read(Target(key="http://x", engine="vllm")).problem


def test_an_engine_that_has_ended(box):
    reader = ModelConfigReader(box.proc.root)
    target = Target(key="k", engine="vllm", root_pid=99, argv=("vllm", "serve", "/models/m"))
    assert reader.read(target).problem == "the engine has ended"


def test_another_process_with_its_pid_is_not_read(box):
    box.write("models/m/config.json", LLAMA)
    assert box.read(started_s=1.0).problem == "the engine has ended"


def test_files_of_another_user(box, monkeypatch):
    def refuse(*_args, **_more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("gputop_llm.sources.model_config.RootFs", refuse)
    assert "run as its user, or as root" in box.read().problem


def test_a_file_that_only_its_owner_may_read(box, monkeypatch):
    def refuse(_self, path, _limit):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("gputop_llm.sources.model_config.RootFs.read", refuse)
    assert box.read().problem == "/models/m/config.json can't be read by this user"


def test_nothing_of_the_environment_is_kept(box):
    box.environ = {"HF_TOKEN": "hf_" + "s" * 30, "HF_HOME": "/hf"}
    assert "hf_s" not in repr(box.read("vllm serve org/m"))
