"""Prometheus text, classic or OpenMetrics, to the samples that an engine module needs.

`prometheus_client` is the authority on what a series is called and how its labels read, but it takes
10 ms and 2 MB to load, and 20 µs a line. So it is asked only about series whose labels are not plain
(an escape, blanks, nothing in the braces), which engines hardly write. A page's series
hardly change between scrapes, so each is parsed once and remembered by its text; after that a line costs
one look-up and one `float`. A line that can't be read loses only itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gputop_llm.printable import printable

Labels = Mapping[str, str]

_MEMO_LIMIT = 20_000
"""Series remembered; about 6 MB. Ten times what the largest vLLM page has."""

_LINE_LIMIT = 65_536
"""Longest line that is looked at, in characters; a cache_config_info line has 1500."""

_NO_METRICS = 1000
"""Lines that can't be read, before any that can, after which a page is none: a large one would cost seconds."""

_SHOWN = 160
"""Characters of a line that could not be read which are shown."""

# One sample line: the series, its value, and what may follow that does not change the value
# (a time stamp, an OpenMetrics exemplar). Quoted label values may hold any of " # ", "}" and blanks.
_LINE = re.compile(
    r"""[ \t]*
    (?P<series>
      (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
      (?:[ \t]*\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}|(?=[ \t]))
    )
    [ \t]*(?P<value>[^\s"#{}]+)
    (?:[ \t]+(?P<time>[^\s"#{}]+))?
    (?:[ \t]+\#[ \t].*)?
    \s*""",
    re.VERBOSE,
)

# Labels that read in one way only: no escapes, no blanks around names.
_PLAIN_LABEL = r'((?!__)[a-zA-Z_][a-zA-Z0-9_]*)="([^"\\\n]*)"'
_PLAIN_SERIES = re.compile(rf"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{{{_PLAIN_LABEL}(?:,{_PLAIN_LABEL})*\}})?")
_PLAIN_LABELS = re.compile(_PLAIN_LABEL)


@dataclass(frozen=True, slots=True)
class Samples:
    """What one page holds.

    `needed` has the samples of each needed name, in page order, NaN and Inf included;
    `read_lines` counts every sample line that could be read, needed or not. A page that
    begins with a thousand lines that can't be read is not read further.
    """

    needed: Mapping[str, list[tuple[Labels, float]]]
    read_lines: int = 0
    skipped_lines: int = 0
    first_skipped: str | None = None


class _Series:
    """A needed series: its sample name and labels."""

    __slots__ = ("labels", "name")

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.labels = labels


class TextParser:
    """Reads page after page of one endpoint; remembers the series that it has met.

    Args:
        needed: sample names to keep, as they stand on the page ("…_bucket", "…_total").
    """

    def __init__(self, needed: frozenset[str]) -> None:
        self._needed = needed
        self._memo: dict[str, _Series | None] = {}

    def parse(self, text: str) -> Samples:
        """The samples of one page; never raises, lines that can't be read are counted."""
        memo = self._memo
        if len(memo) >= _MEMO_LIMIT:
            memo.clear()
        needed: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
        read = skipped = 0
        first: str | None = None
        for line in text.split("\n"):
            if not line or line[0] == "#":
                continue
            key, _, value = line.rpartition(" ")
            try:
                series = memo[key]
                if series is not None:
                    needed[series.name].append((series.labels, _number(value)))
                read += 1
                continue
            except (KeyError, ValueError):
                pass
            if not (stripped := line.strip()) or stripped[0] == "#":
                continue
            try:
                found = self._read(stripped)
            except (ValueError, IndexError):
                skipped += 1
                if first is None:
                    first = printable(stripped, _SHOWN)
                if not read and skipped == _NO_METRICS:
                    break
                continue
            read += 1
            if found is not None:
                series, number = found
                needed[series.name].append((series.labels, number))
        return Samples(needed, read, skipped, first)

    def _read(self, line: str) -> tuple[_Series, float] | None:
        """One line met for the first time (or with a time stamp); None when nobody needs it.

        Raises:
            ValueError, IndexError: it is no sample.
        """
        if len(line) > _LINE_LIMIT:
            raise ValueError("line too long")
        match = _LINE.fullmatch(line)
        if match is None:
            series, number = _ask_authority(line)
            return (series, number) if series.name in self._needed else None
        number = _number(match["value"])
        if match["time"] is not None:
            _number(match["time"])
        key = match["series"]
        if key in self._memo:
            known = self._memo[key]
        else:
            known = _series(key, match["name"]) if match["name"] in self._needed else None
            if len(self._memo) < _MEMO_LIMIT:
                self._memo[key] = known
        return None if known is None else (known, number)


def _number(text: str) -> float:
    """The value as the format has it: Python's underscores between digits are none."""
    if "_" in text:
        raise ValueError("underscore in a number")
    return float(text)


def _series(text: str, name: str) -> _Series:
    """The series that is written so: its name and labels.

    Raises:
        ValueError, IndexError: it is no series.
    """
    if _PLAIN_SERIES.fullmatch(text):
        pairs = _PLAIN_LABELS.findall(text)
        labels = dict(pairs)
        # Of a label that is given twice the authority has its own opinion.
        if len(labels) == len(pairs):
            return _Series(name, labels)
    return _ask_authority(text + " 0")[0]


def _ask_authority(line: str) -> tuple[_Series, float]:
    # Imported by the first page that needs it.
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(line):
        for sample in family.samples:
            return _Series(sample.name, sample.labels), float(sample.value)
    raise ValueError("no sample")
