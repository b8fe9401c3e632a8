"""Layouts: how a tensor's logical axes are split, ordered and padded in memory, with a numpy packer.

A layout is a list of factors over the logical axes, slowest first: `j/16 k j%16` stores panels of 16 columns. Each
factor is (axis // divisor) % modulus. Every logical axis must be covered without gap or overlap, so a layout is
invertible; sizes that a modulus does not divide are padded with zeros.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import dims
from .dims import Dim
from .errors import VerifyError


@dataclass(frozen=True)
class Factor:
    """(axis // divisor) % modulus; modulus None takes all that is left."""

    axis: str
    divisor: int = 1
    modulus: int | None = None

    def __str__(self) -> str:
        return self.axis + (f"/{self.divisor}" if self.divisor != 1 else "") + (f"%{self.modulus}" if self.modulus else "")


@dataclass(frozen=True)
class Layout:
    """The memory order of a tensor with logical axes `axes`; `factors` slowest first."""

    axes: tuple[str, ...]
    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        strange = {factor.axis for factor in self.factors} - set(self.axes)
        if strange or len(set(self.axes)) != len(self.axes):
            raise VerifyError(f"layout {self}: its axes are {', '.join(self.axes) or 'none'}, each once, expected those of its factors")
        if any(factor.modulus is not None and factor.modulus < 1 for factor in self.factors):
            raise VerifyError(f"layout {self}: a modulus is below 1")
        for axis in self.axes:
            pieces = sorted((f for f in self.factors if f.axis == axis), key=lambda f: f.divisor)
            expected = 1
            for piece in pieces:
                if piece.divisor != expected or (piece.modulus is None) != (piece is pieces[-1]):
                    raise VerifyError(f"layout {self}: the factors of axis {axis} do not cover it exactly once")
                expected = piece.divisor * (piece.modulus or 1)
            if not pieces:
                raise VerifyError(f"layout {self}: axis {axis} has no factor")

    def __str__(self) -> str:
        return " ".join(str(factor) for factor in self.factors)

    def granule(self, axis: str) -> int:
        """The size that `axis` is padded to a multiple of."""
        return max(f.divisor for f in self.factors if f.axis == axis)

    def in_groups(self, lanes: int, depth: int) -> bool:
        """Whether it ends in vectors of `lanes` elements of one axis with `depth` neighbours of another each: `k/4 n%16 k%4`.

        Where the axis of lanes is whole, `k/4 n k%4`, any neighbours of it are such a vector.
        """
        if len(self.factors) < 3:
            return False
        outer, lane, inner = self.factors[-3:]
        return lane.modulus in (lanes, None) and (outer, lane, inner) == (
            Factor(inner.axis, depth),
            Factor(lane.axis, 1, lane.modulus),
            Factor(inner.axis, 1, depth),
        )

    def extents(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Physical sizes of the factors for a logical shape, padding included."""
        sizes = dict(zip(self.axes, shape, strict=True))
        return tuple(f.modulus if f.modulus else dims.ceil_div(sizes[f.axis], f.divisor) for f in self.factors)

    def subscripts(self, logical: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Physical subscripts of a logical element."""
        index = dict(zip(self.axes, logical, strict=True))
        result: list[Dim] = []
        for factor in self.factors:
            value = index[factor.axis] // factor.divisor
            result.append(value % factor.modulus if factor.modulus else value)
        return tuple(result)

    def pack(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The physical array (rank = number of factors), zero-padded."""
        padded = [-(-n // self.granule(a)) * self.granule(a) for a, n in zip(self.axes, array.shape, strict=True)]
        if list(array.shape) != padded:
            array = np.pad(array, [(0, p - n) for n, p in zip(array.shape, padded, strict=True)])
        split, order = self._split(tuple(padded))
        return np.ascontiguousarray(array.reshape(split).transpose(order))

    def unpack(self, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The logical array of `shape` that `pack` gave `array` for."""
        padded = tuple(-(-n // self.granule(a)) * self.granule(a) for a, n in zip(self.axes, shape, strict=True))
        split, order = self._split(padded)
        physical = [split[n] for n in order]
        logical = array.reshape(physical).transpose(np.argsort(order)).reshape(padded)
        return np.ascontiguousarray(logical[tuple(slice(0, n) for n in shape)])

    def _split(self, padded: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """The reshape of a padded array into its pieces, and the transpose of these into memory order."""
        split: list[int] = []
        place: dict[Factor, int] = {}
        for axis, size in zip(self.axes, padded, strict=True):
            for factor in sorted((f for f in self.factors if f.axis == axis), key=lambda f: -f.divisor):
                place[factor] = len(split)
                split.append(factor.modulus if factor.modulus else size // factor.divisor)
        return split, [place[factor] for factor in self.factors]


def parse(text: str, axes: tuple[str, ...]) -> Layout:
    """Read what `str` prints: `j/16 k j%16`."""
    factors = []
    for word in text.split():
        match = re.fullmatch(r"([A-Za-z_]\w*)(?:/([0-9]{1,18}))?(?:%([0-9]{1,18}))?", word)
        if match is None:
            raise VerifyError(f"layout factor {word!r} is not of the form axis/4%16")
        factors.append(Factor(match[1], int(match[2] or 1), int(match[3]) if match[3] else None))
    return Layout(axes, tuple(factors))


def row_major(axes: tuple[str, ...]) -> Layout:
    """The plain layout: axes in order, nothing split."""
    return Layout(axes, tuple(Factor(axis) for axis in axes))
