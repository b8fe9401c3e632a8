"""What unsigned bytes may be multiplied by in pairs: how large they may be for the products of two neighbours to fit 16 bits together.

Processors without instructions for four products multiply unsigned by signed bytes and add those of neighbours in 16 bits, which
saturates (`vpmaddubsw`). It does not where `x0 |w0| + x1 |w1|` is at most 32,767, so for a stretch of a constant there is a limit that
no x may pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import VerifyError
from .types import DType, i8, u8

LARGEST = 2**15 - 1
"""What 16 bits hold."""


@dataclass(frozen=True)
class Pairing:
    """The limits of a constant of i8, for each stretch of `terms` neighbours along one dimension and of `columns` along another."""

    terms: int
    columns: int
    along: tuple[int, int]

    word = "paired"
    """What comes before it in texts."""

    def __post_init__(self) -> None:
        if self.terms < 2 or self.terms % 2 or self.columns < 1:
            raise VerifyError(f"pairing of {self.terms} terms and {self.columns} columns, expected an even number of terms, and columns")
        if self.along[0] == self.along[1] or min(self.along) < 0:
            raise VerifyError(f"pairing along the dimensions {list(self.along)}, expected one of terms and another of columns")

    def __str__(self) -> str:
        return f"{self.terms} by {self.columns} along ({', '.join(map(str, self.along))})"

    def dtype(self, of: DType) -> DType:
        """The element type of what is made of elements of type `of`, which are i8; VerifyError for others."""
        if of != i8:
            raise VerifyError(f"pairing of {of}, expected i8")
        return u8

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of the limits of a constant of `shape`; VerifyError where terms leave a part of a stretch."""
        terms, columns = self.along
        if max(self.along) >= len(shape) or shape[terms] % self.terms:
            raise VerifyError(f"pairing {self} of sizes {list(shape)}, expected stretches of {self.terms} along dimension {terms}")
        sizes = {terms: shape[terms] // self.terms, columns: -(-shape[columns] // self.columns)}
        return tuple(sizes.get(place, size) for place, size in enumerate(shape))

    def of(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The limits, at most 255."""
        sizes = self.shape(codes.shape)
        large = np.moveaxis(np.abs(codes.astype(np.int32)), self.along, (-2, -1))
        large = np.pad(large, [(0, 0)] * (large.ndim - 1) + [(0, -large.shape[-1] % self.columns)])
        *others, terms, columns = large.shape
        pairs = large.reshape(*others, terms // self.terms, self.terms // 2, 2, columns // self.columns, self.columns).sum(-3)
        limits = np.minimum(255, LARGEST // np.maximum(1, pairs.max((-3, -1)))).astype(np.uint8)
        found = np.ascontiguousarray(np.moveaxis(limits, (-2, -1), self.along))
        assert found.shape == sizes
        return found
