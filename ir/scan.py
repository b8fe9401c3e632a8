"""Reading words, types, symbols and attributes from the text of a form: what graph modules and plans spell alike.

Nothing in the text is ever evaluated; sizes and depths are limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from .dims import Dim, Facts, Range
from .dims_text import parse_dim
from .errors import CompilerError, ParseError
from .expression import parse_literal
from .literals import LITERAL, unquote
from .types import DTYPES, TensorType

T = TypeVar("T")
MAXIMUM_DEPTH = 32

_BLANK = re.compile(r"(?:\s+|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./]*")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_TYPE = re.compile(r"([a-z][a-z0-9]*)\[([^\]\n]*)\]")
_PAIR = re.compile(r"\[([^\]\n]*)\]")
_RANGE = re.compile(r"(-?[0-9]{1,19})?\.\.(-?[0-9]{1,19})?")
_INTEGER = re.compile(r"-?[0-9]{1,19}(?![0-9])")


def parse_type(text: str) -> TensorType:
    """Read a type as `str` prints it: f32[B, 384]."""
    match = _TYPE.fullmatch(text.strip())
    if match is None or match[1] not in DTYPES:
        raise ParseError(f"cannot read type {text[:80]!r}", hint="a type is a dtype and sizes, such as f32[B, 384]")
    inside = match[2].strip()
    return TensorType(DTYPES[match[1]], tuple(parse_dim(part) for part in _split(inside)) if inside else ())


def _split(text: str) -> list[str]:
    """`text` cut at the commas outside parentheses."""
    if "(" not in text:
        return text.split(",")
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


class Scanner:
    """A place in a text and the small forms that stand there; it becomes line and column only in an error."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.types: dict[str, TensorType] = {}

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        at = self.position if position is None else position
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        end = self.text.find("\n", at)
        shown = self.text[at - column + 1 : end if end >= 0 else len(self.text)].strip()[:160]
        raise ParseError(f"line {line}, column {column}: {message}", note=shown or None)

    def skip(self) -> None:
        match = _BLANK.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def at(self, literal: str) -> bool:
        self.skip()
        return self.text.startswith(literal, self.position)

    def accept(self, literal: str) -> bool:
        if not self.at(literal):
            return False
        self.position += len(literal)
        return True

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            self.fail(f"got {self.rest()}, expected {literal!r}")

    def rest(self) -> str:
        found = self.text[self.position : self.position + 20].split("\n")[0]
        return repr(found) if found else "the end" if self.position >= len(self.text) else "the end of the line"

    def take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        self.skip()
        match = pattern.match(self.text, self.position)
        if match is None:
            self.fail(f"got {self.rest()}, expected {what}")
        self.position = match.end()
        return match

    def quoted(self) -> str:
        """A quoted string as it stands."""
        return self.take(_STRING, "a quoted string")[0]

    def string(self) -> str:
        start = self.position
        text = self.quoted()
        try:
            return unquote(text)
        except ParseError as error:
            self.fail(error.message, start)

    def name(self) -> str:
        return self.string() if self.at('"') else self.take(_NAME, "a name")[0]

    def type(self) -> TensorType:
        self.skip()
        start = self.position
        match = self.take(_TYPE, "a type such as f32[B, 384]")
        known = self.types.get(match[0])
        if known is None:
            try:
                known = self.types[match[0]] = parse_type(match[0])
            except ParseError as error:
                self.fail(error.message, start)
        return known

    def end(self) -> None:
        """An error unless the text ends here."""
        self.skip()
        if self.position != len(self.text):
            self.fail(f"got {self.rest()}, expected the end")

    def integer(self, what: str = "an integer") -> int:
        return int(self.take(_INTEGER, what)[0])

    def word(self, what: str) -> str:
        return self.take(_SYMBOL, what)[0]

    def dim(self, stops: str) -> Dim:
        """A dimension up to one of the characters `stops` outside parentheses."""
        self.skip()
        start, depth = self.position, 0
        while self.position < len(self.text):
            char = self.text[self.position]
            if char == "\n" or (not depth and char in stops):
                break
            depth += (char == "(") - (char == ")")
            self.position += 1
        return self._parsed(self.text[start : self.position], start)

    def _parsed(self, text: str, start: int) -> Dim:
        try:
            return parse_dim(text)
        except ParseError as error:
            self.fail(error.message, start)

    def listed(self, close: str, read: Callable[[], T]) -> tuple[T, ...]:
        """What `read` reads, with commas between, up to the closing bracket, which is taken."""
        found: list[T] = []
        while not self.accept(close):
            found.append(read())
            if not self.accept(","):
                self.expect(close)
                break
        return tuple(found)

    def several(self, read: Callable[[], T]) -> tuple[T, ...]:
        """What `read` reads, once or more, with commas between."""
        found = [read()]
        while self.accept(","):
            found.append(read())
        return tuple(found)

    def facts(self) -> Facts:
        """`symbols { B in 1..32 divisor 4 } broadcasts { [A, B] }`, each of which may be absent."""
        ranges: dict[str, Range] = {}
        divisors: dict[str, int] = {}
        if self.accept("symbols"):
            self.expect("{")
            self.listed("}", lambda: self._symbol(ranges, divisors))
        pairs: tuple[tuple[Dim, Dim], ...] = ()
        if self.accept("broadcasts"):
            self.expect("{")
            pairs = self.listed("}", self._pair)
        return Facts(ranges, divisors, broadcasts=pairs)

    def _symbol(self, ranges: dict[str, Range], divisors: dict[str, int]) -> None:
        name = self.word("a symbol's name")
        if name in ranges:
            self.fail(f"symbol {name} is declared twice")
        self.expect("in")
        bounds = self.take(_RANGE, "a range such as 1..32")
        ranges[name] = Range(*(None if part is None else int(part) for part in bounds.groups()))
        divisor = self.integer("a divisor") if self.accept("divisor") else 1
        if divisor != 1:
            divisors[name] = divisor

    def _pair(self) -> tuple[Dim, Dim]:
        self.skip()
        start = self.position
        pair = [self._parsed(part, start) for part in _split(self.take(_PAIR, "two sizes such as [A, B]")[1])]
        if len(pair) != 2:
            self.fail(f"got {len(pair)} sizes, expected two that broadcast", start)
        return pair[0], pair[1]

    def attributes(self) -> dict[str, Any]:
        """`{axis = 0, mode = "linear"}`."""
        self.expect("{")
        found: dict[str, Any] = {}
        self.listed("}", lambda: self._attribute(found))
        return found

    def _attribute(self, found: dict[str, Any]) -> None:
        name = self.name()
        if name in found:
            self.fail(f"attribute {name!r} is given twice")
        self.expect("=")
        found[name] = self.attribute(0)

    def attribute(self, depth: int) -> Any:
        if depth > MAXIMUM_DEPTH:
            self.fail(f"attribute is nested more than {MAXIMUM_DEPTH} deep")
        if self.at('"'):
            return self.string()
        if not self.accept("["):
            return self.scalar()
        return self.listed("]", lambda: self.attribute(depth + 1))

    def scalar(self) -> Any:
        self.skip()
        start = self.position
        depth = 0
        while self.position < len(self.text):
            char = self.text[self.position]
            if char in "\n[]{}" or (depth == 0 and char == ","):
                break
            depth += (char == "(") - (char == ")")
            self.position += 1
        text = self.text[start : self.position].strip()
        if text == "none":
            return None
        if text in DTYPES:
            return DTYPES[text]
        try:
            if text.startswith("complex("):
                return self.complex(text)
            return parse_literal(text) if LITERAL.fullmatch(text) else parse_dim(text)
        except ValueError:
            self.fail(f"got {text[:40]!r}, expected a number", start)
        except CompilerError as error:
            self.fail(error.message, start)

    def complex(self, text: str) -> complex:
        parts = text.removeprefix("complex(").removesuffix(")").split(",")
        if len(parts) != 2:
            raise ValueError(text)
        return complex(float(parts[0]), float(parts[1]))
