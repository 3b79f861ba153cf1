"""Settings: flags beat the environment, which beats the config file, which beats the defaults.

Each value knows where it came from, so that the screen and JSON can say so.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gputop_llm.errors import UsageError
from gputop_llm.redact import public_url

MIN_PERIOD_S = 0.25
ENV_PREFIX = "GPUTOP_LLM_"


@dataclass(frozen=True, slots=True)
class Config:
    """What the user asked for.

    The API key is never a flag: a command line is readable by every user of the node.
    `api_key` comes from GPUTOP_LLM_API_KEY, or from the file named by `api_key_file`; so with `webhook`, whose
    address often is a secret: it is the text of that variable or file.
    `params` and `bytes_per_param` say what of a model its config.json does not, or says wrongly.
    `thresholds` are the rules' own, by name, from the table of that name in the config file.
    """

    period_s: float = 1.0
    window_s: float = 10.0
    pid: int | None = None
    url: str | None = None
    gpu: int | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None
    ca_file: str | None = None
    ascii: bool = False
    params: float | None = None
    bytes_per_param: float | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    exec: str | None = None
    webhook: str | None = field(default=None, repr=False)
    webhook_file: str | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)


_TYPES: dict[str, type] = {
    "period_s": float,
    "window_s": float,
    "pid": int,
    "url": str,
    "gpu": int,
    "model": str,
    "api_key": str,
    "api_key_file": str,
    "ca_file": str,
    "ascii": bool,
    "params": float,
    "bytes_per_param": float,
    "slo_ttft_s": float,
    "slo_tpot_s": float,
    "exec": str,
    "webhook": str,
    "webhook_file": str,
}
_TYPE_NAMES = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
# "8B", "70.6 b", "671e9".
_PARAMS = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT])", re.IGNORECASE)
_PARAM_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_ENV_ONLY = {"api_key", "webhook"}
_FLAG_ONLY = {"pid"}
_THRESHOLDS = "thresholds"
# What a path or a file of the user's may bring: no home directory to expand, a null byte, no UTF-8.
_UNREADABLE = (OSError, RuntimeError, ValueError)


def load(
    flags: Mapping[str, Any],
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
    *,
    must_exist: bool = False,
) -> Config:
    """Merges the four origins into one `Config`.

    Args:
        flags: values given on the command line; None means not given.
        env: the environment, `os.environ` by default.
        file: a TOML file with the names of `Config`'s fields at top level.
        must_exist: the user named `file`, so that its absence is an error.

    Raises:
        UsageError: a value has the wrong type or range, the file can't be read, or it has an unknown name.
    """
    env = os.environ if env is None else env
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(name: str, raw: Any, origin: str) -> None:
        values[name] = _convert(name, raw, origin)
        origins[name] = origin

    if file is not None:
        for name, raw in _read_file(file, must_exist).items():
            if name == _THRESHOLDS:
                values[name], origins[name] = dict(_thresholds(raw, str(file))), str(file)
                continue
            if name not in _TYPES or name in _ENV_ONLY | _FLAG_ONLY:
                known = ", ".join(sorted({*_TYPES, _THRESHOLDS} - _ENV_ONLY - _FLAG_ONLY))
                raise UsageError(f"unknown setting '{name}' in {file}", todo=f"known settings: {known}")
            take(name, raw, str(file))
    for name in _TYPES:
        variable = ENV_PREFIX + name.upper()
        if name not in _FLAG_ONLY and env.get(variable):
            take(name, env[variable], variable)
    for name, raw in flags.items():
        if name in _TYPES and raw is not None:
            take(name, raw, f"--{name.removesuffix('_s').replace('_', '-')}")
    for name, what in (("api_key", "the API key"), ("webhook", "the webhook")):
        if name not in values and f"{name}_file" in values:
            values[name] = _read_secret(values[f"{name}_file"], what)
            origins[name] = origins[f"{name}_file"]
    _check_ranges(values, origins)
    _check_key(values, origins)
    _check_url(values, origins)
    _check_ca_file(values, origins)
    known_fields = {f.name for f in fields(Config)}
    return Config(**{k: v for k, v in values.items() if k in known_fields}, origins=origins)


def _convert(name: str, raw: Any, origin: str) -> Any:
    wanted = _TYPES[name]
    if name == "params" and isinstance(raw, str) and (found := _PARAMS.fullmatch(raw.strip())):
        return float(found[1]) * _PARAM_UNITS[found[2].upper()]
    if wanted is bool and isinstance(raw, str):
        if raw.lower() in {"1", "true", "yes", "on"}:
            return True
        if raw.lower() in {"0", "false", "no", "off"}:
            return False
    elif wanted in (int, float) and isinstance(raw, (wanted, int, str)) and not isinstance(raw, bool):
        try:
            return wanted(raw)
        except (ValueError, OverflowError):
            pass
    elif type(raw) is wanted:  # True is an int, but no number of a GPU
        return raw
    raise UsageError(f"{origin}: {name} must be {_TYPE_NAMES[wanted]}", f"got {raw!r}")


def _thresholds(table: Any, origin: str, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Names and numbers of the table; `ttft-high.p95_s = 1`, with or without quotes around the name."""
    if not isinstance(table, dict):
        raise UsageError(f"{origin}: {prefix.rstrip('.') or _THRESHOLDS} must be a table of numbers", f"got {table!r}")
    for name, raw in table.items():
        if isinstance(raw, dict):
            yield from _thresholds(raw, origin, f"{prefix}{name}.")
        elif type(raw) in (int, float) and abs(raw) <= sys.float_info.max:
            yield prefix + name, float(raw)
        else:
            raise UsageError(f"{origin}: the threshold {prefix}{name} must be a number", f"got {raw!r}")


