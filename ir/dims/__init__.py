"""Dimensions and index expressions: integer polynomials over symbols with floor division, and what is known of them.

A `Dim` is a Python int or an `Expr`. An `Expr` is kept in canonical form (a sum of integer multiples of products of
atoms), so structural equality decides most questions; ranges and divisors in `Facts` decide more, and sympy is asked
last. Questions answer True, False or None; None (unknown) never licenses anything.
"""

from .expr import (
    APPLY,
    Atom,
    Dim,
    Expr,
    Function,
    Monomial,
    Symbol,
    ceil_div,
    evaluate,
    floor_divide,
    has_division,
    magnitude,
    maximum,
    minimum,
    name_of,
    number,
    product,
    rebuild,
    remainder,
    substitute,
    symbol,
    symbols,
    within,
)
from .facts import NO_FACTS, UNBOUNDED, Facts, Range, at_most, divides, divisor_of, equal, range_of, simplify

__all__ = [
    "APPLY",
    "NO_FACTS",
    "UNBOUNDED",
    "Atom",
    "Dim",
    "Expr",
    "Facts",
    "Function",
    "Monomial",
    "Range",
    "Symbol",
    "at_most",
    "ceil_div",
    "divides",
    "divisor_of",
    "equal",
    "evaluate",
    "floor_divide",
    "has_division",
    "magnitude",
    "maximum",
    "minimum",
    "name_of",
    "number",
    "product",
    "range_of",
    "rebuild",
    "remainder",
    "simplify",
    "substitute",
    "symbol",
    "symbols",
    "within",
]
