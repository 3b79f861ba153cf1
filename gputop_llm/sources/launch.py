"""What any engine's command line says: program, options, address. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# More data-parallel ranks than any node has GPUs; what a command line says is not to be believed beyond that.
MAX_SERVERS = 64

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?$")
# Options of python itself that take a value of their own.
_PYTHON_VALUE_OPTIONS = {"-W", "-X", "--check-hash-based-pycs"}
# Options without a value, beside --enable-…, --disable-… and --no-…: after one of these a bare word is the model.
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
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-ep": "--enable-expert-parallel",
    "-asc": "--api-server-count",
}

Options = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server was started. `port` is None when the command line can't tell it (port 0, a config file).

    `port_assumed` says that the port is a default which the environment or another release may change.
    `no_http` says why there is no HTTP address to read, None when there is one.
    `notes` are what the command line gives reason to say.
    """

    model: str | None = None
    host: str | None = None
    port: int | None = None
    port_assumed: bool = False
    https: bool = False
    no_http: str | None = None
    config_file: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    servers_per_port: bool = False
    local_servers: int = 1
    engine_in_root: bool = False
    root_serves: bool = True
    notes: tuple[str, ...] = ()

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


def last_name(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def is_python(argv: Sequence[str]) -> bool:
    """True if the program is a Python interpreter."""
    return bool(argv) and _PYTHON.match(last_name(argv[0])) is not None


def without_python(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The module that `python -m` runs, None without one, and what follows (the script first, where there is one)."""
    rest = list(argv)
    if not is_python(rest):
        return None, rest
    rest = rest[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0].startswith("-c"):
            return None, []
        rest = rest[2:] if rest[0] in _PYTHON_VALUE_OPTIONS else rest[1:]
    if rest[:1] == ["-m"]:
        return (rest[1], rest[2:]) if len(rest) > 1 else (None, [])
    return None, rest


def program_of(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The program, script or module that a command line runs, by its last name or full module name; its arguments."""
    module, rest = without_python(argv)
    if module is not None:
        return module, rest
    return (last_name(rest[0].strip()), rest[1:]) if rest else ("", [])


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


def text_of(options: Options, *names: str) -> str | None:
    """The first value of the first of these options that has one."""
    return next((options[name][0] for name in names if options.get(name)), None)


def count_of(options: Options, *names: str, none: int = 1) -> int:
    """The same as a number; `none` where it is none."""
    text = text_of(options, *names)
    return int(text) if text is not None and text.isascii() and text.isdigit() else none
