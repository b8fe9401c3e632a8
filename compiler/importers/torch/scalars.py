"""Numbers that are no tensors: scalars captured from data, Python's arithmetic on them, and what a program requires of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....ir import dims
from ....ir.errors import UnsupportedError
from ....ir.graph import Builder, Graph, Module, Value
from ....ir.ops.table import OPS
from ....ir.types import DType, TensorType, boolean, f64, i64
from ....runtime.contents import Port
from ....runtime.signature import Signature
from .casts import cast
from .context import Number
from .symbols import Symbols

_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "pow": "pow", "sym_max": "maximum", "sym_min": "minimum"}
_DIVISIONS = {"truediv": "div", "floordiv": "floor_div", "mod": "mod"}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_NEGATIONS = ("not_", "sym_not")
_BITS = {"and_": ("logical_and", "bit_and"), "or_": ("logical_or", "bit_or"), "xor": ("logical_xor", "bit_xor")}
"""Python's operators on bits: what they are of truth values, and of integers."""
_SIGNS = {"neg": "neg", "abs": "abs", "pos": "pos"}
_WHOLE = {"sym_int": "trunc", "trunc": "trunc", "floor": "floor", "ceil": "ceil", "round": "round"}
_FUNCTIONS = ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")


@dataclass(frozen=True)
class Refused:
    """A number that has no form here; whoever reads it is refused."""

    why: str


class Scalars:
    """The numbers of one import."""

    def __init__(self, b: Builder, symbols: Symbols) -> None:
        self.b = b
        self.symbols = symbols

    def value(self, x: Any, dtype: DType | None = None) -> Value:
        """A number as a scalar of the program, in its own dtype or in another."""
        if isinstance(x, Number):
            found = x.value
        elif isinstance(x, Value):
            found = x if not x.type.rank else self.b.reshape(x, shape=())
        elif isinstance(x, dims.Expr) or (isinstance(x, int) and not isinstance(x, bool)):
            found = self.symbols.integer(self.b, x)
        elif isinstance(x, (bool, float)):
            found = self.b.full(shape=(), value=x, dtype=boolean if isinstance(x, bool) else f64)
        else:
            raise UnsupportedError(f"got a {type(x).__name__} where a number is expected")
        return found if dtype is None else cast(self.b, found, dtype)

    # captured

    def captured(self, x: Value, fake: Any) -> Any:
        """What `.item()` gives: an integer is the value of its symbol from here on."""
        import torch

        scalar = self.value(x)
        if isinstance(fake, (bool, torch.SymBool)):
            return Number(self.value(scalar, boolean))
        if isinstance(fake, (float, torch.SymFloat)):
            return Number(self.value(scalar, f64))
        integer, size = self.value(scalar, i64), self.symbols.dim(fake)
        name = dims.name_of(size)
        if name is not None and not self.symbols.is_known(name):
            self.symbols.numbers[name] = integer
        else:
            # Torch knows what it must be: the program has checked that it is equal to something.
            self.require(self.b.eq(integer, self.value(size)), f"a captured integer is not equal to {size}")
        return size

    # arithmetic

    def number(self, name: str, fake: Any, arguments: Sequence[Any]) -> Any:
        """Arithmetic on numbers: a dimension where it has that form, else a scalar of the program, else what says why not."""
        import torch

        if isinstance(fake, (int, float, bool)):
            return fake
        if isinstance(fake, torch.SymInt):
            with contextlib.suppress(UnsupportedError):
                return self.symbols.dim(fake)
        refused = next((part for part in flat(arguments) if isinstance(part, Refused)), None)
        if refused is not None:
            return refused
        graph = self.b.graph
        last = graph.last
        try:
            return self.computed(name, arguments)
        except UnsupportedError as error:
            while graph.last is not last and graph.last is not None:
                graph.remove(graph.last)
            return Refused(error.message)

    def computed(self, name: str, arguments: Sequence[Any]) -> Number:
        """Python's arithmetic on numbers, by the function's name; UnsupportedError for what has no form here."""
        name = name.removeprefix("_sym_")
        if name == "sym_sum" and len(arguments) == 1:
            return self._folded("add", arguments[0])
        values = [self.value(argument) for argument in arguments]
        if name in _DIVISIONS and len(values) == 2:
            return self._divided(name, values)
        if name in _ARITHMETIC and len(values) == 2:
            return Number(self._binary(_ARITHMETIC[name], values, _common(values)))
        if name in _COMPARISONS and len(values) == 2:
            return Number(self._binary(name, values, _common(values)))
        if name in _NEGATIONS and len(values) == 1:
            return Number(self.b.logical_not(self.value(values[0], boolean)))
        if name in _BITS and len(values) == 2 and _common(values) == i64:
            of_truth, of_integers = _BITS[name]
            is_truth = all(value.dtype == boolean for value in values)
            return Number(self._binary(of_truth, values, boolean) if is_truth else self._binary(of_integers, values, i64))
        if name == "sym_ite" and len(values) == 3:
            dtype = _common(values[1:])
            return Number(self.b.where(self.value(values[0], boolean), *(self.value(value, dtype) for value in values[1:])))
        if len(values) == 1:
            return self._unary(name, values[0])
        raise UnsupportedError(f"the arithmetic {name} on numbers has no form here")

    def _unary(self, name: str, x: Value) -> Number:
        if name in _SIGNS:
            number = self.value(x, i64) if x.dtype == boolean else x
            return Number(number if name == "pos" else self.b.build(OPS[_SIGNS[name]], (number,), {})[0])
        if name == "sym_float":
            return Number(self.value(x, f64))
        if name in _WHOLE:
            return Number(self.value(x if x.dtype != f64 else self.b.build(OPS[_WHOLE[name]], (x,), {})[0], i64))
        function = name.removeprefix("sym_")
        if function in _FUNCTIONS:
            return Number(self.b.build(OPS[function], (self.value(x, f64),), {})[0])
        raise UnsupportedError(f"the function {name} of a number has no form here")

    def _divided(self, name: str, values: Sequence[Value]) -> Number:
        dtype = f64 if name == "truediv" else _common(values)
        left, right = (self.value(value, dtype) for value in values)
        made = right.op
        if made is None or made.name != "full" or not made.attrs["value"]:
            self.require(self.b.ne(right, self.value(0, dtype)), "division by zero")
        return Number(self.b.build(OPS[_DIVISIONS[name]], (left, right), {})[0])

    def _binary(self, op: str, values: Sequence[Value], dtype: DType) -> Value:
        return self.b.build(OPS[op], [self.value(value, dtype) for value in values], {})[0]

    def _folded(self, op: str, parts: Sequence[Any]) -> Number:
        values = [self.value(part) for part in parts]
        total = values[0]
        for value in values[1:]:
            total = self._binary(op, (total, value), _common((total, value)))
        return Number(total)

    # requirements

    def required(self, operator: str, argument: Any, message: str, bounds: Mapping[str, Any]) -> None:
        """What a traced program requires of its numbers: the operators of REQUIREMENTS."""
        if operator.startswith("aten.sym_constrain_range"):
            low = 0 if bounds.get("min") is None and "for_size" in operator else bounds.get("min")
            self.require_range(argument, low, bounds.get("max"))
            return
        self.require(self.value(argument, boolean), message)

    def require(self, condition: Value, message: str) -> None:
        """An error at run time where the condition is false."""
        self.b.require(condition, message=message)

    def require_range(self, x: Any, low: Any, high: Any) -> None:
        """An error at run time where a number leaves its range; None means no bound."""
        value = self.value(x, i64)
        for bound, op, word in ((low, "ge", "at least"), (high, "le", "at most")):
            if bound is not None and abs(bound) < math.inf and abs(bound) < 1 << 62:
                self.require(self._binary(op, (value, self.value(int(bound))), i64), f"{x} is not {word} {bound}")


