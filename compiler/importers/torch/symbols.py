"""Symbolic integers: torch's sympy expressions converted node by node to our dimensions; nothing is parsed as code.

A symbol is the size of an input, or it is a number: an integer argument, or a scalar captured from data. A number is an
i64 value of the program. Where it is data it is read as such; where a size is made of it, an `item` op binds the symbol.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ....ir import dims
from ....ir.dims import Dim
from ....ir.dims_text import is_symbol
from ....ir.errors import UnsupportedError
from ....ir.graph import Builder, Module, Value

# Above this torch means "no bound"; a size near it would not fit an address space either.
LARGEST = 1 << 40
# A float64 holds a size times less than this exactly.
EXACT = 1 << 12


class Symbols:
    """The symbols of one program: declared in the module as they appear, with the ranges that torch knows.

    `ranges` go first: while torch traces it takes sizes of 1 for special and narrows what it knows. `wanted` gives
    symbols another name or one size.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.ranges: Mapping[str, tuple[int | None, int | None]] = {}
        self.wanted: Mapping[str, int | str] = {}
        self.numbers: dict[str, Value] = {}
        self.arguments: dict[str, Callable[[], Value]] = {}
        self.sizes: set[str] = set()

    def dim(self, value: Any) -> Dim:
        """A Python int or a torch SymInt as a dimension."""
        if isinstance(value, int):
            return int(value)
        return self.convert(value.node.expr, getattr(value.node.shape_env, "var_to_range", {}))

    def is_known(self, name: str) -> bool:
        """Whether an input's size, an argument or a captured scalar gives a symbol its value."""
        return name in self.sizes or name in self.arguments or name in self.numbers

    def number(self, name: str) -> Value | None:
        """The i64 scalar that a symbol is the value of; None for the size of an input. An argument is an input from now on."""
        if name not in self.numbers and name in self.arguments:
            self.numbers[name] = self.arguments[name]()
        return self.numbers.get(name)

    def integer(self, b: Builder, value: Dim) -> Value:
        """A dimension as data: arithmetic on the numbers that it is made of, the rest of it as sizes."""
        if isinstance(value, int) or not any(self.number(name) is not None for name in dims.symbols(value)):
            size: Value = b.dim(value=value)
            return size
        total: Value | None = None
        for monomial, factor in value.terms:
            term: Value | None = b.dim(value=factor) if factor != 1 or not monomial else None
            for atom in monomial:
                part = self._part(b, atom)
                term = part if term is None else b.mul(term, part)
            total = term if total is None else b.add(total, term)
        if total is None:
            raise UnsupportedError(f"the integer {value} has no terms")
        return total

    def _part(self, b: Builder, atom: dims.Atom) -> Value:
        if isinstance(atom, dims.Symbol):
            number = self.number(atom.name)
            return number if number is not None else b.dim(value=dims.symbol(atom.name))
        left, right = self.integer(b, atom.left), self.integer(b, atom.right)
        if atom.kind in ("div", "mod"):
            self.require_nonzero(b, atom.right, right)
        operators = {"div": b.floor_div, "mod": b.mod, "max": b.maximum, "min": b.minimum}
        result: Value = operators[atom.kind](left, right)
        return result

    def require_nonzero(self, b: Builder, divisor: Dim, value: Value) -> None:
        """An error at run time where Python would refuse to divide."""
        bounds = dims.range_of(divisor, self.module.facts)
        if not ((bounds.low is not None and bounds.low > 0) or (bounds.high is not None and bounds.high < 0)):
            b.require(b.ne(value, b.dim(value=0)), message=f"integer division or modulo by zero: {divisor} is 0")

    def shape(self, sizes: Any) -> tuple[Dim, ...]:
        """Sizes of a tensor."""
        return tuple(self.dim(size) for size in sizes)

    def convert(self, expression: Any, ranges: Any) -> Dim:
        """A sympy expression over integers as a dimension; UnsupportedError names what has no form here."""
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._symbol(expression, ranges)
        arguments = expression.args
        name = type(expression).__name__
        if name == "Add":
            return _fold(lambda a, b: a + b, [self.convert(a, ranges) for a in arguments])
        if name == "Mul" and all(not a.is_Rational or a.is_Integer for a in arguments):
            return _fold(lambda a, b: a * b, [self.convert(a, ranges) for a in arguments])
        if name in ("Pow", "PowByNatural") and arguments[1].is_Integer and int(arguments[1]) > 0:
            return dims.product([self.convert(arguments[0], ranges)] * int(arguments[1]))
        if name in _BINARY and len(arguments) == 2:
            return _BINARY[name](self.convert(arguments[0], ranges), self.convert(arguments[1], ranges))
        if name in ("Max", "Min"):
            return _fold(dims.maximum if name == "Max" else dims.minimum, [self.convert(a, ranges) for a in arguments])
        if name == "ModularIndexing":
            base, divisor, modulus = (self.convert(a, ranges) for a in arguments)
            return (base // divisor) % modulus
        rounded = self._rounded(name, arguments[0], ranges) if name in _ROUNDINGS else None
        if rounded is not None:
            return rounded
        if name == "Identity":
            return self.convert(arguments[0], ranges)
        raise UnsupportedError(
            f"the size {str(expression)[:80]} has no form here: got {name}, expected + - * // % max min over symbols",
            hint="mark that dimension static (torch._dynamo.mark_static)",
        )

    def _rounded(self, rounding: str, quotient: Any, ranges: Any) -> Dim | None:
        """A float that is rounded to a size, where floats compute it exactly, as half of a size: an integer division."""
        factor, exact = 1.0, quotient
        if type(quotient).__name__ == "Mul" and len(quotient.args) == 2 and quotient.args[0].is_Float:
            factor, exact = float(quotient.args[0]), quotient.args[1]
        if type(exact).__name__ != "ToFloat" or not 0 < factor < EXACT:
            return None
        numerator, denominator = factor.as_integer_ratio()
        if numerator >= EXACT:
            return None
        value = self.convert(exact.args[0], ranges)
        low = dims.range_of(value, self.module.facts).low
        if low is None or low < 0:
            return None
        return dims.ceil_div(numerator * value, denominator) if rounding == "CeilToInt" else numerator * value // denominator

    def _symbol(self, symbol: Any, ranges: Any) -> Dim:
        wanted = self.wanted.get(str(symbol.name), str(symbol.name))
        if isinstance(wanted, int):
            return wanted
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", wanted):
            raise UnsupportedError(f"the symbol {wanted[:40]!r} is not a plain name")
        # Torch counts what data decide as u0, u1, u2: words that may be element types here.
        name = wanted if is_symbol(wanted) else f"d_{wanted}"
        if name not in self.module.facts.ranges:
            low, high = self.ranges[wanted] if wanted in self.ranges else bounds_of(ranges.get(symbol))
            self.module.declare(name, low, high)
        return dims.symbol(name)


def _fold(combine: Callable[[Dim, Dim], Dim], values: list[Dim]) -> Dim:
    result = values[0]
    for value in values[1:]:
        result = combine(result, value)
    return result


def bounds_of(interval: Any) -> tuple[int | None, int | None]:
    """The bounds of torch's ValueRanges; None where it has none."""
    if interval is None:
        return 0, None
    low, high = interval.lower, interval.upper
    return (
        int(low) if low.is_Integer and low > -LARGEST else None,
        int(high) if high.is_Integer and high < LARGEST else None,
    )


_ROUNDINGS = ("TruncToInt", "FloorToInt", "CeilToInt")
_BINARY: dict[str, Callable[[Dim, Dim], Dim]] = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": dims.ceil_div,
    "CeilToIntDiv": dims.ceil_div,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
}
