"""Whose a process is."""

from __future__ import annotations

import pwd
from functools import lru_cache

from gputop_llm.sources.procfs import ProcFs


def user_of(proc: ProcFs, pid: int) -> str | None:
    """The name of the user that a process runs as (its number if it has no name here); None if unreadable."""
    try:
        fields = proc.status(pid).get("Uid", "").split()
    except OSError:
        return None
    return user_name(int(fields[1])) if len(fields) > 1 else None


@lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """The name of a user; the number as text where there is none. Cached: a directory server may be slow to answer."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
