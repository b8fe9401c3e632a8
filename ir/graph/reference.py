"""The reference interpreter of graph modules, in its two modes, and the one judge of results."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import dims, scalar
from ..control import functions_of, run_control
from ..errors import InputError
from ..ops import table
from ..types import TensorType, from_numpy, type_of
from .graph import Graph, Module, Op, State, Value

Array = np.ndarray[Any, Any]
WHOLE = ("quantize", "round")
"""Ops that make whole numbers of floats, the nearest ones."""


def interpret(
    module: Module,
    inputs: Sequence[Array],
    *,
    wide: bool = False,
    function: str | None = None,
    states: MutableMapping[str, Array] | None = None,
    nudged: float = 0.0,
) -> list[Array]:
    """Run a function, else the entry. Stepwise: each op in its compute type, rounded to its result type; wide: every float is f64.

    Wide drops every op's own rounding and no written one: `cast` and `quantize` convert to their dtype, and what comes
    of that goes on as f64. Excess precision is a better answer of the same program; a conversion left out is another one.
    `states` hold what states hold, and are written; a state that is not there yet begins as the module says. What becomes a whole
    number is larger by `nudged` of itself: what lies as near to two of them becomes the other one.
    """
    graph = module.main if function is None else module.functions[function]
    held: MutableMapping[str, Array] = {} if states is None else states
    given = [*inputs, *(held[name] if name in held else initial(module.states[name]) for name in graph.states)]
    clash = module.facts.clash(bind_symbols(graph.inputs, given)) if module.facts.broadcasts else None
    if clash is not None:
        raise InputError(f"sizes {clash[0]} and {clash[1]} do not broadcast, expected equal ones, or one of them 1")
    outputs = _Run(module, wide, nudged).graph(graph, given, bind_symbols(graph.inputs, given))
    count = len(graph.results)
    # What a session keeps is of the state's own type, however wide a call computes.
    held.update({name: scalar.convert(array, before.dtype) for (name, before, _), array in zip(graph.ties, outputs[count:], strict=True)})
    return outputs[:count]


def initial(state: State) -> Array:
    """What a state holds when a session begins."""
    if state.initial is not None and state.initial.constant is not None:
        return state.initial.constant.array
    return np.zeros([int(size) for size in state.type.shape if isinstance(size, int)], state.type.dtype.numpy)


@dataclass(frozen=True)
class _Run:
    """The functions of a module on arrays, in one mode."""

    module: Module
    wide: bool
    nudged: float = 0.0

    def graph(self, graph: Graph, inputs: Sequence[Array], bindings: dict[str, int]) -> list[Array]:
        """The outputs of one function."""
        wide = self.wide
        values: dict[Value, Array] = {}
        for value, array in zip(graph.inputs, inputs, strict=True):
            values[value] = _widen(array) if wide else array
        for op in graph:
            operands = tuple(None if v is None else _read(values, v, wide) for v in op.operands)
            attrs = {name: bind_attribute(value, bindings) for name, value in op.attrs.items()}
            for result, array in zip(op.results, self.op(op, operands, attrs, bindings), strict=True):
                values[result] = array
                bind_sizes(result.type, array, bindings)
            if op.name == "item":
                bindings[str(op.attrs["symbol"])] = int(values[op.result])
        return [_read(values, output, wide) for output in graph.outputs]

    def op(self, op: Op, operands: tuple[Array | None, ...], attrs: Mapping[str, Any], bindings: Mapping[str, int]) -> Sequence[Array]:
        """The results of one op."""
        if functions_of(op.name, attrs):
            return run_control(op.name, attrs, operands, self.call)
        types = tuple(concrete(result.type, bindings) for result in op.results)
        if self.nudged and op.name in WHOLE and operands[0] is not None and from_numpy(operands[0].dtype).is_float:
            with np.errstate(all="ignore"):
                operands = ((operands[0] * (1 + self.nudged)).astype(operands[0].dtype), *operands[1:])
        return table.run(op.definition, operands, attrs, types, self.wide)

    def call(self, name: str, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a function that another one runs."""
        graph, bindings = self.module.functions[name], dict[str, int]()
        for value, array in zip(graph.inputs, inputs, strict=True):
            bind_sizes(value.type, array, bindings)
        return self.graph(graph, inputs, bindings)


def bind_attribute(value: Any, bindings: Mapping[str, int]) -> Any:
    """An attribute with symbolic dimensions evaluated; a symbol that the op itself will bind stays."""
    if isinstance(value, dims.Expr):
        return dims.evaluate(value, bindings) if dims.symbols(value) <= bindings.keys() else value
    if isinstance(value, tuple):
        return tuple(bind_attribute(part, bindings) for part in value)
    return value


def concrete(type: TensorType, bindings: Mapping[str, int]) -> TensorType:
    """The type with every size evaluated; sizes with unbound symbols stay as they are."""
    return type.with_shape(tuple(dims.evaluate(d, bindings) if dims.symbols(d) <= bindings.keys() else d for d in type.shape))


def bind_sizes(type: TensorType, array: Array, bindings: dict[str, int]) -> None:
    """Bind the symbols that are a whole size of `type` to the sizes that the array has."""
    for size, expected in zip(array.shape, type.shape, strict=True):
        if (name := dims.name_of(expected)) is not None:
            bindings.setdefault(name, size)


