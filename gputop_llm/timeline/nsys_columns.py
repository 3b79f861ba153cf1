"""The columns of an export that a reader asks for, the same for SQLite (as an expression) and for the file's pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gputop_llm.timeline.model import I64
from gputop_llm.timeline.sqlite_pages import Mask, Values


class Column(NamedTuple):
    """A whole number to read: the first of some columns of the table that is not NULL.

    Without names it is nothing but the default; without a default it is needed. Which of several columns counts where
    the first holds a text is not defined: no recorder writes one.
    """

    names: tuple[str, ...]
    default: int | None = None

    @property
    def sql(self) -> str:
        """The expression."""
        names = [quoted(name) for name in self.names]
        value = names[0] if len(names) == 1 else f"coalesce({', '.join(names)})"
        return value if self.default is None else f"ifnull({value}, {self.default})"

    def of(self, parts: Sequence[Values]) -> Values:
        """The numbers, given the columns by name; the default stands where there is none."""
        numbers, whole = parts[0]
        for more in parts[1:]:
            numbers, whole = _first(numbers, whole, more)
        if whole is None or self.default is None:
            return Values(numbers, whole)
        return Values(np.where(whole, numbers, self.default), None)


def _first(numbers: I64, whole: Mask | None, other: Values) -> Values:
    if whole is None:
        return Values(numbers, None)
    return Values(np.where(whole, numbers, other.numbers), None if other.whole is None else whole | other.whole)


def quoted(name: str) -> str:
    """A name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'
