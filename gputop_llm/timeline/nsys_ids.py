"""What an export calls a string, a process, a thread or a GPU, turned into what the timeline calls it.

globalTid and globalPid are 64 bits: hardware and virtual machine (8 each), pid (24), tid (24); SQLite may read them
back as negative numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gputop_llm.timeline import nsys_schema as schema
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.model import I32, I64, Process, Thread
from gputop_llm.timeline.nsys_db import MAX_TEXT, NsysDb

_PID_BITS = 24
_MASK = (1 << _PID_BITS) - 1
#: Numbers this close together are translated by a table, others by sorting them.
_DENSE = 1 << 16


class NsysIds:
    """The translations for one export; processes and threads enter the timeline when a row first names them."""

    def __init__(self, db: NsysDb, builder: TimelineBuilder) -> None:
        self._db = db
        self._builder = builder
        self._by_key = self._strings_have_key()
        self._texts: dict[int, str | None] = {} if self._by_key else self._all_texts()
        self._names: dict[tuple[Any, int], int] = {}
        self._process_names = self._by_global("globalPid", schema.PROCESSES, "name")
        self._thread_names = self._by_global("globalTid", schema.THREAD_NAMES, "nameId")
        self.processes: dict[int, int] = {}
        self.threads: dict[int, int] = {}

    def text(self, string_id: int) -> str | None:
        """A string of the file by its id, None if it has none."""
        if string_id not in self._texts:
            self._texts[string_id] = self._looked_up(string_id)
        return self._texts[string_id]

    def _looked_up(self, string_id: int) -> str | None:
        # One at a time: the file also keeps the environment and every symbol of every call chain there.
        if not self._by_key:
            return None
        rows = self._db.rows(f"SELECT substr(value, 1, {MAX_TEXT}) FROM {schema.STRINGS} WHERE id = ?", (string_id,), 1)
        return rows[0][0] if rows and isinstance(rows[0][0], str) else None

    def name_ids(self, values: I64, shorten: Callable[[str], str] | None = None) -> I32:
        """Interned names for a column of string ids."""

        def lookup(string_id: int) -> int:
            if (shorten, string_id) not in self._names:
                text = self.text(string_id)
                self._names[shorten, string_id] = self._builder.intern(shorten(text) if shorten and text else text)
            return self._names[shorten, string_id]

        return translated(values, lookup)

    def process_rows(self, values: I64) -> I32:
        """Positions in the timeline's processes for a column of globalPid or globalTid."""
        # The mask makes the shift one of an unsigned number.
        return translated((values >> _PID_BITS) & ((1 << 40) - 1), self.process_row)

    def process_row(self, process: int) -> int:
        """The position of one process, given without the tid's bits; -1 is no process."""
        if process == 0:
            return -1
        if process not in self.processes:
            self.processes[process] = len(self._builder.processes)
            name = self._name(self._process_names.get(process << _PID_BITS))
            self._builder.processes.append(Process(pid=process & _MASK, name=name))
        return self.processes[process]

    def thread_rows(self, values: I64) -> I32:
        """Positions in the timeline's threads for a column of globalTid."""
        return translated(values, self._thread_row)

    def _thread_row(self, value: int) -> int:
        thread = value % (1 << 64)
        if thread not in self.threads:
            self.threads[thread] = len(self._builder.threads)
            process = self.process_row(thread >> _PID_BITS)
            name = self._name(self._thread_names.get(thread))
            self._builder.threads.append(Thread(tid=thread & _MASK, process=process, name=name))
        return self.threads[thread]

    def _by_global(self, key: str, table: str, name: str) -> dict[int, object]:
        """Names of processes or threads, or the ids of their names, by their number in the file."""
        if not self._db.has(table, key, name):
            return {}
        rows = self._db.rows(f"SELECT {key}, {name} FROM {table}")
        return {number % (1 << 64): value for number, value in reversed(rows) if isinstance(number, int)}

    def _name(self, value: object) -> str | None:
        text = self.text(value) if isinstance(value, int) else value
        return text if isinstance(text, str) else None

    def _strings_have_key(self) -> bool:
        """Whether a string can be looked up without reading all of them."""
        return self._db.has(schema.STRINGS, "id", "value") and any(
            row[1] == "id" and str(row[2]).upper() == "INTEGER" and row[5] == 1
            for row in self._db.rows(f"PRAGMA table_info({schema.STRINGS})")
        )

    def _all_texts(self) -> dict[int, str | None]:
        if not self._db.has(schema.STRINGS, "id", "value"):
            return {}
        rows = self._db.rows(f"SELECT id, substr(value, 1, {MAX_TEXT}) FROM {schema.STRINGS}", limit=1_000_000)
        return {i: text for i, text in rows if isinstance(i, int) and isinstance(text, str)}


def translated(values: I64, lookup: Callable[[int], int]) -> I32:
    """Each value by `lookup`, which is asked once for each distinct one."""
    if not len(values):
        return np.empty(0, dtype=np.int32)
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE:
        position = values - low
        table = np.zeros(high - low + 1, dtype=np.int32)
        table[position] = 1
        distinct = np.flatnonzero(table)
        table[distinct] = [lookup(low + int(i)) for i in distinct]
        return table[position]
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([lookup(int(value)) for value in distinct], dtype=np.int32)[inverse.reshape(-1)]
