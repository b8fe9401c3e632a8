"""Products for matrix instructions: element types and precision of the operands, merged axes, the loop over k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Apply
from ....ir.ops.rounding import FLOATS, holds
from ....ir.region import Scalar
from ....ir.region.stores import references
from ....ir.target import GpuTarget
from ....ir.tile.program import Dot, Ref, Value
from ....ir.types import DType, bf16, f8e4m3, f16, f32
from ...regions.contraction import Contraction, plain_load, unwidened
from ...regions.narrow_factors import holds_normal, within
from ..expand import with_expansion
from ..lower import Block, is_long, upper_bound
from ..schedule import Order, Problem, Schedule
from .parted import parted_factor
from .shape import is_covered, power_of_two

FEWEST, SHALLOWEST = 2, 8
"""Fewer rows or columns, and fewer contracted elements, are left to other strategies: most of a tile would be padding."""


def why_not_apart(found: Contraction) -> str | None:
    """Why what follows a sum cannot be computed apart from it, None where it can: it reads only what follows the sum, too."""
    read = references(found.store).union(*map(references, found.epilogue))
    shared = sorted(read & {let.name for let in found.prologue})
    return f"a factor and what follows the sum both read %{shared[0]}" if shared else None


# --- element types --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operands:
    """What the factors of a dot are converted to, how precisely they are multiplied, in how many products."""

    dtype: DType
    precision: str
    rate: str
    products: int


WIDE = Operands(f32, "tf32x3", "tf32", 3)
"""The form of factors that no narrow float holds."""


def products_on(operands: Operands, target: GpuTarget) -> int:
    """The products that one takes there: float32 is multiplied once where it may be rounded to tf32."""
    return 1 if operands == WIDE and target.in_tf32 else operands.products


def factor_dtype(value: Scalar) -> DType:
    """The element type of a factor before it was widened for the sum."""
    return unwidened(value).dtype


def operands_for(left: DType, right: DType, total: DType) -> Operands | str:
    """The form in which factors of these types are multiplied and summed in `total`, or why there is none."""
    name = left.name if left == right else ""
    if total.name == "i32" and name == "i8":
        return Operands(left, "exact", "i8", 1)
    if total.name == "f64" and name == "f64":
        return Operands(left, "exact", "f64", 1)
    if total.name != "f32":
        return f"matrix instructions do not sum {left} and {right} in {total}"
    if name in ("bf16", "f16", "f8e4m3", "f8e5m2"):
        return Operands(left, "exact", name, 1)
    if (left.is_float or right.is_float) and holds(f32, left) and holds(f32, right):
        return WIDE
    return f"matrix instructions do not take {left} and {right}"


def operands_of(found: Contraction) -> Operands | str:
    """The operands of a contraction: a narrow float that holds all numbers of both factors, codes too, is multiplied as such.

    Codes by their scales may be smaller than float32's normal numbers; these may lose digits. Numbers of 8 bits, of which one factor is
    loaded, are multiplied as such where the other one is made of them too: chosen by its places, as in a sparse weight.
    """
    dtypes = factor_dtype(found.left), factor_dtype(found.right)
    usual = operands_for(*dtypes, found.reduce.dtype)
    if usual != WIDE:
        return usual
    narrow = next((dtype for dtype in _narrow_floats(*dtypes) if all(holds_normal(f, dtype) for f in (found.left, found.right))), None)
    return WIDE if narrow is None else Operands(narrow, "exact", narrow.name, 1)


def _narrow_floats(left: DType, right: DType) -> tuple[DType, ...]:
    """The narrow floats that factors may be multiplied in, the fastest first."""
    return (*(dtype for dtype in (f8e4m3,) if dtype in (left, right)), bf16, f16)


@dataclass(frozen=True)
class MatrixProduct:
    """A contraction that matrix instructions compute, and the form of its factors; whether scales of theirs lie beside its results."""

    product: Contraction
    operands: Operands
    with_scales: bool = False


def narrowed(value: Scalar, dtype: DType) -> Scalar:
    """The factor in `dtype`: without the casts that widened it, or with one that does."""
    while value.dtype != dtype and (inner := within(value)) is not None:
        value = inner
    return value if value.dtype == dtype else Apply("cast", (value,), dtype)


# --- sizes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Typical numbers of everything, and the most rows and columns that there can be (None: no bound)."""

    batch: int
    rows: int
    columns: int
    depth: int
    most_rows: int | None
    most_columns: int | None


