"""What a capture was taken in: GPUs and their links, driver, engine, command line, environment, commit. No secrets.

Of the environment only variables are kept that are known to change how an engine runs; all else may be a secret under
any name. The commit is read from the files of the target's working directory, below its own root and never by running
git: a repository may name programs that git would start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputop_llm import __version__
from gputop_llm.redact import HIDDEN
from gputop_llm.redact_argv import is_secret_name, redact_argv, redact_strings, redact_text
from gputop_llm.sources.model_argv import read_model_launch
from gputop_llm.sources.model_config import config_of_running
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.sources.rootfs import RootFs

SCHEMA = 1
_KEPT = re.compile(
    r"(?:CUDA|NCCL|NVIDIA|NVTE|CUBLAS|CUDNN|VLLM|SGLANG|SGL|TRTLLM|TLLM|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER"
    r"|OMP|MKL|KMP|UCX|GLOO|MASTER|SLURM_PROCID|SLURM_NTASKS|PYTHON|MALLOC|RAY)_\w+"
    r"|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|TOKENIZERS_PARALLELISM"
    r"|LD_PRELOAD|LD_LIBRARY_PATH"
)
_LONGEST_VALUE = 1000
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"ref: (refs/[\w./@+-]{1,200})")
_MOST_GIT_BYTES = 1 << 20
#: From the working directory upwards.
_MOST_STEPS = 32


def environment(
    frame: Mapping[str, Any] | None,
    target_key: str | None,
    pid: int | None,
    argv: Sequence[str] = (),
    name: str = "",
    proc: ProcFs | None = None,
    sysfs: Path = Path("/sys"),
) -> dict[str, Any]:
    """The content of environment.json.

    Args:
        frame: the last one before the capture, as JSON (`watch --json`); None where there is none.
        target_key: of the captured target in it.
        pid: a captured process, if it still runs.
        argv: its command line, where the frame doesn't have it.
        name: of the engine, likewise.
    """
    frame = frame or {}
    missing: dict[str, str] = {} if frame else {"gpus": "nobody watched the node before the capture"}
    target = _one(frame.get("targets"), "key", target_key)
    engine = _one(frame.get("engines"), "target_key", target_key)
    reading, host = _mapping(engine.get("reading")), _mapping(frame.get("host"))
    wanted = target.get("gpus") if isinstance(target.get("gpus"), list) else None
    gpus = [g for g in _list(frame.get("gpus")) if isinstance(g, Mapping) and (not wanted or g.get("index") in wanted)]
    uname = os.uname()
    told = {
        "schema": SCHEMA,
        "version": __version__,
        "at": frame.get("at"),
        "kernel": uname.release,
        "machine": uname.machine,
        "node": frame.get("node"),
        "gpus": [{**gpu, "processes": None, "numa_node": _numa_node(gpu, sysfs)} for gpu in gpus],
        "host": {name: value for name, value in host.items() if name not in ("processes", "missing")},
        "engine": {
            "name": target.get("engine"),
            "model": target.get("model"),
            "version": reading.get("version") or target.get("version"),
            "container": target.get("container"),
            "user": target.get("user"),
            "settings": reading.get("cache_config"),
        },
    }
    variables, git = _of_process(pid, proc or ProcFs(), missing)
    shown = [str(word) for word in (target["argv"] if isinstance(target.get("argv"), list) else argv)]
    config = _model_config(pid, str(target.get("engine") or name), shown, missing)
    return {
        **redact_strings(told),
        "argv": list(redact_argv(shown)),
        "environment": variables,
        "git": git,
        "model_config": redact_strings(config) if config is not None else None,
        "missing": missing,
    }


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how an engine runs, by name; their values without secrets."""
    return {
        name: HIDDEN if is_secret_name(name) else redact_text(value)[:_LONGEST_VALUE]
        for name, value in sorted(environ.items())
        if _KEPT.fullmatch(name)
    }


def _of_process(
    pid: int | None, proc: ProcFs, missing: dict[str, str]
) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    if pid is None:
        missing["environment"] = missing["git"] = "no process is known"
        return None, None
    variables: dict[str, str] | None = None
    git: dict[str, str] | None = None
    try:
        variables = kept_variables(proc.environ(pid))
    except OSError as error:
        missing["environment"] = error.strerror or str(error)
    try:
        git = commit_of(f"{proc.root}/{pid}/root", proc.link(f"{pid}/cwd"))
        if git is None:
            missing["git"] = "its working directory is in no repository"
    except OSError as error:
        missing["git"] = error.strerror or str(error)
    return variables, git


def _model_config(pid: int | None, engine: str, argv: Sequence[str], missing: dict[str, str]) -> dict[str, Any] | None:
    """The config.json of the model that is served: what a kernel's shape follows from."""
    if pid is None:
        missing["model_config"] = "no process is known"
        return None
    launch = read_model_launch(engine, argv)
    try:
        if launch.problem is not None:
            raise ValueError(launch.problem)
        return config_of_running(pid, launch)
    except ValueError as error:
        missing["model_config"] = str(error)
        return None


def commit_of(root: str, folder: str) -> dict[str, str] | None:
    """The commit (and branch, if there is one) of the repository that a folder is in; None where it is in none.

    Whether files were changed since is not known.

    Args:
        root: the file tree that `folder` is in.

    Raises:
        OSError: the root can't be reached.
    """
    with RootFs(root) as files:
        for step in [Path(folder), *Path(folder).parents][:_MOST_STEPS]:
            if _text(files, f"{step}/.git") is not None:
                # A work tree whose repository lies elsewhere.
                return None
            if (head := _text(files, f"{step}/.git/HEAD")) is None:
                continue
            if _COMMIT.fullmatch(head):
                return {"commit": head}
            reference = _REF.fullmatch(head)
            if reference is None or ".." in reference[1]:
                return None
            commit = _text(files, f"{step}/.git/{reference[1]}") or _packed(files, f"{step}/.git", reference[1])
            if commit is None or not _COMMIT.fullmatch(commit):
                return None
            return {"commit": commit, "branch": reference[1].removeprefix("refs/heads/")}
    return None


def _packed(files: RootFs, git: str, reference: str) -> str | None:
    for line in (_text(files, f"{git}/packed-refs") or "").splitlines():
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return None


def _text(files: RootFs, path: str) -> str | None:
    try:
        return files.read(path, _MOST_GIT_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


def _numa_node(gpu: Mapping[str, Any], sysfs: Path) -> int | None:
    """The NUMA node that a GPU hangs on; None where the machine has none or doesn't say."""
    bus = gpu.get("pci_bus_id")
    found = re.fullmatch(r"(?:[0-9A-Fa-f]{4})?([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", str(bus))
    if found is None:
        return None
    try:
        node = int((sysfs / "bus/pci/devices" / found[1].lower() / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _one(rows: object, name: str, value: object) -> Mapping[str, Any]:
    return next((row for row in _list(rows) if isinstance(row, Mapping) and row.get(name) == value), {})
