"""Traces that stayed behind because their process was killed while torch wrote them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gputop_llm.capture.kineto.agent import PLACES, PREFIX, TRACE

_OURS = re.compile(rf"{re.escape(PREFIX)}\d+-[0-9a-f]{{12}}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_left(older_s: float, now_s: float, places: Sequence[str] | None = None) -> list[str]:
    """Removes folders of such traces, as far as they are ours to remove; gives their paths.

    Args:
        older_s: what was written to more recently may still be written.
        now_s: the time, in seconds since 1970.
        places: where to look; None: where the agent puts them.
    """
    removed = []
    for place in dict.fromkeys(places or (os.environ.get("TMPDIR") or PLACES[0], *PLACES)):
        for path in sorted(Path(place).glob(f"{PREFIX}*")):
            if _OURS.fullmatch(path.name) and _removed(path, now_s - older_s):
                removed.append(str(path))
    return removed


def _removed(path: Path, until_s: float) -> bool:
    with suppress(OSError):
        folder = os.open(path, _DIRECTORY)
        try:
            about = os.fstat(folder)
            written_s = [about.st_mtime]
            with suppress(FileNotFoundError):
                written_s.append(os.stat(TRACE, dir_fd=folder, follow_symlinks=False).st_mtime)
            mine = os.geteuid() in (0, about.st_uid) and stat.S_IMODE(about.st_mode) == 0o700
            if not mine or max(written_s) > until_s:
                return False
            with suppress(FileNotFoundError):
                os.unlink(TRACE, dir_fd=folder)
            path.rmdir()
            return True
        finally:
            os.close(folder)
    return False