def sizes_of(problem: Problem, found: Contraction) -> Sizes:
    """The sizes of a contraction."""
    extents, symbols = problem.region.extents, problem.symbols

    def total(axes: Sequence[str]) -> Dim:
        return dims.product(extents[axis] for axis in axes)

    batch, rows, columns, depth = (problem.typical(total(axes)) for axes in (found.batch, found.rows, found.columns, found.over))
    return Sizes(batch, rows, columns, depth, upper_bound(total(found.rows), symbols), upper_bound(total(found.columns), symbols))


def k_steps(operands: Operands, sizes: Sizes) -> tuple[int, ...]:
    """Contracted elements of one step: 128 bytes of each operand, no more than there are; of 16 bits also twice as many."""
    bits = operands.dtype.bits
    least, most = 32 if bits == 8 else 16, power_of_two(sizes.depth)
    usual = max(least, min(max(16, 1024 // bits), most))
    return (usual, 2 * usual) if bits == 16 and 2 * usual <= most else (usual,)


# --- axes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merged:
    """Several `axes` walked as one, the last one fastest, and each of them as an index expression of it."""

    name: str
    extent: Dim
    axes: tuple[str, ...]
    index: dict[str, Dim]


def merged(block: Block, axes: Sequence[str], extents: Mapping[str, Dim]) -> Merged:
    """Axes as one."""
    name = block.unique("_".join(axes))
    return Merged(name, dims.product(extents[a] for a in axes), tuple(axes), parted(dims.symbol(name), axes, extents))


def parted(place: Dim, axes: Sequence[str], extents: Mapping[str, Dim]) -> dict[str, Dim]:
    """Each axis of a merged index."""
    index: dict[str, Dim] = {}
    stride: Dim = 1
    for axis in reversed(axes):
        outer = place // stride
        index[axis] = outer if axis == axes[0] else outer % extents[axis]
        stride = stride * extents[axis]
    return index


CHUNK = 4096
"""Terms of a long sum of products that an accumulator of the instruction takes in a row."""
AT_ONCE = 16
"""Terms that an instruction adds up at once, of 16 bits; of 8 there are more."""


def is_in_chunks(problem: Problem, found: Contraction, terms: Dim) -> bool:
    """Whether a sum of so many terms is too long for one accumulator.

    Each instruction may cost a unit of f32's last place. It is short where all of them together cost no more than half a unit of the
    last place that the result is stored with, and up to four chunks whatever that is.
    """
    if not found.reduce.dtype.is_float:
        return False
    stored = next(operand.type.dtype for operand in problem.region.outputs if operand.name == found.store.output)
    spare = FLOATS["f32"][0] - 2 - FLOATS[stored.name][0] if stored.name in FLOATS else 0
    return is_long([terms], problem.symbols, max(4 * CHUNK, AT_ONCE << max(0, spare)))


def multiply(block: Block, acc: Ref, found: Contraction, operands: Operands, step: int, low: Dim, high: Dim) -> None:
    """acc += left * right over the contracted axes, merged, from `low` to `high`; a long sum in chunks, added compensated."""
    if not is_in_chunks(block.problem, found, high - low):
        multiply_steps(block, acc, found, operands, step, low, high)
        return
    lost = block.lost(acc)
    with block.loop("chunk", "scalar", 0, dims.ceil_div(high - low, CHUNK), 1, carries=(acc, lost)) as chunk:
        part = block.let("part_sum", block.full(0.0, acc.type.dtype, acc.type.axes))
        first = low + dims.symbol(chunk) * CHUNK
        multiply_steps(block, part, found, operands, step, first, dims.minimum(first + CHUNK, high))
        block.add_to(acc, lost, part)


def multiply_steps(
    block: Block, acc: Ref, found: Contraction, operands: Operands, step: int, low: Dim, high: Dim, terms: Dim | None = None
) -> None:
    """The same of a sum that is short enough: by steps from `low` to `high`, or of those of a sum of `terms` the steps that lie there."""
    size, end = (high - low, high) if terms is None else (terms, terms)
    over, extents, symbols = found.over, block.problem.region.extents, block.problem.symbols
    with block.loop("_".join(over), "tile", low, high, step, carries=(acc,)) as k:
        last = extents[over[-1]]
        base: Dim = dims.symbol(f"{k}.first")
        if len(over) > 1 and dims.divides(step, last, symbols) and dims.divides(step, low, symbols):
            # A step stays within one row of the last axis: the others are the same for all its lanes.
            block.index |= parted(base // last, over[:-1], extents)
            base = base % last
            block.index[over[-1]] = base + dims.symbol(f"{k}.lane")
            starts_whole = True
        else:
            block.index |= parted(dims.symbol(k), over, extents)
            starts_whole = len(over) == 1 and bool(dims.divides(step, low, symbols))
        for let in found.prologue:
            block.later(let)
        covered = is_covered(size, step, symbols)
        factors = [found.left, found.right]
        if starts_whole:
            factors = [with_expansion(block, block.problem.region, factor, over[-1], k, base, step) for factor in factors]
        place = (over[-1], base) if starts_whole and covered and len(over) == 1 else None
        left, right = (_factor(block, factor, operands.dtype, k, end, covered, place, step) for factor in factors)
        block.rebind(acc, Dot(left, right, acc, acc.type, operands.precision))


def _factor(block: Block, value: Scalar, dtype: DType, k: str, end: Dim, covered: bool, place: tuple[str, Dim] | None, step: int) -> Value:
    """A factor whose lanes beyond the end of k are 0, also where padding or arithmetic would give another number."""
    apart = None if place is None else parted_factor(block, narrowed(value, dtype), place[0], k, place[1], step)
    if apart is not None:
        return apart
    block.outside = True
    result = block.lower(narrowed(value, dtype))
    block.outside = False
    load = plain_load(value)
    gives_zero = load is not None and (load.other is None or load.other.value == 0) and not load.gathers
    if covered or gives_zero:
        return result
    return block.inside(dims.symbol(k), end, result, 0.0 if dtype.is_float else 0)


def instruction_order(problem: Problem, matched: MatrixProduct, schedule: Schedule, target: GpuTarget) -> Order:
    """In which order the instructions add up: the step of k, which of them it is, and whether a long sum goes in chunks.

    Rows and columns of a tile, warps and stages move results between threads and leave their sums alone; so do steps of 16-bit
    numbers, whose instructions follow each other in one accumulator. Rows that change places with columns may need another
    instruction, for not every one reads either operand turned.
    """
    found = matched.product
    terms = dims.product(problem.region.extents[axis] for axis in found.over)
    in_chunks = is_in_chunks(problem, found, terms)
    step = 0 if matched.operands.dtype.bits == 16 else schedule["k"]
    return step, schedule["swap"], why_not_instruction(matched.operands, schedule, target), in_chunks


# --- what inspect asks --------------------------------------------------------------------------------------------------


def why_not_instruction(operands: Operands, schedule: Schedule, target: GpuTarget) -> str | None:
    """Why a tile does not use the target's widest matrix instruction, None if it does."""
    if target.matrix_instruction == "mma.sync":
        return f"{target.name} has mma.sync only"
    if operands.dtype.name == "f64":
        return f"{target.matrix_instruction} has no f64, mma.sync does it"
    if schedule["m"] < target.matrix_rows:
        return f"the tile has {schedule['m']} rows, {target.matrix_instruction} takes at least {target.matrix_rows}"
    return None
