"""Reading a region as a contraction: its two factors, the roles of its axes, and what comes before and after."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.codes import FOUR
from ...ir.dims import NO_FACTS, Dim, Facts
from ...ir.expression import Apply, Index
from ...ir.formats.sparse import SERVED
from ...ir.ops.rounding import holds
from ...ir.region import Let, Load, Reduce, Ref, Region, Scalar, Scan, Store, transform, walk
from ...ir.types import f32, i8, i32, u8


@dataclass(frozen=True)
class Contraction:
    """sum over `over` of left * right, then `epilogue` and one store.

    `rows` are axes of left only, `columns` of right only, `batch` of both; `right` is the factor that varies along
    the output's innermost axis. Where the region sums up blocks (blocks.py), `block` is the sum of one, over the last of
    `over`, and `reduce` adds up what they are when they are scaled; `alone` is the sum of the left factor by itself in a block.
    """

    reduce: Reduce
    left: Scalar
    right: Scalar
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    over: tuple[str, ...]
    prologue: tuple[Let, ...]
    epilogue: tuple[Let, ...]
    store: Store
    block: Reduce | None = None
    alone: Reduce | None = None

    @property
    def streamed(self) -> tuple[str, ...]:
        """The contracted axes of one sum of products: all, or those of a block."""
        return self.over if self.block is None else self.over[len(self.reduce.over) :]


def read_contraction(region: Region) -> Contraction | str:
    """The contraction that a region is, or why it is not one."""
    reduces = [s for s in region.body if isinstance(s, (Reduce, Scan))]
    stores = [s for s in region.body if isinstance(s, Store)]
    block, alone = _blocks(reduces)
    if len(reduces) - 1 != sum(each is not None for each in (block, alone)) or not isinstance(reduces[-1], Reduce):
        return f"the region has {len(reduces)} reductions, expected one"
    if len(stores) != 1 or stores[0].gathers or stores[0].combine:
        return "the region does not store one result at plain subscripts"
    reduce, store = reduces[-1], stores[0]
    value: Scalar = (block or reduce).value
    if reduce.kind != "sum" or not (isinstance(value, Apply) and value.primitive == "mul"):
        return "the reduction is not a sum of products"
    prologue = tuple(s for s in region.body[: region.body.index(reduces[0])] if isinstance(s, Let))
    epilogue = tuple(s for s in region.body[region.body.index(reduce) + 1 :] if isinstance(s, Let))
    left, right = value.args
    # A subscript may name symbols as well: the rows of a merged view lie B*i + j apart.
    axes = {id(arg): axes_of(arg, prologue) & region.extents.keys() for arg in value.args}
    over = {*reduce.over, *(block.over if block is not None else ())}
    if not over <= axes[id(left)] & axes[id(right)]:
        return "a factor does not vary over every contracted axis"
    inner = innermost(region, store)
    if inner in axes[id(left)] and inner not in axes[id(right)] and not _are_codes(left, right):
        left, right = right, left
    ours, theirs = axes[id(left)] - over, axes[id(right)] - over

    def ordered(names: set[str]) -> tuple[str, ...]:
        return tuple(axis.name for axis in region.axes if axis.name in names)

    if set(store.axes) != set(reduce.axes) or set(reduce.axes) != ours | theirs:
        return "the result varies over other axes than the factors"
    return Contraction(
        reduce,
        left,
        right,
        ordered(ours & theirs),
        ordered(ours - theirs),
        ordered(theirs - ours),
        _streamed_last(region, left, ordered(over))
        if block is None
        else (*ordered(set(reduce.over)), *_streamed_last(region, left, ordered(set(block.over)))),
        prologue,
        epilogue,
        store,
        block,
        alone,
    )


def with_float_sums(region: Region, change: Callable[[Scalar], Scalar | None]) -> Region:
    """The region with parts of what its sums of floats add up replaced: by what `change` gives, where that is something."""
    sums = (s for s in region.body if isinstance(s, Reduce) and s.kind == "sum" and s.dtype.is_float)
    changed = {id(s): replace(s, value=transform(s.value, change)) for s in sums}
    return replace(region, body=tuple(changed.get(id(s), s) for s in region.body))


def _blocks(reduces: list[Reduce | Scan]) -> tuple[Reduce | None, Reduce | None]:
    """The sum of a block, and that of its left factor alone, where the last of some sums adds up what they are."""
    sums = [each for each in reduces if isinstance(each, Reduce) and each.kind == "sum"]
    if len(sums) != len(reduces) or len(sums) not in (2, 3):
        return None, None
    *parts, block, last = sums
    alone = parts[0] if parts else None
    reads = {part.name for part in walk(last.value) if isinstance(part, Ref)}
    adds_up = reads == {part.name for part in sums[:-1]} and set(block.axes) == {*last.axes, *last.over}
    if alone is not None:
        adds_up = adds_up and alone.over == block.over and set(alone.axes) < set(block.axes)
    return (block, alone) if adds_up else (None, None)


def _are_codes(left: Scalar, right: Scalar) -> bool:
    """Whether these are unsigned and signed bytes: instructions that multiply them take them in this order, and no other."""
    loads = plain_load(left), plain_load(right)
    return [load.dtype for load in loads if load is not None] == [u8, i8]


def _streamed_last(region: Region, left: Scalar, over: tuple[str, ...]) -> tuple[str, ...]:
    """The contracted axes in loop order: last the one along which the left factor is contiguous.

    One that moves the left factor's place in its padding is not the last while there is another: the tests whether a
    place lies inside would be made for each product, not for each sweep of the innermost loop.
    """
    load = plain_load(left)
    if load is None:
        return over
    tested = {name for s in load.subscripts if load.other is not None and dims.name_of(s) not in over for name in dims.symbols(s)}
    return tuple(sorted(over, key=lambda name: (name not in tested, stride_of(load, region, name) == 1)))


def in_fours(region: Region, found: Contraction, facts: Facts) -> bool:
    """Whether a contraction sums products of 8-bit integers in 32 bits, of so many that they can be taken in fours."""
    left, inner = plain_load(found.left), found.over[-1] if found.over else ""
    if (found.block or found.reduce).dtype != i32 or left is None or not inner:
        return False
    extent = region.axis(inner).extent
    fits = dims.divides(FOUR, extent, facts) is True and extent != 0 and stride_of(left, region, inner) == 1
    in_served = dims.divides(SERVED, extent, facts) is True
    right = plain_load(found.right)
    if right is not None:
        return fits and left.dtype in (i8, u8) and (right.dtype == i8 or (left.dtype, right.dtype) == (i8, u8))
    codes = unwidened(found.right)
    if fits and is_selection(codes):
        return left.dtype in (i8, u8) and codes.dtype == i8 and in_served
    return fits and left.dtype == i8 and bool(bytes_of(found.right)) and (in_served or not selects(codes))


def is_selection(value: Scalar) -> bool:
    """Whether an expression may be a number of 8 bits that is chosen by its place (selections.py)."""
    return isinstance(value, Apply) and value.primitive == "where" and value.dtype in (i8, u8)


def selects(value: Scalar) -> bool:
    """Whether there are such numbers in an expression."""
    return any(map(is_selection, walk(value)))


def bytes_of(value: Scalar) -> list[Load]:
    """The loads that a byte is computed from, each element from elements of one byte alone; none where it is not."""
    while isinstance(value, Apply) and value.primitive in ("cast", "round") and value.dtype == i32:
        value = value.args[0]
    loads = [part for part in walk(value) if isinstance(part, Load)]
    plain = all(load.dtype in (i8, u8) and load.other is None and not load.gathers for load in loads)
    return loads if value.dtype == u8 and plain else []


def group_of(region: Region, found: Contraction, pairs: Collection[str], facts: Facts = NO_FACTS) -> int:
    """How many neighbours along the sum a constant right factor keeps together: bytes in fours, the dtypes of `pairs` in pairs,
    others alone.
    """
    if in_fours(region, found, facts):
        return FOUR
    left, right, inner = plain_load(found.left), plain_load(found.right), found.over[-1] if found.over else ""
    if found.reduce.dtype != f32 or found.block is not None or left is None or right is None or not inner:
        return 1
    extent = region.axis(inner).extent
    fits = isinstance(extent, int) and extent % 2 == 0 and 0 < extent <= 1 << 16 and (extent <= 4096 or whole_step(extent) is not None)
    return 2 if fits and left.dtype == right.dtype and left.dtype.name in pairs and stride_of(left, region, inner) == 1 else 1


def whole_step(extent: int) -> int | None:
    """The most terms of a long sum, at least 128 and at most 512, that steps of it have without a rest; tiles' ends are preferred."""
    steps = (*range(512, 127, -32), *range(510, 127, -2))
    return next((step for step in steps if extent % step == 0), None)


