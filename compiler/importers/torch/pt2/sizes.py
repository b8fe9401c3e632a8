"""Symbolic sizes of a `.pt2` as torch's symbolic integers, with the names and ranges that the file gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import ModelError, ParseError
from .entries import Entry
from .expressions import parse_size
from .tensors import LARGEST, RANK

# A size that torch saw while exporting steers nothing here but ties; without one, any that is not special will do.
TYPICAL = 8
_SYMBOL = re.compile(r"s[A-Za-z0-9_]{0,99}")


class Sizes:
    """The symbols of one program and the values that stand for them while torch traces."""

    def __init__(self, ranges: Entry) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.environment = ShapeEnv()
        self.ranges = {name: _range(ranges.at(name)) for name in ranges.keys()}
        self.fixed: dict[str, Dim] = {name: low for name, (low, high) in self.ranges.items() if low is not None and low == high}
        self.hints: dict[str, int] = {}
        self.numbers: set[str] = set()
        self.integers: dict[str, Any] = {}
        self.axes: dict[str, str] = {}
        """Where the size of an input is a symbol."""

    def learn(self, name: str, sizes: Iterable[Entry]) -> None:
        """Take the sizes of an input: the symbols that they are, and what those were when the program was made."""
        for number, size in enumerate(sizes):
            kind, entry = size.case()
            hint = entry.maybe("hint") if kind == "as_expr" else None
            expression = self._parse(entry) if kind == "as_expr" else 0
            symbol = dims.name_of(expression)
            if symbol is None:
                continue
            self.axes.setdefault(symbol, f"axis {number} of {name}")
            if hint is not None:
                self.hints.setdefault(symbol, hint.at("as_int").integer())

    def shape(self, sizes: Entry) -> tuple[Any, ...]:
        """Sizes or strides as integers, symbolic ones included."""
        found = tuple(self.size(size) for size in sizes.parts())
        if len(found) > RANK:
            raise sizes.fail(f"got {len(found)} sizes, expected at most {RANK}")
        return found

    def size(self, size: Entry) -> Any:
        """One size as an integer, or a symbolic one."""
        kind, entry = size.case()
        value = self._parse(entry) if kind == "as_expr" else entry.integer()
        if isinstance(value, int):
            if not 0 <= value <= LARGEST:
                raise size.fail(f"got size {value}, expected 0..{LARGEST}")
            return value
        return self._integer(value, size)

    def number(self, entry: Entry) -> Any:
        """An integer argument: a symbol that is a number has its own range, which may be negative."""
        kind, value = entry.case()
        if kind != "as_expr":
            return value.integer()
        parsed = self._parse(value)
        self.numbers |= dims.symbols(parsed)
        return parsed if isinstance(parsed, int) else self._integer(parsed, entry)

    def _bounds(self, name: str) -> tuple[int | None, int | None]:
        """The range of a symbol; a size is never negative."""
        low, high = self.ranges.get(name, (None, None))
        return (low if name in self.numbers else max(low or 0, 0)), high

    def _parse(self, entry: Entry) -> Dim:
        try:
            return dims.substitute(parse_size(entry.at("expr_str").text()), self.fixed)
        except (ParseError, ZeroDivisionError) as error:
            raise ModelError(f"{entry.place}: {error}", source=entry.source) from error

    def _integer(self, value: Dim, size: Entry) -> Any:
        """An expression, built by the arithmetic of torch's symbolic integers."""
        return dims.rebuild(value, lambda atom: self._part(atom, size))

    def _part(self, atom: dims.Atom, size: Entry) -> Any:
        import torch

        if isinstance(atom, dims.Symbol):
            return self._symbol(atom.name, size)
        left, right = self._integer(atom.left, size), self._integer(atom.right, size)
        if atom.kind == "div":
            return left // right
        if atom.kind == "mod":
            return left % right
        return torch.sym_max(left, right) if atom.kind == "max" else torch.sym_min(left, right)

    def _symbol(self, name: str, size: Entry) -> Any:
        if name not in self.integers:
            self.integers[name] = self._declare(name, size)
        return self.integers[name]

    def _declare(self, name: str, size: Entry) -> Any:
        import sympy
        from torch.utils._sympy.numbers import int_oo

        if _SYMBOL.fullmatch(name) is None:
            raise size.fail(f"got the symbol {name[:40]!r}, expected the size of an input, such as 's0'")
        low, high = self._bounds(name)
        if high is not None and low is not None and high < low:
            raise size.fail(f"the symbol {name} is at most {high}, expected a size")
        hint = self.hints.get(name, TYPICAL)
        hint = hint if low is None else max(low, hint)
        hint = hint if high is None else min(high, hint)
        is_size = low is not None and low >= 0
        symbol = sympy.Symbol(
            name, positive=True if low is not None and low > 0 else None, nonnegative=True if is_size else None, integer=True
        )
        self.environment.add_backed_var_to_val(symbol, hint)
        self.environment.constrain_symbol_range(
            symbol, compiler_min=-int_oo if low is None else low, compiler_max=int_oo if high is None else high
        )
        return self.environment.create_symintnode(symbol, hint=hint)

    def declared(self, name: str) -> str:
        """The range that the file gives a symbol, as text."""
        return str(dims.Range(*self._bounds(name)))

    def constraints(self) -> dict[Any, Any]:
        """The ranges of all symbols as the file gives them: tracing narrows its own."""
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges

        found: dict[Any, Any] = {}
        for name, integer in self.integers.items():
            low, high = self._bounds(name)
            interval = ValueRanges(-int_oo if low is None else low, int_oo if high is None else high)
            # Tracing may have found that two symbols are one.
            symbol = integer.node.expr
            found[symbol] = found[symbol] & interval if symbol in found else interval
        return found


def _range(entry: Entry) -> tuple[int | None, int | None]:
    low, high = entry.maybe("min_val"), entry.maybe("max_val")
    least = None if low is None or low.integer() <= -LARGEST else low.integer()
    most = None if high is None or high.integer() >= LARGEST else high.integer()
    if most is not None and least is not None and most < least:
        raise entry.fail(f"got the range {least}..{most}, expected its end to be at least its start")
    return least, most
