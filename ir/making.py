"""What constants are made into when an engine is built, beside being laid out: each kind says its word, its sizes and its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from .errors import VerifyError
from .pairing import Pairing
from .winograd import Filtering

Making: TypeAlias = Filtering | Pairing


def making(word: str, sizes: Sequence[int], along: Sequence[int]) -> Making:
    """What texts spell with a word, sizes and dimensions; VerifyError for what cannot be."""
    if word == Filtering.word:
        return Filtering(sizes[0], tuple(along))
    if len(along) != 2:
        raise VerifyError(f"pairing along the dimensions {list(along)}, expected one of terms and another of columns")
    return Pairing(sizes[0], sizes[1], (along[0], along[1]))
