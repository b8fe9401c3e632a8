"""The strategy `split_attention`: few rows against many columns, in parts of the columns that a second launch joins in order.

A part gives its highest score, its sum of exponentials and its weighted values; parts are rescaled to the highest of all.
(Known as flash decoding: Dao, Haziza, Massa, Sizov, 2023.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.expression import Apply, Constant
from ....ir.region import Axis, Let, Load, Operand, Reduce, Ref, Region, Scalar
from ....ir.target import GpuTarget
from ....ir.tile.program import Launch, TileProgram
from ....ir.types import TensorType, boolean
from ..lower import upper_bound
from ..powers import Words, powers_of
from ..schedule import Match, Order, Problem, Refusal, Schedule
from ..softmax import Attention
from .attention import GpuAttention, Parts, attention_launch, attention_seconds
from .heads import Heads, posed
from .parts import LARGEST, free_name, space_param, why_whole
from .rows import tile_rows
from .shape import LAUNCH_SECONDS, power_of_two
from .sweep import Sweep, Tiling

SPLITS = (4, 8, 16, 32, 64, 128)
LEAST_STEPS = 2
"""Steps of columns that are worth a part."""
PART_SECONDS = 8e-8
"""What another part costs beside its bytes, as measured on H100 (benchmarks/kernels/schedules.py)."""


@dataclass(frozen=True)
class SplitAttention:
    """Tiles as in `attention`, `splits` programs for each; it takes what would leave most of the device idle."""

    name: str = "split_attention"

    def match(self, problem: Problem, target: GpuTarget) -> Match[Heads] | Refusal:
        whole = GpuAttention().match(problem, target)
        if isinstance(whole, Refusal):
            return whole
        found = whole.found.attention
        if found.result.dtype != found.product.dtype or found.total.dtype != found.product.dtype:
            return Refusal("its sums have another type than its scores")
        match = Match(self, problem, whole.found)
        why = why_whole(whole, match, target, f"no row has columns for {SPLITS[0]} parts", "the columns")
        return match if why is None else Refusal(why)

    def space(self, match: Match[Heads], target: GpuTarget) -> Iterator[Schedule]:
        """The tiles of `attention` by parts of at least two steps each."""
        problem, found = posed(match)
        results = upper_bound(dims.product(problem.region.axis(a).extent for a in found.result.axes), problem.symbols)
        columns = problem.typical(problem.region.axis(found.column).extent)
        for tiles in GpuAttention().space(replace(match, strategy=GpuAttention()), target):
            for splits in SPLITS:
                if columns >= LEAST_STEPS * tiles["t"] * splits and results is not None and results * splits <= LARGEST:
                    yield Schedule(self.name, (("splits", splits), *tiles.parameters))

    def cost(self, match: Match[Heads], schedule: Schedule, target: GpuTarget) -> float:
        """That of `attention` with more programs of fewer columns, and parts that are written and read again."""
        problem, found = posed(match)
        splits = schedule["splits"]
        results = problem.typical(dims.product(problem.region.axis(a).extent for a in found.result.axes))
        moved = 2.0 * splits * results * found.result.dtype.bits / 8
        joining = LAUNCH_SECONDS + 1e-6 + splits * PART_SECONDS + moved / target.memory_rate
        return attention_seconds(match, schedule, target, splits) + joining

    def order(self, match: Match[Heads], schedule: Schedule, target: GpuTarget) -> Order:
        """As in `attention` for each part; then the parts, by the tile that holds them."""
        _, _, tiling = _joining(match, schedule, _spaces(match, schedule))
        return self.name, schedule["splits"], str(tiling), *GpuAttention().order(replace(match, strategy=GpuAttention()), schedule, target)

    def tile(self, match: Match[Heads], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """Two launches and the workspaces between them."""
        problem, found = posed(match, schedule)
        spaces = _spaces(match, schedule)
        params = tuple(space_param(space, "out") for space in spaces)
        parts = Parts(free_name(problem, "part"), schedule["splits"], params)
        launches = (attention_launch(problem, schedule, found, parts), _join(match, schedule, spaces))
        return TileProgram(problem.region.name, launches, params, tuple(problem.symbols.ranges))


def _rows(found: Attention) -> tuple[str, ...]:
    """The axes of what there is one of for each row."""
    return (*found.batch, *((found.row,) if found.row else ()))


def _spaces(match: Match[Heads], schedule: Schedule) -> tuple[Operand, Operand, Operand]:
    """The highest score, the sum of exponentials and the weighted values of each part."""
    problem, found = posed(match, schedule)
    extents, dtype = problem.region.extents, found.product.dtype

    def space(name: str, axes: tuple[str, ...]) -> Operand:
        return Operand(free_name(problem, name), TensorType(dtype, (schedule["splits"], *(extents[axis] for axis in axes))))

    rows = _rows(found)
    return space("highest_of", rows), space("total_of", rows), space("sums_of", (*rows, found.feature))


def _joining(
    match: Match[Heads], schedule: Schedule, spaces: tuple[Operand, Operand, Operand]
) -> tuple[Problem, tuple[Let | Reduce, ...], Tiling]:
    """What the second launch computes, and its tiling."""
    problem, found = posed(match, schedule)
    splits = schedule["splits"]
    region, part, rows, dtype = problem.region, free_name(problem, "part"), _rows(found), found.product.dtype

    def load(space: Operand, axes: tuple[str, ...]) -> Load:
        return Load(space.name, tuple(dims.symbol(axis) for axis in (part, *axes)), dtype)

    def apply(primitive: str, *arguments: Scalar) -> Scalar:
        return Apply(primitive, arguments, boolean if primitive in ("eq", "lt") else dtype)

    named: list[Let] = []

    def name(word: str, value: Scalar) -> Scalar:
        named.append(Let(f"{found.product.name}_{word}", rows, value))
        return Ref(named[-1].name, dtype)

    highest, total, sums = spaces
    top, weight = (f"{found.product.name}_{word}" for word in ("top", "weight"))
    scaled = Ref(weight, dtype)
    powers, words = powers_of(found.score, found.before), Words[Scalar](apply, lambda number: Constant(number, dtype), name)
    base = powers.base(words, Ref(top, dtype))
    statements: tuple[Let | Reduce, ...] = (
        Reduce(top, rows, "max", (part,), load(highest, rows), dtype),
        *named,
        Let(weight, (part, *rows), powers.factor(words, load(highest, rows), base)),
        Reduce(found.total.name, rows, "sum", (part,), apply("mul", scaled, load(total, rows)), dtype),
        Reduce(
            found.result.name,
            found.result.axes,
            "sum",
            (part,),
            apply("mul", scaled, load(sums, (*rows, found.feature))),
            dtype,
        ),
        *found.after,
    )
    wanted = {*rows, found.feature}
    axes = (*(axis for axis in region.axes if axis.name in wanted), Axis(part, splits))
    after = replace(problem, region=Region(region.name, (*region.inputs, *spaces), region.outputs, axes, (*statements, found.store)))
    features = power_of_two(upper_bound(region.axis(found.feature).extent, problem.symbols) or 1)
    tiling = tile_rows(after, statements, (found.store,), max(1024, power_of_two(splits) * features), False)
    if isinstance(tiling, str):
        raise ValueError(tiling)
    return after, statements, tiling


def _join(match: Match[Heads], schedule: Schedule, spaces: tuple[Operand, Operand, Operand]) -> Launch:
    """The parts rescaled and added along their own axis, then what follows the sums."""
    after, statements, tiling = _joining(match, schedule, spaces)
    return Sweep(after, statements, (posed(match, schedule)[1].store,), tiling).launch(f"{match.problem.region.name}.split_attention_join")
