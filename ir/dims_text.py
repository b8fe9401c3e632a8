"""Dimensions as text: what `str` prints of a `Dim` is read back here, within limits and without running anything."""

from __future__ import annotations

import re
from collections.abc import Callable

from .digits import is_whole
from .dims import Dim, floor_divide, maximum, minimum, remainder, symbol
from .errors import ParseError
from .types import DTYPES

SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
RESERVED = frozenset({"none", "true", "false", "inf", "nan", "max", "min", *DTYPES})
LARGEST_NUMBER = 10**18 - 1
"""The largest number that stands in a dimension's text."""
DEPTH = 64
"""So deep may divisions, remainders, extremes and parentheses stand in each other."""


def is_symbol(name: str) -> bool:
    """Whether a symbol may have this name: a letter and then letters, digits, '_' or '.', and no word that means something else."""
    return SYMBOL.fullmatch(name) is not None and name not in RESERVED


def parse_dim(text: str) -> Dim:
    """Read a dimension as `str` prints it: integers, names, + - * // % max(,) min(,) and parentheses.

    Raises ParseError for anything else; nothing is evaluated as Python, and length and depth are limited.
    """
    if len(text) > 4096:
        raise ParseError(f"dimension is {len(text)} characters long, expected at most 4096")
    tokens = _TOKEN.findall(text)
    if "".join(tokens).replace(" ", "") != re.sub(r"\s", "", text):
        raise ParseError(f"cannot read dimension {text[:80]!r}", hint="integers, names, + - * // % and parentheses are allowed")
    parser = _Parser(tokens, text)
    result = parser.sum(0)
    parser.expect_end()
    return result


# `a % b` is printed with spaces, so `%b` glued to a name is a value of the program.
_TOKEN = re.compile(r"[0-9]+|%?[A-Za-z_][A-Za-z0-9_.]*|//|[-+*%(),]|\s")


_OPERATORS: dict[str, Callable[[Dim, Dim], Dim]] = {"*": lambda a, b: a * b, "//": floor_divide, "%": remainder}


class _Parser:
    """Recursive descent over the tokens of one dimension."""

    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens = [token for token in tokens if not token.isspace()]
        self.text = text
        self.position = 0
        # How deep functions stand in each other in what was read last.
        self.height = 0

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            raise ParseError(f"in dimension {self.text[:80]!r}: got {token or 'the end'!r}, expected {expected or 'a number or a name'!r}")
        self.position += 1
        return token

    def expect_end(self) -> None:
        if self.peek():
            raise ParseError(f"in dimension {self.text[:80]!r}: got {self.peek()!r}, expected the end")

    def sum(self, depth: int) -> Dim:
        self.limit(depth)
        result = -self.product(depth) if self.peek() == "-" and self.take() else self.product(depth)
        height = self.height
        while self.peek() in ("+", "-"):
            sign = self.take()
            value = self.product(depth)
            height = max(height, self.height)
            result = result + value if sign == "+" else result - value
        self.height = height
        return result

    def limit(self, depth: int) -> None:
        if depth > DEPTH:
            raise ParseError(f"dimension is nested more than {DEPTH} deep")

    def product(self, depth: int) -> Dim:
        result = self.atom(depth)
        height = self.height
        while self.peek() in ("*", "//", "%"):
            operator = self.take()
            value = self.atom(depth)
            height = max(height, self.height) + (operator != "*")
            self.limit(height)
            result = _OPERATORS[operator](result, value)
        self.height = height
        return result

    def atom(self, depth: int) -> Dim:
        token = self.take()
        self.height = 0
        if is_whole(token):
            if len(token) > len(str(LARGEST_NUMBER)):
                raise ParseError(f"in dimension {self.text[:80]!r}: {token[:24]} is out of range")
            return int(token)
        if token == "-" and depth < DEPTH:
            return -self.atom(depth + 1)
        if token == "(":
            result = self.sum(depth + 1)
            self.take(")")
            return result
        if token in ("max", "min") and self.peek() == "(":
            self.take("(")
            left = self.sum(depth + 1)
            height = self.height
            self.take(",")
            right = self.sum(depth + 1)
            self.take(")")
            self.height = max(height, self.height) + 1
            self.limit(self.height)
            return maximum(left, right) if token == "max" else minimum(left, right)
        if token[0].isalpha() or token[0] in "_%":
            return symbol(token)
        raise ParseError(f"in dimension {self.text[:80]!r}: got {token!r}, expected a number or a name")
