"""What the user said of shapes, resolved against a model's inputs: wishes for its named dimensions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ...ir import dims
from ...ir.errors import UnsupportedError, UsageError
from ...ir.graph import Module
from ...ir.spelling import nearest
from ..requests import AxisSize, ShapeRequest

Wish = int | tuple[int, int | None] | str
Named = str | int | None
"""A dimension of a model's input: its name, its size, or neither."""


def dimension_wishes(requests: Sequence[ShapeRequest], inputs: Mapping[str, Sequence[Named]]) -> dict[str, Wish]:
    """Wishes by dimension name. A request names an input (one axis for each of its dimensions) or a dimension."""
    wishes = _Wishes()
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
                hint=nearest(request.name, known) or _naming(inputs),
            )
    return dict(wishes)


def renamed(requests: Sequence[ShapeRequest], inputs: Collection[str]) -> Iterator[str]:
    """What to tell of requests for a symbol by itself that give it no size but another name, as a slip of a key would."""
    for request in requests:
        size = request.axes[0].size
        symbol = None if size is None or isinstance(size, int) else dims.name_of(size)
        if request.name not in inputs and len(request.axes) == 1 and symbol not in (None, request.name):
            yield f"shape {str(request)!r}: {request.name} gets the name {symbol}; a size is a number, like {request.name}=8 or 1..64"


class _Wishes(dict[str, Wish]):
    """Wishes that do not contradict each other."""

    def add(self, name: str, wish: Wish, request: ShapeRequest) -> None:
        if self.setdefault(name, wish) != wish:
            raise UsageError(
                f"shape {str(request)!r}: got {_shown(wish)} for {name}, and {_shown(self[name])} elsewhere, expected one of them"
            )


def _shown(wish: Wish) -> str:
    return str(wish) if not isinstance(wish, tuple) else f"{wish[0]}..{'' if wish[1] is None else wish[1]}"


def _naming(inputs: Mapping[str, Sequence[Named]]) -> str | None:
    """How sizes get names of the user's choice, where torch has numbered them."""
    for name, shape in inputs.items():
        if any(isinstance(size, str) and _NUMBERED.fullmatch(size) for size in shape):
            words = iter(("B", "S", *(f"N{number}" for number in range(len(shape)))))
            axes = ",".join(next(words) if isinstance(size, str) else str(size) for size in shape)
            return f"torch numbers sizes: name them by an input's axes, like --shape {name}={axes}"
    return None


_NUMBERED = re.compile(r"s[0-9]+")


def in_options(hint: str, inputs: Mapping[str, Sequence[Named]]) -> str:
    """An importer's hint in the words of the options: what it takes as `shapes` is --shape, and it is not asked for values."""
    names = dict.fromkeys(size for shape in inputs.values() for size in shape if isinstance(size, str))
    sizes = " ".join(f"--shape {name}={1 if number == 0 else 128}" for number, name in enumerate(names))
    hint = hint.replace(", or fix that input's value at import (values)", " before the export")
    hint = hint.replace("given at import", "given with --shape")
    hint = _AGREEING.sub(lambda found: f"{found[0]}, as with --shape {found[1]}={found[2]}" if found[1] in names else found[0], hint)
    return hint.replace("at import (shapes)", f"with --shape, like {sizes}" if sizes else "when exporting the model")


_AGREEING = re.compile(r"they agree where (\w+) = ([0-9]+)")


def wanted_sizes(
    requests: Sequence[ShapeRequest], module: Module, typical: Mapping[str, int], hint: str = "build the engine with that --shape"
) -> dict[str, int]:
    """The sizes at which an engine is to be called, by its symbols; UsageError for one outside of what it was built for.

    A range narrows: the typical size is taken if it lies in it, else the nearest.
    """
    found = {}
    for name, wish in _engine_wishes(requests, module).items():
        known = module.facts.ranges.get(name)
        if known is None or isinstance(wish, str):
            what = f"another name for {name}" if isinstance(wish, str) else f"{name}"
            raise UsageError(f"shape: got {what}, expected sizes of {', '.join(module.facts.ranges) or 'no symbol'}: an engine is built")
        low, high = (wish, wish) if isinstance(wish, int) else wish
        size = max(low, typical[name] if high is None else min(typical[name], high))
        divisor = module.facts.divisors.get(name, 1)
        if (known.low is not None and size < known.low) or (known.high is not None and size > known.high) or size % divisor:
            multiple = f" and a multiple of {divisor}" if divisor > 1 else ""
            raise UsageError(f"shape: got {name} = {size}, expected {name} in {known}{multiple}", hint=hint)
        found[name] = size
    return found


def fixed_sizes(requests: Sequence[ShapeRequest], module: Module, typical: Mapping[str, int]) -> dict[str, int]:
    """The wanted sizes that are said as numbers, not as ranges."""
    wanted, wishes = wanted_sizes(requests, module, typical), _engine_wishes(requests, module)
    return {name: size for name, size in wanted.items() if wishes[name] == size}


def _engine_wishes(requests: Sequence[ShapeRequest], module: Module) -> dict[str, Wish]:
    inputs = {value.name: [str(size) if isinstance(size, dims.Expr) else size for size in value.shape] for value in module.main.arguments}
    return dimension_wishes(requests, inputs)


def _add_input(wishes: _Wishes, request: ShapeRequest, shape: Sequence[Named]) -> None:
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


def _add(wishes: _Wishes, request: ShapeRequest, name: str, axis: AxisSize) -> None:
    if axis.buckets:
        raise UnsupportedError(
            f"shape {str(request)!r}: buckets are not supported yet", hint="give a range: one engine serves all sizes in it"
        )
    size = axis.size
    if isinstance(size, int):
        wishes.add(name, size, request)
        return
    if size is not None:
        symbol = dims.name_of(size)
        if symbol is None:
            raise UnsupportedError(f"shape {str(request)!r}: the expression {size} is not supported yet", hint="give a range")
        if symbol != name:
            wishes.add(name, symbol, request)
        name = symbol
    if axis.low is not None:
        wishes.add(name, (axis.low, axis.high), request)
