"""Takes secrets out of command lines.

What is shown is recorded and exported too, so it is better to blank too much:
names decide (an option called …-key or …-token), and so do values with a
well-known shape (hf_…, sk-…, Bearer …), wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gputop_llm.redact import HIDDEN, public_url

# "--max-num-batched-tokens" and "--tokenizer" are no secrets: whole words, and "token" only in the singular at the end.
_SECRET_NAME = re.compile(
    r"(?:^|[-_.])(?:(?:api)?keys?|(?:access|account|private|admin)key|key[-_]?(?:id|pass)|token|secret|auth"
    r"|pass(?:word|wd|code|phrase)?|pwd|credentials?|authorization|bearer|jwt|cookie|signature|sig)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|nvapi-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
    r"|(?i:\b(?:bearer|basic)\s+)[^\s\"',}]+"
)
_JSON_PAIR = re.compile(r"""(["'])([\w.-]+)\1(\s*:\s*)(["'])((?:\\.|(?!\4).)*)\4""")
_HEADER = re.compile(r"^([\w-]*(?:authorization|api[-_]?key|token|secret)[\w-]*\s*:\s*)(\S.*)$", re.IGNORECASE)
_URL = re.compile(r"[a-zA-Z][\w+.-]*://[^\s\"']+")


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The same arguments with every secret replaced by "***"; as many as before."""
    shown: list[str] = []
    blank_rest = blank_next = False
    for item in argv:
        is_option = item.startswith("-") and not item[1:2].isdigit()
        if (blank_next or blank_rest) and not is_option:
            shown.append(HIDDEN)
            blank_next = False
            continue
        blank_next = blank_rest = False
        name, separator, value = item.partition("=")
        if _SECRET_NAME.search(name.lstrip("-")):
            if separator:
                shown.append(f"{name}={HIDDEN}" if value else item)
                continue
            if is_option:
                blank_next = True
                # vLLM takes several keys after one --api-key.
                blank_rest = "key" in name.lower()
        shown.append(redact_text(item))
    return tuple(shown)


def redact_text(text: str) -> str:
    """Text with well-known secrets, URL credentials and JSON values of secret names blanked."""
    if "://" in text:
        text = _URL.sub(lambda found: public_url(found[0]) if "@" in found[0] or "?" in found[0] else found[0], text)
    if ":" in text:
        text = _JSON_PAIR.sub(_hide_pair, text)
        text = _HEADER.sub(rf"\1{HIDDEN}", text)
    return _SECRET_VALUE.sub(_hide_value, text)


def is_secret_name(name: str) -> bool:
    """Whether an option or variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_strings(value: Any) -> Any:
    """The same JSON value with every string in it as `redact_text` leaves it; names are kept."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {name: redact_strings(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_strings(one) for one in value]
    return value


def _hide_pair(found: re.Match[str]) -> str:
    quote, name, colon, value_quote = found.group(1, 2, 3, 4)
    return f"{quote}{name}{quote}{colon}{value_quote}{HIDDEN}{value_quote}" if _SECRET_NAME.search(name) else found[0]


def _hide_value(found: re.Match[str]) -> str:
    word, blank, _ = found[0].partition(" ")
    return f"{word} {HIDDEN}" if blank else HIDDEN
