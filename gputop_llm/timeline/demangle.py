"""C++ names of kernels as they are written in source (Itanium C++ ABI, the parts that kernels use).

Names come from a foreign process: one that makes no sense, nests too deeply or would grow too long stays as it is.
"""

from __future__ import annotations

from gputop_llm.timeline.demangle_reader import DIGITS, LONGEST, NameReader, NoName
from gputop_llm.timeline.demangle_tables import BUILTIN, BUILTIN_D, OPERATORS, STANDARD, SUFFIXES

#: What stands before and after the name that a declarator would have: "void (*" and ")(int)".
Type = tuple[str, str]

_MANGLED = "_Z"
_MOST_OF_A_PACK = 256


def demangled(name: str) -> str:
    """The name as in source: "void f<4, float>(float*)"; what can't be demangled comes back as it is."""
    if not name.startswith(_MANGLED) or len(name) > LONGEST or not name.isascii():
        return name
    parser = _Parser(name)
    try:
        text = parser.encoding()
    except (NoName, IndexError, RecursionError):
        return name
    rest = name[parser.at :]
    if rest and not rest.startswith("."):
        return name
    return f"{text} [clone {rest}]" if rest else text


class _Parser(NameReader):
    """The grammar of one name."""

    def __init__(self, text: str) -> None:
        super().__init__(text, len(_MANGLED))
        self._known: list[str] = []
        #: Arguments of the template in whose signature we are; a pack is a list.
        self._arguments: list[str | list[str]] = []
        self._in_lambda = False
        self._pack: int | None = None
        self._pack_length: int | None = None

    # -- names -----------------------------------------------------------------

    def encoding(self, returns: bool = True) -> str:
        """A function with its parameters and, where `returns` asks for it, what it returns; or an object."""
        return self.deeper(lambda: self._encoding(returns))

    def _encoding(self, returns: bool) -> str:
        name, template, plain, after = self._name()
        if self.peek() in ("", "E", "."):
            return name
        before, behind = self._type() if template and plain else ("", "")
        parameters = []
        while self.peek() not in ("", "E", "."):
            if text := self._whole_type():
                parameters.append(text)
        listed = "" if parameters == ["void"] else ", ".join(parameters)
        told = f"{name}({listed}){after}"
        return self.short(f"{before}{' ' if before else ''}{told}{behind}" if returns else told)

    def _name(self) -> tuple[str, bool, bool, str]:
        """The name; whether it ends with template arguments, may have a return type; what stands behind it."""
        if self.next("N"):
            return self._nested()
        if self.next("Z"):
            return self._local()
        if self.peek() == "S" and not self._is_std():
            name = self._substitution()
        else:
            name = self._unscoped()
            if self.peek() == "I":
                self._known.append(name)
        if self.peek() == "I":
            return self.short(name + self._template(keep=True)), True, True, ""
        return name, False, True, ""

    def _is_std(self) -> bool:
        return self.text.startswith("St", self.at)

    def _unscoped(self) -> str:
        prefix = "std::" if self.next("St") else ""
        return prefix + self._unqualified("")[0]

    def _nested(self) -> tuple[str, bool, bool, str]:
        after = "".join(
            word for letter, word in (("r", " restrict"), ("V", " volatile"), ("K", " const")) if self.next(letter)
        )
        after += " &&" if self.next("O") else " &" if self.next("R") else ""
        name, last, template, plain = "", "", False, True
        while not self.next("E"):
            self.step()
            if self.peek() == "I" and name:
                name += self._template(keep=True)
                template = True
            elif self.peek() == "S" and not name:
                name = "std" if self.next("St") else self._substitution()
                # What is taken from the table isn't entered again.
                last, template = name.rpartition("::")[2], False
                continue
            elif self.peek() == "T" and not name:
                name = self._parameter()
            else:
                part, plain = self._unqualified(last)
                name, last, template = f"{name}::{part}" if name else part, part, False
            self.short(name)
            if self.peek() != "E":
                self._known.append(name)
        if not name:
            raise NoName
        return name, template, plain, after

    def _local(self) -> tuple[str, bool, bool, str]:
        outer = self.encoding(returns=False)
        if not self.next("E"):
            raise NoName
        if self.next("s"):
            self._discriminator()
            return f"{outer}::string literal", False, True, ""
        if self.next("d"):
            self.sequence(DIGITS)
        name, template, plain, after = self._name()
        self._discriminator()
        return self.short(f"{outer}::{name}"), template, plain, after

    def _discriminator(self) -> None:
        if self.next("__"):
            self.number()
            self.next("_")
        elif self.next("_"):
            self.number()

    def _unqualified(self, owner: str) -> tuple[str, bool]:
        """A part of a name, and whether a function of that name may tell its return type."""
        self.next("L")
        first = self.peek()
        if first and first in DIGITS:
            name, plain = self._source(), True
        elif self.next("Ut"):
            name, plain = f"{{unnamed type#{self.sequence(DIGITS) + 1}}}", True
        elif self.next("Ul"):
            name, plain = self._lambda(), True
        elif owner and first == "C" and self._one_of("C1", "C2", "C3"):
            name, plain = owner.partition("<")[0], False
        elif owner and first == "D" and self._one_of("D0", "D1", "D2"):
            name, plain = "~" + owner.partition("<")[0], False
        elif self.next("cv"):
            name, plain = f"operator {self._whole_type()}", False
        else:
            operator = OPERATORS.get(self.text[self.at : self.at + 2])
            if operator is None:
                raise NoName
            self.at += 2
            name, plain = f"operator{' ' if operator[0][0].isalpha() else ''}{operator[0]}", True
        while self.next("B"):
            name += f"[abi:{self._source()}]"
        return name, plain

    def _one_of(self, *letters: str) -> bool:
        return any(self.next(each) for each in letters)

    def _source(self) -> str:
        length = self.number()
        name = self.text[self.at : self.at + length]
        if len(name) < length or not name:
            raise NoName
        self.at += length
        return "(anonymous namespace)" if name.startswith("_GLOBAL__N") else name

    def _lambda(self) -> str:
        before, self._in_lambda = self._in_lambda, True
        parameters = self.until_end(self._whole_type)
        self._in_lambda = before
        listed = "" if parameters == ["void"] else ", ".join(parameters)
        return f"{{lambda({listed})#{self.sequence(DIGITS) + 1}}}"

    def _substitution(self) -> str:
        self.at += 1
        if self.peek() in STANDARD and self.peek():
            self.at += 1
            return STANDARD[self.text[self.at - 1]][0]
        number = self.sequence()
        if number >= len(self._known):
            raise NoName
        return self._known[number]

    def _parameter(self) -> str:
        """A template parameter: the argument that it stands for."""
        self.at += 1
        number = self.sequence(DIGITS)
        if number >= len(self._arguments):
            if self._in_lambda:
                return "auto"
            return f"T{number}"
        argument = self._arguments[number]
        if isinstance(argument, str):
            return argument
        self._pack_length = len(argument)
        if self._pack is None:
            return self.short(", ".join(argument))
        return argument[self._pack] if self._pack < len(argument) else ""

    # -- template arguments ----------------------------------------------------

    def _template(self, keep: bool = False) -> str:
        """Template arguments; `keep` makes them what parameters stand for from here on."""
        return self.deeper(lambda: self._template_arguments(keep))

    def _template_arguments(self, keep: bool) -> str:
        self.at += 1
        outer = self._arguments
        found: list[str | list[str]] = []
        while not self.next("E"):
            found.append(self.until_end(self._argument) if self.next("J") else self._argument())
        self._arguments = found if keep else outer
        listed = ", ".join(text for each in found for text in ([each] if isinstance(each, str) else each) if text)
        return self.short(f"<{listed}{' ' if listed.endswith('>') else ''}>")

    def _argument(self) -> str:
        if self.next("L"):
            return self._literal()
        if self.next("X"):
            text = self._expression()
            if not self.next("E"):
                raise NoName
            return text
        return self._whole_type()

    def _literal(self) -> str:
        if self.next("_Z"):
            text = self.encoding()
            if not self.next("E"):
                raise NoName
            return text
        letter = self.peek()
        kind = self._whole_type()
        end = self.text.index("E", self.at) if "E" in self.text[self.at :] else len(self.text)
        value = self.text[self.at : end].replace("n", "-", 1)
        self.at = end + 1
        if letter == "b":
            return {"0": "false", "1": "true"}.get(value, value)
        return value + SUFFIXES[letter] if letter in SUFFIXES else f"({kind}){value}"

    def _expression(self) -> str:
        return self.deeper(self._expression_inside)

    def _expression_inside(self) -> str:
        if self.next("L"):
            return self._literal()
        if self.peek() == "T":
            return self._parameter()
        if self.next("st"):
            return f"sizeof ({self._whole_type()})"
        if self.next("sZ"):
            self._parameter()
            return f"{self._pack_length or 0}"
        if self.next("sr"):
            return f"{self._whole_type()}::{self._source()}{self._template() if self.peek() == 'I' else ''}"
        operator, operands = OPERATORS.get(self.text[self.at : self.at + 2], ("", 0))
        if not operands:
            raise NoName
        self.at += 2
        if operands == 1:
            return f"{operator}({self._expression()})"
        first = self._expression()
        return self.short(f"({first}){operator}({self._expression()})")

    # -- types -----------------------------------------------------------------

    def _whole_type(self) -> str:
        before, behind = self._type()
        return self.short(before + behind)

    def _type(self) -> Type:
        return self.deeper(self._type_inside)

    def _type_inside(self) -> Type:
        letter = self.peek()
        if letter in BUILTIN and letter:
            self.at += 1
            return BUILTIN[letter], ""
        if letter == "S" and not self._is_std():
            found = self._substitution()
            if self.peek() != "I":
                return found, ""
            return self._entered((self.short(found + self._template()), ""))
        if letter == "T":
            found = self._parameter()
            self._known.append(found)
            return self._entered((found + self._template(), "")) if self.peek() == "I" else (found, "")
        if letter == "D":
            return self._special()
        if letter in ("N", "Z", "S") or letter in DIGITS:
            return self._class()
        self.at += 1
        return self._entered(self._compound(letter))

    def _class(self) -> Type:
        arguments = self._arguments
        name, *_ = self._name()
        self._arguments = arguments
        # A nested name has entered its prefixes and not itself.
        return self._entered((name, ""))

    def _entered(self, found: Type) -> Type:
        self._known.append(self.short(found[0] + found[1]))
        return found

    def _compound(self, letter: str) -> Type:
        if letter in ("P", "R", "O"):
            before, behind = self._type()
            sign = {"P": "*", "R": "&", "O": "&&"}[letter]
            # A reference to a reference is one.
            before = before.rstrip("&") if letter == "R" else before
            if letter == "O" and before.endswith("&"):
                return before, behind
            return (f"{before.rstrip()} ({sign}", f"){behind}") if behind[:1] in ("(", " ") else (before + sign, behind)
        if letter in ("K", "V", "r"):
            before, behind = self._type()
            word = {"K": " const", "V": " volatile", "r": " restrict"}[letter]
            return before + ("" if before.endswith(word) else word), behind
        if letter == "A":
            size = "" if self.peek() == "_" else str(self.number()) if self.peek() in DIGITS else self._expression()
            if not self.next("_"):
                raise NoName
            before, behind = self._type()
            return before, f" [{size}]{behind}"
        if letter == "F":
            self.next("Y")
            before, behind = self._type()
            listed = self.until_end(self._whole_type)
            return f"{before} ", f"({'' if listed == ['void'] else ', '.join(listed)}){behind}"
        if letter == "M":
            owner = self._whole_type()
            before, behind = self._type()
            return (
                (f"{before.rstrip()} ({owner}::*", f"){behind}")
                if behind.startswith("(")
                else (f"{before} {owner}::*", behind)
            )
        if letter in ("C", "G"):
            return self._whole_type() + (" _Complex" if letter == "C" else " _Imaginary"), ""
        if letter == "u":
            return self._source(), ""
        if letter == "U":
            word = self._source()
            return f"{self._whole_type()} {word}", ""
        raise NoName

    def _special(self) -> Type:
        self.at += 1
        letter = self.peek()
        self.at += 1
        if letter in BUILTIN_D and letter:
            return BUILTIN_D[letter], ""
        if letter == "F":
            bits = self.number()
            if self.next("b"):
                return "std::bfloat16_t", ""
            self.next("_")
            return f"_Float{bits}", ""
        if letter == "p":
            return self._entered((self._expanded(), ""))
        if letter in ("T", "t"):
            text = self._expression()
            if not self.next("E"):
                raise NoName
            return self._entered((f"decltype ({text})", ""))
        raise NoName

    def _expanded(self) -> str:
        """A pattern, once for each element of the pack in it."""
        begin, outer = self.at, (self._pack, self._pack_length)
        self._pack, self._pack_length = 0, None
        found = [self._whole_type()]
        entered = len(self._known)
        for element in range(1, min(self._pack_length or 0, _MOST_OF_A_PACK)):
            self.at, self._pack = begin, element
            found.append(self._whole_type())
            del self._known[entered:]
        if self._pack_length == 0:
            found = []
        self._pack, self._pack_length = outer
        return self.short(", ".join(text for text in found if text))
