"""What is known of sizes: ranges and divisors of symbols, and the questions that they decide; sympy is asked last."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .expr import (
    APPLY,
    Atom,
    Dim,
    Expr,
    Function,
    Monomial,
    Symbol,
    applied,
    built,
    evaluate,
    exact_quotient,
    floor_divide,
    rebuild,
    remainder,
    symbols,
    terms_of,
)


@dataclass(frozen=True)
class Range:
    """Bounds of a symbol, both included; None means unbounded."""

    low: int | None = 0
    high: int | None = None

    def __str__(self) -> str:
        return f"{'' if self.low is None else self.low}..{'' if self.high is None else self.high}"

    def __contains__(self, value: int) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


UNBOUNDED = Range(None, None)


@dataclass(frozen=True)
class Facts:
    """What is known of symbols: ranges, divisors, and for axes their extents (an axis lies in 0..extent-1).

    `broadcasts` are pairs of sizes that broadcast against each other: equal, or one of them 1. They are checked where
    symbols get their values, and nothing is concluded from them.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    divisors: Mapping[str, int] = field(default_factory=dict)
    extents: Mapping[str, Dim] = field(default_factory=dict)
    broadcasts: tuple[tuple[Dim, Dim], ...] = ()

    @property
    def fixed(self) -> dict[str, int]:
        """The symbols that have one value only, and it."""
        return {name: bounds.low for name, bounds in self.ranges.items() if bounds.low is not None and bounds.low == bounds.high}

    def clash(self, values: Mapping[str, int]) -> tuple[Dim, Dim] | None:
        """The first pair that should broadcast and does not; a pair with a symbol that has no value yet is passed over."""
        for left, right in self.broadcasts:
            if (symbols(left) | symbols(right)) <= values.keys():
                sizes = evaluate(left, values), evaluate(right, values)
                if sizes[0] != sizes[1] and 1 not in sizes:
                    return left, right
        return None

    def with_range(self, name: str, low: int | None, high: int | None, divisor: int = 1) -> Facts:
        """These facts and one more symbol, or other facts of one: what was known of a name is forgotten."""
        divisors = {other: n for other, n in self.divisors.items() if other != name} | ({name: divisor} if divisor != 1 else {})
        return Facts({**self.ranges, name: Range(low, high)}, divisors, self.extents, self.broadcasts)

    def with_axis(self, name: str, extent: Dim) -> Facts:
        """These facts and one more axis of 0..extent-1."""
        high = range_of(extent, self).high
        facts = self.with_range(name, 0, None if high is None else max(high - 1, 0))
        return Facts(facts.ranges, facts.divisors, {**self.extents, name: extent}, self.broadcasts)


NO_FACTS = Facts()


def range_of(dim: Dim, facts: Facts = NO_FACTS) -> Range:
    """Bounds of `dim` by interval arithmetic, sharpened for `n % c` and `(n // c) * c`."""
    if isinstance(dim, int):
        return Range(dim, dim)
    total = Range(0, 0)
    for monomial, factor in dim.terms:
        bounds = Range(factor, factor)
        for atom in monomial:
            bounds = _times(bounds, _atom_range(atom, facts))
        total = Range(_sum(total.low, bounds.low), _sum(total.high, bounds.high))
    return total


def divisor_of(dim: Dim, facts: Facts = NO_FACTS) -> int:
    """The largest known integer that divides `dim`; 0 for the constant 0."""
    if isinstance(dim, int):
        return abs(dim)
    result = 0
    for monomial, factor in dim.terms:
        divisor = abs(factor)
        for atom in monomial:
            divisor *= facts.divisors.get(atom.name, 1) if isinstance(atom, Symbol) else _divisor_of_function(atom, facts)
        result = math.gcd(result, divisor)
    return result


def _divisor_of_function(atom: Function, facts: Facts) -> int:
    """What divides both sides of an extreme divides it, whichever it is."""
    if atom.kind not in ("max", "min"):
        return 1
    return math.gcd(divisor_of(atom.left, facts), divisor_of(atom.right, facts))


