"""An export of nsys without what it knows of the environment: only tables that are read, only strings that they name.

nsys stores the whole environment of the program and of its own node, command lines, and what it finds in files; an
export that is shown to colleagues must hold none of it.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from gputop_llm.errors import GputopError
from gputop_llm.redact_argv import redact_text

_KEPT = re.compile(
    r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|OSRT_API|SCHED_EVENTS|COMPOSITE_EVENTS|SAMPLING_CALLCHAINS|PROFILER_OVERHEAD|ThreadNames|PROCESSES"
    r"|GPU_METRICS|GPU_CONTEXT_SWITCH_EVENTS|TARGET_INFO_(GPU|GPU_METRICS|CUDA_DEVICE|CUDA_CONTEXT_INFO"
    r"|CUDA_STREAM|SESSION_START_TIME)|ANALYSIS_DETAILS|ANALYSIS_FILE|DIAGNOSTIC_EVENT|META_DATA_EXPORT"
    r"|EXPORT_META_DATA|ENUM_\w+"
)
#: Of what was asked of nsys, all but the program and its environment.
_FACTS = "META_DATA_CAPTURE"
_PRIVATE = ("%ENVIRONMENT%", "%COMMAND%", "%ARGUMENT%", "%WORKING_DIR%", "%USER%")
_STRINGS = "StringIds"
#: Columns whose values are numbers of strings.
_REFERENCE = re.compile(r"(name|text|string|message|symbol|module)(Id)?$", re.IGNORECASE)


def clean(raw: Path, target: Path) -> int:
    """Writes what may be kept of an export into an empty file; returns its events (rows of kept tables).

    Raises:
        GputopError: it can't be read or written.
    """
    try:
        # Nobody else reads the new file, and it is thrown away when this fails: no journal.
        with closing(sqlite3.connect(target, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode=OFF")
            db.execute("PRAGMA synchronous=OFF")
            db.execute("ATTACH ? AS raw", (f"file:{quote(str(raw))}?mode=ro&immutable=1",))
            return _copied(db)
    except sqlite3.Error as error:
        raise GputopError("cannot read the export of nsys", str(error)) from error


def _copied(db: sqlite3.Connection) -> int:
    tables = dict(db.execute("SELECT name, sql FROM raw.sqlite_master WHERE type = 'table'"))
    references: list[str] = []
    events = 0
    db.execute("BEGIN")
    for name, sql in tables.items():
        if not (_KEPT.fullmatch(name) or name in (_FACTS, _STRINGS)):
            continue
        db.execute(sql)
        columns = [str(row[1]) for row in db.execute(f'PRAGMA raw.table_info("{name}")')]
        if name == _STRINGS:
            continue
        if name == _FACTS:
            kept = " AND ".join("name NOT LIKE ?" for _ in _PRIVATE)
            db.execute(f'INSERT INTO main."{name}" SELECT * FROM raw."{name}" WHERE {kept}', _PRIVATE)
            continue
        copied = db.execute(f'INSERT INTO main."{name}" SELECT * FROM raw."{name}"').rowcount
        events += copied if name.startswith(("CUPTI_", "NVTX_", "GPU_", "OSRT_", "SCHED_", "COMPOSITE_")) else 0
        references += [
            f'SELECT "{column}" FROM main."{name}" WHERE typeof("{column}") = \'integer\''
            for column in columns
            if _REFERENCE.search(column)
        ]
    if _STRINGS in tables and references:
        db.execute(
            f"INSERT INTO main.{_STRINGS} SELECT * FROM raw.{_STRINGS} WHERE id IN ({' UNION '.join(references)})"
        )
        _blank(db)
    db.execute("COMMIT")
    return events


def _blank(db: sqlite3.Connection) -> None:
    changed = []
    for number, value in db.execute(f"SELECT id, value FROM main.{_STRINGS}"):
        if isinstance(value, str) and (blanked := redact_text(value)) != value:
            changed.append((blanked, number))
    db.executemany(f"UPDATE main.{_STRINGS} SET value = ? WHERE id = ?", changed)
