"""The environment that tests run in: the same on every machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: The caller's own environment, for what must reach the network (installing an engine).
ORIGINAL = dict(os.environ)

#: Settings of the caller's shell that would change what the program does or shows.
_FOREIGN = re.compile(
    r".*_proxy|GPUTOP_(?!TEST_).*|XDG_.*|NO_COLOR|FORCE_COLOR|CLICOLOR.*|COLORTERM|COLUMNS|LINES|TEXTUAL.*"
    r"|VLLM_.*|OPENAI_.*|HF_.*|(CUDA|NVIDIA)_VISIBLE_DEVICES|LC_.*|LANGUAGE|KUBERNETES_.*",
    re.IGNORECASE,
)


def scrubbed(environ: dict[str, str], directory: Path) -> dict[str, str]:
    """`environ` without what differs between machines; the user's directories are made below `directory`."""
    clean = {name: value for name, value in environ.items() if not _FOREIGN.fullmatch(name)}
    for kind in ("config", "cache", "data", "state", "runtime"):
        path = directory / kind
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        clean["XDG_RUNTIME_DIR" if kind == "runtime" else f"XDG_{kind.upper()}_HOME"] = str(path)
    return {**clean, "TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
