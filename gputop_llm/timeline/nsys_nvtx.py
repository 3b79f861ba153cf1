"""NVTX ranges of an Nsight Systems export, and the framework operators that PyTorch's emit_nvtx hides among them."""

from __future__ import annotations

import numpy as np

from gputop_llm.timeline import nsys_schema as schema
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.nsys_activity import kept
from gputop_llm.timeline.nsys_db import MAX_TEXT, NsysDb
from gputop_llm.timeline.nsys_ids import NsysIds

#: Stands for "still open" until the window's end is put there.
_OPEN = -(1 << 62)


class NsysNvtx:
    """Moves one export's ranges. `shift` is added to every time; `operators` counts framework operators among them."""

    def __init__(self, db: NsysDb, ids: NsysIds, builder: TimelineBuilder, shift: int) -> None:
        self._db, self._ids, self._builder = db, ids, builder
        self._shift = shift
        self._split: dict[str, tuple[int, int | None]] = {}
        self.operators = 0

    def ranges(self, window_end: int) -> None:
        """All ranges; those still open end at `window_end` (file time). A named domain goes before the name."""
        table = schema.NVTX
        types = ", ".join(map(str, schema.NVTX_RANGES))
        where = f"eventType IN ({types})" if self._db.has(table, "eventType") else '"end" IS NOT NULL'
        columns = [
            schema.column(self._db, table, "start"),
            schema.column(self._db, table, "end", _OPEN),
            schema.column(self._db, table, "globalTid"),
            schema.column(self._db, table, "textId", -1),
            schema.column(self._db, table, "domainId", 0),
        ]
        text = f'substr("text", 1, {MAX_TEXT})' if self._db.has(table, "text") else "NULL"
        domains = self._domains()
        for numbers, texts in self._db.chunks(table, columns, where, text):
            opened = numbers[1] == _OPEN
            numbers[1][opened] = np.maximum(numbers[0][opened], window_end)
            chunk = kept(self._db, table, [*numbers, np.arange(len(texts))])
            start, end, tid, text_id, domain, row = chunk
            named = [
                self._named(string, texts[own], domains.get((thread >> 24, number)) if domains else None)
                for string, own, thread, number in zip(*(c.tolist() for c in (text_id, row, tid, domain)), strict=True)
            ]
            name = np.array([first for first, _ in named], dtype=np.int32)
            shapes = np.array([-1 if second is None else second for _, second in named], dtype=np.int32)
            operator = np.array([second is not None for _, second in named], dtype=bool)
            self.operators += int(operator.sum())
            start, end, thread = start + self._shift, end + self._shift, self._ids.thread_rows(tid)
            ranges, ops = self._builder.ranges, self._builder.cpu_ops
            ranges.extend(start=start[~operator], end=end[~operator], name_id=name[~operator], thread=thread[~operator])
            ops.extend(
                start=start[operator],
                end=end[operator],
                name_id=name[operator],
                thread=thread[operator],
                shapes_id=shapes[operator],
                external_id=-1,
            )

    def _named(self, text_id: int, own: object, domain: str | None) -> tuple[int, int | None]:
        """The id of the name and, for an operator, that of its shapes (-1: not recorded)."""
        text = self._ids.text(text_id) if text_id >= 0 else None
        if text is None:
            text = own if isinstance(own, str) else ""
        if domain:
            return self._builder.intern(f"{domain}:{text}"), None
        operator = framework_operator(text)
        if operator is None:
            return self._builder.intern(text), None
        return self._builder.intern(operator[0]), self._builder.intern(operator[1])

    def _domains(self) -> dict[tuple[int, int], str]:
        """Names of NVTX domains by (process, domain)."""
        if not self._db.has(schema.NVTX, "eventType", "domainId", "globalTid", "text", "textId"):
            return {}
        found = {}
        for tid, domain, own, text_id in self._db.rows(
            f"SELECT globalTid, domainId, text, textId FROM {schema.NVTX} WHERE eventType = {schema.NVTX_DOMAIN}"
        ):
            text = self._ids.text(text_id) if isinstance(text_id, int) else own
            if isinstance(tid, int) and isinstance(domain, int) and isinstance(text, str):
                found[tid >> 24, domain] = text
        return found


def framework_operator(text: str) -> tuple[str, str | None] | None:
    """Operator and input shapes of a range by torch.autograd.profiler.emit_nvtx; None for any other range.

    Its names read "aten::mm, seq = 5, op_id = 12, sizes = [[8, 16], [16, 4]], input_op_ids = [...]", parts left out
    where unknown.
    """
    for mark in (", seq = ", ", op_id = "):
        name, found, rest = text.partition(mark)
        if found and rest[:1].isdigit():
            _, sized, sizes = rest.partition(", sizes = ")
            return name, sizes.partition(", input_op_ids")[0] if sized else None
    return None
