"""Whatever stands in a log, and in whatever pieces it is read: the same bounded, printable signals."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_llm.sources.engine_log_signals import MOST, MOST_OF_START, TEXT, Signals
from gputop_llm.sources.engine_log_stamps import LogClock, stamp_of
from gputop_llm.sources.engine_log_text import LONGEST, Lines, unwrapped
from gputop_llm.sources.engine_log_wording import TRACEBACK, WORDINGS

NEAR_S = 1_795_991_088.0
_parts = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([w.hint.encode() for w in WORDINGS]),
    st.sampled_from(
        [
            TRACEBACK.encode() + b"\n",
            b'  File "a", line 1, in b\n',
            b"ValueError: x\n",
            b"\n",
            b"\r",
            b"(Worker pid=1) ERROR 11-29 22:25:01 [a.py:1] ",
            b"[rank0]:[E1206 18:44:12.7 a.cpp:607] ",
            b"2026-99-99T99:99:99Z stderr F ",
            b'{"log":"',
            b'{"message": "',
            b"\\n",
            b"\x1b[31m",
            b"x" * 5000,
        ]
    ),
)


def read(pieces):
    lines, signals = Lines(), Signals()
    for piece in pieces:
        cut = lines.feed(piece)
        assert all(len(line) <= LONGEST for line in cut)
        signals.feed([unwrapped(line)[0] for line in cut], lambda _: (None, "read"))
    return signals.all()


@settings(deadline=None)
@given(st.lists(_parts, max_size=30).map(b"".join), st.lists(st.integers(0, 20_000), max_size=5))
def test_a_log_says_the_same_in_any_pieces_and_never_too_much(data, cuts):
    found = read([data])
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert read([data[a:b] for a, b in pairwise(edges)]) == found
    assert len(found) <= MOST + MOST_OF_START
    for signal in found:
        assert signal.text.isprintable()
        # A character that is shown as an escape takes up to ten.
        assert len(signal.text) <= 10 * TEXT


@given(st.text(alphabet="0123456789-/:TZ .,+IWE", max_size=40))
def test_any_stamp_is_read_or_refused(text):
    stamp = stamp_of(text, NEAR_S)
    if stamp is not None:
        clock = LogClock()
        clock.learn(stamp, NEAR_S)
        assert clock.at_s(stamp) is None or isinstance(clock.at_s(stamp), float)
