"""The region interpreter: executes what a region means on numpy arrays, axis by axis and without any schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import InputError, VerifyError
from ..expression import Apply, Constant, Index
from ..summation import running, total
from ..types import type_of
from .region import SCANS, Let, Load, Operand, Reduce, Ref, Region, Scalar, Scan, Statement, Store

Array = np.ndarray[Any, Any]

# From this many points on, a sum of products goes through einsum, which does not hold all of them at once.
EINSUM_POINTS = 1 << 16
DIM_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {"div": np.floor_divide, "mod": np.mod, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Space:
    """The points that one statement is evaluated at: axis names in order, with their extents."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def vector(self, name: str) -> Array:
        """0..extent along the named axis, size 1 along the others."""
        place = self.names.index(name)
        shape = [1] * len(self.names)
        shape[place] = self.sizes[place]
        return np.arange(self.sizes[place], dtype=np.int64).reshape(shape)

    def full(self, value: Array) -> Array:
        """`value` at every point."""
        return np.broadcast_to(value, self.sizes)


@dataclass
class Machine:
    """The state of one run: symbols, operands, named values with their axes, which output elements were written."""

    region: Region
    symbols: dict[str, int]
    extents: dict[str, int]
    operands: dict[str, Array]
    values: dict[str, tuple[tuple[str, ...], Array]] = field(default_factory=dict)
    written: dict[str, Array] = field(default_factory=dict)

    def space(self, axes: Sequence[str]) -> Space:
        return Space(tuple(axes), tuple(self.extents[axis] for axis in axes))