def equal(left: Dim, right: Dim, facts: Facts = NO_FACTS) -> bool | None:
    """Whether two dimensions are the same for all values of their symbols (False: for none)."""
    if left == right:
        return True
    difference = _expand_modulo(left - right)
    if isinstance(difference, int):
        return difference == 0
    bounds = range_of(difference, facts)
    if (bounds.low is not None and bounds.low > 0) or (bounds.high is not None and bounds.high < 0):
        return False
    if bounds.low == bounds.high == 0:
        return True
    return True if _has_function(difference) and _may_vanish(difference) and _sympy_zero(difference) else None


def at_most(left: Dim, right: Dim, facts: Facts = NO_FACTS) -> bool | None:
    """Whether left <= right always (True), never (False), or unknown (None)."""
    bounds = range_of(right - left, facts)
    if bounds.low is not None and bounds.low >= 0:
        return True
    if bounds.high is not None and bounds.high < 0:
        return False
    for difference in (_at_extents(right - left, facts), _expand_modulo(right - left)):
        low = range_of(difference, facts).low
        if low is not None and low >= 0:
            return True
    return None


def divides(divisor: int, dim: Dim, facts: Facts = NO_FACTS) -> bool | None:
    """Whether `divisor` divides `dim` always (True), never (False), or unknown (None)."""
    if isinstance(dim, int):
        return dim % divisor == 0
    if divisor_of(dim, facts) % divisor == 0:
        return True
    constant = sum(f for m, f in dim.terms if not m)
    rest = dim - constant
    return False if constant % divisor and divisor_of(rest, facts) % divisor == 0 else None


def simplify(dim: Dim, facts: Facts) -> Dim:
    """`dim` with the divisions, remainders and extremes that the facts decide worked out."""
    if not _has_function(dim):
        return dim
    result: Dim = rebuild(dim, lambda atom: Expr((((atom,), 1),)) if isinstance(atom, Symbol) else _simplify_function(atom, facts))
    return result


def solved(left: Dim, right: Dim) -> tuple[str, int] | None:
    """The one symbol, and its size, for which two dimensions are the same whatever other symbols are, if one size of one decides it."""
    terms = terms_of(left - right)
    shared = list(terms[0][0]) if terms else []
    for monomial, _ in terms:
        shared = [atom for n, atom in enumerate(shared) if monomial.count(atom) > shared[:n].count(atom)]
    rest = built((_without(monomial, shared), factor) for monomial, factor in terms)
    names = {atom for monomial, _ in terms_of(rest) for atom in monomial}
    if len(names) != 1 or any(len(monomial) > 1 for monomial, _ in terms_of(rest)):
        return None
    (atom,) = names
    if not isinstance(atom, Symbol):
        return None
    factors = dict(terms_of(rest))
    size, remains = divmod(-factors.get((), 0), factors[(atom,)])
    return (atom.name, size) if size > 0 and not remains else None


def _without(monomial: Monomial, shared: Iterable[Atom]) -> Monomial:
    rest = list(monomial)
    for atom in shared:
        rest.remove(atom)
    return tuple(rest)


# --- ranges -----------------------------------------------------------------------------------------------------------


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def _times(left: Range, right: Range) -> Range:
    if left.low is not None and left.high is not None and right.low is not None and right.high is not None:
        corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
        return Range(min(corners), max(corners))
    if left.low == left.high == 0 or right.low == right.high == 0:
        return Range(0, 0)
    for a, b in ((left, right), (right, left)):
        if a.low is not None and a.low >= 0 and b.low is not None and b.low >= 0:
            both = a.high is not None and b.high is not None
            return Range(a.low * b.low, a.high * b.high if both and a.high is not None and b.high is not None else None)
        if a.low is not None and a.low == a.high and a.low < 0:
            flipped = _times(Range(-a.low, -a.low), b)
            return Range(None if flipped.high is None else -flipped.high, None if flipped.low is None else -flipped.low)
        if a.low is not None and a.low == a.high and a.low > 0:
            return Range(None if b.low is None else b.low * a.low, None if b.high is None else b.high * a.low)
    return UNBOUNDED


