"""Sizes that a program declares stay open: what torch takes for granted of one while it traces is an error with the axis and the op."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ....ir.dims import Range
from ....ir.errors import Source, UnsupportedError
from .nodes import source_of

Bounds: TypeAlias = tuple[int | None, int | None]
SIZES = 32
"""So many sizes of a range are tried: its first ones, and its last."""
ASKED = "_asked_by_traces"
"""Where an environment keeps what traces asked of its symbols: torch asks once, and a later trace goes by the answer."""


def fixed(name: str, axis: str | None, bounds: object, value: object, operator: str, source: Source | None) -> UnsupportedError:
    """The error that an operator has made a number of a symbol."""
    place = f" ({axis})" if axis else ""
    return UnsupportedError(
        f"{operator} takes the size {name}{place} for {value}, and the program declares {bounds}",
        source=source,
        hint=f"export the program again, with that size fixed to {value} or without {operator}",
    )


@contextlib.contextmanager
def kept_open(program: Any, bounds: Mapping[str, Bounds]) -> Iterator[None]:
    """While torch traces a program again; UnsupportedError afterwards where the trace holds for some sizes in `bounds` only.

    A trace goes by the sizes that the program was exported with, and torch notes what it asked of them. Sizes of 0 and 1 it takes for
    special everywhere, and what it asks of those is passed over.
    """
    environment = _environment(program)
    if environment is None:
        yield
        return
    nodes = {node.name: node for node in program.graph.nodes}
    asked: dict[Any, Any] = vars(environment).setdefault(ASKED, {})
    log = environment._log_guard

    def noted(prefix: str, guard: Any, **rest: Any) -> None:
        log(prefix, guard, **rest)
        if prefix == "eval":
            asked.setdefault(guard, nodes.get(_traced_name()))

    environment._log_guard = noted
    try:
        yield
    finally:
        del environment._log_guard
    error = _taken_for_granted(program, environment.replacements, asked, bounds)
    if error is not None:
        raise error


def _taken_for_granted(
    program: Any, replacements: Mapping[Any, Any], asked: Mapping[Any, Any], bounds: Mapping[str, Bounds]
) -> UnsupportedError | None:
    """The error that a symbol has become a number, or that something was asked that does not hold for all of its sizes."""
    for guard, node in asked.items():
        (symbol, *others) = guard.free_symbols or (None,)
        if others or str(symbol) not in bounds:
            continue
        name, interval = str(symbol), bounds[str(symbol)]
        size = next((size for size in _sizes(interval) if _holds(guard, symbol, size) is False), None)
        if size is None:
            continue
        operator, source = ("an op of the program", None) if node is None else (str(node.target), source_of(node))
        if symbol in replacements and replacements[symbol].is_number:
            return fixed(name, _axis(program, name), Range(*interval), replacements[symbol], operator, source)
        place = f"{name} ({axis})" if (axis := _axis(program, name)) else name
        return UnsupportedError(
            f"torch takes {operator} apart for sizes with {guard} alone, and {place}, declared as {Range(*interval)}, may be {size}",
            source=source,
            hint="export the program with that size fixed, or for sizes of which that is true (2 * half is an even dimension)",
        )
    for symbol, value in replacements.items():
        low, high = bounds.get(str(symbol), (None, None))
        # A trace by someone else has done it: nobody knows by which op.
        if str(symbol) in bounds and value.is_number and not low == high == int(value):
            return fixed(str(symbol), _axis(program, str(symbol)), Range(low, high), value, "an op of the program", None)
    return None


def _sizes(bounds: Bounds) -> list[int]:
    """Some sizes of a range, without 0 and 1."""
    low = max(bounds[0] or 0, 2)
    last = low + SIZES - 1 if bounds[1] is None else bounds[1]
    return [*range(low, min(last, low + SIZES - 2) + 1), *((last,) if last >= low + SIZES - 1 else ())]


def _holds(guard: Any, symbol: Any, size: int) -> bool | None:
    """Whether what torch asked is true of a size; None where that has no answer, as a remainder by 0."""
    import sympy

    try:
        answer = guard.xreplace({symbol: sympy.Integer(size)})
    except (ArithmeticError, ValueError, TypeError, AssertionError):
        return None
    return bool(answer) if answer in (True, False) else None


def _environment(program: Any) -> Any:
    """What torch knows of a program's symbols; None where it has none."""
    import torch

    for node in program.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _axis(program: Any, symbol: str) -> str | None:
    """The first axis of an input that a symbol was the size of."""
    for node in program.graph.nodes:
        for number, size in enumerate(getattr(node.meta.get("val"), "shape", ()) if node.op == "placeholder" else ()):
            # What the size was made as: its value is a number by now.
            if str(getattr(getattr(size, "node", None), "_expr", None)) == symbol:
                return f"axis {number} of {node.name}"
    return None


def _traced_name() -> str | None:
    """The name that the node in work had in the program that torch traces again."""
    import torch

    sources = torch.fx.traceback.get_current_meta().get("from_node")
    name = None
    while sources:
        name = getattr(sources[-1].node_info, "name", None)
        sources = sources[-1].from_node
    return name
