"""The values of an operand that is made of another when building, as both lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dims
from .program import Param

Array = np.ndarray[Any, Any]


def made_of(param: Param, of: Param, array: Array) -> Array:
    """What `param` holds where `of`, which it is made of, holds `array`."""
    if param.made is None:
        return array
    if of.layout is not None:
        array = of.layout.unpack(array, tuple(map(dims.number, of.shape)))
    array = param.made.how.of(array)
    return array if param.layout is None else param.layout.pack(array)