def _atom_range(atom: Atom, facts: Facts) -> Range:
    if isinstance(atom, Symbol):
        bounds, step = facts.ranges.get(atom.name, UNBOUNDED), facts.divisors.get(atom.name) or 1
        low = None if bounds.low is None else -(-bounds.low // step) * step  # multiples of 32 from 0 to 63 end at 32
        return bounds if step == 1 else Range(low, None if bounds.high is None else bounds.high // step * step)
    left, right = range_of(atom.left, facts), range_of(atom.right, facts)
    if atom.kind == "mod":
        return _modulo_range(left, right)
    if atom.kind == "div":
        return _divide_range(left, right)
    pick = max if atom.kind == "max" else min
    known = [(left.low, right.low), (left.high, right.high)]
    low, high = (pick(a, b) if a is not None and b is not None else None for a, b in known)
    if atom.kind == "max" and low is None:
        low = left.low if left.low is not None else right.low
    if atom.kind == "min" and high is None:
        high = left.high if left.high is not None else right.high
    return Range(low, high)


def _modulo_range(left: Range, right: Range) -> Range:
    if right.low is None or right.low <= 0:
        return UNBOUNDED
    high = None if right.high is None else right.high - 1
    if left.low is not None and left.low >= 0 and left.high is not None:
        if left.high < right.low:
            return left
        high = left.high if high is None else min(high, left.high)
    return Range(0, high)


def _divide_range(left: Range, right: Range) -> Range:
    if right.low is None or right.low <= 0:
        return UNBOUNDED
    if left.low is None:
        low = None
    elif left.low >= 0:
        low = 0 if right.high is None else left.low // right.high
    else:
        low = left.low // right.low
    if left.high is None:
        high = None
    elif left.high >= 0:
        high = left.high // right.low
    else:
        high = -1 if right.high is None else left.high // right.high
    return Range(low, high)


def _simplify_function(atom: Function, facts: Facts) -> Dim:
    left, right = simplify(atom.left, facts), simplify(atom.right, facts)
    bounds = range_of(left, facts)
    if atom.kind in ("div", "mod") and isinstance(right, Expr):
        return _divide_by_symbol(atom.kind, left, right, facts)
    if atom.kind in ("div", "mod") and isinstance(right, int) and right > 0:
        if divisor_of(left, facts) % right == 0:
            return applied("div", left, right) if atom.kind == "div" else 0
        if bounds.low is not None and bounds.high is not None and bounds.low // right == bounds.high // right:
            quotient = bounds.low // right
            return quotient if atom.kind == "div" else left - quotient * right
        split = _steps_and_rest(left, right, facts)
        if split is not None:
            steps, rest, size = split
            return floor_divide(steps, right // size) if atom.kind == "div" else remainder(steps, right // size) * size + rest
    if atom.kind in ("max", "min"):
        if at_most(left, right, facts):
            return right if atom.kind == "max" else left
        if at_most(right, left, facts):
            return left if atom.kind == "max" else right
    return APPLY[atom.kind](left, right)


def _steps_and_rest(left: Dim, right: int, facts: Facts) -> tuple[Dim, Dim, int] | None:
    """(steps, rest, size): left is steps * size + rest, `size` divides `right`, and rest lies in 0..size-1; None if there are none."""
    for size in sorted({math.gcd(right, factor) for monomial, factor in terms_of(left) if monomial} - {1}, reverse=True):
        rest = built([(monomial, factor) for monomial, factor in terms_of(left) if factor % size])
        bounds = range_of(rest, facts)
        if rest != 0 and bounds.low is not None and bounds.low >= 0 and bounds.high is not None and bounds.high < size:
            return built([(monomial, factor // size) for monomial, factor in terms_of(left) if factor % size == 0]), rest, size
    return None


def _divide_by_symbol(kind: str, left: Dim, right: Expr, facts: Facts) -> Dim:
    """left // right or left % right where the part that `right` does not divide lies in 0..right-1."""
    whole: Dim = 0
    rest: Dim = 0
    for monomial, factor in terms_of(left):
        term = built([(monomial, factor)])
        exact = exact_quotient(term, right)
        whole, rest = (whole + exact, rest) if exact is not None else (whole, rest + term)
    if at_most(0, rest, facts) and at_most(rest + 1, right, facts):
        return whole if kind == "div" else rest
    return APPLY[kind](left, right)


def _at_extents(dim: Dim, facts: Facts) -> Dim:
    """A lower bound of `dim`: axes at the end of their extent that makes it smallest (each term by its sign)."""
    for _ in range(4):
        names = [name for name in sorted(symbols(dim)) if name in facts.extents]
        if not names or isinstance(dim, int):
            return dim
        result: Dim = 0
        for monomial, factor in dim.terms:
            axes = [a for a in monomial if isinstance(a, Symbol) and a.name in facts.extents]
            if any(isinstance(a, Function) for a in monomial) or (axes and len(monomial) > 1 and not _others_positive(monomial, facts)):
                result = result + built([(monomial, factor)])
                continue
            term: Dim = factor
            for atom in monomial:
                value: Dim = Expr((((atom,), 1),))
                if isinstance(atom, Symbol) and atom.name in facts.extents:
                    value = facts.extents[atom.name] - 1 if factor < 0 else 0
                term = term * value
            result = result + term
        if result == dim:
            return dim
        dim = result
    return dim


def _others_positive(monomial: Monomial, facts: Facts) -> bool:
    return all((_atom_range(a, facts).low or -1) >= 0 or _atom_range(a, facts).low == 0 for a in monomial)


def _expand_modulo(dim: Dim) -> Dim:
    """`dim` with every n % d written n - d * (n // d), so that both spellings compare equal."""
    if not _has_function(dim):
        return dim

    def part(atom: Atom) -> Dim:
        if isinstance(atom, Symbol):
            return Expr((((atom,), 1),))
        left, right = _expand_modulo(atom.left), _expand_modulo(atom.right)
        return left - right * floor_divide(left, right) if atom.kind == "mod" else APPLY[atom.kind](left, right)

    result: Dim = rebuild(dim, part)
    return result


def joined(dim: Dim) -> Dim:
    """`dim` in which a quotient and its remainder are what they are of: n % d + d * (n // d) is n."""
    expanded = _expand_modulo(dim)
    return expanded if _functions(expanded) < _functions(dim) else dim


def _functions(dim: Dim) -> int:
    """How many functions stand in the terms of an expression."""
    return sum(isinstance(atom, Function) for monomial, _ in terms_of(dim) for atom in monomial)


def _has_function(dim: Dim) -> bool:
    return isinstance(dim, Expr) and any(isinstance(a, Function) for m, _ in dim.terms for a in m)


_TRIED = (
    (2, 3, 5, 7, 11),
    (1, 1, 1, 1, 1),
    (97, 64, 31, 128, 9),
    (1, 1000, 3, 50, 17),
    (13, 1, 1, 29, 2),
    (999_983, 65_537, 1_048_573, 99_991, 524_287),
)
"""Small numbers, and such as lie beyond every bound that a model has."""


def _may_vanish(dim: Dim) -> bool:
    """Whether `dim` is 0 at a few points: sympy, which may think for minutes, is not asked of what is not 0 somewhere."""
    names = sorted(symbols(dim))
    for numbers in _TRIED:
        try:
            # Symbols beyond the list are given the numbers again, a little larger.
            if evaluate(dim, {name: numbers[n % 5] + n // 5 for n, name in enumerate(names)}) != 0:
                return False
        except ZeroDivisionError:
            continue
    return True


@functools.lru_cache(maxsize=4096)
def _sympy_zero(dim: Dim) -> bool:
    """Whether sympy proves `dim` zero; the last resort for nested divisions."""
    import sympy

    functions = {"div": lambda a, b: sympy.floor(a / b), "mod": sympy.Mod, "max": sympy.Max, "min": sympy.Min}

    def convert(value: Dim) -> sympy.Expr:
        if isinstance(value, int):
            return sympy.Integer(value)
        total: sympy.Expr = sympy.Integer(0)
        for monomial, factor in value.terms:
            term: sympy.Expr = sympy.Integer(factor)
            for atom in monomial:
                if isinstance(atom, Symbol):
                    term = term * sympy.Symbol(atom.name, integer=True)
                else:
                    term = term * functions[atom.kind](convert(atom.left), convert(atom.right))
            total = total + term
        return total

    return bool(sympy.simplify(convert(dim)) == 0)