def _check_ranges(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    period = values.get("period_s")
    if period is not None and not MIN_PERIOD_S <= period <= 3600:
        raise UsageError(
            f"{origins['period_s']}: the period must be between {MIN_PERIOD_S} s and 3600 s", f"got {period}"
        )
    window = values.get("window_s")
    if window is not None and not 1 <= window <= 600:
        raise UsageError(f"{origins['window_s']}: the window must be between 1 s and 600 s", f"got {window}")
    for name in ("slo_ttft_s", "slo_tpot_s"):
        if values.get(name) is not None and not 0 < values[name] < 3600:
            raise UsageError(f"{origins[name]}: an SLO must be above 0 s and below 3600 s", f"got {values[name]}")
    for name, low, high in (("params", 1e5, 1e14), ("bytes_per_param", 0.1, 8.0)):
        if values.get(name) is not None and not low <= values[name] <= high:
            raise UsageError(f"{origins[name]}: {name} must be between {low:g} and {high:g}", f"got {values[name]}")
    for name in ("pid", "gpu"):
        if values.get(name) is not None and values[name] < 0:
            raise UsageError(f"{origins[name]}: {name} can't be negative", f"got {values[name]}")


def _check_key(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    if "api_key" not in values:
        return
    values["api_key"] = values["api_key"].strip()
    if not values["api_key"]:
        raise UsageError(f"{origins['api_key']}: the API key can't be used", "it is empty")
    # Anything else can't be sent as a header; the message must not show it.
    if not (values["api_key"].isascii() and values["api_key"].isprintable()):
        raise UsageError(
            f"{origins['api_key']}: the API key can't be used", "it has characters that no header may hold"
        )


def _check_url(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    url = values.get("url")
    if url is None:
        return
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket left open
        usable = False
    if not usable:
        raise UsageError(
            f"{origins['url']}: the URL can't be used",
            f"got {public_url(url)!r}",
            "give it as http://HOST:PORT or https://HOST:PORT",
        )
    if "@" in parts.netloc:
        raise UsageError(
            f"{origins['url']}: the URL can't be used",
            "it holds a user name or password, which every user of this node could read",
            "leave them out; an API key goes into GPUTOP_LLM_API_KEY or a file named by --api-key-file",
        )
    values["url"] = url


def _check_ca_file(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    path = values.get("ca_file")
    if path is None:
        return
    try:
        values["ca_file"] = str(Path(path).expanduser().absolute())
        with open(values["ca_file"], "rb"):
            pass
    except _UNREADABLE as error:
        raise UsageError(f"{origins['ca_file']}: cannot read {path}", _why(error)) from None


def _read_file(file: Path, must_exist: bool) -> dict[str, Any]:
    try:
        text = file.expanduser().read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if must_exist:
            raise UsageError(f"cannot read {file}", "there is no such file") from None
        return {}
    except _UNREADABLE as error:
        todo = "" if must_exist else "--config /dev/null starts without it"
        raise UsageError(f"cannot read {file}", _why(error), todo) from None
    # tomli is the same parser under its older name; it is installed for Python 3.10 only.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        settings: dict[str, Any] = toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {file}", f"it is not valid TOML ({error})") from None
    return settings


def _read_secret(path: str, what: str) -> str:
    try:
        secret = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except _UNREADABLE as error:
        raise UsageError(f"cannot read {what} from {path}", _why(error)) from None
    if not secret:
        raise UsageError(f"cannot read {what} from {path}", "the file is empty")
    return secret


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rstrip(".").lower()
