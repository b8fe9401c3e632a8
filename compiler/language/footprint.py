"""What a language model costs by its outline: bytes of weights, caches and workspace, operations of a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.errors import VerifyError
from ...ir.formats import format_of
from ...ir.graph import Graph, Value
from ...ir.types import DTYPES, TensorType
from ...passes.quantize import QUANTIZATIONS
from ...passes.weights.weights import Weight, other_reader, weights_of
from .caches import CACHES
from .outline import Outline

PLAIN = ("f32", "bf16", "f16")
"""Dtypes that all weights may be planned in; every other format is what `--quantize` calls it."""
_VIEWS = frozenset({"reshape", "transpose", "slice", "broadcast_to"})
_TABLE, _APPEND = "take", "scatter_nd"


@dataclass(frozen=True)
class Weighed:
    """Bytes of weights: those in the format asked for, and the others.

    `copied` are tables that products read as well, which an engine holds in two orders of memory. A step reads `read` bytes whatever
    its tokens are, and a `row` of tables for each of them. `kept` says why weights of products stay as stored, and how many do.
    """

    coded: int
    others: int
    copied: int
    read: int
    row: int
    kept: Mapping[str, int]

    @property
    def total(self) -> int:
        """All that is held."""
        return self.coded + self.others + self.copied


def weigh(outline: Outline, format: str | None) -> Weighed:
    """The weights of products as a name of `QUANTIZATIONS` stores them, or all in a dtype of `PLAIN`; None: as stored."""
    names = {value: name for name, value in outline.weights.items()}
    products = {weight.stored: weight for weight in weights_of(outline.graph)}
    own = outline.bytes
    if format in PLAIN:
        own = {name: dims.number(TensorType(DTYPES[format], value.shape).nbytes) for name, value in outline.weights.items()}
    coded: dict[str, int] = {}
    kept: Counter[str] = Counter()
    stored = QUANTIZATIONS[format].format if format in QUANTIZATIONS else None
    for value, weight in products.items():
        found = None if stored is None else _coded(weight, stored)
        if found is None:
            continue
        if isinstance(found, str):
            kept[found] += 1
        else:
            coded[names[value]] = found
    sizes = {**own, **coded}
    tables = {value for value in names if any(op.name == _TABLE and op.operands[0] is value for op in value.uses)}
    return Weighed(
        coded=sum(coded.values()),
        others=sum(sizes.values()) - sum(coded.values()),
        copied=sum(sizes[names[value]] for value in tables & products.keys()),
        read=sum(size for name, size in sizes.items() if outline.weights[name] not in tables - products.keys()),
        row=sum(own[names[value]] // dims.number(value.shape[0]) for value in tables),
        kept=kept,
    )


def _coded(weight: Weight, format: str) -> int | str:
    """The bytes of a weight in a format; or why it stays as it is stored, as the passes that store weights so have it."""
    other = other_reader(weight)
    if other is not None:
        return f"{other.name} reads it as well, so it would be stored twice"
    try:
        types = format_of(format).types(weight.value.shape, weight.contracted)
    except VerifyError:
        return f"{weight.value.shape[weight.contracted]} numbers of a row are no whole groups of {format}"
    return sum(dims.number(each.nbytes) for each in types)


def token_bytes(outline: Outline, cache: str) -> int:
    """The bytes of a token's keys and values in all layers."""
    total = 0
    for state in outline.module.states.values():
        _, _, groups, size = map(dims.number, state.type.shape)
        total += groups * CACHES[cache].row_bytes(size)
    return total


def seen_pairs(outline: Outline, first: int, count: int) -> int:
    """Pairs of a token and one that it sees, of so many tokens from position `first` on."""
    window = outline.config.window
    seen = range(first + 1, first + count + 1)
    return sum(seen) if window is None else sum(min(each, window) for each in seen)


def operations(outline: Outline, first: int, count: int, wanted: int = 1) -> int:
    """Multiplications and additions of products and attention for `count` tokens of a sequence that has `first` before them."""
    sizes = {"S": count, "T": first + count, "R": wanted}
    total = 0
    for op in outline.graph:
        if op.name == "matmul":
            left = op.operands[0]
            assert left is not None
            total += 2 * _number(op.result.type.elements, sizes) * _number(left.shape[-2 if op.attrs["transpose_a"] else -1], sizes)
        elif op.name == "attention":
            _, heads, _, size = op.result.shape
            # Twice, for scores and for what they weigh.
            total += 4 * _number(heads, sizes) * _number(size, sizes) * seen_pairs(outline, first, count)
    return total


def workspace(graph: Graph, sizes: Mapping[str, int]) -> int:
    """The most bytes of results that are alive at one time as the ops stand, none fused; views take none, nor do states written to."""
    roots: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    ops = list(graph)
    for number, op in enumerate(ops):
        operands = [roots.get(value, value) for value in op.operands if value is not None]
        is_view = op.name in _VIEWS or (op.name == _APPEND and operands[0] in graph.inputs)
        roots.update((result, operands[0] if is_view else result) for result in op.results)
        last.update((value, number) for value in (*operands, *(roots[result] for result in op.results)))
    last.update((roots.get(value, value), len(ops)) for value in graph.outputs)
    dying: dict[int, list[Value]] = {}
    for value, number in last.items():
        dying.setdefault(number, []).append(value)
    held = most = 0
    for number, op in enumerate(ops):
        held += sum(_number(result.type.nbytes, sizes) for result in op.results if roots[result] is result)
        most = max(most, held)
        held -= sum(_number(value.type.nbytes, sizes) for value in dying.get(number, ()) if value.op is not None)
    return most


def _number(size: Dim, sizes: Mapping[str, int]) -> int:
    return dims.evaluate(size, sizes)
