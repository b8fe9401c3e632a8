"""The sizes that an engine and the model that it is compared with agree on: what one fixes, the other is read or called with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ...ir import dims
from ...ir.dims import UNBOUNDED, Dim, Facts, Range
from ...ir.errors import InputError, UsageError
from ...ir.graph import Module
from ...runtime.contents import Ports
from ..models.shapes import Named
from ..requests import AxisSize, ShapeRequest

Declared = Mapping[str, Sequence[Named]]
"""The inputs of a model: each size a number, a name or neither."""


def of_engine(requests: Sequence[ShapeRequest], ports: Ports, declared: Declared) -> tuple[ShapeRequest, ...]:
    """What a user said of sizes in the names of the engine: a name of the model's is that of the same axis. What the engine fixes is
    left out, once it is what was asked for.
    """
    names = _sizes_by_name(ports, declared)
    own = {port.name for port in ports.inputs} | {name for port in ports.inputs for size in port.type.shape for name in dims.symbols(size)}
    found = []
    for request in requests:
        size = names.get(request.name)
        if request.name in own or size is None or len(request.axes) != 1:
            found.append(request)
        elif (name := dims.name_of(size)) is not None:
            found.append(ShapeRequest(name, request.axes))
        elif isinstance(size, int) and not _takes(request.axes[0], size):
            raise UsageError(f"shape {str(request)!r}: the engine was built for {request.name} = {size} alone")
        elif not isinstance(size, int):
            raise UsageError(f"shape {str(request)!r}: got {request.name}, which is {size} of the engine", hint="say the engine's sizes")
    return tuple(found)


def of_model(ports: Ports, sizes: Mapping[str, int], declared: Declared) -> tuple[ShapeRequest, ...]:
    """What a model is to be read with: the sizes of its named dimensions that the engine fixes, or `sizes` of the engine's symbols do."""
    found = {name: dims.substitute(size, sizes) for name, size in _sizes_by_name(ports, declared).items()}
    return tuple(ShapeRequest(name, (AxisSize(size),)) for name, size in found.items() if isinstance(size, int))


def of_calls(ports: Ports, module: Module, facts: Facts) -> Facts:
    """What is known of the engine's symbols where the model is called too, which may take fewer sizes; InputError where it takes none."""
    for port, value in zip(ports.inputs, module.main.arguments, strict=True):
        for axis, (ours, theirs) in enumerate(zip(port.type.shape, value.shape, strict=True)):
            name, taken = _taken(ours, theirs, module)
            known = Range(ours, ours) if isinstance(ours, int) else facts.ranges.get(name or "")
            if known is None or taken is None:
                continue
            low, high = _common(known, taken)
            if high is not None and low > high:
                raise InputError(
                    f"axis {axis} of input {port.name} is {ours} in the engine"
                    + (f", with {name} in {known}" if name is not None else "")
                    + f", and {theirs} in the model",
                    hint="is this the engine of that model?",
                )
            if name is not None:
                facts = facts.with_range(name, low, high, facts.divisors.get(name, 1))
    return facts


def _taken(ours: Dim, theirs: Dim, module: Module) -> tuple[str | None, Range | None]:
    """The symbol that decides the engine's size of an axis, if one alone does, and its sizes for which the model takes that axis."""
    name = dims.name_of(ours)
    if isinstance(theirs, int):
        solved = None if isinstance(ours, int) else dims.solved(ours, theirs)
        return (name, Range(theirs, theirs)) if solved is None else (solved[0], Range(solved[1], solved[1]))
    other = dims.name_of(theirs)
    return name, None if other is None else module.facts.ranges.get(other)


def _common(one: Range, other: Range) -> tuple[int, int | None]:
    highs = [high for high in (one.high, other.high) if high is not None]
    return max(one.low or 0, other.low or 0), min(highs, default=None)


def within(facts: Facts, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes, those out of their ranges at the nearer end."""
    known = {name: facts.ranges.get(name, UNBOUNDED) for name in sizes}
    lowest = {name: max(size, known[name].low or 0) for name, size in sizes.items()}
    return {name: size if (high := known[name].high) is None else min(size, high) for name, size in lowest.items()}


def fixed_notes(engine: Facts, model: Facts, said: Collection[str]) -> Iterator[str]:
    """What to tell of sizes that the model fixes, of which others are not verified."""
    for name, known in model.ranges.items():
        if known.low == known.high and name not in said and engine.ranges.get(name) != known:
            yield f"the model fixes {name} to {known.low}: the engine takes other sizes, which it says nothing of"


def _sizes_by_name(ports: Ports, declared: Declared) -> dict[str, Dim]:
    """The engine's size at the first axis of each name of the model's."""
    found: dict[str, Dim] = {}
    for port in ports.inputs:
        shape = declared.get(port.name, ())
        if len(shape) == port.type.rank:
            for name, size in zip(shape, port.type.shape, strict=True):
                if isinstance(name, str):
                    found.setdefault(name, size)
    return found


def _takes(axis: AxisSize, size: int) -> bool:
    if isinstance(axis.size, int):
        return axis.size == size
    return axis.low is None or (axis.low <= size and (axis.high is None or size <= axis.high))