def axes_of(value: Scalar, named: tuple[Let, ...] = ()) -> set[str]:
    """The axes that an expression varies over."""
    known = {let.name: set(let.axes) for let in named}
    found: set[str] = set()
    for part in walk(value):
        if isinstance(part, Load):
            found |= {name for s in part.subscripts for name in dims.symbols(s)}
        elif isinstance(part, Index):
            found |= dims.symbols(part.value)
        elif isinstance(part, Ref):
            found |= known.get(part.name, set())
    return found


def innermost(region: Region, store: Store) -> str:
    """The axis that steps through the output with the smallest stride."""
    for subscript in reversed(store.subscripts):
        names = [axis.name for axis in region.axes if axis.name in dims.symbols(subscript)]
        if names:
            return names[-1]
    return ""


def unwidened(value: Scalar) -> Scalar:
    """A factor before it was widened."""
    while isinstance(value, Apply) and value.primitive == "cast" and holds(value.dtype, value.args[0].dtype):
        value = value.args[0]
    return value


def plain_load(value: Scalar) -> Load | None:
    """The load under casts and roundings, if the factor is nothing else."""
    while isinstance(value, Apply) and value.primitive in ("cast", "round"):
        value = value.args[0]
    return value if isinstance(value, Load) else None


def stride_of(load: Load, region: Region, axis: str) -> Dim:
    """Elements that the address moves when `axis` steps by one (row-major operand)."""
    return moved(region, load.operand, load.subscripts, axis, 1)


def moved(region: Region, operand: str, subscripts: Sequence[Dim], axis: str, by: int) -> Dim:
    """Elements that an address moves when `axis` goes on by so many (row-major operand)."""
    shape = region.operand(operand).type.shape
    total: Dim = 0
    for n, subscript in enumerate(subscripts):
        step = dims.substitute(subscript, {axis: dims.symbol(axis) + by}) - subscript
        total = total + step * dims.product(shape[n + 1 :])
    return total
