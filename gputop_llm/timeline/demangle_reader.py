"""Reads a mangled name from left to right, within bounds: it comes from a foreign process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

LONGEST = 8192
#: Steps for one name; abbreviations and packs let a short one ask for very many.
MOST_STEPS = 20_000
DIGITS = "0123456789"
_DEEPEST = 48
_BASE36 = DIGITS + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

T = TypeVar("T")


class NoName(Exception):
    """It is no mangled name, or one beyond the bounds."""


class NameReader:
    """A name and the place in it that was reached.

    Args:
        text: the name; what stands before `at` was read.
    """

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self._depth = 0
        self._steps = 0

    def next(self, text: str) -> bool:
        """Takes these letters, if they come next."""
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def peek(self) -> str:
        """The next letter; "" at the end."""
        return self.text[self.at : self.at + 1]

    def number(self) -> int:
        """A decimal number."""
        begin = self.at
        while self.peek() and self.peek() in DIGITS and self.at - begin < 6:
            self.at += 1
        if begin == self.at:
            raise NoName
        return int(self.text[begin : self.at])

    def sequence(self, digits: str = _BASE36) -> int:
        """A number that ends with "_"; none at all is 0, and "0" is 1."""
        if self.next("_"):
            return 0
        value = 0
        while self.peek() and self.peek() in digits and value < 10**6:
            value = value * len(digits) + digits.index(self.peek())
            self.at += 1
        if not self.next("_"):
            raise NoName
        return value + 1

    def deeper(self, read: Callable[[], T]) -> T:
        """Reads something that may hold more of its kind; counts how deep, and how much in all."""
        self.step()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NoName
        found = read()
        self._depth -= 1
        return found

    def short(self, text: str) -> str:
        """The text, unless it grew too long."""
        if len(text) > LONGEST:
            raise NoName
        return text

    def until_end(self, read: Callable[[], str]) -> list[str]:
        """What is read until an "E"; empty texts are left out."""
        found = []
        while not self.next("E"):
            if text := read():
                found.append(text)
        return found

    def step(self) -> None:
        """Counts one more step of a loop."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise NoName
