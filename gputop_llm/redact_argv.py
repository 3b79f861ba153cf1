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

# "--max-num-batched-tokens" and "--tokenizer" are no secrets: "token" only in the singular, and only at the end.
_SECRET_NAME = re.compile(
    r"(?:(?:token|secrets?|passw(?:or)?ds?|passphrase|keys?|credentials?)"
    r"|(?:^|[-_.])(?:key[-_]?(?:id|pass)|auth|pass(?:code)?|pwd|authorization|bearer|jwt|cookie|signature|sig))"
    r"(?:_?\d+)?$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|nvapi-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
    r"|(?i:\b(?:bearer|basic)\s+)[^\s\"',}]+"
)
# As JSON and Python write them; text may be cut before the end of a value.
_JSON_PAIR = re.compile(r"""(["'])([\w.-]+)\1(\s*:\s*)(["'])((?:\\.|(?!\4).)*)(?:\4|$)""")
_HEADER_NAME = r"[\w-]*(?:authorization|api[-_]?key|token|secret)[\w-]*\s*:\s*"
_HEADER = re.compile(rf"^({_HEADER_NAME})(\S.*)$", re.IGNORECASE)
_NAMED_HEADER = re.compile(
    r"(?<![\w-])((?:[\w-]*-)?(?:authorization|api[-_ ]?key)\s*:\s*)(?:(?:bearer|basic)\s+)?[^\s\"',}\])]+",
    re.IGNORECASE,
)
_QUOTED_HEADER = re.compile(rf"""(["'])({_HEADER_NAME})(?:(?!\1).)+""", re.IGNORECASE)
# Of a command line that is one string: a shell's -c, a title that a process gave itself. A quote may be cut off.
_NAMED = re.compile(
    r"""(?<![\w.-])(?:-{0,2}[A-Za-z_][\w.-]*=|--?[A-Za-z_][\w.-]*\s+|["'][A-Za-z_][\w.-]*["']\s*:\s*(?=[\[(]))"""
)
_WORD = r"""(?:"(?:\\.|[^"\\])*(?:"|$)|'[^']*(?:'|$)|\\.|[^\s"'\\])+"""
_VALUE = re.compile(rf"[\[(][^\])]*(?:[\])]|$)|{_WORD}", re.DOTALL)
_WORDS = re.compile(rf"(?!-){_WORD}(?:\s+(?!-){_WORD})*", re.DOTALL)
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
        if _SECRET_NAME.search(name) and not any(map(str.isspace, name)):
            if separator:
                shown.append(f"{redact_text(name)}={HIDDEN}" if value else item)
                continue
            if is_option:
                blank_next = True
                # vLLM takes several keys after one --api-key.
                blank_rest = "key" in name.lower()
        shown.append(redact_text(item))
    return tuple(shown)


def redact_text(text: str) -> str:
    """Text with well-known secrets, URL credentials and the values of secret names blanked, as in a command line."""
    if "://" in text:
        text = _URL.sub(lambda found: public_url(found[0]) if "@" in found[0] or "?" in found[0] else found[0], text)
    if ":" in text:
        text = _JSON_PAIR.sub(_hide_pair, text)
        text = _HEADER.sub(rf"\1{HIDDEN}", text)
        text = _NAMED_HEADER.sub(rf"\1{HIDDEN}", text)
        text = _QUOTED_HEADER.sub(rf"\1\2{HIDDEN}", text)
    if "=" in text or "-" in text or ":" in text:
        text = _hide_named(text)
    return _SECRET_VALUE.sub(_hide_value, text)


def is_secret_name(name: str) -> bool:
    """Whether an option or variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_record(value: Any) -> Any:
    """The same JSON value without secrets: every `argv` as `redact_argv` leaves it, every other string as text."""
    if isinstance(value, Mapping):
        return {
            name: list(redact_argv([str(item) for item in one]))
            if name == "argv" and isinstance(one, (list, tuple))
            else redact_record(one)
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact_record(one) for one in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_strings(value: Any) -> Any:
    """The same JSON value with every string in it as `redact_text` leaves it; names are kept."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {name: redact_strings(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_strings(one) for one in value]
    return value


def _hide_named(text: str) -> str:
    """Values of secret options and variables; several after an option for keys, as vLLM takes them."""
    parts, done = [], 0
    for found in _NAMED.finditer(text):
        name = found[0].strip("=:-'\" \t\r\n")
        if found.start() < done or _SECRET_NAME.search(name) is None:
            continue
        joined = "=" in found[0] or ":" in found[0]
        several = not joined and "key" in name.lower()
        value = (_WORDS if several else _VALUE).match(text, found.end())
        if value is None or (not joined and value[0].startswith("-")):
            continue
        parts += [text[done : found.end()], HIDDEN]
        done = value.end()
    return "".join((*parts, text[done:]))


def _hide_pair(found: re.Match[str]) -> str:
    quote, name, colon, value_quote = found.group(1, 2, 3, 4)
    return f"{quote}{name}{quote}{colon}{value_quote}{HIDDEN}{value_quote}" if _SECRET_NAME.search(name) else found[0]


def _hide_value(found: re.Match[str]) -> str:
    word, blank, _ = found[0].partition(" ")
    return f"{word} {HIDDEN}" if blank else HIDDEN
