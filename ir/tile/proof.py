"""Proofs about index expressions: `left <= right` from ranges, divisors and the symbolic bounds of open axes.

A proof replaces atoms by bounds of them, one after the other, until interval arithmetic decides; it gives up after a
fixed number of steps, and giving up means "not proved".
"""

from __future__ import annotations

from collections.abc import Iterator

from .. import dims
from ..dims import Dim, Expr, Function, Symbol
from .scope import Axis, Scope

_STEPS = 160  # expressions looked at before a proof is given up: a bound on compile time, ten are typical
_DEPTH = 12


def at_most(scope: Scope, left: Dim, right: Dim) -> bool:
    """Whether left <= right is proved for all elements inside the domains of their axes."""
    return non_negative(scope, right - left)


def non_negative(scope: Scope, dim: Dim) -> bool:
    """Whether `dim` is proved to be at least 0 for all elements inside the domains of their axes."""
    return _Proof(scope).holds(starts(scope, dim), _DEPTH)


def starts(scope: Scope, dim: Dim) -> Dim:
    """`dim` with known starts written out, and `i` as start + lane where the start stands beside it."""
    if isinstance(dim, int):
        return dim
    for axis in reversed(tuple(scope.axes.values())):
        names = dims.symbols(dim)
        if axis.kind != "tile":
            continue
        if axis.name in names and (axis.first in names or axis.lane in names):
            dim = dims.substitute(dim, {axis.name: dims.symbol(axis.first) + dims.symbol(axis.lane)})
        if axis.modulus == 0 and axis.first in dims.symbols(dim):
            dim = dims.substitute(dim, {axis.first: axis.base})
    return dim


def simplify(scope: Scope, dim: Dim) -> Dim:
    """`dim` with the divisions and remainders that ranges and divisors decide worked out, term by term."""
    if not dims.has_functions(dim):
        return dim
    result: Dim = dims.rebuild(dim, lambda atom: dims.symbol(atom.name) if isinstance(atom, Symbol) else _simplify_atom(scope, atom))
    return result


# --- proofs -----------------------------------------------------------------------------------------------------------


