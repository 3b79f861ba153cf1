"""What this terminal can show, whether it is one at all, and whether it is still there."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.config import Config
from gputop_llm.errors import UsageError

# Consoles without the fonts for blocks and braille.
_PLAIN_TERMS = ("linux", "vt", "ansi", "cons25", "sun")
_MODERN_TERMS = ("xterm", "screen", "tmux", "rxvt", "alacritty", "kitty", "foot", "wezterm", "ghostty", "konsole", "st")


@dataclass(frozen=True, slots=True)
class Terminal:
    """How many colours it has (0 with NO_COLOR), and whether only ASCII may be drawn."""

    colours: int
    ascii_only: bool


#: What a terminal that can't be drawn on is told to use in place of the monitor.
_INSTEAD = "`gputop-llm snapshot` prints the same facts as text, `gputop-llm watch --json` as JSON"


def check(env: Mapping[str, str], config: Config, instead: str = _INSTEAD) -> Terminal:
    """What the terminal can show.

    Args:
        instead: what can be done without one.

    Raises:
        UsageError: there is no terminal, or one that can't place the cursor.
    """
    what = "cannot draw the full-screen display"
    # Textual draws on standard error, but a redirected standard output says that text is wanted.
    for name, stream in (("input", sys.__stdin__), ("output", sys.__stdout__), ("error", sys.__stderr__)):
        if stream is None or not stream.isatty():
            raise UsageError(what, f"standard {name} is not a terminal", instead)
    term = env.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        raise UsageError(what, f"TERM is {term!r}" if term else "TERM is not set", instead)
    return Terminal(colours(env), ascii_only(env, config))


def ensure_size() -> None:
    """Gives a terminal that says it has 0 rows or columns the usual 80×24, as `stty rows 24 cols 80` would.

    Serial consoles, and sessions whose other side has not told its size yet, say so. Textual and
    Rich would each assume another size, and lay the screen out again and again for ever.
    """
    with suppress(OSError):
        rows, columns, *pixels = struct.unpack("HHHH", fcntl.ioctl(2, termios.TIOCGWINSZ, bytes(8)))
        if not rows or not columns:
            fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", rows or 24, columns or 80, *pixels))


def colours(env: Mapping[str, str]) -> int:
    """Colours that may be used: 0, 16, 256, or 2^24."""
    if env.get("NO_COLOR"):
        return 0
    if env.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return 2**24
    term = env.get("TERM", "")
    if term.endswith(("-256color", "-direct")) or term.startswith(("xterm-kitty", "alacritty", "foot")):
        return 256
    return 16


def ascii_only(env: Mapping[str, str], config: Config) -> bool:
    """Whether to draw ASCII: as asked for, else by TERM and the locale."""
    if "ascii" in config.origins or config.ascii:
        return config.ascii
    term = env.get("TERM", "")
    if term.startswith(_PLAIN_TERMS):
        return True
    locale = _locale(env)
    if not locale:
        # Nothing is said, as in most containers: every terminal emulator of today speaks UTF-8.
        return not term.startswith(_MODERN_TERMS)
    return "utf8" not in locale.lower().replace("-", "")


def _locale(env: Mapping[str, str]) -> str:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = env.get(name, "")
        # In the C locale Python itself sets LC_CTYPE to C.UTF-8: that says nothing of the terminal.
        if name == "LC_CTYPE" and value == "C.UTF-8" and env is os.environ and not _given_at_start(name):
            continue
        if value:
            return value
    return ""


def _given_at_start(name: str) -> bool:
    """Whether the process was started with that variable."""
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return True
    return any(entry.startswith(f"{name}=".encode()) for entry in given)


def still_there() -> bool:
    """Whether the terminal still exists: after a lost connection its descriptors only give errors."""
    try:
        termios.tcgetattr(0)
        return os.isatty(2)
    except (termios.error, OSError):
        return False


def watch(gone: Callable[[], None]) -> None:
    """Calls `gone` from a thread of its own when the terminal is lost, also when no SIGHUP tells of it.

    The thread sleeps in the kernel until then. Without it the reader of a lost terminal, which
    only ever meets its end, would keep a core busy for ever.
    """

    def wait() -> None:
        poll = select.poll()
        # Hang-up and error are always reported, asked for or not.
        poll.register(0, 0)
        poll.poll()
        gone()

    threading.Thread(target=wait, name="terminal watch", daemon=True).start()
