"""Foreign text is shown, never obeyed."""

from __future__ import annotations

import pytest

from gputop_llm.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama-8b", "llama-8b"),
        ("", ""),
        ("a b", "a b"),
        ("[bold]x[/]", "[bold]x[/]"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("line\nline\r", "line\\nline\\r"),
        ("tab\tbed", "tab\\tbed"),
        ("del\x7f", "del\\x7f"),
        ("c1\x9b31m", "c1\\x9b31m"),
        ("rtl\u202egnp", "rtl\\u202egnp"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("sep\u2028", "sep\\u2028"),
        ("lone\ud800", "lone\\ud800"),
        ("nbsp\u00a0x", "nbsp\\xa0x"),
        ("모델 模型 é", "모델 模型 é"),
        ("e\u0301", "e\u0301"),
        ("emoji 🚀", "emoji 🚀"),
    ],
)
def test_what_can_t_be_seen_is_written_out(text, shown):
    assert printable(text) == shown


def test_endless_text_is_cut():
    assert printable("x" * 5000) == "x" * 1999 + "…"
    assert printable("abcdef", limit=4) == "abc…"
