"""What is read from a vLLM server's command line."""

import pytest

from gputop_llm.sources.vllm_argv import read_launch


def launch(text):
    return read_launch(text.split())


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve org/model-a",
        "/opt/venv/bin/python3 /opt/venv/bin/vllm serve org/model-a",
        "python -m vllm.entrypoints.openai.api_server --model org/model-a",
        "/usr/bin/python3.12 -u -X dev -m vllm.entrypoints.openai.api_server --model=org/model-a",
        "python3 -m vllm.entrypoints.cli.main serve org/model-a",
        "python3 /src/vllm/entrypoints/openai/api_server.py --model org/model-a",
        "vllm serve --port 8000 --enforce-eager org/model-a",
        "vllm serve --enable-prefix-caching org/model-a --tensor-parallel-size 2",
        "vllm serve --seed -1 org/model-a",
        "vllm serve -tp 8 -ep -dph org/model-a",
    ],
)
def test_every_way_to_start_a_server_is_known_with_its_model(command):
    found = launch(command)

    assert found is not None
    assert found.model == "org/model-a"
    assert found.urls == ("http://127.0.0.1:8000",)


@pytest.mark.parametrize(
    "command",
    [
        "bash -c vllm_serve_org/model-a",
        "grep -r vllm serve",
        "vllm bench serve --model org/model-a",
        "vllm chat --url http://localhost:8000/v1",
        "uv run vllm serve org/model-a",
        "python train.py --out vllm",
        "python -c import_vllm",
        "python -m vllm.entrypoints.cli.main bench",
        "python -m",
        "vim vllm/entrypoints/openai/api_server.py",
        "",
    ],
)
def test_what_only_mentions_vllm_is_no_server(command):
    assert launch(command) is None


def test_the_served_name_is_the_model_since_metrics_carry_it():
    found = launch("vllm serve /models/x --served-model-name tiny small --port 9000")

    assert (found.model, found.port) == ("tiny", 9000)


def test_underscores_and_equals_signs_are_as_good():
    found = launch("python -m vllm.entrypoints.openai.api_server --served_model_name=a --tensor_parallel_size=4 -pp 2")

    assert (found.model, found.tensor_parallel, found.pipeline_parallel) == ("a", 4, 2)


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ("--host 0.0.0.0 --port 81", "http://127.0.0.1:81"),
        ("--host :: --port 81", "http://127.0.0.1:81"),
        ("--host ::1 --port 81", "http://[::1]:81"),
        ("--host 10.1.2.3", "http://10.1.2.3:8000"),
        ("--host node7.cluster", "http://node7.cluster:8000"),
        ("--ssl-certfile c.pem --ssl-keyfile k.pem --port 443", "https://127.0.0.1:443"),
        ("--root-path /svc", "http://127.0.0.1:8000"),
    ],
)
def test_the_address_is_one_that_answers_on_this_machine(options, url):
    assert launch(f"vllm serve m {options}").urls == (url,)


def test_a_unix_socket_a_headless_node_and_grpc_have_no_address():
    assert "/run/v.sock" in launch("vllm serve m --uds /run/v.sock").no_http
    assert "--url" in launch("vllm serve m --headless --data-parallel-size 4").no_http
    assert "gRPC" in launch("vllm serve m --grpc").no_http
    assert launch("vllm serve m --headless").urls == ()


def test_with_a_config_file_or_port_0_the_port_is_unknown_not_8000():
    assert launch("vllm serve m --config c.yaml").urls == ()
    assert launch("vllm serve --config c.yaml").model is None
    assert launch("vllm serve m --port 0").urls == ()
    assert launch("vllm serve m --config c.yaml --port 9").urls == ("http://127.0.0.1:9",)


def test_one_port_per_rank_gives_one_url_per_rank():
    found = launch(
        "vllm serve m --port 9000 --data-parallel-size 4 --data-parallel-size-local 2"
        " --data-parallel-multi-port-external-lb"
    )

    assert found.urls == ("http://127.0.0.1:9000", "http://127.0.0.1:9001")


def test_an_absurd_number_of_ranks_is_not_believed():
    found = launch("vllm serve m --data-parallel-multi-port-external-lb --data-parallel-size-local 60000")

    assert len(found.urls) == 64


def test_names_are_taken_literally():
    found = read_launch(["vllm", "serve", "[/mnt/models/llama-3]", "--max-model-len", "many"])

    assert found.model == "[/mnt/models/llama-3]"