def bind_symbols(inputs: Sequence[Value], arrays: Sequence[Array]) -> dict[str, int]:
    """Symbol values from the inputs' sizes; InputError names the input that does not fit."""
    if len(inputs) != len(arrays):
        raise InputError(f"got {len(arrays)} inputs, expected {len(inputs)}")
    bindings: dict[str, int] = {}
    for value, array in zip(inputs, arrays, strict=True):
        given = type_of(array)
        if given.dtype != value.dtype or given.rank != value.type.rank:
            raise InputError(f"input {value.name}: got {given}, expected {value.type}")
        bind_sizes(value.type, array, bindings)
    for value, array in zip(inputs, arrays, strict=True):
        if concrete(value.type, bindings).shape != array.shape:
            raise InputError(f"input {value.name}: got {type_of(array)}, expected {value.type}")
    return bindings


def _read(values: Mapping[Value, Array], value: Value, wide: bool) -> Array:
    if value.constant is not None:
        return _widen(value.constant.array) if wide else value.constant.array
    return values[value]


def _widen(array: Array) -> Array:
    if array.dtype.kind == "O":
        return array
    return scalar.convert(array, table._widened(from_numpy(array.dtype)))


# --- the judge --------------------------------------------------------------------------------------------------------

ULP_FLOOR = {"f64": 64, "f32": 16, "f16": 4, "bf16": 4}
DIGITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "f8e4m3": 4, "f8e5m2": 3}


@dataclass(frozen=True)
class Verdict:
    """Whether a result passes; `error` and `allowed` are the worst element's, `where` its index, `largest` the output's magnitude."""

    passed: bool
    reason: str
    error: float = 0.0
    allowed: float = 0.0
    where: tuple[int, ...] = ()
    largest: float = 0.0


def judge(
    result: Array, stepwise: Array, wide: Array, *, factor: float = 2.0, floor: float | None = None, digits: int | None = None
) -> Verdict:
    """Compare a result with the reference, element by element.

    Floats pass when the worst error against `wide` is at most `factor` times the worst of `stepwise` plus `floor`
    units in the last place of the output's largest finite magnitude (default by dtype); NaN and infinities must stand
    in the same places as in stepwise, or as in wide once that is in the result's dtype. Integers, bools and strings must
    be equal. `digits` says in how many binary digits the program computes, where that is not the result's dtype.
    """
    if result.shape != stepwise.shape or result.dtype != stepwise.dtype:
        return Verdict(False, f"got {result.dtype.name}{list(result.shape)}, expected {stepwise.dtype.name}{list(stepwise.shape)}")
    if result.dtype.kind == "O" or not from_numpy(result.dtype).is_float:
        return _judge_exact(result, stepwise)
    got, step, exact = (np.asarray(a).astype(np.float64) for a in (result, stepwise, wide))
    same = (got == step) | (np.isnan(got) & np.isnan(step))
    # Where wide and stepwise disagree about being finite (overflow), either of them is an acceptable answer.
    with np.errstate(over="ignore"):
        held = exact.astype(result.dtype).astype(np.float64)
    fits = np.isfinite(held)
    agrees = same | (got == exact) | (np.isnan(got) & np.isnan(exact)) | (~fits & ((got == held) | (np.isnan(got) & np.isnan(held))))
    finite = np.isfinite(got) & np.isfinite(exact) & (np.isfinite(step) | fits)
    wrong = ~agrees & ~finite & (~np.isfinite(got) | ~np.isfinite(step))
    if wrong.any():
        where = tuple(int(n) for n in np.argwhere(wrong)[0])
        return Verdict(False, f"got {got[where]}, expected {step[where]} at {list(where)}", np.inf, 0.0, where)
    usable = finite & ~(same & ~np.isfinite(step))
    if not usable.any():
        return Verdict(True, "equal")
    dtype = from_numpy(result.dtype)
    magnitude = float(np.abs(exact[usable]).max())
    ulp = max(magnitude, float(np.finfo(np.float32).tiny)) * 2.0 ** (1 - (digits or DIGITS.get(dtype.name, 3)))
    with np.errstate(invalid="ignore"):
        distance, own = np.abs(got - exact), np.abs(step - exact)
    units = ULP_FLOOR.get(dtype.name, 1) if floor is None else floor
    allowed = factor * float(own[usable & np.isfinite(step)].max(initial=0.0)) + units * ulp
    error = np.where(usable, distance, 0.0)
    worst = tuple(int(n) for n in np.unravel_index(int(error.argmax()), error.shape))
    passed = bool(error[worst] <= allowed)
    reason = (
        "within bounds" if passed else f"got {float(got[worst])!r}, expected {float(exact[worst])!r} within {allowed:.3g} at {list(worst)}"
    )
    return Verdict(passed, reason, float(error[worst]), allowed, worst, magnitude)


def _judge_exact(result: Array, expected: Array) -> Verdict:
    differs = np.asarray(result != expected)
    if result.dtype.kind == "c":
        close = np.isclose(result, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
        differs = ~close
    if differs.any():
        where = tuple(int(n) for n in np.argwhere(differs)[0])
        return Verdict(False, f"got {result[where]!r}, expected {expected[where]!r} at {list(where)}", np.inf, 0.0, where)
    return Verdict(True, "equal")
