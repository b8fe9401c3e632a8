"""Symbolic sizes of a model's inputs: names of dimensions, the user's ranges, and fresh symbols for unnamed ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ....ir import dims
from ....ir.dims import Dim
from ....ir.dims_text import is_symbol, parse_dim
from ....ir.errors import ModelError, ParseError, Source, UsageError
from ....ir.graph import Module
from .tensors import DIMENSION

Shape: TypeAlias = "int | tuple[int, int | None] | str"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class NarrowerError(Exception):
    """The model is only valid while a symbol stays within `low..high`: the import starts again with that known."""

    def __init__(self, name: str, high: int, low: int = 0) -> None:
        super().__init__(f"{name} is {low} to {high}")
        self.name, self.low, self.high = name, low, high


class Symbols:
    """The symbols of one module, declared as the inputs need them; `limits` are bounds that the model implies."""

    def __init__(self, module: Module, shapes: Mapping[str, Shape] | None, limits: Mapping[str, tuple[int, int]]) -> None:
        self.module, self.limits = module, limits
        self.wishes = {name: _wish(name, value) for name, value in (shapes or {}).items()}
        self.names: dict[str, Dim] = {}
        self.used: set[str] = set()

    def named(self, text: str, fallback: str, low: int) -> Dim:
        """The dimension that a model calls `text`, at least `low` unless wished otherwise; an expression is kept where it can be read."""
        if text in self.names:
            return self.names[text]
        if text in self.wishes or _NAME.fullmatch(text):
            self.names[text] = self._declare(text, low)
        else:
            self.names[text] = self._expression(text, fallback, low)
        return self.names[text]

    def fresh(self, name: str, low: int) -> Dim:
        """A new symbol for a dimension without a name."""
        return self._declare(name, low)

    def _expression(self, text: str, fallback: str, low: int) -> Dim:
        try:
            parsed = parse_dim(text)
        except ParseError:
            return self._declare(fallback, low)
        if isinstance(parsed, int) or not all(name in self.names for name in dims.symbols(parsed)):
            return self._declare(fallback, low)
        return dims.substitute(parsed, self.names)

    def _declare(self, text: str, least: int) -> Dim:
        wish = self.wishes.get(text, (least, None))
        self.used.add(text)
        if isinstance(wish, str):
            return self.named(wish, wish, least)
        low, high = wish
        if low == high and high is not None:
            return high
        name = self._unique(text)
        least, most = self.limits.get(name, (low, high))
        if most is not None and (high is None or high > most):
            if text in self.wishes and high is not None:
                raise UsageError(f"range {low}..{high} of dimension {text!r} is too wide, the model is valid up to {most}")
            high = most
        if least > low and text in self.wishes:
            raise UsageError(f"range {low}..{high or ''} of dimension {text!r} is too wide, the model is valid from {least}")
        low = max(low, least)
        if high is not None and low > high:
            raise UsageError(f"range {low}..{high} of dimension {text!r} is empty, the model is valid for {least} to {most}")
        return high if low == high and high is not None else self.module.declare(name, low, high)

    def _unique(self, text: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_]", "_", text)[:64] or "d"
        base = base if is_symbol(base) else f"d_{base}"
        name, n = base, 0
        while name in self.module.facts.ranges:
            n += 1
            name = f"{base}_{n}"
        return name

    def finish(self) -> None:
        """UsageError for a wish about a dimension that the model does not have."""
        unknown = sorted(set(self.wishes) - self.used)
        if unknown:
            known = ", ".join(sorted(self.used)) or "none"
            raise UsageError(f"the model has no dimension named {unknown[0]!r}", hint=f"its symbolic dimensions are: {known}")


def implied_limit(left: Dim, right: Dim, facts: dims.Facts) -> tuple[str, int] | None:
    """A symbol and the bound under which two sizes that must be equal are: min(512, S) and S are for S up to 512."""
    for candidate in (left, right):
        for atom in _minima(candidate):
            for bound, other in ((atom.left, atom.right), (atom.right, atom.left)):
                names = dims.symbols(other)
                if not isinstance(bound, int) or len(names) != 1 or str(other) not in names:
                    continue
                name = str(other)
                low = facts.ranges[name].low if name in facts.ranges else 0
                narrowed = facts.with_range(name, low, bound)
                if dims.equal(dims.simplify(left, narrowed), dims.simplify(right, narrowed), narrowed) is True:
                    return name, bound
    return None


def _minima(dim: Dim) -> Iterator[dims.Function]:
    if isinstance(dim, dims.Expr):
        for monomial, _ in dim.terms:
            yield from (atom for atom in monomial if isinstance(atom, dims.Function) and atom.kind == "min")


def size(value: int, source: Source) -> int:
    """A declared size within the limits."""
    if not 0 <= value <= DIMENSION:
        raise ModelError(f"dimension {value} is out of range 0..{DIMENSION}", source=source)
    return value


def _wish(name: str, value: Shape) -> tuple[int, int | None] | str:
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]{1,12})(?:\.\.([0-9]{1,12})?)?", value)
        if match is None:
            if not _NAME.fullmatch(value):
                raise UsageError(f"size {value!r} of dimension {name!r} is not a number, a range like 1..32, or the name of a dimension")
            return value
        low = int(match[1])
        high = low if ".." not in value else int(match[2]) if match[2] else None
    elif isinstance(value, int):
        low, high = value, value
    else:
        low, high = value
    if low < 0 or (high is not None and not low <= high <= DIMENSION):
        raise UsageError(f"range {low}..{'' if high is None else high} of dimension {name!r} is empty or out of bounds")
    return low, high
