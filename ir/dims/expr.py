"""Index expressions: integer polynomials over symbols with floor division, in one canonical form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeAlias, final

from ..errors import InternalError, ParseError

MAXIMUM_TERMS = 4096
MAXIMUM_DEGREE = 32


@final
class Symbol:
    """An unknown integer: a model's symbolic size, or an axis of a region or tile program; immutable."""

    __slots__ = ("_hash", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._hash = hash(name)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.name == other.name

    def __repr__(self) -> str:
        return f"Symbol({self.name!r})"

    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        """What it is printed as."""
        return self.name


@final
class Function:
    """An atom that polynomials do not cover: `div`, `mod` (both flooring), `max` or `min` of two dimensions; immutable.

    Terms are collected by the hashes of their atoms and sorted by their texts: both are made once.
    """

    __slots__ = ("_hash", "_text", "kind", "left", "right")

    def __init__(self, kind: str, left: Dim, right: Dim) -> None:
        self.kind, self.left, self.right = kind, left, right
        self._hash = hash((kind, left, right))
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Function) or self._hash != other._hash:
            return False
        return self.kind == other.kind and self.left == other.left and self.right == other.right

    def __repr__(self) -> str:
        return f"Function({self})"

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """What it is printed as."""
        if self._text is None:
            if self.kind in ("max", "min"):
                self._text = f"{self.kind}({self.left}, {self.right})"
            else:
                # `a // b*c` would read back as (a // b) * c.
                right = f"({self.right})" if "*" in str(self.right) else _wrap(self.right)
                self._text = f"{_wrap(self.left)} {'//' if self.kind == 'div' else '%'} {right}"
        return self._text


Atom: TypeAlias = Symbol | Function
Monomial: TypeAlias = tuple[Atom, ...]


