"""The op table: importing this package declares every op."""

from . import (
    activation,
    call,
    check,
    coding,
    contraction,
    control,
    elementary,
    host,
    indexing,
    movement,
    normalization,
    pointwise,
    pool,
    quantization,
    ranking,
    reduction,
    sample_token,
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
    coding,
    host,
    ranking,
    sample_token,
    check,
    control,
    call,
)

__all__ = ["FAMILIES"]
