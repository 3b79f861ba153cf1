"""What a vLLM server's command line says: model, address, ranks. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import basename

DEFAULT_PORT = 8000
# More data-parallel ranks than any node has GPUs; what a command line says is not to be believed beyond that.
MAX_SERVERS = 64

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?$")
_SERVER_MODULES = {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"}
_CLI_MODULES = {"vllm", "vllm.entrypoints.cli.main", "vllm.entrypoints.cli", "vllm.scripts"}
_SERVER_FILES = ("vllm/entrypoints/openai/api_server.py", "vllm/entrypoints/api_server.py")

# Options of python itself that take a value of their own.
_PYTHON_VALUE_OPTIONS = {"-W", "-X", "--check-hash-based-pycs"}
# vLLM options without a value, beside --enable-…, --disable-… and --no-…: after one of these a bare word is the model.
_SWITCHES = {
    "--enforce-eager",
    "--trust-remote-code",
    "--headless",
    "--grpc",
    "--skip-tokenizer-init",
    "--return-tokens-as-token-ids",
    "--async-scheduling",
    "--data-parallel-external-lb",
    "--data-parallel-hybrid-lb",
    "--data-parallel-multi-port-external-lb",
    "--fully-sharded-loras",
    "--generate-routing-stats",
    "--kv-cache-metrics",
    "--use-tqdm-on-load",
    "--cpu-offload-params",
    "--numa-bind",
}
_MANY_VALUES = {
    "--api-key",
    "--served-model-name",
    "--lora-modules",
    "--prompt-adapters",
    "--cudagraph-capture-sizes",
    "--collect-detailed-traces",
}
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-asc": "--api-server-count",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server was started. `port` is None when the command line can't tell it (port 0, a config file).

    `no_http` says why there is no HTTP address to read, None when there is one.
    """

    model: str | None = None
    host: str | None = None
    port: int | None = None
    https: bool = False
    no_http: str | None = None
    config_file: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    servers_per_port: bool = False
    local_servers: int = 1
    engine_in_root: bool = False
    root_serves: bool = True

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs as seen from the same machine; empty when they can't be told from the command line."""
        if self.no_http or self.port is None:
            return ()
        servers = min(self.local_servers, MAX_SERVERS) if self.servers_per_port else 1
        ports = range(self.port, self.port + servers)
        return tuple(base_url(self.host, port, self.https) for port in ports)


def base_url(host: str | None, port: int, https: bool = False) -> str:
    """The URL under which a server bound to `host` answers on this machine."""
    if host in (None, "", "0.0.0.0", "::", "[::]", "*"):
        host = "127.0.0.1"
    elif ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{'https' if https else 'http'}://{host}:{port}"


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The launch that a command line describes; None if it doesn't start a vLLM server."""
    arguments = _server_arguments(argv)
    if arguments is None:
        return None
    options, words = options_of(arguments)
    served = options.get("--served-model-name") or []
    model = served[0] if served else (words[0] if words else _text(options, "--model"))
    tensor, pipeline = _count(options, "--tensor-parallel-size"), _count(options, "--pipeline-parallel-size")
    config_file = _text(options, "--config")
    socket, headless = _text(options, "--uds"), "--headless" in options
    no_http = None
    if socket:
        no_http = f"it listens on the Unix socket {socket}, which is not read"
    elif headless:
        no_http = "it runs headless: its API server is on another node (use --url)"
    elif "--grpc" in options:
        no_http = "it serves gRPC, not HTTP"
    return Launch(
        model=model,
        host=_text(options, "--host"),
        port=_count(options, "--port", none=0 if config_file else DEFAULT_PORT) or None,
        https="--ssl-certfile" in options or "--ssl-keyfile" in options,
        no_http=no_http,
        config_file=config_file,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        servers_per_port="--data-parallel-multi-port-external-lb" in options,
        local_servers=_count(options, "--data-parallel-size-local"),
        engine_in_root="--disable-frontend-multiprocessing" in options,
        root_serves=not headless,
    )


def is_python(argv: Sequence[str]) -> bool:
    """True if the program is a Python interpreter."""
    return bool(argv) and _PYTHON.match(basename(argv[0])) is not None


def _server_arguments(argv: Sequence[str]) -> list[str] | None:
    """The arguments behind the program (and `serve`); None if this is not a server."""
    rest = list(argv)
    if not any("vllm" in item for item in rest[:12]):
        return None
    if is_python(rest):
        rest = rest[1:]
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            if rest[0].startswith("-c"):
                return None
            rest = rest[2:] if rest[0] in _PYTHON_VALUE_OPTIONS else rest[1:]
        if rest[:1] == ["-m"]:
            if len(rest) < 2:
                return None
            module, rest = rest[1], rest[2:]
            if module in _SERVER_MODULES:
                return rest
            return rest[1:] if module in _CLI_MODULES and rest[:1] == ["serve"] else None
        if rest and rest[0].endswith(_SERVER_FILES):
            return rest[1:]
    if len(rest) >= 2 and basename(rest[0]) == "vllm" and rest[1] == "serve":
        return rest[2:]
    return None


def server_options(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]] | None:
    """The options of a vLLM server's command line and the words that belong to none; None if it doesn't start one."""
    arguments = _server_arguments(argv)
    return None if arguments is None else options_of(arguments)


def options_of(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Options with their values, and the words that belong to none."""
    options: dict[str, list[str]] = {}
    words: list[str] = []
    open_option: str | None = None
    for item in arguments:
        if item.startswith("-") and len(item) > 1 and not item[1].isdigit():
            name, separator, value = item.partition("=")
            name = _SHORT.get(name, name.replace("_", "-"))
            options[name] = [value] if separator else []
            takes_value = not separator and name not in _SWITCHES
            takes_value = takes_value and not name.startswith(("--enable-", "--disable-", "--no-"))
            open_option = name if takes_value else None
        elif open_option is not None:
            options[open_option].append(item)
            if open_option not in _MANY_VALUES:
                open_option = None
        else:
            words.append(item)
    return options, words


def _text(options: dict[str, list[str]], name: str) -> str | None:
    values = options.get(name)
    return values[0] if values else None


def _count(options: dict[str, list[str]], name: str, none: int = 1) -> int:
    text = _text(options, name)
    return int(text) if text is not None and text.isascii() and text.isdigit() else none
