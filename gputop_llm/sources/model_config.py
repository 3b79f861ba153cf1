"""Reads the config.json of the model that a target serves, as the target sees it.

The file belongs to the target and may be hostile, or lie in a container: see rootfs.py for how it is
reached. A container can even serve its files from a program of its own that never answers, so `read` may
take for ever: call it from a thread that nobody waits for.
"""

from __future__ import annotations

import errno
import json
import posixpath
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gputop_llm.model import Target
from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import ServedModel
from gputop_llm.modelquant import UnknownModel
from gputop_llm.sources.model_argv import ModelLaunch, read_model_launch
from gputop_llm.sources.procfs import GONE, ProcFs
from gputop_llm.sources.rootfs import RootFs

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
#: For those who can't leave a thread behind for ever: a file is read in milliseconds, or by a network.
PATIENCE_S = 3.0
_MAX_SNAPSHOTS = 100
_HUB_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_BRACKETS = re.compile(rb"[\[\]{}]")


class ModelConfigReader:
    """Finds out what a target serves.

    Args:
        proc_root: where /proc is mounted.
        kernel: see `RootFs`.
    """

    def __init__(self, proc_root: str = "/proc", kernel: bool = True) -> None:
        self._proc = ProcFs(proc_root)
        self._kernel = kernel

    def read(self, target: Target) -> ServedModel:
        """The model's shape and split, or why they can't be known. Takes milliseconds, or for ever (see above)."""
        if target.root_pid is None:
            return ServedModel(problem="the engine runs elsewhere: its model's config.json can't be read from here")
        launch = read_model_launch(target.engine, target.argv)
        split = ServedModel(parallel=launch.parallel, kv_dtype=launch.kv_dtype, notes=launch.notes)
        if launch.problem is not None:
            return split.without_shape(launch.problem)
        try:
            found = self._found(target.root_pid, target.started_s, launch)
            shape = read_shape(parse(found.data), launch.dtype, launch.quantization)
        except (UnknownModel, _Refused) as refusal:
            return split.without_shape(str(refusal))
        return split.with_shape(shape, found.path)

    def config(self, pid: int, launch: ModelLaunch) -> dict[str, Any]:
        """The config.json itself, of the engine that this process belongs to. Takes as long as `read`.

        Raises:
            ValueError: it can't be found or read; the text says why.
        """
        return parse(self._found(pid, None, launch).data)

    def _found(self, pid: int, started_s: float | None, launch: ModelLaunch) -> _Found:
        try:
            with RootFs(f"{self._proc.root}/{pid}/root", self._kernel) as root:
                process = _Process(self._proc, pid, root)
                if not process.is_the_one_started_at(started_s):
                    raise _Refused("the engine has ended")
                return _find(process, launch)
        except GONE:
            raise _Refused("the engine has ended") from None
        except PermissionError:
            raise _Refused("its files can't be read by this user: run as its user, or as root") from None
        except OSError as error:
            raise _Refused(f"its config.json can't be read: {error.strerror}") from None


def config_of_running(pid: int, launch: ModelLaunch, within_s: float = PATIENCE_S) -> dict[str, Any]:
    """The config.json of a running engine's model, where it can be read in time.

    Raises:
        ValueError: it can't be had; the text says why.
    """
    found: list[dict[str, Any] | ValueError] = []

    def read() -> None:
        try:
            found.append(ModelConfigReader().config(pid, launch))
        except ValueError as error:
            found.append(error)

    reader = threading.Thread(target=read, name="model config", daemon=True)
    reader.start()
    reader.join(within_s)
    if not found:
        raise _Refused(f"its config.json could not be read within {within_s:g} s")
    if isinstance(found[0], ValueError):
        raise found[0]
    return found[0]


class _Refused(ValueError):
    """The model's config can't be found or read; the text says why."""


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    data: bytes


