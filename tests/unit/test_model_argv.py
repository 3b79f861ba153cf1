"""Which model a command line names, and how it is split."""

from __future__ import annotations

import pytest

from gputop_llm.modelmath import Parallel
from gputop_llm.sources.model_argv import read_model_launch

API_SERVER = "python3 -m vllm.entrypoints.openai.api_server"


def vllm(line):
    return read_model_launch("vllm", line.split())


def sglang(line):
    return read_model_launch("sglang", line.split())


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve org/m",
        "/venv/bin/vllm serve --port 8000 org/m",
        "vllm serve org/m --served-model-name gpt-4",
        f"{API_SERVER} --model org/m",
        f"{API_SERVER} --model=org/m --enforce-eager",
        "python3 -m sglang.launch_server --model-path org/m --trust-remote-code",
        "sglang serve --model-path org/m",
        "python3 -m sglang.launch_server --model org/m",
    ],
)
def test_the_model_is_what_is_loaded_not_what_it_is_served_as(line):
    found = sglang(line) if "sglang" in line else vllm(line)
    assert found.model == "org/m"
    assert found.problem is None
    assert found.parallel == Parallel(1, 1, 1, 1)


@pytest.mark.parametrize(
    ("line", "parallel"),
    [
        ("vllm serve m -tp 4", Parallel(4, 1, 1, 4)),
        ("vllm serve m --tensor-parallel-size=2 --pipeline-parallel-size 3", Parallel(2, 3, 1, 2)),
        ("vllm serve m -dp 8 --enable-expert-parallel", Parallel(1, 1, 8, 8)),
        ("vllm serve m -tp 2 -dp 4", Parallel(2, 1, 4, 8)),
        ("python3 -m sglang.launch_server --model-path m --tp 8 --pp-size 2", Parallel(8, 2, 1, 8)),
        ("python3 -m sglang.launch_server --model-path m --tp-size 8 --dp-size 2", Parallel(8, 1, 2, 8)),
        ("python3 -m sglang.launch_server --model-path m --tp 8 --dp 4 --enable-dp-attention", Parallel(2, 1, 4, 8)),
    ],
)
def test_how_it_is_split_over_gpus(line, parallel):
    assert (sglang(line) if "sglang" in line else vllm(line)).parallel == parallel


def test_what_else_matters_for_bytes():
    found = vllm(
        "vllm serve m --dtype half --quantization fp8 --kv-cache-dtype fp8_e5m2 --revision abc --hf-config-path /c"
    )
    assert (found.dtype, found.quantization, found.kv_dtype, found.revision, found.config_from) == (
        "half",
        "fp8",
        "fp8_e5m2",
        "abc",
        "/c",
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "its command line is not known"),
        ("python3 my_app.py", "a program of its own"),
        ("vllm serve", "does not name the model"),
        ("vllm serve m --config x.yaml", "a file of settings"),
        ("vllm serve m --cpu-offload-gb 10", "in the host's memory"),
        ("vllm serve m -tp 4 --decode-context-parallel-size 2", "a split by context"),
        ("vllm serve m -tp two", "how it is split"),
        ("vllm serve m -tp 0", "how it is split"),
        ("vllm serve m -tp -3", "how it is split"),
        (f"vllm serve m -tp {10**12}", "how it is split"),
        ("python3 -m sglang.launch_server --model-path m --tp 3 --dp 2 --enable-dp-attention", "how it is split"),
        ("python3 -m sglang.bench_serving --model m", "a program of its own"),
    ],
)
def test_why_it_is_not_enough(line, problem):
    found = sglang(line) if "sglang" in line else vllm(line)
    assert problem in found.problem


def test_a_command_line_of_another_engine_is_not_called_a_program_of_the_users_own():
    found = read_model_launch("llamacpp", ["llama-server", "-m", "/m.gguf"])
    assert found.problem == "a command line of llamacpp is not read for its model"


def test_a_missing_model_name_still_leaves_the_split():
    assert vllm("vllm serve -tp 4").parallel == Parallel(4, 1, 1, 4)


@pytest.mark.parametrize("zero", ["--cpu-offload-gb 0", "--decode-context-parallel-size 1", "-dcp 1"])
def test_flags_that_change_nothing_are_no_problem(zero):
    assert vllm(f"vllm serve m {zero}").problem is None


def test_what_is_not_worked_out_is_noted():
    found = vllm('vllm serve m --hf-overrides {"a":1} --speculative-config {"method":"eagle"}')
    assert len(found.notes) == 2
    assert found.notes[0].startswith("--hf-overrides")
    assert "draft model" in found.notes[1]