def given_sizes(types: Sequence[TensorType], module: Module) -> set[str]:
    """The symbols that the sizes of tensors give."""
    ports = [Port(str(number), type) for number, type in enumerate(types)]
    return {solve.symbol for solve in Signature(ports, module.facts).solves}


def symbol_of(fake: Any, symbols: Symbols) -> str | None:
    """The symbol that an integer argument is the value of; None for what is no integer or no symbol by itself."""
    import torch

    return dims.name_of(symbols.dim(fake)) if isinstance(fake, torch.SymInt) else None


def bind_numbers(module: Module, graph: Graph, symbols: Symbols) -> None:
    """Give symbols of sizes that are numbers their value by an `item`; facts of symbols that no size names are forgotten."""
    used = graph.symbols
    made = {dims.name_of(size) for op in graph if op.definition.kind == "opaque" for result in op.results for size in result.shape}
    for name in sorted(used - symbols.sizes):
        number = symbols.number(name)
        if number is None and name not in made:
            raise UnsupportedError(f"the size {name} is the size or the value of no argument", hint="mark that dimension static")
        if number is not None:
            before = number.op.next if number.op is not None else graph.first
            Builder(module, graph, before, number.source).item(number, symbol=dims.symbol(name))
    used = used.union(*(each.symbols for each in module.functions.values()))
    module.facts = dims.Facts({name: bounds for name, bounds in module.facts.ranges.items() if name in used}, module.facts.divisors)


def flat(argument: Any) -> Iterator[Any]:
    """The parts of nested lists and tuples."""
    if isinstance(argument, (tuple, list)):
        for part in argument:
            yield from flat(part)
    else:
        yield argument


def _common(values: Sequence[Value]) -> DType:
    """The type that Python computes in: floats where one is a float, else integers."""
    return f64 if any(value.dtype == f64 for value in values) else i64
