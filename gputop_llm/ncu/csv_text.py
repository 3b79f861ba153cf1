"""What `ncu --csv` prints, as the text comes out of a pipe: progress lines, the program's own output, then a table.

`--page details` has a row for each metric and each rule, `--page raw` one for each launch below a row of units.
Columns are found by name: versions and options add some and leave some out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from gputop_llm.ncu import names
from gputop_llm.ncu.model import KernelReport, NvidiaRule
from gputop_llm.ncu.quantity import base, number

_INTEGER = re.compile(r"\d+")
_NOTHING = re.compile(r"^\s*(|n/a|[-+]?nan|[-+]?inf|\(!\).*)\s*$", re.IGNORECASE)
#: Columns of `--page raw` that are no metric.
_PLAIN_COLUMNS = {
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "Kernel Time", "Kernel Duration", "Id", "Domain", "Range",
}  # fmt: skip
_RULE_TYPES = {"OPT": True, "WRN": True, "INF": False, "ERR": False, "OK": False}
#: In the CSV a rule has no title; its wording is that of its title.
_TITLES = (
    ("grid is too small to fill", "Small Grid"),
    ("less than the GPU's", "Small Grid"),
    ("typically indicate latency issues", "Latency Issue"),
    ("Memory is more heavily utilized than Compute", "High Memory Throughput"),
    ("Compute is more heavily utilized than Memory", "High Compute Throughput"),
    ("Compute and Memory are well-balanced", "Balanced Throughput"),
    ("of the available compute or memory performance", "High Throughput"),
    ("tail effect", "Tail Effect"),
)
#: More cells than this a table of ncu does not have.
_FIELD_LIMIT = 1 << 20


def title_of(message: str) -> str:
    """The title of one of NVIDIA's rules, from its wording; "" where that is not known."""
    return next((title for words, title in _TITLES if words in message), "")


@dataclass
class _Launch:
    row: Mapping[str, str]
    metrics: dict[str, float] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    rules: list[NvidiaRule] = field(default_factory=list)

    def put(self, metric: str, unit: str, value: str) -> None:
        """Keeps a value in base units; what has none is missing."""
        known = number(value)
        if known is not None:
            self.metrics.setdefault(metric, known * base(unit)[0])
        elif _NOTHING.match(value):
            self.missing.add(metric)
        else:
            self.texts.setdefault(metric, value)

    def report(self) -> KernelReport:
        name = self.row.get("Kernel Name", "")
        major, _, minor = self.row.get("CC", "").partition(".")
        capability = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
        return KernelReport(
            name=name,
            full_name=name,
            metrics=self.metrics,
            number=int(self.row["ID"]),
            missing=frozenset(self.missing - self.metrics.keys()),
            texts=self.texts,
            rules=tuple(self.rules),
            grid=_dimensions(self.row.get("Grid Size", "")),
            block=_dimensions(self.row.get("Block Size", "")),
            compute_capability=capability,
        )


def read_text(text: str) -> tuple[KernelReport, ...]:
    """The launches of the tables in the text, in order; none where it has no table of ncu."""
    launches: dict[tuple[str, str, str], _Launch] = {}
    for header, rows in _tables(text):
        if "Metric Name" in header:
            _read_details(header, rows, launches)
        else:
            _read_raw(header, rows, launches)
    return tuple(launch.report() for launch in launches.values())


def _tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Each header, and the rows below it that belong to it."""
    header: list[str] = []
    rows: list[list[str]] = []
    lines = (line for line in text.splitlines() if line.startswith(('"', "ID,")) or line[:1].isdigit())
    before = csv.field_size_limit(_FIELD_LIMIT)
    try:
        for line in lines:
            try:
                row = next(csv.reader([line], strict=True), [])
            except csv.Error:
                continue
            if row[:1] == ["ID"] and "Kernel Name" in row:
                if header:
                    yield header, rows
                header, rows = row, []
            elif header and _belongs(row, header):
                rows.append(row)
    finally:
        csv.field_size_limit(before)
    if header:
        yield header, rows


def _belongs(row: Sequence[str], header: Sequence[str]) -> bool:
    """A launch has numbers as ID and process, and its other cells up to the name; the row of units has neither."""
    if not header.index("Kernel Name") < len(row) <= len(header):
        return False
    numbers = [row[header.index(name)] for name in ("ID", "Process ID") if name in header]
    return all(text.isdecimal() for text in numbers) or not any(row[: header.index("Kernel Name") + 1])


def _read_details(header: list[str], rows: list[list[str]], launches: dict[tuple[str, str, str], _Launch]) -> None:
    for cells in rows:
        row = dict(zip_longest(header, cells, fillvalue=""))
        launch = _launch(row, launches)
        if launch is None:
            continue
        if row.get("Rule Name"):
            launch.rules.append(_rule(row))
        elif row["Metric Name"]:
            label, unit = row["Metric Name"], row.get("Metric Unit", "")
            if (metric := _metric(label, unit, row.get("Section Name", ""))) is not None:
                launch.put(metric, unit, row.get("Metric Value", ""))


def _metric(label: str, unit: str, section: str) -> str | None:
    """The metric of a row of the details page: it may stand under its own name, or under a label."""
    if "__" in label:
        return label
    plain = base(unit)[1] or names.UNIT_OF_LABEL.get(label, "")
    if label == "Memory Throughput" and not plain:
        plain = "%" if "Speed Of Light" in section else "byte/s"
    return names.LABELS.get((label, plain))


def _rule(row: Mapping[str, str]) -> NvidiaRule:
    scope = row.get("Estimated Speedup Type", "")
    message = row.get("Rule Description", "")
    return NvidiaRule(
        identifier=row["Rule Name"],
        section=row.get("Section Name", ""),
        title=title_of(message),
        message=message,
        advises=_RULE_TYPES.get(row.get("Rule Type", ""), False),
        speedup_pct=number(row.get("Estimated Speedup", "")),
        whole_kernel={"global": True, "local": False}.get(scope),
    )


def _read_raw(header: list[str], rows: list[list[str]], launches: dict[tuple[str, str, str], _Launch]) -> None:
    units: dict[str, str] = {}
    for cells in rows:
        row = dict(zip_longest(header, cells, fillvalue=""))
        if not row["ID"]:
            units = row
            continue
        launch = _launch(row, launches)
        if launch is None:
            continue
        for name, value in row.items():
            if name not in _PLAIN_COLUMNS and "Push/Pop" not in name and "Start/End" not in name:
                launch.put(name, units.get(name, ""), value)


def _launch(row: Mapping[str, str], launches: dict[tuple[str, str, str], _Launch]) -> _Launch | None:
    if not row["ID"]:
        return None
    key = (row["ID"], row.get("Process ID", ""), row["Kernel Name"])
    return launches.setdefault(key, _Launch(row))


def _dimensions(text: str) -> tuple[int, int, int] | None:
    found = [int(part) for part in _INTEGER.findall(text)]
    return (found[0], found[1], found[2]) if len(found) == 3 else None
