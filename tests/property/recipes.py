"""How to draw one op of each family onto values that are there; ops without a recipe come with a sample's operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ourcc.ir import dims
from ourcc.ir.dims import Dim
from ourcc.ir.graph import Value
from ourcc.ir.ops.table import OPS, OpDef
from ourcc.ir.types import DTYPES, DType, TensorType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, type_of, u8

if TYPE_CHECKING:
    from generator import Sketch

Recipe = Callable[["Sketch"], bool]
RECIPES: dict[str, Recipe] = {}

CASTS = (f32, f32, f16, bf16, f64, i64, i32, i16, i8, u8, boolean, *(DTYPES[name] for name in ("f8e4m3", "f8e5m2", "u16", "u32", "u64")))
NAMES = tuple(op.name for op in OPS.values() if op.kind == "pointwise")


def recipe(function: Recipe) -> Recipe:
    """Register the recipe of the op that the function is named after."""
    RECIPES[function.__name__.rstrip("_")] = function
    return function


# --- pointwise --------------------------------------------------------------------------------------------------------


def POINTWISE(s: Sketch) -> bool:
    """Any pointwise op of the table on values that broadcast."""
    first = s.pick()
    if first is None:
        return False
    definition = OPS[s.one_of(NAMES)]
    operands: list[Value | None] = [first]
    for spec in definition.operands[1:]:
        operands.append(None if spec.optional and s.chance(3) else _beside(s, first, first.dtype))
    if definition.name == "where":
        operands = [s.pick(lambda v: v.dtype == boolean and _fits(v, first)) or s.fresh(boolean, first.shape), first, operands[2]]
    return s.add(definition.name, operands, **_attributes(s, definition))


def _beside(s: Sketch, value: Value, dtype: DType) -> Value:
    """A value of some dtype that broadcasts with `value`."""
    found = s.pick(lambda v: v.dtype == dtype and _fits(v, value)) if not s.chance(3) else None
    if found is not None:
        return found
    shape = tuple(1 if s.chance(4) else size for size in value.shape)
    return s.fresh(dtype, shape[s.integer(0, len(shape)) :] if s.chance(3) else shape)


def _fits(left: Value, right: Value) -> bool:
    pairs = zip(reversed(left.shape), reversed(right.shape), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def _attributes(s: Sketch, definition: OpDef) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for attribute in definition.attributes:
        if attribute.annotation == "DType":
            attrs[attribute.name] = s.one_of(CASTS)
        elif attribute.annotation == "bool":
            attrs[attribute.name] = s.chance(2)
        elif attribute.annotation == "float" and s.chance(2):
            attrs[attribute.name] = s.one_of((0.125, 0.5, 1.0, 1.5))
        elif attribute.name == "approximate":
            attrs[attribute.name] = s.one_of(("none", "tanh"))
    return attrs


# --- contractions -----------------------------------------------------------------------------------------------------


@recipe
def matmul(s: Sketch) -> bool:
    a = s.pick(lambda v: v.type.rank >= 2 and v.dtype in (f32, f16, bf16, i8, u8, i32))
    if a is None:
        a = s.fresh(s.one_of((f32, f32, f16, bf16, i8)), s.shape(s.one_of((2, 3, 4))))
    ours, theirs = s.chance(3), s.chance(2)
    k, n = a.shape[-2 if ours else -1], s.size()
    batch = () if s.chance(2) else tuple(1 if s.chance(3) else size for size in a.shape[:-2])
    b = s.other(a.dtype, (*batch, n, k) if theirs else (*batch, k, n))
    return s.add("matmul", (b, a) if s.chance(6) else (a, b), transpose_a=ours, transpose_b=theirs)


@recipe
def attention(s: Sketch) -> bool:
    dtype, (batch, heads, queries, width) = s.one_of((f32, f32, bf16)), (s.one_of((1, 2)), s.one_of((2, 4)), s.size(), s.one_of((4, 8)))
    q = s.other(dtype, (batch, heads, queries, width))
    keys, own, depth = s.size(), s.one_of((1, heads)), s.one_of((width, 3))
    k, v = s.other(dtype, (batch, own, keys, width)), s.other(dtype, (batch, own, keys, depth))
    kind = s.one_of((None, None, boolean, dtype))
    mask = None if kind is None else s.fresh(kind, s.one_of(((queries, keys), (batch, 1, 1, keys), (batch, heads, queries, keys))))
    return s.add("attention", (q, k, v) if mask is None else (q, k, v, mask), scale=0.5, causal=s.chance(3), safe=s.chance(3))


# --- reductions and normalizations ------------------------------------------------------------------------------------


def _axes(s: Sketch, rank: int) -> tuple[int, ...]:
    axes = tuple(n for n in range(rank) if s.chance(2)) or (rank - 1,)
    return tuple(n - rank for n in axes) if s.chance(4) else axes


def _reduction(name: str) -> None:
    def draw(s: Sketch) -> bool:
        x = s.pick(lambda v: v.type.rank > 0)
        return x is not None and s.add(name, (x,), axes=_axes(s, x.type.rank), keepdims=s.chance(2))

    RECIPES[name] = draw


def _along(name: str, *flags: str) -> None:
    def draw(s: Sketch) -> bool:
        x = s.pick(lambda v: v.type.rank > 0)
        return x is not None and s.add(name, (x,), axis=s.integer(-x.type.rank, x.type.rank - 1), **{flag: s.chance(3) for flag in flags})

    RECIPES[name] = draw


for _name in ("sum", "prod", "reduce_max", "reduce_min", "any", "all", "mean", "logsumexp"):
    _reduction(_name)
for _name in ("argmax", "argmin"):
    _along(_name, "keepdims", "last")
for _name in ("cumsum", "cumprod"):
    _along(_name, "exclusive", "reverse")
for _name in ("softmax", "log_softmax"):
    _along(_name)
_along("sort", "descending")


@recipe
def layer_norm(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 0 and v.dtype.is_float)
    if x is None:
        return False
    count = s.integer(1, min(2, x.type.rank))
    parameters = [s.other(x.dtype, x.shape[-count:]) for _ in range(s.integer(0, 2))]
    name = "layer_norm" if s.chance(2) else "rms_norm"
    return s.add(name, (x, *parameters[: 1 if name == "rms_norm" else 2]), axes=tuple(range(-count, 0)), epsilon=1e-5)


@recipe
def group_norm(s: Sketch) -> bool:
    x = _image(s)
    parameters = [s.other(x.dtype, x.shape[1:2]) for _ in range(s.integer(0, 2))]
    return s.add("group_norm", (x, *parameters), groups=s.one_of((1, 2)), epsilon=1e-5)


@recipe
def batch_norm(s: Sketch) -> bool:
    x = _image(s)
    # Finite ones, as training leaves them: they are folded into one factor and one term.
    scale, bias, mean = (s.fresh(x.dtype, x.shape[1:2], 0, 0) for _ in range(3))
    if not isinstance(x.shape[1], int):
        return False
    variance = s.constant(s.random.uniform(0.5, 2.0, (x.shape[1],)).astype(x.dtype.numpy))
    return s.add("batch_norm", (x, scale, bias, mean, variance), epsilon=1e-5)


# --- movement ---------------------------------------------------------------------------------------------------------


@recipe
def reshape(s: Sketch) -> bool:
    x = s.pick()
    if x is None:
        return False
    shape: list[Dim] = list(x.shape)
    for _ in range(s.integer(1, 3)):
        if len(shape) > 1 and s.chance(2):
            n = s.integer(0, len(shape) - 2)
            shape[n : n + 2] = [shape[n] * shape[n + 1]]
        elif shape and s.chance(2):
            n, by = s.integer(0, len(shape) - 1), s.one_of((2, 3, 4))
            if dims.divides(by, shape[n], s.module.facts) is True:
                shape[n : n + 1] = [shape[n] // by, by] if s.chance(2) else [by, shape[n] // by]
        elif len(shape) < 5:
            shape.insert(s.integer(0, len(shape)), 1)
    return s.add("reshape", (x,), shape=tuple(shape))


@recipe
def transpose(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 1)
    if x is None:
        return False
    order = list(range(x.type.rank))
    for n in range(len(order) - 1):
        m = s.integer(n, len(order) - 1)
        order[n], order[m] = order[m], order[n]
    return s.add("transpose", (x,), permutation=tuple(order))


@recipe
def broadcast_to(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank < 5)
    if x is None:
        return False
    shape = [s.size() if size == 1 else size for size in x.shape]
    return s.add("broadcast_to", (x,), shape=(*([s.size()] if s.chance(2) else []), *shape))


@recipe
def concat(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 0)
    if x is None:
        return False
    axis = s.integer(0, x.type.rank - 1)
    others = [s.other(x.dtype, (*x.shape[:axis], s.size(), *x.shape[axis + 1 :])) for _ in range(s.integer(0, 2))]
    parts = [x, *others, *([x] if s.chance(4) else [])]
    return s.add("concat", parts[::-1] if s.chance(2) else parts, axis=axis - (x.type.rank if s.chance(3) else 0))


@recipe
def slice_(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 0)
    if x is None:
        return False
    starts: list[Dim] = []
    sizes: list[Dim] = []
    steps: list[int] = []
    for size in x.shape:
        if not isinstance(size, int) or s.chance(3):
            reverse = isinstance(size, int) and size > 0 and s.chance(4)
            starts, sizes, steps = [*starts, size - 1 if reverse else 0], [*sizes, size], [*steps, -1 if reverse else 1]
            continue
        start, step = s.integer(0, size), s.integer(1, 3)
        sizes.append(s.integer(0, -(-(size - start) // step)))
        starts, steps = [*starts, start], [*steps, step]
    return s.add("slice", (x,), starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


@recipe
def pad(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 0 and v.dtype != boolean)
    if x is None:
        return False
    amounts = [tuple(s.one_of((0, 0, 1, 2)) for _ in x.shape) for _ in range(2)]
    mode = s.one_of(("constant", "constant", "edge", "reflect", "wrap"))
    return s.add("pad", (x,), before=amounts[0], after=amounts[1], mode=mode, value=float(s.one_of((0, 0, 1, 3))))


@recipe
def iota(s: Sketch) -> bool:
    shape = s.shape(s.integer(1, 3))
    return s.add("iota", (), shape=shape, axis=s.integer(0, len(shape) - 1), dtype=s.one_of((i64, i32, f32)))


@recipe
def full(s: Sketch) -> bool:
    return s.add("full", (), shape=s.shape(), value=float(s.one_of((0, 1, 2))), dtype=s.dtype())


@recipe
def dim(s: Sketch) -> bool:
    return s.add("dim", (), value=s.size())


# --- indexing ---------------------------------------------------------------------------------------------------------


def _indices(s: Sketch, size: Dim, shape: tuple[Dim, ...]) -> Value:
    """Whole numbers that lie inside a dimension, some counted from its end."""
    least = size if isinstance(size, int) else min(dims.evaluate(size, run.bindings) for run in s.runs)
    return s.fresh(s.one_of((i64, i32)), shape, -least, max(least - 1, 0))


@recipe
def take(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 0)
    if x is None:
        return False
    axis = s.integer(0, x.type.rank - 1)
    return s.add("take", (x, _indices(s, x.shape[axis], s.shape(s.integer(0, 2)))), axis=axis)


@recipe
def take_along_axis(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 0)
    if x is None:
        return False
    axis = s.integer(0, x.type.rank - 1)
    shape = (*x.shape[:axis], s.size(), *x.shape[axis + 1 :])
    return s.add("take_along_axis", (x, _indices(s, x.shape[axis], shape)), axis=axis)


@recipe
def put_slice(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 0 and v.type.is_static)
    if x is None:
        return False
    starts, steps, sizes = [], [], []
    for size in x.shape:
        start, step = s.integer(0, int(size)), s.integer(1, 2)
        starts, steps, sizes = [*starts, start], [*steps, step], [*sizes, s.integer(0, -(-(int(size) - start) // step))]
    return s.add("put_slice", (x, s.other(x.dtype, sizes)), starts=tuple(starts), steps=tuple(steps))


@recipe
def top_k(s: Sketch) -> bool:
    x = s.pick(lambda v: v.type.rank > 0 and isinstance(v.shape[-1], int))
    if x is None:
        return False
    return s.add("top_k", (x,), k=s.integer(0, int(x.shape[-1])), largest=s.chance(2))


# --- windows ----------------------------------------------------------------------------------------------------------


def _image(s: Sketch) -> Value:
    found = s.pick(lambda v: v.type.rank in (3, 4) and v.dtype in (f32, f16, bf16))
    if found is not None and not s.chance(4):
        return found
    spatial = [s.one_of((1, 4, 7, 9)) for _ in range(s.one_of((1, 2, 2)))]
    return s.fresh(s.one_of((f32, f32, bf16)), (s.one_of((1, 2)) if s.chance(2) else s.size(), s.one_of((2, 4, 6)), *spatial))


def _window(s: Sketch, rank: int) -> dict[str, tuple[int, ...]]:
    low = (0, 0, 1)
    return {
        "strides": tuple(s.one_of((1, 1, 2)) for _ in range(rank)),
        "dilations": tuple(s.one_of((1, 1, 2)) for _ in range(rank)),
        "before": tuple(s.one_of(low) for _ in range(rank)),
        "after": tuple(s.one_of(low) for _ in range(rank)),
    }


@recipe
def conv(s: Sketch) -> bool:
    x = _image(s)
    groups, rank = s.one_of((1, 1, 2)), x.type.rank - 2
    if not isinstance(x.shape[1], int) or x.shape[1] % groups:
        return False
    outputs = groups * s.one_of((1, 3, 8))
    w = s.fresh(x.dtype, (outputs, x.shape[1] // groups, *(s.one_of((1, 2, 3)) for _ in range(rank))))
    bias = [s.fresh(x.dtype, (outputs,))] if s.chance(2) else []
    return s.add("conv", (x, w, *bias), groups=groups, **_window(s, rank))


@recipe
def conv_transpose(s: Sketch) -> bool:
    x = _image(s)
    rank = x.type.rank - 2
    # Places that no input reaches are products with 0 here and absent there: the same as long as weights are finite.
    w = s.fresh(x.dtype, (x.shape[1], s.one_of((1, 3)), *(s.one_of((1, 2, 3)) for _ in range(rank))), 0, 0)
    return s.add("conv_transpose", (x, w), groups=1, output_padding=(0,) * rank, **_window(s, rank))


@recipe
def max_pool(s: Sketch) -> bool:
    x = _image(s)
    rank = x.type.rank - 2
    attrs: dict[str, Any] = {"window": tuple(s.one_of((1, 2, 3)) for _ in range(rank)), **_window(s, rank)}
    name = s.one_of(("max_pool", "max_pool_index", "avg_pool", "avg_pool"))
    return s.add(name, (x,), **attrs, **({"count_padding": s.chance(2)} if name == "avg_pool" else {}))


# --- low precision ----------------------------------------------------------------------------------------------------


@recipe
def quantize(s: Sketch) -> bool:
    x = s.pick(lambda v: v.dtype in (f32, f16, bf16) and v.type.rank > 0)
    if x is None:
        return False
    axis = s.integer(0, x.type.rank - 1) if s.chance(2) else None
    size = () if axis is None else (x.shape[axis],)
    if size and not isinstance(size[0], int):
        return False
    scale = s.constant(s.random.uniform(0.01, 0.1, size).astype(x.dtype.numpy))
    dtype = s.one_of((i8, u8))
    points = [s.fresh(dtype, size)] if s.chance(2) else []
    return s.add("quantize", (x, scale, *points), axis=axis, dtype=dtype)


@recipe
def dequantize(s: Sketch) -> bool:
    x = s.pick(lambda v: v.dtype in (i8, u8) and v.type.rank > 0)
    if x is None:
        x = s.fresh(s.one_of((i8, u8)), s.shape(s.integer(1, 3)))
    axis = s.integer(0, x.type.rank - 1) if s.chance(2) else None
    size = () if axis is None else (x.shape[axis],)
    # What only a run knows is finite, as the op says; of constants the compiler knows better.
    known = all(isinstance(n, int) for n in size) and s.chance(2)
    scale = s.constant(s.array(TensorType(f32, size), {})) if known else s.fresh(f32, size, -2, 2)
    points = [s.fresh(x.dtype, size)] if s.chance(2) else []
    return s.add("dequantize", (x, scale, *points), axis=axis, dtype=s.one_of((f32, f32, bf16)))


# --- what has no recipe -----------------------------------------------------------------------------------------------


def _sampled(definition: OpDef) -> Recipe:
    """The op on the operands of one of its samples, those of a type that is there replaced by values."""
    samples = [sample for sample in definition.sample_list() if sample.error is None and "count" not in sample.attrs]

    def draw(s: Sketch) -> bool:
        sample = s.one_of(samples)
        operands: list[Value | None] = []
        for array in sample.operands:
            found = None if array is None or not type_of(array).dtype.is_float else s.pick(lambda v, a=array: v.type == type_of(a))
            operands.append(None if array is None else found or s.constant(array))
        return s.add(definition.name, operands, **sample.attrs)

    return draw


COVERED = frozenset(RECIPES) | {"rms_norm", "max_pool_index", "avg_pool"}
REFUSED = frozenset({"aten_call", "string_concat", "string_equal", "item", "nonzero", "unique", "non_max_suppression"}) | {
    *("rank_along_axis", "place_of_rank"),  # what top_k and sort become on GPUs
    *("check_index", "check_place", "check_divisor", "refuse_index", "refuse_place", "branch", "loop"),
}
"""Not drawn: calls into torch, strings, results whose size, or symbols whose value, only a run tells, what refuses most
operands, and what runs functions."""

for _definition in OPS.values():
    if _definition.kind != "pointwise" and _definition.name not in COVERED | REFUSED:
        RECIPES[_definition.name] = _sampled(_definition)

__all__ = ["COVERED", "DTYPES", "NAMES", "POINTWISE", "RECIPES", "REFUSED"]
