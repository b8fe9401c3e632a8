"""The op table: importing this package declares every op."""

from . import (
    activation,
    call,
    contraction,
    elementary,
    host,
    indexing,
    movement,
    normalization,
    pointwise,
    pool,
    quantization,
    reduction,
    window,
)

FAMILIES = (
    pointwise,
    elementary,
    activation,
    movement,
    contraction,
    window,
    pool,
    reduction,
    normalization,
    indexing,
    quantization,
    host,
    call,
)

__all__ = ["FAMILIES"]