def run_region(region: Region, arrays: Mapping[str, Array], symbols: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Execute a region; returns its outputs by name.

    `arrays` holds the inputs by name (and what an output holds before, where stores combine into it). Symbols that are
    a whole size of an input need not be given. VerifyError where an access without `other` leaves its operand, or an
    output element is never written.
    """
    bound = _bind(region, arrays, dict(symbols or {}))
    extents = {axis.name: dims.evaluate(axis.extent, bound) for axis in region.axes}
    machine = Machine(region, bound, extents, {operand.name: arrays[operand.name] for operand in region.inputs})
    for output in region.outputs:
        _prepare_output(machine, output, arrays.get(output.name))
    for statement in region.body:
        _execute(machine, statement)
    for output in region.outputs:
        if not machine.written[output.name].all():
            where = np.argwhere(~machine.written[output.name])[0].tolist()
            raise VerifyError(f"region {region.name}: element {where} of %{output.name} is never written")
    return {output.name: machine.operands[output.name] for output in region.outputs}


def _bind(region: Region, arrays: Mapping[str, Array], symbols: dict[str, int]) -> dict[str, int]:
    for operand in region.inputs:
        if operand.name not in arrays:
            raise InputError(f"region {region.name}: input %{operand.name} is missing, expected {operand.type}")
        given = type_of(arrays[operand.name])
        if given.dtype != operand.type.dtype or given.rank != operand.type.rank:
            raise InputError(f"region {region.name}: input %{operand.name}: got {given}, expected {operand.type}")
        for size, expected in zip(given.shape, operand.type.shape, strict=True):
            if isinstance(size, int) and (name := dims.name_of(expected)) is not None:
                symbols.setdefault(name, size)
    for operand in region.inputs:
        shape = _shape(operand, symbols)
        if shape != arrays[operand.name].shape:
            got = type_of(arrays[operand.name])
            raise InputError(f"region {region.name}: input %{operand.name}: got {got}, expected {operand.type} with sizes {list(shape)}")
    return symbols


def _shape(operand: Operand, symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(dims.evaluate(size, symbols) for size in operand.type.shape)


def _prepare_output(machine: Machine, output: Operand, initial: Array | None) -> None:
    shape = _shape(output, machine.symbols)
    if initial is None:
        machine.operands[output.name] = np.zeros(shape, dtype=output.type.dtype.numpy)
    else:
        machine.operands[output.name] = initial.copy()
    machine.written[output.name] = np.full(shape, initial is not None)


# --- statements -------------------------------------------------------------------------------------------------------


def _execute(machine: Machine, statement: Statement) -> None:
    if isinstance(statement, Let):
        space = machine.space(statement.axes)
        machine.values[statement.name] = (statement.axes, space.full(_evaluate(machine, statement.value, space)))
    elif isinstance(statement, Reduce):
        machine.values[statement.name] = (statement.axes, _reduce(machine, statement))
    elif isinstance(statement, Scan):
        machine.values[statement.name] = (statement.axes, _scan(machine, statement))
    else:
        _store(machine, statement)


def identity_of(kind: str, dtype: np.dtype[Any]) -> Any:
    """What a fold of nothing gives."""
    if kind in ("sum", "any"):
        return dtype.type(0)
    if kind in ("prod", "all"):
        return dtype.type(1)
    if dtype.kind == "b":
        return kind == "min"
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max
    return dtype.type(-np.inf if kind == "max" else np.inf)


def _reduce(machine: Machine, statement: Reduce) -> Array:
    space = machine.space((*statement.axes, *statement.over))
    folded = tuple(range(len(statement.axes), len(space.names)))
    product = _sum_of_products(machine, statement, space)
    if product is not None:
        return product
    value = space.full(_evaluate(machine, statement.value, space))
    kind = statement.kind
    with np.errstate(all="ignore"):
        if kind.startswith("arg"):
            return _extreme_index(kind, value)
        if kind == "sum":
            return total(value, folded)
        if kind == "prod":
            return np.asarray(value.prod(axis=folded, dtype=value.dtype))
        if kind in ("any", "all"):
            return np.asarray(getattr(value, kind)(axis=folded))
        return np.asarray(getattr(value, kind)(axis=folded, initial=identity_of(kind, value.dtype)))


def _extreme_index(kind: str, value: Array) -> Array:
    if not value.shape[-1]:
        raise VerifyError(f"{kind} over an empty axis has no index, expected 1 or more elements")
    last = kind.endswith("_last")
    find = np.argmax if kind.startswith("argmax") else np.argmin
    index = np.asarray(find(value[..., ::-1] if last else value, axis=-1), dtype=np.int64)
    return value.shape[-1] - 1 - index if last else index


def _sum_of_products(machine: Machine, statement: Reduce, space: Space) -> Array | None:
    """A large `sum: mul(a, b)` by einsum over the axes that each factor varies over; None for anything else."""
    value = statement.value
    large = np.prod(space.sizes, dtype=np.float64) >= EINSUM_POINTS
    if statement.kind != "sum" or not isinstance(value, Apply) or value.primitive != "mul" or not large:
        return None
    if value.dtype.name not in ("f32", "f64"):
        return None
    factors = [_evaluate(machine, factor, space) for factor in value.args]
    varying = [[n for n in range(len(space.sizes)) if factor.shape[n] != 1] for factor in factors]
    arrays = [factor.reshape([factor.shape[n] for n in places]) for factor, places in zip(factors, varying, strict=True)]
    shared = sorted(set(varying[0]) | set(varying[1]))
    kept = [n for n in range(len(statement.axes)) if n in shared]
    result = np.einsum(arrays[0], varying[0], arrays[1], varying[1], kept, optimize=True)
    # An axis that neither factor varies over repeats the same terms.
    repeats = int(np.prod([space.sizes[n] for n in range(len(statement.axes), len(space.sizes)) if n not in shared], dtype=np.int64))
    shape = [space.sizes[n] if n in kept else 1 for n in range(len(statement.axes))]
    return np.broadcast_to((result * result.dtype.type(repeats)).reshape(shape), space.sizes[: len(statement.axes)])


SCAN_FOLDS: dict[str, Any] = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


def _scan(machine: Machine, statement: Scan) -> Array:
    space = machine.space(statement.axes)
    axis = statement.axes.index(statement.along)
    value = np.array(space.full(_evaluate(machine, statement.value, space)))
    value = np.flip(value, axis) if statement.reverse else value
    if statement.exclusive and value.shape[axis]:
        first = np.full_like(value.take([0], axis), identity_of(SCANS[statement.kind], value.dtype))
        value = np.concatenate([first, value.take(np.arange(value.shape[axis] - 1), axis)], axis)
    with np.errstate(all="ignore"):
        if statement.kind == "cumsum":
            result = running(value, axis)
        else:
            result = SCAN_FOLDS[statement.kind].accumulate(value, axis=axis, dtype=value.dtype)
    return np.flip(result, axis) if statement.reverse else np.asarray(result)


COMBINES: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _store(machine: Machine, statement: Store) -> None:
    space = machine.space(statement.axes)
    target, written = machine.operands[statement.output], machine.written[statement.output]
    value = space.full(_evaluate(machine, statement.value, space))
    gathers = {name: _evaluate(machine, gather, space).astype(np.int64) for name, gather in statement.gathers}
    places = [space.full(_index(machine, subscript, space, gathers)) for subscript in statement.subscripts]
    inside = np.ones(space.sizes, dtype=bool)
    for place, size in zip(places, target.shape, strict=True):
        inside &= (place >= 0) & (place < size)
    where = tuple(place[inside] for place in places)
    if not where:
        _store_scalar(statement, target, value[inside])
        written[...] = True
    elif statement.combine is None:
        target[where] = value[inside]
        written[where] = True
    else:
        # Small floats have no ufunc.at of their own: combine in f32, round once for each element.
        wide = target.astype(np.float32) if target.dtype.itemsize < 4 and target.dtype.kind not in "iub" else target
        COMBINES[statement.combine].at(wide, where, value[inside].astype(wide.dtype))
        target[...] = wide.astype(target.dtype)


def _store_scalar(statement: Store, target: Array, values: Array) -> None:
    for value in values.ravel():
        target[()] = value if statement.combine is None else COMBINES[statement.combine](target, value)


# --- values -----------------------------------------------------------------------------------------------------------


def _evaluate(machine: Machine, value: Scalar, space: Space) -> Array:
    """The value over `space`: of its rank, with size 1 along the axes that it does not vary over."""
    if isinstance(value, Constant):
        return scalar.convert(np.asarray(value.value).reshape([1] * len(space.names)), value.dtype)
    if isinstance(value, Index):
        return scalar.convert(np.asarray(_index(machine, value.value, space, {})), value.dtype)
    if isinstance(value, Ref):
        return _reference(machine, value, space)
    if isinstance(value, Load):
        return _load(machine, value, space)
    args = [_evaluate(machine, arg, space) for arg in value.args]
    if value.primitive in ("cast", "round"):
        return scalar.convert(args[0], value.dtype)
    if value.primitive == "bitcast":
        return np.asarray(scalar.bitcast(args[0], value.dtype))
    return np.asarray(scalar.evaluate(value.primitive, *args))


def _reference(machine: Machine, value: Ref, space: Space) -> Array:
    axes, array = machine.values[value.name]
    missing = [axis for axis in axes if axis not in space.names]
    if missing:
        raise VerifyError(f"region {machine.region.name}: %{value.name} varies over {missing[0]}, which is not an axis of its reader")
    order = sorted(range(len(axes)), key=lambda n: space.names.index(axes[n]))
    shape = [1] * len(space.names)
    for n in order:
        shape[space.names.index(axes[n])] = array.shape[n]
    return array.transpose(order).reshape(shape)


def _index(machine: Machine, value: Dim, space: Space, gathers: Mapping[str, Array]) -> Array:
    """An index expression as an i64 array over `space`."""
    ones = [1] * len(space.names)
    if isinstance(value, int):
        return np.full(ones, value, dtype=np.int64)
    total = np.zeros(ones, dtype=np.int64)
    for monomial, factor in value.terms:
        term = np.full(ones, factor, dtype=np.int64)
        for atom in monomial:
            term = term * _atom(machine, atom, space, gathers)
        total = total + term
    return total


def _atom(machine: Machine, atom: dims.Atom, space: Space, gathers: Mapping[str, Array]) -> Array:
    if isinstance(atom, dims.Function):
        left, right = (_index(machine, side, space, gathers) for side in (atom.left, atom.right))
        with np.errstate(all="ignore"):
            return np.asarray(DIM_FUNCTIONS[atom.kind](left, right))
    if atom.name in gathers:
        return gathers[atom.name]
    if atom.name in space.names:
        return space.vector(atom.name)
    if atom.name in machine.extents or atom.name not in machine.symbols:
        what = "axis" if atom.name in machine.extents else "symbol"
        raise VerifyError(f"region {machine.region.name}: {what} {atom.name} has no value here")
    return np.full([1] * len(space.names), machine.symbols[atom.name], dtype=np.int64)


def _load(machine: Machine, load: Load, space: Space) -> Array:
    array = machine.operands[load.operand]
    gathers = {name: _evaluate(machine, gather, space).astype(np.int64) for name, gather in load.gathers}
    places = [_index(machine, subscript, space, gathers) for subscript in load.subscripts]
    inside = np.ones([1] * len(space.names), dtype=bool)
    for place, size in zip(places, array.shape, strict=True):
        inside = inside & (place >= 0) & (place < size)
    if 0 in np.broadcast_shapes(space.sizes, inside.shape):
        return np.zeros(inside.shape, dtype=array.dtype)
    if inside.all():
        return np.asarray(array[tuple(places)]) if places else array.reshape([1] * len(space.names))
    if load.other is None:
        raise VerifyError(f"region {machine.region.name}: a load of %{load.operand} leaves it, and has no value for outside")
    other = scalar.convert(np.asarray(load.other.value), load.dtype)
    if 0 in array.shape:
        return np.full(inside.shape, other)
    held = tuple(place.clip(0, size - 1) for place, size in zip(places, array.shape, strict=True))
    return np.where(inside, array[held], other)
