"""What the user said of shapes, resolved against a model's inputs: wishes for its named dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir import dims
from ..ir.errors import UnsupportedError, UsageError
from .options import AxisSize, ShapeRequest
from .spelling import nearest

Wish = int | tuple[int, int | None] | str
Named = str | int | None
"""A dimension of a model's input: its name, its size, or neither."""


def dimension_wishes(requests: Sequence[ShapeRequest], inputs: Mapping[str, Sequence[Named]]) -> dict[str, Wish]:
    """Wishes by dimension name. A request names an input (one axis for each of its dimensions) or a dimension."""
    wishes: dict[str, Wish] = {}
    names = [size for shape in inputs.values() for size in shape if isinstance(size, str)]
    for request in requests:
        if request.name in inputs:
            _add_input(wishes, request, inputs[request.name])
        elif request.name in names:
            if len(request.axes) != 1:
                raise UsageError(f"shape {str(request)!r}: got {len(request.axes)} axes for the dimension {request.name}, expected one")
            _add(wishes, request, request.name, request.axes[0])
        else:
            known = [*inputs, *dict.fromkeys(names)]
            raise UsageError(
                f"shape {str(request)!r}: got {request.name}, which is no input and no dimension, expected one of {', '.join(known)}",
                hint=nearest(request.name, known),
            )
    return wishes


def _add_input(wishes: dict[str, Wish], request: ShapeRequest, shape: Sequence[Named]) -> None:
    if len(request.axes) != len(shape):
        raise UsageError(f"shape {str(request)!r}: got {len(request.axes)} axes, expected {len(shape)}: [{', '.join(map(str, shape))}]")
    for position, (axis, size) in enumerate(zip(request.axes, shape, strict=True)):
        if isinstance(size, str):
            _add(wishes, request, size, axis)
        elif size is None:
            raise UnsupportedError(
                f"shape {str(request)!r}: axis {position} of {request.name} has no name in the model",
                hint="name it when exporting the model",
            )
        elif axis.size != size:
            raise UsageError(f"shape {str(request)!r}: axis {position} of {request.name} is {size} in the model, got {axis}")


def _add(wishes: dict[str, Wish], request: ShapeRequest, name: str, axis: AxisSize) -> None:
    if axis.buckets:
        raise UnsupportedError(
            f"shape {str(request)!r}: buckets are not supported yet", hint="give a range: one engine serves all sizes in it"
        )
    size = axis.size
    if isinstance(size, int):
        wishes[name] = size
        return
    if size is not None:
        symbol = str(size)
        if dims.symbols(size) != {symbol}:
            raise UnsupportedError(f"shape {str(request)!r}: the expression {size} is not supported yet", hint="give a range")
        if symbol != name:
            wishes[name] = symbol
        name = symbol
    if axis.low is not None:
        wishes[name] = (axis.low, axis.high)