class _Proof:
    """One question; counts its steps, and looks at nothing twice: bounds of several atoms lead to the same in any order."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.steps = _STEPS
        self._proved: set[Dim] = set()
        self._tried: dict[Dim, int] = {}
        """How deep was looked in vain."""

    def holds(self, dim: Dim, depth: int) -> bool:
        """Whether dim >= 0."""
        if dim in self._proved:
            return True
        if self._tried.get(dim, -1) >= depth:
            return False
        found = self._holds(simplify(self.scope, dim), depth)
        if found:
            self._proved.add(dim)
        else:
            self._tried[dim] = depth
        return found

    def _holds(self, dim: Dim, depth: int) -> bool:
        low = dims.range_of(dim, self.scope.facts).low
        if low is not None and low >= 0:
            return True
        self.steps -= 1
        if isinstance(dim, int) or depth == 0 or self.steps <= 0:
            return False
        if any(self.holds(weaker, depth - 1) for weaker in self.weaker(dim)):
            return True
        extreme = _extreme_in(dim)
        if extreme is None:
            return False
        cases = [_with_atom(dim, extreme, side) for side in (extreme.left, extreme.right)]
        return all(self.holds(case, depth - 1) for case in cases)

    def weaker(self, dim: Expr) -> Iterator[Dim]:
        """Expressions that are at most `dim`: one atom replaced by a bound of it, functions first, then inner axes."""
        atoms = [atom for monomial, _ in dim.terms for atom in monomial]
        for atom in dict.fromkeys(atoms):
            if isinstance(atom, Function):
                yield from self.replaced(dim, atom, self.function_bounds(atom))
                return
        for axis in reversed(tuple(self.scope.axes.values())):
            for name in (axis.lane, axis.name, axis.first):
                if Symbol(name) in atoms:
                    yield from self.replaced(dim, Symbol(name), _axis_bounds(axis, name, self.scope))
                    return

    def replaced(self, dim: Expr, atom: Symbol | Function, bounds: tuple[list[Dim], list[Dim]]) -> Iterator[Dim]:
        """`dim` with the linear occurrences of `atom` replaced by a lower or an upper bound, as the sign demands."""
        parts = _linear(dim, atom)
        if parts is None:
            return
        factor, rest = parts
        lower, upper = bounds
        sign = dims.range_of(factor, self.scope.facts)
        if sign.low is not None and sign.low >= 0:
            yield from (rest + part for part in self.whole_quotient(factor, atom, least=True))
            yield from (rest + factor * bound for bound in lower)
        elif sign.high is not None and sign.high <= 0:
            yield from (rest + part for part in self.whole_quotient(factor, atom, least=False))
            yield from (rest + factor * bound for bound in upper)

    def whole_quotient(self, factor: Dim, atom: Symbol | Function, least: bool) -> Iterator[Dim]:
        """A bound of factor * (n // d) where d divides factor: n - d < n // d * d <= n, and n itself if d divides n."""
        if not isinstance(factor, int) or isinstance(atom, Symbol) or atom.kind != "div" or not isinstance(atom.right, int):
            return
        if atom.right <= 0 or factor % atom.right:
            return
        exact = dims.divides(atom.right, atom.left, self.scope.facts)
        yield factor // atom.right * (atom.left - (0 if exact or not least else atom.right - 1))

    def function_bounds(self, atom: Function) -> tuple[list[Dim], list[Dim]]:
        """Symbolic lower and upper bounds (included) of a function atom."""
        if atom.kind == "max":
            return [atom.left, atom.right], []
        if atom.kind == "min":
            return [], [atom.left, atom.right]
        if not self.holds(atom.right - 1, _DEPTH - 1):
            return [], []
        if atom.kind == "mod":
            return [0], [atom.right - 1]
        if not isinstance(atom.left, Expr):
            return [], []
        # A quotient grows with its numerator.
        divide = dims.APPLY["div"]
        lower = [divide(left, atom.right) for left in self.weaker(atom.left)]
        negated = -atom.left
        upper = [divide(-left, atom.right) for left in self.weaker(negated)] if isinstance(negated, Expr) else []
        return lower, upper


def _axis_bounds(axis: Axis, name: str, scope: Scope) -> tuple[list[Dim], list[Dim]]:
    """Symbolic lower and upper bounds (included) of one of the three names of an axis."""
    if name == axis.lane:
        return [0], [axis.extent - 1]
    last: list[Dim] = [high - 1 for high in axis.highs]
    if axis.modulus == 0 and name == axis.first:
        return [axis.base], [axis.base]
    if name == axis.first:
        return [axis.low], [_last_start(axis, high, scope) for high in axis.highs]
    return [axis.low], [*last, dims.symbol(axis.first) + (axis.extent - 1)] if axis.kind == "tile" else last


def _last_start(axis: Axis, high: Dim, scope: Scope) -> Dim:
    """The last start below an end of an axis' domain: a whole step before an end that lies on one."""
    aligned = axis.modulus > 1 and dims.divides(axis.modulus, high - axis.base, scope.facts) is True
    return high - (axis.modulus if aligned else 1)


def _linear(dim: Expr, atom: Symbol | Function) -> tuple[Dim, Dim] | None:
    """(factor, rest) with dim = factor * atom + rest; None if a power of the atom stands in a term."""
    factor: Dim = 0
    rest: Dim = 0
    for monomial, number in dim.terms:
        others = tuple(a for a in monomial if a != atom)
        if len(others) == len(monomial):
            rest = rest + (Expr(((monomial, number),)) if monomial else number)
        elif len(others) == len(monomial) - 1:
            factor = factor + (Expr(((others, number),)) if others else number)
        else:
            return None
    return factor, rest


def _extreme_in(dim: Dim) -> Function | None:
    """The first `min` or `max` anywhere in `dim`."""
    if isinstance(dim, int):
        return None
    for atom in (atom for monomial, _ in dim.terms for atom in monomial):
        if isinstance(atom, Function):
            found = atom if atom.kind in ("min", "max") else _extreme_in(atom.left) or _extreme_in(atom.right)
            if found is not None:
                return found
    return None


def _with_atom(dim: Dim, atom: Function, value: Dim) -> Dim:
    """`dim` with every occurrence of a function atom replaced."""
    if isinstance(dim, int):
        return dim
    result: Dim = 0
    for monomial, factor in dim.terms:
        term: Dim = factor
        for part in monomial:
            if part == atom:
                term = term * value
            elif isinstance(part, Symbol):
                term = term * dims.symbol(part.name)
            else:
                term = term * dims.APPLY[part.kind](_with_atom(part.left, atom, value), _with_atom(part.right, atom, value))
        result = result + term
    return result


# --- simplification ---------------------------------------------------------------------------------------------------


def _simplify_atom(scope: Scope, atom: Function) -> Dim:
    left, right = simplify(scope, atom.left), simplify(scope, atom.right)
    if atom.kind in ("max", "min"):
        return _simplify_extreme(scope, atom.kind, left, right)
    if isinstance(left, Expr) and isinstance(right, int) and right > 0:
        whole, rest = _split(scope, left, right)
        bounds = dims.range_of(rest, scope.facts)
        quotients = {None if end is None else end // right for end in (bounds.low, bounds.high)}
        if len(quotients) == 1 and None not in quotients:
            quotient = quotients.pop() or 0
            return _exact(whole, right) + quotient if atom.kind == "div" else rest - quotient * right
        if atom.kind == "mod":
            return dims.APPLY["mod"](rest, right)
    return dims.APPLY[atom.kind](left, right)


def _split(scope: Scope, dim: Expr, divisor: int) -> tuple[Dim, Dim]:
    """(the terms that are known multiples of `divisor`, the rest)."""
    whole: Dim = 0
    rest: Dim = 0
    for monomial, factor in dim.terms:
        term: Dim = Expr(((monomial, factor),)) if monomial else factor
        if monomial and dims.divisor_of(term, scope.facts) % divisor == 0:
            whole = whole + term
        else:
            rest = rest + term
    return whole, rest


def _simplify_extreme(scope: Scope, kind: str, left: Dim, right: Dim) -> Dim:
    if dims.at_most(left, right, scope.facts):
        return right if kind == "max" else left
    if dims.at_most(right, left, scope.facts):
        return left if kind == "max" else right
    return dims.APPLY[kind](left, right)


def _exact(dim: Dim, divisor: int) -> Dim:
    """dim / divisor where every term is a known multiple of it."""
    if isinstance(dim, int):
        return dim // divisor
    divide = dims.APPLY["div"]
    parts = [divide(Expr(((monomial, abs(factor)),)), divisor) * (1 if factor > 0 else -1) for monomial, factor in dim.terms]
    return sum(parts, start=0)