class Expr:
    """A canonical integer polynomial over atoms; immutable, hashable, never a constant (constants are ints)."""

    __slots__ = ("_hash", "_symbols", "_text", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        # Terms are sorted by text; nested divisions would print their parts over and over.
        self._text: str | None = None
        self._symbols: frozenset[str] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __str__(self) -> str:
        if self._text is None:
            parts: list[str] = []
            for monomial, factor in self.terms:
                text = _term(monomial, abs(factor))
                sign = "-" if factor < 0 else "+"
                parts.append((f"{sign} " if parts else sign.replace("+", "")) + text)
            self._text = " ".join(parts)
        return self._text

    @property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols in it."""
        if self._symbols is None:
            found: set[str] = set()
            for monomial, _ in self.terms:
                for atom in monomial:
                    if isinstance(atom, Symbol):
                        found.add(atom.name)
                    else:
                        found |= symbols(atom.left) | symbols(atom.right)
            self._symbols = frozenset(found)
        return self._symbols

    def __add__(self, other: Dim) -> Dim:
        if not isinstance(other, Expr):
            # The constant stands last: most sums need no sorting.
            constant = other if self.terms[-1][0] else other + self.terms[-1][1]
            rest = self.terms if self.terms[-1][0] else self.terms[:-1]
            return self if not other else Expr((*rest, ((), constant)) if constant else rest)
        return built([*self.terms, *other.terms])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Expr(tuple((m, -f) for m, f in self.terms))

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return other + (-self)

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, Expr):
            return self if other == 1 else Expr(tuple((m, f * other) for m, f in self.terms)) if other else 0
        if len(self.terms) * len(terms_of(other)) > MAXIMUM_TERMS:
            # Only a hostile text multiplies sums of many symbols over and over.
            raise ParseError(f"dimension has more than {MAXIMUM_TERMS} terms when multiplied out")
        if _degree(self) + _degree(other) > MAXIMUM_DEGREE:
            raise ParseError(f"dimension multiplies more than {MAXIMUM_DEGREE} sizes")
        return built([(_sorted(m + n) if m and n else m or n, f * g) for m, f in self.terms for n, g in terms_of(other)])

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return floor_divide(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return remainder(self, other)

    def __rmod__(self, other: int) -> Dim:
        return remainder(other, self)


Dim: TypeAlias = int | Expr


def symbol(name: str) -> Expr:
    """The expression that is one symbol."""
    return Expr((((Symbol(name),), 1),))


def ceil_div(value: Dim, by: Dim) -> Dim:
    """value / by, rounded up; `by` is positive."""
    return (value + by - 1) // by


def product(values: Iterable[Dim]) -> Dim:
    """The product of dimensions; 1 for none."""
    result: Dim = 1
    for value in values:
        result = result * value
    return result


def maximum(left: Dim, right: Dim) -> Dim:
    """The larger of two dimensions."""
    return _extreme("max", left, right)


def minimum(left: Dim, right: Dim) -> Dim:
    """The smaller of two dimensions."""
    return _extreme("min", left, right)


def symbols(dim: Dim) -> frozenset[str]:
    """The names of all symbols in `dim`."""
    return frozenset() if isinstance(dim, int) else dim.symbols


def name_of(dim: Dim) -> str | None:
    """The name of the symbol that a dimension is, None where it is something else."""
    if isinstance(dim, int) or len(dim.terms) != 1:
        return None
    (monomial, factor) = dim.terms[0]
    return monomial[0].name if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol) else None


def has_functions(dim: Dim) -> bool:
    """Whether a dimension holds what polynomials do not cover: quotients, remainders, extremes."""
    return any(functions(dim))


def functions(dim: Dim) -> Iterator[Function]:
    """The quotients, remainders and extremes that a dimension is a polynomial of."""
    return (atom for monomial, _ in (() if isinstance(dim, int) else dim.terms) for atom in monomial if isinstance(atom, Function))


def magnitude(dim: Dim) -> int:
    """The largest number that stands in `dim`, its sign left out."""
    if isinstance(dim, int):
        return abs(dim)
    found = 0
    for monomial, factor in dim.terms:
        inner = (max(magnitude(atom.left), magnitude(atom.right)) for atom in monomial if isinstance(atom, Function))
        found = max(found, abs(factor), *inner)
    return found


def within(value: object) -> Iterator[Expr]:
    """The expressions in an attribute's value, however deep in tuples and lists."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from within(part)


def has_division(dim: Dim) -> bool:
    """Whether a division or a remainder stands in `dim`, at any depth."""
    if isinstance(dim, int):
        return False
    functions = [atom for monomial, _ in dim.terms for atom in monomial if isinstance(atom, Function)]
    return any(atom.kind in ("div", "mod") or has_division(atom.left) or has_division(atom.right) for atom in functions)


def rebuild(dim: Dim, part: Callable[[Atom], Any]) -> Any:
    """`dim` with each atom replaced by what `part` gives for it, in the arithmetic of the parts."""
    if isinstance(dim, int):
        return dim
    result: Any = 0
    for monomial, factor in dim.terms:
        term: Any = factor
        for atom in monomial:
            term = term * part(atom)
        result = result + term
    return result


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`dim` with symbols replaced by dimensions, simplified again; symbols not in `values` stay."""
    if isinstance(dim, int) or dim.symbols.isdisjoint(values):
        return dim

    # Terms are collected once, at the end: sums that grow term by term would be sorted anew for each.
    terms: list[tuple[Monomial, int]] = []
    for monomial, factor in dim.terms:
        kept: list[Atom] = []
        term: Dim = factor
        for atom in monomial:
            if isinstance(atom, Function):
                term = term * APPLY[atom.kind](substitute(atom.left, values), substitute(atom.right, values))
            elif atom.name in values:
                term = term * values[atom.name]
            else:
                kept.append(atom)
        terms.extend(terms_of(term * Expr(((tuple(kept), 1),)) if kept else term))
    return built(terms)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The integer that `dim` has for these symbol values; a KeyError names a symbol without a value."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                factor *= values[atom.name]
            else:
                left, right = evaluate(atom.left, values), evaluate(atom.right, values)
                factor *= EVALUATE[atom.kind](left, right)
        total += factor
    return total


def number(dim: Dim) -> int:
    """The integer that a size is, where it is known to be one."""
    if not isinstance(dim, int):
        raise InternalError(f"size {dim} is not settled, expected an integer")
    return dim


# --- canonical form ---------------------------------------------------------------------------------------------------

_TEXT = attrgetter("text")


def _wrap(dim: Dim) -> str:
    text = str(dim)
    return f"({text})" if " " in text or text.startswith("-") else text


def _term(monomial: Monomial, factor: int) -> str:
    texts = [f"({atom})" if isinstance(atom, Function) and atom.kind in ("div", "mod") else str(atom) for atom in monomial]
    if len(texts) == 1 and factor == 1 and isinstance(monomial[0], Function):
        return str(monomial[0]) if monomial[0].kind in ("max", "min") else f"({monomial[0]})"
    return "*".join(([str(factor)] if factor != 1 or not texts else []) + texts)


def _sorted(atoms: Iterable[Atom]) -> Monomial:
    return tuple(sorted(atoms, key=_TEXT))


def terms_of(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), dim),) if dim else ()


def _degree(dim: Dim) -> int:
    return max((len(monomial) for monomial, _ in dim.terms), default=0) if isinstance(dim, Expr) else 0


def built(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    collected: dict[Monomial, int] = {}
    for monomial, factor in terms:
        collected[monomial] = collected.get(monomial, 0) + factor
    kept = [(m, f) for m, f in collected.items() if f]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > 1:
        # Constants last, then by text: one order, whatever the order of construction was.
        kept.sort(key=lambda term: (not term[0], [atom.text for atom in term[0]]))
    return Expr(tuple(kept))


def applied(kind: str, left: Dim, right: Dim) -> Dim:
    return Expr((((Function(kind, left, right),), 1),))


def exact_quotient(value: Dim, by: Dim) -> Dim | None:
    """value / by where `by` is one term that divides every term of value, else None."""
    by_terms = terms_of(by)
    if len(by_terms) != 1:
        return 1 if value == by else None
    (divisor, factor), result = by_terms[0], []
    for monomial, coefficient in terms_of(value):
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % factor:
            return None
        result.append((tuple(rest), coefficient // factor))
    return built(result)


def floor_divide(value: Dim, by: Dim) -> Dim:
    if isinstance(by, int):
        if by == 0:
            raise ParseError(f"division of {value} by zero")
        if by == 1:
            return value
        if isinstance(value, int):
            return value // by
        if by > 0:
            whole = built([(m, f // by) for m, f in value.terms if m and f % by == 0])
            rest = built([(m, f) for m, f in value.terms if not m or f % by])
            if isinstance(rest, int):
                return whole + rest // by
            constant = sum(f for m, f in rest.terms if not m)
            carry = constant // by
            rest = rest - carry * by
            constant -= carry * by
            nested = _single_function(rest - constant, "div")
            if nested is not None and isinstance(nested.right, int):
                # (x // a + c) // b is (x + c*a) // (a*b), whatever the signs of x, a and c.
                return whole + carry + floor_divide(nested.left + constant * nested.right, nested.right * by)
            common = _common_factor(rest, by)
            if common > 1:
                # (c*x + r) // (c*b) is (x + r // c) // b, whatever the signs of x and r.
                return whole + carry + floor_divide(_divided_terms(rest, common), by // common)
            return whole + carry + applied("div", rest, by)
        return applied("div", value, by)
    exact = exact_quotient(value, by)
    return exact if exact is not None else applied("div", value, by)


def remainder(value: Dim, by: Dim) -> Dim:
    if isinstance(by, int):
        if by == 0:
            raise ParseError(f"remainder of {value} by zero")
        if by == 1:
            return 0
        if isinstance(value, int):
            return value % by
        if by > 0:
            rest = built([(m, f % by if not m else f) for m, f in value.terms if f % by])
            if isinstance(rest, int):
                return rest % by
            inner = _single_function(rest, "mod")
            if inner is not None and isinstance(inner.right, int) and inner.right <= by:
                return rest
            common = _common_factor(rest, by)
            if common > 1:
                # (c*x + r) % (c*b) is c * ((x + r // c) % b) + r % c, whatever the signs of x and r.
                constant = sum(f for m, f in rest.terms if not m)
                return remainder(_divided_terms(rest, common), by // common) * common + constant % common
            return applied("mod", rest, by)
        return applied("mod", value, by)
    if exact_quotient(value, by) is not None:
        return 0
    return applied("mod", value, by)


def _common_factor(value: Dim, by: int) -> int:
    """The greatest number that divides `by` and all of a value but its constant."""
    return math.gcd(by, *(factor for monomial, factor in terms_of(value) if monomial))


def _divided_terms(value: Dim, by: int) -> Dim:
    """value // by where `by` divides all of it but its constant."""
    return built([(monomial, factor // by) for monomial, factor in terms_of(value)])


def _extreme(kind: str, left: Dim, right: Dim) -> Dim:
    if left == right:
        return left
    difference = left - right
    if isinstance(difference, int):
        return left if (difference > 0) == (kind == "max") else right
    first, second = sorted((left, right), key=str)
    return applied(kind, first, second)


def _single_function(dim: Dim, kind: str) -> Function | None:
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        monomial, factor = dim.terms[0]
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Function) and monomial[0].kind == kind:
            return monomial[0]
    return None


APPLY: dict[str, Callable[[Dim, Dim], Dim]] = {"div": floor_divide, "mod": remainder, "max": maximum, "min": minimum}
EVALUATE: dict[str, Callable[[int, int], int]] = {
    "div": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": lambda a, b: a if a >= b else b,
    "min": lambda a, b: a if a <= b else b,
}
