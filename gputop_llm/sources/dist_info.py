"""The version of a package in another process's environment, from its dist-info folder.

Nothing is imported or run. The folder is looked for beside the interpreter that
the command line names, else beside a library that the process has mapped, through
/proc/PID/root when the process lives in another file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from os.path import dirname

from gputop_llm.sources.procfs import ProcFs

_PACKAGES = re.compile(r"(/[^\0\n]*?/(?:site|dist)-packages)/")
_MAPS_MAX_BYTES = 512 * 1024
_PYTHON_DIR = re.compile(r"python3\.\d+t?$|python3$")


def installed_version(
    proc: ProcFs, pid: int, argv: Sequence[str], packages: Sequence[str], same_files: bool
) -> str | None:
    """The version of the first of `packages` (as spelt in dist-info) that is installed; None if unreadable.

    `same_files` says that the process sees the same file system as we do, so that
    its paths can be tried as they are when /proc/PID/root may not be entered.
    """
    for base in (f"{proc.root}/{pid}/root", "") if same_files else (f"{proc.root}/{pid}/root",):
        for folder in dict.fromkeys(_candidates(proc, pid, argv, base)):
            version = _version_in(base + folder, packages)
            if version is not None:
                return version
    return None


def _candidates(proc: ProcFs, pid: int, argv: Sequence[str], base: str) -> Iterator[str]:
    for program in [word for word in argv[:2] if word.startswith("/")]:
        # …/bin/python3 and …/bin/vllm: the environment is two up.
        prefix = dirname(dirname(program))
        for library in ("lib", "lib64", "local/lib"):
            for name in sorted(_listed(f"{base}{prefix}/{library}")):
                if _PYTHON_DIR.match(name):
                    yield f"{prefix}/{library}/{name}/site-packages"
                    yield f"{prefix}/{library}/{name}/dist-packages"
    try:
        maps = proc.read(f"{pid}/maps", _MAPS_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    yield from dict.fromkeys(found[1] for found in _PACKAGES.finditer(maps))


def _version_in(folder: str, packages: Sequence[str]) -> str | None:
    found = {}
    for name in _listed(folder):
        if name.endswith(".dist-info"):
            package, _, version = name.removesuffix(".dist-info").partition("-")
            found[package.lower()] = version
    return next((found[package] for package in packages if found.get(package)), None)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
