"""Winograd's minimal filtering: neighbouring places of a short window by as few products as the polynomials behind it have points.

F(m, r) gives m places of a window of r taps by m + r - 1 products instead of m * r: y = A ((G g) * (B d)), where g are the taps and d
the m + r - 1 numbers that the windows see. Source: Lavin and Gray 2015 (arXiv 1509.09308).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from .errors import VerifyError
from .types import DType

Matrix = tuple[tuple[float, ...], ...]
TAPS = 3
"""The taps of a window."""
POINTS: dict[int, tuple[Fraction, ...]] = {2: (Fraction(0), Fraction(1), Fraction(-1))}
"""By the places: the points, beside the one at infinity. Of two places each sees what its window sees: a number that only the other one
sees goes through a point of that alone. Of more places it would go through all, and leave its roundings with those that do not see it.
"""


@dataclass(frozen=True)
class Filtering:
    """Windows of three taps along these dimensions of a constant, as what gives so many neighbouring places of each."""

    places: int
    along: tuple[int, ...]

    word = "filtered"
    """What comes before it in texts."""

    def __post_init__(self) -> None:
        if self.places not in POINTS:
            raise VerifyError(f"filtering of {self.places} places, expected one of {', '.join(map(str, POINTS))}")
        if not self.along or len(set(self.along)) != len(self.along) or min(self.along) < 0:
            raise VerifyError(f"filtering along the dimensions {list(self.along)}, expected some, each once")

    def __str__(self) -> str:
        return f"{self.places} along ({', '.join(map(str, self.along))})"

    def dtype(self, of: DType) -> DType:
        """The element type of what is made of elements of type `of`."""
        return of

    @property
    def points(self) -> int:
        """Products along each dimension."""
        return self.places + TAPS - 1

    @cached_property
    def of_image(self) -> Matrix:
        """B: what is multiplied, from what the windows see; square."""
        return _matrices(self.places)[2]

    @cached_property
    def of_products(self) -> Matrix:
        """A: the places, from the products."""
        return _matrices(self.places)[0]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of what is made of filters of `shape`; VerifyError where they have not three taps."""
        if any(n >= len(shape) or shape[n] != TAPS for n in self.along):
            raise VerifyError(f"filtering {self} of sizes {list(shape)}, expected {TAPS} in each of these dimensions")
        return tuple(self.points if n in self.along else size for n, size in enumerate(shape))

    def of(self, filters: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """G g along each dimension, rounded once."""
        self.shape(filters.shape)
        made = filters.astype(np.float64)
        for n in self.along:
            made = np.moveaxis(np.tensordot(np.array(_matrices(self.places)[1]), made, axes=(1, n)), 0, n)
        with np.errstate(over="ignore"):  # what is too large is infinite, and sums of it are made again term by term
            return np.ascontiguousarray(made.astype(filters.dtype))


@lru_cache
def _matrices(places: int) -> tuple[Matrix, Matrix, Matrix]:
    """A, G and B of F(places, 3): a polynomial of the taps times one of the places, found at the points (Toom and Cook), transposed."""
    points = POINTS[places]
    image, taps, products = [], [], [[point**n for point in points] + [Fraction(n == places - 1)] for n in range(places)]
    for point in points:
        others = [other for other in points if other != point]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        image.append([*_with_roots(others), Fraction(0)])
        taps.append([point**n / scale for n in range(TAPS)])
    image.append(_with_roots(points))
    taps.append([Fraction(n == TAPS - 1) for n in range(TAPS)])
    return _floats(products), _floats(taps), _floats(image)


def _with_roots(roots: tuple[Fraction, ...] | list[Fraction]) -> list[Fraction]:
    """The coefficients of the polynomial with these roots, the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        found = [low - root * high for low, high in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def _floats(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in rows)
