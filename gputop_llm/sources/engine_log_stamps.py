"""When a line of a log was written: its stamp in the forms that engines use, and the time zone that none of them names.

A container's clock says UTC where the host's says something else, and vLLM's stamps have no year. What is known for
sure is when a file was written to last: the last stamp in it can't be later, and is seldom much earlier.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

_STAMP = re.compile(
    r"(?:(\d{4})-(\d\d)-(\d\d)[T ]"  # Python's logging, SGLang, TGI
    r"|(\d\d)/(\d\d)/(\d{4})-"  # TensorRT-LLM
    r"|(?<![\d-])(\d\d)-(\d\d) "  # vLLM
    r"|\b[IWEF](\d\d)(\d\d) )"  # glog: torch, Triton
    r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6})\d*)?(Z|[+-]\d\d:?\d\d)?"
)
# A stamp stands at the beginning, behind the name of a process at most.
_WITHIN = 120
_QUARTER_S = 900.0
# A stamp this close to a whole number of quarters of an hour from the time of the file is taken to be of another zone.
_CLOSE_S = 30.0
_LATER_S = 60.0
_MAX_ZONE_S = 14 * 3600.0


class Stamp(NamedTuple):
    """As the line has it: seconds since 1970 if it were UTC, in a year that may be a guess; `exact` with a zone."""

    as_utc_s: float
    has_year: bool
    exact: bool


def stamp_of(line: str, near_s: float) -> Stamp | None:
    """The stamp at the beginning of a line; None without one.

    Args:
        near_s: wall time of about then, for stamps without a year.
    """
    found = _STAMP.search(line, 0, _WITHIN)
    if found is None:
        return None
    year, month, day, month_us, day_us, year_us, month_v, day_v, month_g, day_g = found.group(*range(1, 11))
    hour, minute, second, fraction, zone = found.group(*range(11, 16))
    given = year or year_us
    try:
        when = datetime(
            int(given) if given else datetime.fromtimestamp(near_s, timezone.utc).year,
            int(month or month_us or month_v or month_g),
            int(day or day_us or day_v or day_g),
            int(hour),
            int(minute),
            int(second),
            int((fraction or "").ljust(6, "0")),
            timezone.utc,
        )
    except ValueError:
        return None
    at_s = when.timestamp()
    if not given and at_s > near_s + 2 * 86400:
        at_s = (when - timedelta(days=365)).timestamp()
    if zone is None:
        return Stamp(at_s, bool(given), False)
    if zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        at_s -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return Stamp(at_s, bool(given), True)


class LogClock:
    """Turns the stamps of one file into wall time, once it is known in which zone they are."""

    def __init__(self) -> None:
        self._zone_s: float | None = None
        self._sure = False

    def learn(self, last: Stamp, written_s: float) -> None:
        """Takes notice of the last stamp in the file and of when the file was written to last.

        Of zones that only may be right the first one is kept until one is sure.
        """
        if last.exact or self._sure:
            return
        behind_s = written_s - last.as_utc_s
        quarters_s = round(behind_s / _QUARTER_S) * _QUARTER_S
        if abs(behind_s - quarters_s) <= _CLOSE_S and abs(quarters_s) <= _MAX_ZONE_S:
            self._zone_s, self._sure = -quarters_s, True
            return
        if self._zone_s is not None:
            return
        # The last lines have no stamp, or it stood still for long: then it is this machine's zone, or UTC.
        zones_s = (float(time.localtime(written_s).tm_gmtoff), 0.0)
        possible = [(behind_s + zone_s, zone_s) for zone_s in zones_s if behind_s + zone_s >= -_LATER_S]
        if possible:
            self._zone_s = min(possible)[1]

    def at_s(self, stamp: Stamp) -> float | None:
        """Wall time of a stamp; None while its zone is not known."""
        if stamp.exact:
            return stamp.as_utc_s
        return None if self._zone_s is None else stamp.as_utc_s - self._zone_s
