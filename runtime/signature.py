"""The signature of an engine: what its inputs must be, and which symbol values their sizes give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ..ir import dims
from ..ir.dims import Facts
from ..ir.errors import EngineError, InputError
from ..ir.sizes import solves_of
from ..ir.spelling import nearest
from .contents import Port


class Signature:
    """Checks the shapes of inputs and finds the symbols; made once per engine."""

    def __init__(
        self,
        inputs: Sequence[Port],
        facts: Facts,
        later: Iterable[str] = (),
        used: Iterable[str] = (),
        numbers: Iterable[tuple[str, int]] = (),
    ) -> None:
        self.inputs = tuple(inputs)
        self.numbers = tuple(numbers)
        self.facts = facts
        self.fixed = facts.fixed
        settled = (*self.fixed, *(name for name, _ in self.numbers))
        self.solves = tuple(solves_of((port.type.shape for port in self.inputs), settled))
        found = {*settled, *(solve.symbol for solve in self.solves)}
        for name in sorted(set(used) - found - set(later)):
            raise EngineError(
                f"symbol {name} of the engine is the size of no input and the value of none, so a call cannot give it a value"
            )
        self.later = frozenset(later) - found
        told = {(solve.place, solve.axis) for solve in self.solves if solve.factor == 1 and solve.rest == 0}
        # The sizes that no symbol takes its value from as it is.
        self.sizes = tuple(
            (place, axis, size)
            for place, port in enumerate(self.inputs)
            for axis, size in enumerate(port.type.shape)
            if (place, axis) not in told
        )
        self.names = {port.name: number for number, port in enumerate(self.inputs)}

    def order(self, given: Mapping[str, Any]) -> list[Any]:
        """Named inputs in the order of the signature; InputError for a missing or an unexpected one."""
        expected = f"expected {', '.join(self.names) or 'none'}"
        for name in given:
            if name not in self.names:
                raise InputError(f"unexpected input {name!r}, {expected}", hint=nearest(str(name), self.names))
        missing = [port for port in self.inputs if port.name not in given]
        if missing:
            names = ", ".join(repr(port.name) for port in missing)
            what = f"input {names} is" if len(missing) == 1 else f"inputs {names} are"
            raise InputError(f"{what} missing, {expected}", note="\n".join(f"{port.name} is {self._described(port)}" for port in missing))
        return [given[name] for name in self.names]

    def fill(self, given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Inputs of which the first stand in order and the rest have names; InputError for one given twice or missing."""
        first = dict(zip(self.names, given, strict=False))
        if len(given) > len(self.names):
            self.check_count(len(given) + len(named))
        for name in named:
            if name in first:
                raise InputError(f"input {name!r} is given twice, by its place and by its name")
        return self.order({**first, **named})

    def check_count(self, count: int) -> None:
        """InputError unless that many positional inputs are right."""
        if count != len(self.inputs):
            names = ", ".join(self.names)
            raise InputError(f"got {count} inputs, expected {len(self.inputs)}{f' ({names})' if names else ''}")

    def bind(self, shapes: Sequence[Sequence[int]], given: Sequence[int] = ()) -> dict[str, int]:
        """Symbol values from the inputs' shapes and `given`, the integers of `numbers`; InputError names input and rule."""
        for port, shape in zip(self.inputs, shapes, strict=True):
            if len(shape) != port.type.rank:
                message = f"input {port.name!r} has rank {len(shape)} {list(shape)}, expected {port.type.rank}: {port.type}"
                raise InputError(message, note=self._allowed(port.type.shape))
        values: dict[str, int] = dict(self.fixed)
        origins: dict[str, str] = {}
        for (name, place), value in zip(self.numbers, given, strict=True):
            port = self.inputs[place]
            self._check_symbol(
                f"input {port.name!r} is {value}", name, value, "build the engine for a wider range, of a model that was exported for it"
            )
            values[name] = value
            origins[name] = port.name
        for solve in self.solves:
            port = self.inputs[solve.place]
            size = shapes[solve.place][solve.axis]
            where = f"input {port.name!r} has size {size} in dimension {solve.axis}"
            quotient, remainder = divmod(size - dims.evaluate(solve.rest, values), solve.factor)
            low = self.facts.ranges.get(solve.symbol, dims.UNBOUNDED).low
            if remainder or (quotient < 0 and low is not None and low >= 0):
                wanted = port.type.shape[solve.axis]
                raise InputError(f"{where}, expected {wanted}", note=self._allowed([wanted]))
            self._check_symbol(where, solve.symbol, quotient, "build the engine with a wider --shape range; a .pt2 must be exported for it")
            values[solve.symbol] = quotient
            origins[solve.symbol] = port.name
        for place, axis, expected in self.sizes:
            if dims.evaluate(expected, values) != shapes[place][axis]:
                self._refuse(self.inputs[place], axis, shapes[place][axis], values, origins)
        clash = self.facts.clash(values)
        if clash is not None:
            shown = " and ".join(str(dims.evaluate(size, values)) for size in clash)
            note = f"{clash[0]} and {clash[1]} broadcast: {_origins(frozenset().union(*map(dims.symbols, clash)), values, origins)}"
            raise InputError(f"sizes {shown} do not broadcast, expected equal ones, or one of them 1", note=note)
        return values

    def _check_symbol(self, where: str, name: str, value: int, hint: str) -> None:
        bounds = self.facts.ranges.get(name, dims.UNBOUNDED)
        if value not in bounds:
            raise InputError(f"{where}, so {name} = {value}, expected {name} in {bounds}", hint=hint)
        divisor = self.facts.divisors.get(name, 1)
        if value % divisor:
            raise InputError(f"{where}, so {name} = {value}, expected a multiple of {divisor}", note=f"{name} is in {bounds}")

    def _described(self, port: Port) -> str:
        """An input's type, and what its symbols may be."""
        allowed = self._allowed(port.type.shape)
        return str(port.type) if allowed is None else f"{port.type}, where {allowed}"

    def _allowed(self, sizes: Iterable[dims.Dim]) -> str | None:
        """What the symbols of sizes may be; None where there are none."""
        names = sorted(frozenset().union(*map(dims.symbols, sizes)))
        known = ((name, self.facts.ranges.get(name, dims.UNBOUNDED), self.facts.divisors.get(name, 1)) for name in names)
        told = [f"{name} is in {bounds}{f' and a multiple of {divisor}' if divisor > 1 else ''}" for name, bounds, divisor in known]
        return " and ".join(told) or None

    def _refuse(self, port: Port, axis: int, size: int, values: Mapping[str, int], origins: Mapping[str, str]) -> NoReturn:
        """The error for a size that does not fit the others."""
        expected = port.type.shape[axis]
        number, why = dims.evaluate(expected, values), _origins(dims.symbols(expected), values, origins)
        # A symbol's own value says where it is from; an expression says what it is made of.
        note = (why if dims.name_of(expected) is not None else f"{expected} is {number}: {why}") if why else None
        raise InputError(f"input {port.name!r} has size {size} in dimension {axis}, expected {number}", note=note)


def _origins(names: Iterable[str], values: Mapping[str, int], origins: Mapping[str, str]) -> str:
    """What symbols are, and from which inputs."""
    return ", ".join(f"{name} is {values[name]}" + (f" from input {origins[name]!r}" if name in origins else "") for name in sorted(names))
