"""What a vLLM server's command line says: model, address, ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import basename

from gputop_llm.sources.launch import Launch, count_of, is_python, options_of, text_of, without_python

DEFAULT_PORT = 8000

_SERVER_MODULES = {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"}
_CLI_MODULES = {"vllm", "vllm.entrypoints.cli.main", "vllm.entrypoints.cli", "vllm.scripts"}
_SERVER_FILES = ("vllm/entrypoints/openai/api_server.py", "vllm/entrypoints/api_server.py")


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The launch that a command line describes; None if it doesn't start a vLLM server."""
    arguments = _server_arguments(argv)
    if arguments is None:
        return None
    options, words = options_of(arguments)
    served = options.get("--served-model-name") or []
    model = served[0] if served else (words[0] if words else text_of(options, "--model"))
    tensor, pipeline = count_of(options, "--tensor-parallel-size"), count_of(options, "--pipeline-parallel-size")
    config_file = text_of(options, "--config")
    socket, headless = text_of(options, "--uds"), "--headless" in options
    no_http = None
    if socket:
        no_http = f"it listens on the Unix socket {socket}, which is not read"
    elif headless:
        no_http = "it runs headless: its API server is on another node (use --url)"
    elif "--grpc" in options:
        no_http = "it serves gRPC, not HTTP"
    return Launch(
        model=model,
        host=text_of(options, "--host"),
        port=count_of(options, "--port", none=0 if config_file else DEFAULT_PORT) or None,
        https="--ssl-certfile" in options or "--ssl-keyfile" in options,
        no_http=no_http,
        config_file=config_file,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        servers_per_port="--data-parallel-multi-port-external-lb" in options,
        local_servers=count_of(options, "--data-parallel-size-local"),
        engine_in_root="--disable-frontend-multiprocessing" in options,
        root_serves=not headless,
    )


def _server_arguments(argv: Sequence[str]) -> list[str] | None:
    """The arguments behind the program (and `serve`); None if this is not a server."""
    if not any("vllm" in item for item in argv[:12]):
        return None
    module, rest = without_python(argv)
    if module is not None:
        if module in _SERVER_MODULES:
            return rest
        return rest[1:] if module in _CLI_MODULES and rest[:1] == ["serve"] else None
    if is_python(argv) and rest and rest[0].endswith(_SERVER_FILES):
        return rest[1:]
    if len(rest) >= 2 and basename(rest[0]) == "vllm" and rest[1] == "serve":
        return rest[2:]
    return None


def server_options(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]] | None:
    """The options of a vLLM server's command line and the words that belong to none; None if it doesn't start one."""
    arguments = _server_arguments(argv)
    return None if arguments is None else options_of(arguments)
