"""Sizes in a `.pt2`: torch writes them as calls of sympy constructors, and here they are read, not evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .....ir import dims
from .....ir.digits import is_whole
from .....ir.dims import Dim
from .....ir.errors import ParseError

LENGTH = 4096
DEPTH = 64
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|-?[0-9]+|'[A-Za-z0-9_]*'|[(),=])")


def parse_size(text: str) -> Dim:
    """A size such as `FloorDiv(Symbol('s0', positive=True, integer=True), Integer(2))`; ParseError for anything else."""
    if not isinstance(text, str) or len(text) > LENGTH:
        raise ParseError(f"a size is {len(str(text))} characters long, expected text of at most {LENGTH}")
    reader = _Reader(text)
    value = reader.value(0)
    reader.expect("")
    if isinstance(value, bool) or not isinstance(value, (int, dims.Expr)):
        raise ParseError(f"in size {text[:80]!r}: got {value!r}, expected an integer expression")
    return value


class _Reader:
    """Recursive descent over constructor calls."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ParseError(f"in size {text[:80]!r}: cannot read {text[position : position + 20]!r}")
            self.tokens.append(match[1])
            position = match.end()
        self.place = 0

    def peek(self, ahead: int = 0) -> str:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else ""

    def expect(self, token: str) -> None:
        if self.peek() != token:
            raise ParseError(f"in size {self.text[:80]!r}: got {_shown(self.peek())}, expected {_shown(token)}")
        self.place += 1

    def value(self, depth: int) -> Any:
        token = self.peek()
        if not token or depth > DEPTH:
            raise ParseError(f"in size {self.text[:80]!r}: it ends early or is nested more than {DEPTH} deep")
        self.place += 1
        if is_whole(token.lstrip("-")):
            return _bounded(int(token), self.text)
        if token.startswith("'"):
            return token
        if token in ("True", "False"):
            return token == "True"
        if self.peek() != "(":
            raise ParseError(f"in size {self.text[:80]!r}: got {token!r}, expected a call or a number")
        return self.call(token, depth)

    def call(self, name: str, depth: int) -> Dim:
        self.expect("(")
        arguments: list[Any] = []
        while self.peek() != ")":
            if self.peek(1) == "=":
                # Assumptions such as integer=True: a size is an integer anyway.
                self.place += 2
                self.value(depth + 1)
            else:
                arguments.append(self.value(depth + 1))
            if self.peek() != ")":
                self.expect(",")
        self.expect(")")
        return self.build(name, arguments)

    def build(self, name: str, arguments: list[Any]) -> Dim:
        if name == "Symbol" and len(arguments) == 1 and isinstance(arguments[0], str) and len(arguments[0]) > 2:
            return dims.symbol(arguments[0].strip("'"))
        if name == "Integer" and len(arguments) == 1 and isinstance(arguments[0], int):
            return int(arguments[0])
        numeric = bool(arguments) and all(isinstance(a, (int, dims.Expr)) and not isinstance(a, bool) for a in arguments)
        if name in _FOLDS and numeric:
            result: Dim = arguments[0]
            for argument in arguments[1:]:
                result = _FOLDS[name](result, argument)
            return result
        if name in ("Pow", "PowByNatural") and numeric and len(arguments) == 2 and isinstance(arguments[1], int) and 0 < arguments[1] < 16:
            return dims.product([arguments[0]] * arguments[1])
        if name in _PAIRS and numeric and len(arguments) == 2:
            return _PAIRS[name](*arguments)
        raise ParseError(f"in size {self.text[:80]!r}: {name} of {len(arguments)} arguments has no form here")


def _shown(token: str) -> str:
    return repr(token) if token else "the end"


def _bounded(value: int, text: str) -> int:
    if abs(value) >= 1 << 62:
        raise ParseError(f"in size {text[:80]!r}: {str(value)[:24]} is out of range")
    return value


_FOLDS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Max": dims.maximum,
    "Min": dims.minimum,
}
_PAIRS: dict[str, Callable[[Dim, Dim], Dim]] = {
    **{name: lambda a, b: a // b for name in ("FloorDiv", "CleanDiv")},
    **dict.fromkeys(("CeilDiv", "CeilToIntDiv"), dims.ceil_div),
    **{name: lambda a, b: a % b for name in ("Mod", "PythonMod")},
}
