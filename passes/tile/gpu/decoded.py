"""Decoded factors: how much work a factor is that is computed for each tile, and a launch of its own that computes it once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


RIGHT, LEFT = 1, 2
"""Which factors are decoded by themselves, as bits of a number."""


@dataclass(frozen=True)
class Decoding:
    """The problems that decode factors, each into a workspace, and the product that reads them there."""

    spaces: tuple[Operand, ...]
    decodes: tuple[Problem, ...]
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


def decodable(problem: Problem, matched: MatrixProduct) -> tuple[int, ...]:
    """Which factors may be decoded by themselves: those that are computed from plain loads and have room, in any company."""
    if matched.operands.products > 1 or matched.product.block is not None:
        return ()
    found = [side for side in (RIGHT, LEFT) if _space(problem, matched, side) is not None]
    return tuple(chosen for chosen in range(1, 1 + sum(found)) if chosen & sum(found) == chosen)


def decoding(problem: Problem, matched: MatrixProduct, sides: int) -> Decoding:
    """How these factors are decoded by themselves."""
    found = matched.product
    spaces, decodes, factors = [], [], {LEFT: found.left, RIGHT: found.right}
    for side in (RIGHT, LEFT):
        space = _space(problem, matched, side) if sides & side else None
        if space is not None:
            axes, value = _axes(found, side), factors[side]
            spaces.append(space)
            decodes.append(_decode(problem, space, axes, narrowed(value, space.type.dtype)))
            load = Load(space.name, tuple(map(dims.symbol, axes)), space.type.dtype)
            factors[side] = Apply("cast", (load,), value.dtype)
    product = with_factors(problem.region, found, factors[LEFT], factors[RIGHT], spaces)
    return Decoding(tuple(spaces), tuple(decodes), of_store(problem, product, found.store))


def with_factors(region: Region, found: Contraction, left: Scalar, right: Scalar, read: Iterable[Operand]) -> Region:
    """The region of a product with other factors, which read further operands."""
    reduce = replace(found.reduce, value=Apply("mul", (left, right), found.reduce.value.dtype))
    body = tuple(reduce if isinstance(each, Reduce) and each.name == reduce.name else each for each in region.body)
    return replace(region, inputs=(*region.inputs, *read), body=body)


def _factor(found: Contraction, side: int) -> Scalar:
    return found.right if side == RIGHT else found.left


def _axes(found: Contraction, side: int) -> tuple[str, ...]:
    return (*found.batch, *(found.columns if side == RIGHT else found.rows), *found.over)


def _space(problem: Problem, matched: MatrixProduct, side: int) -> Operand | None:
    """Where a decoded factor lies; None where it is not computed from plain loads, or there is no room for it."""
    value = _factor(matched.product, side)
    if not is_coded(value, matched) or not _is_plain(value):
        return None
    shape = tuple(problem.region.axis(axis).extent for axis in _axes(matched.product, side))
    size = upper_bound(dims.product(shape), problem.symbols)
    if size is None or size > LARGEST:
        return None
    return Operand(free_name(problem, "decoded" if side == RIGHT else "decoded_left"), TensorType(matched.operands.dtype, shape))


def _is_plain(value: Scalar) -> bool:
    """Whether a factor is loaded from where its axes say."""
    return not any(isinstance(part, Load) and (part.gathers or part.other is not None) for part in walk(value))


def _decode(problem: Problem, space: Operand, axes: tuple[str, ...], value: Scalar) -> Problem:
    store = Store(space.name, axes, tuple(map(dims.symbol, axes)), value)
    region = replace(problem.region, outputs=(space,), body=(*problem.region.body, store))
    return of_store(problem, region, store)


def of_store(problem: Problem, region: Region, store: Store) -> Problem:
    """The problem of a store and what it needs."""
    statements = (*needed(region, store), store)
    used = {axis for s in statements for axis in (*s.axes, *(s.over if isinstance(s, Reduce) else ()))}
    loaded = {part.operand for s in statements for part in walk(s.value) if isinstance(part, Load)}
    inputs = tuple(operand for operand in region.inputs if operand.name in loaded)
    axes = tuple(axis for axis in region.axes if axis.name in used)
    return replace(problem, region=replace(region, inputs=inputs, axes=axes, body=statements))


def launch_seconds(found: Decoding, target: GpuTarget) -> float:
    """Predicted seconds of the launches that decode: memory decides."""
    total = 0.0
    for problem in found.decodes:
        match, schedule = _fastest(problem, target)
        total += match.strategy.cost(match, schedule, target)
    return total


def decode_launches(found: Decoding, target: GpuTarget) -> Iterator[Launch]:
    """The launches that decode."""
    for problem in found.decodes:
        match, schedule = _fastest(problem, target)
        (launch,) = match.strategy.tile(match, schedule, target).launches
        (space,) = problem.region.outputs
        yield replace(launch, name=f"{problem.region.name}.{space.name}")


def _fastest(problem: Problem, target: GpuTarget) -> tuple[Match[Kernels], Schedule]:
    """The elementwise schedule that is predicted to take least."""
    match = Elementwise().match(problem, target)
    if not isinstance(match, Match):
        raise ValueError(match.why)
    return match, min(match.strategy.space(match, target), key=lambda schedule: match.strategy.cost(match, schedule, target))
