"""The words of tile program text and the small forms that its grammar is made of: names, types, index expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..digits import is_whole, whole_number
from ..dims import Dim
from ..dims_text import parse_dim
from ..errors import ParseError
from ..expression import parse_literal
from ..types import DTYPES, DType
from .program import TileType

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?(?![A-Za-z_])"
_NAME = r"[A-Za-z_]\w*(?:\.(?:first|lane)\b)?"
_TOKEN = re.compile(
    rf"(?P<space>[ \t\r]+|\#[^\n]*)|(?P<line>\n)|(?P<title>@[\w.]+)|(?P<value>%[A-Za-z_][\w]*)|(?P<name>{_NAME})"
    rf"|(?P<range>\.\.)|(?P<number>[0-9]+(?=\.\.)|{_NUMBER})|(?P<mark>->|//|>=|[-+*%/(){{}}\[\],:=])"
)
_DEPTH = 100


@dataclass(frozen=True)
class Token:
    """A word of the text with its place."""

    kind: str
    text: str
    line: int
    column: int


def tokens(text: str) -> list[Token]:
    result: list[Token] = []
    position, line, start = 0, 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"line {line}, column {position - start + 1}: cannot read {text[position : position + 12]!r}")
        kind = match.lastgroup or ""
        if kind not in ("space", "line"):
            result.append(Token(kind, match[0], line, position - start + 1))
        position = match.end()
        if kind == "line":
            line, start = line + 1, position
    return [*result, Token("end", "", line, position - start + 1)]


class Reader:
    """Tokens with a position, and the small forms that every part of the grammar uses."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def error(self, expected: str) -> ParseError:
        token = self.token
        return ParseError(f"line {token.line}, column {token.column}: got {token.text or 'the end'!r}, expected {expected}")

    def at(self, *texts: str) -> bool:
        return self.token.text in texts and self.token.kind != "end"

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`."""
        if not self.at(text):
            return False
        self.position += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(repr(text))

    def take(self, kind: str, expected: str) -> str:
        """The text of the next token, which must be of this kind."""
        if self.token.kind != kind:
            raise self.error(expected)
        self.position += 1
        return self.tokens[self.position - 1].text

    def name(self, expected: str = "a name") -> str:
        text = self.take("name", expected)
        if "." in text:
            self.position -= 1
            raise self.error(expected)
        return text

    def value_name(self) -> str:
        return self.take("value", "a value such as %x")[1:]

    def integer(self) -> int:
        text = self.take("number", "an integer")
        number = whole_number(text)
        if number is None:
            self.position -= 1
            raise self.error("an integer")
        return number

    def enter(self) -> None:
        """One level deeper; a ParseError where nesting has no sensible meaning any more."""
        self.depth += 1
        if self.depth > _DEPTH:
            raise ParseError(f"line {self.token.line}: nested more than {_DEPTH} deep")

    def leave(self) -> None:
        self.depth -= 1

    def dim(self) -> Dim:
        """An index expression: it ends where no operator follows an operand."""
        words: list[str] = []
        depth, operand = 0, True
        while True:
            token = self.token
            if operand and (token.text in ("-", "(") or (token.kind in ("name", "value") or is_whole(token.text))):
                depth += token.text == "("
                call = token.text in ("max", "min") and self.tokens[self.position + 1].text == "("
                operand = token.text in ("-", "(") or call
            elif operand:
                raise self.error("an index expression")
            elif token.text in ("+", "-", "*", "//", "%"):
                operand = True
            elif depth and token.text in (")", ","):
                depth -= token.text == ")"
                operand = token.text == ","
            else:
                break
            words.append(token.text)
            self.position += 1
        if depth:
            raise self.error("')'")
        return parse_dim(" ".join(words))

    def dims(self, close: str) -> tuple[Dim, ...]:
        """Index expressions up to the closing bracket, which is taken."""
        result: list[Dim] = []
        while not self.accept(close):
            if result:
                self.expect(",")
            result.append(self.dim())
        return tuple(result)

    def dtype(self) -> DType:
        name = self.name("an element type")
        if name not in DTYPES:
            self.position -= 1
            raise self.error("an element type such as f32")
        return DTYPES[name]

    def tile_type(self) -> TileType:
        dtype = self.dtype()
        axes: list[str] = []
        if self.accept("["):
            while not self.accept("]"):
                if axes:
                    self.expect(",")
                axes.append(self.name("an axis"))
        return TileType(dtype, tuple(axes))

    def labelled(self) -> tuple[tuple[str, Dim], ...]:
        """`[i B, k 384]`."""
        self.expect("[")
        result: list[tuple[str, Dim]] = []
        while not self.accept("]"):
            if result:
                self.expect(",")
            label = self.name("a dimension's label")
            result.append((label, self.dim()))
        return tuple(result)

    def number(self) -> bool | int | float | complex:
        """A scalar as `expression.literal` prints it, complex ones excepted."""
        sign = "-" if self.accept("-") else ""
        if self.token.kind != "number" and not self.at("inf", "nan", "true", "false"):
            raise self.error("a literal")
        self.position += 1
        return parse_literal(sign + self.tokens[self.position - 1].text)

    def words(self) -> tuple[str, ...]:
        """`{descriptor, streaming}` or nothing."""
        result: list[str] = []
        if self.at("{"):
            self.expect("{")
            while not self.accept("}"):
                if result:
                    self.expect(",")
                result.append(self.name("a hint"))
        return tuple(result)
