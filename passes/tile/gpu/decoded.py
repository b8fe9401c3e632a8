"""Decoded factors: how much work a factor is that is computed for each tile, and a launch of its own that computes it once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.expression import Apply
from ....ir.region import Load, Operand, Reduce, Region, Scalar, Store, walk
from ....ir.region.stores import needed
from ....ir.target import GpuTarget
from ....ir.tile.program import Launch
from ....ir.types import TensorType
from ...regions.contraction import Contraction
from ..lower import upper_bound
from ..schedule import Match, Problem, Schedule
from .elementwise import Elementwise, Kernels
from .matrix import MatrixProduct, narrowed
from .parts import free_name

LARGEST = 2**28
"""Elements of a factor that is decoded into memory: a workspace of 512 MiB."""
INSTRUCTIONS, ON_ITS_WAY = 0.7, 4
"""Instructions of a thread for each primitive of a factor, as pairs share some; primitives that stand for a load and a store."""


@dataclass(frozen=True)
class Decoding:
    """The problem that decodes a factor into a workspace, and the product that reads it there."""

    space: Operand
    decode: Problem
    product: Problem


def is_coded(value: Scalar, matched: MatrixProduct) -> bool:
    """Whether a factor is computed before it is multiplied."""
    return not isinstance(narrowed(value, matched.operands.dtype), Load)


def decoding_seconds(value: Scalar, matched: MatrixProduct, elements: float, target: GpuTarget) -> float:
    """Seconds that all processors take to compute so many elements of a factor; none where it is loaded."""
    if not is_coded(value, matched):
        return 0.0
    primitives = sum(isinstance(part, Apply) for part in walk(narrowed(value, matched.operands.dtype)))
    return elements * (primitives + ON_ITS_WAY) * INSTRUCTIONS / (target.rates["f32"] / 2)


def waits(matched: MatrixProduct) -> bool:
    """Whether a step of the product waits for what a factor is computed from, beside its codes."""
    factors = (matched.product.left, matched.product.right)
    return any(sum(isinstance(part, Load) for part in walk(value)) > 1 for value in factors if is_coded(value, matched))


def decoding(problem: Problem, matched: MatrixProduct) -> Decoding | None:
    """How a factor is decoded by itself; None where none, or either, has to be, or there is no room for it."""
    found = matched.product
    coded = [value for value in (found.left, found.right) if is_coded(value, matched)]
    if len(coded) != 1 or matched.operands.products > 1 or not _is_plain(coded[0]):
        return None
    (value,) = coded
    own = found.rows if value is found.left else found.columns
    axes = (*found.batch, *own, *found.over)
    shape = tuple(problem.region.axis(axis).extent for axis in axes)
    size = upper_bound(dims.product(shape), problem.symbols)
    if size is None or size > LARGEST:
        return None
    space = Operand(free_name(problem, "decoded"), TensorType(matched.operands.dtype, shape))
    return Decoding(space, _decode(problem, space, axes, narrowed(value, space.type.dtype)), _product(problem, found, space, axes, value))


def _is_plain(value: Scalar) -> bool:
    """Whether a factor is loaded from where its axes say."""
    return not any(isinstance(part, Load) and (part.gathers or part.other is not None) for part in walk(value))


def _decode(problem: Problem, space: Operand, axes: tuple[str, ...], value: Scalar) -> Problem:
    store = Store(space.name, axes, tuple(map(dims.symbol, axes)), value)
    region = replace(problem.region, outputs=(space,), body=(*problem.region.body, store))
    return _of(problem, region, store)


def _product(problem: Problem, found: Contraction, space: Operand, axes: tuple[str, ...], value: Scalar) -> Problem:
    load = Load(space.name, tuple(map(dims.symbol, axes)), space.type.dtype)
    wide: Scalar = Apply("cast", (load,), value.dtype)
    total = found.reduce.value
    factors = tuple(wide if part is value else part for part in total.args) if isinstance(total, Apply) else ()
    reduce = replace(found.reduce, value=Apply("mul", factors, total.dtype))
    body = tuple(reduce if statement is found.reduce else statement for statement in problem.region.body)
    region = replace(problem.region, inputs=(*problem.region.inputs, space), body=body)
    return _of(problem, region, found.store)


def _of(problem: Problem, region: Region, store: Store) -> Problem:
    """The problem of a store and what it needs."""
    statements = (*needed(region, store), store)
    used = {axis for s in statements for axis in (*s.axes, *(s.over if isinstance(s, Reduce) else ()))}
    loaded = {part.operand for s in statements for part in walk(s.value) if isinstance(part, Load)}
    inputs = tuple(operand for operand in region.inputs if operand.name in loaded)
    axes = tuple(axis for axis in region.axes if axis.name in used)
    return replace(problem, region=replace(region, inputs=inputs, axes=axes, body=statements))


def launch_seconds(found: Decoding, target: GpuTarget) -> float:
    """Predicted seconds of the launch that decodes: memory decides."""
    match, schedule = _fastest(found.decode, target)
    return match.strategy.cost(match, schedule, target)


def decode_launch(found: Decoding, target: GpuTarget) -> Launch:
    """The launch that decodes."""
    match, schedule = _fastest(found.decode, target)
    (launch,) = match.strategy.tile(match, schedule, target).launches
    return replace(launch, name=f"{found.decode.region.name}.decode")


def _fastest(problem: Problem, target: GpuTarget) -> tuple[Match[Kernels], Schedule]:
    """The elementwise schedule that is predicted to take least."""
    match = Elementwise().match(problem, target)
    if not isinstance(match, Match):
        raise ValueError(match.why)
    return match, min(match.strategy.space(match, target), key=lambda schedule: match.strategy.cost(match, schedule, target))