class _Process:
    """What is needed of the target's root process, each read when asked for."""

    def __init__(self, proc: ProcFs, pid: int, root: RootFs) -> None:
        self._proc = proc
        self._pid = pid
        self.root = root

    def is_the_one_started_at(self, started_s: float | None) -> bool:
        """False if the PID is another process's by now."""
        return started_s is None or self._proc.start_s(self._proc.stat(self._pid).start_ticks) == started_s

    def directory(self) -> str:
        """Its working directory."""
        return self._proc.link(f"{self._pid}/cwd")

    def environ(self) -> Mapping[str, str]:
        """Its environment; only paths are taken from it, and nothing is kept."""
        try:
            return self._proc.environ(self._pid)
        except OSError:
            return {}

    def home(self) -> str | None:
        """The home of its user, as the passwd file that it sees has it."""
        uid = self._proc.status(self._pid).get("Uid", "").split()
        try:
            lines = self.root.read("/etc/passwd", MAX_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            return None
        rows = (line.split(":") for line in lines)
        return next((row[5] for row in rows if len(row) > 6 and uid and row[2] == uid[0]), None)


def _find(process: _Process, launch: ModelLaunch) -> _Found:
    model = launch.config_from or launch.model or ""
    if "://" in model:
        raise _Refused(f"its model is at {model.partition('://')[0]}://…, which is not read")
    if model.endswith(".gguf"):
        raise _Refused("its model is a GGUF file, which is not read")
    folder = model if model.startswith("/") else posixpath.join(process.directory(), model)
    path = posixpath.join(folder, "config.json")
    try:
        return _Found(path, process.root.read(path, MAX_BYTES))
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        if not missing or model.startswith("/") or not _HUB_NAME.fullmatch(model):
            raise _Refused(_why(path, error)) from None
    path = _in_hub_cache(process, model, launch.revision or "main")
    try:
        return _Found(path, process.root.read(path, MAX_BYTES))
    except OSError as error:
        raise _Refused(_why(path, error)) from None


def _why(path: str, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{path} can't be read by this user"
    reason = "there is no such file" if error.errno == errno.ENOENT else error.strerror
    return f"{path} can't be read: {reason}"


def _in_hub_cache(process: _Process, model: str, revision: str) -> str:
    """The path of config.json in the Hugging Face cache: models--ORG--NAME/snapshots/COMMIT/config.json."""
    repository = posixpath.join(_hub_cache(process), f"models--{model.replace('/', '--')}")
    snapshots = posixpath.join(repository, "snapshots")
    try:
        commit = process.root.read(posixpath.join(repository, "refs", revision), 200).decode("ascii", "replace").strip()
    except OSError:
        commit = revision
    if _COMMIT.fullmatch(commit):
        return posixpath.join(snapshots, commit, "config.json")
    try:
        names = process.root.names(snapshots, _MAX_SNAPSHOTS)
    except OSError as error:
        raise _Refused(_why(snapshots, error)) from None
    if len(names) != 1:
        raise _Refused(f"which of the {len(names)} snapshots in {snapshots} it serves is not known")
    return posixpath.join(snapshots, names[0], "config.json")


def _hub_cache(process: _Process) -> str:
    """Where huggingface_hub keeps models, by the variables that it looks at, in its order."""
    environ = process.environ()
    home = environ.get("HOME") or process.home() or "/root"
    cache = environ.get("XDG_CACHE_HOME") or posixpath.join(home, ".cache")
    hugging_face = environ.get("HF_HOME") or posixpath.join(cache, "huggingface")
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or posixpath.join(hugging_face, "hub")
    return posixpath.join(process.directory(), home + hub[1:] if hub.startswith("~/") else hub)


def parse(data: bytes) -> dict[str, Any]:
    """A JSON object of bounded depth.

    Raises:
        ValueError: it is something else; the text says what.
    """
    depth = 0
    for bracket in _BRACKETS.finditer(data):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise _Refused("its config.json is nested too deeply")
    try:
        found = json.loads(data)
    except ValueError:
        raise _Refused("its config.json is not valid JSON") from None
    if not isinstance(found, dict):
        raise _Refused("its config.json is not a JSON object")
    return found
