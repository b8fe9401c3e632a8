"""Drawn products of one left factor with odd readers: joined ones give the same, need a kernel less each and copy nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from generator import Case
from harness import compared, failing

from ourcc.ir.dims import Dim
from ourcc.ir.formats import FORMATS
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import Array, interpret
from ourcc.ir.types import TensorType, bf16, f16, f32, f64, i64
from ourcc.passes.base import PassContext
from ourcc.passes.fusion.join_products import JoinProducts
from ourcc.passes.fusion.partition import partition
from ourcc.passes.manager import PassManager
from ourcc.passes.tidy.eliminate_dead_code import EliminateDeadCode

SHARE = 0.25
"""Of the option --cases."""
BUILT, BATCH = 4, 5
"""Of so many cases one is built as whole kernels, and so many of these together."""
SIZES = (3, 1)
"""What the symbol of rows stands for, at the two bindings."""
DEPTHS = (1, 2, 5, 8, 16, 32)
CODED = ("int8", "int8.tensor", "int4.g32", "uint4.g32", "nvfp4", "mxfp4", "q4_1", "q8_0")
"""Formats of weights: some have a scale for all columns, and are not joined."""
COLUMNS = (4, 8, 8, 8, 16, 32, 3)


@dataclass
class Sketch:
    """A program under construction: one input, what is given back, and heads that wait for an attention."""

    choices: random.Random
    module: Module = field(default_factory=lambda: Module("case"))
    results: list[Value] = field(default_factory=list)
    heads: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = Graph("main")
        self.module.functions["main"] = self.graph
        self.builder = Builder(self.module, self.graph)
        self.random = np.random.default_rng(self.choices.getrandbits(32))
        self.dtype = self.choices.choice((f32, f32, f32, f16, bf16, f64))
        self.rows: Dim = self.module.declare("M", 0, 64) if self.choices.random() < 0.5 else self.choices.choice((1, 2, 5))
        self.depth = self.choices.choice(DEPTHS)
        lead = self.choices.choice(((), (2,), (2,), (1, 3)))
        self.x = self.graph.add_input("x", TensorType(self.dtype, (*lead, self.rows, self.depth)))
        codings = [name for name in CODED if self.depth % FORMATS[name].group == 0 and self.dtype != f64]
        self.coding = self.choices.choice(codings) if codings and self.choices.random() < 0.4 else None

    def numbers(self, *shape: int) -> Array:
        return (self.random.standard_normal(shape) / 2).astype(self.dtype.numpy)

    def coded(self, columns: int, transposed: bool) -> Value:
        """A weight in the format of the sketch, seldom in another one, as `decode` or as `dequantize` gives its numbers."""
        name = self.coding if self.coding is not None and self.choices.random() < 0.9 else "int8"
        along = 1 if transposed else 0
        array = self.numbers(*((columns, self.depth) if transposed else (self.depth, columns))).astype(np.float32)
        fields = FORMATS[name].encoded(array, along)
        if name != "int8" or self.choices.random() < 0.5:
            parts = [self.module.add_constant(field, each) for field, each in fields.items()]
            decoded: Value = self.builder.decode(*parts, format=name, axis=along, dtype=self.dtype)
            return decoded
        codes, scale = (
            self.module.add_constant(field, each) for field, each in (("codes", fields["codes"]), ("s", fields["scale"].reshape(-1)))
        )
        numbers: Value = self.builder.dequantize(codes, scale, axis=1 - along, dtype=self.dtype)
        return numbers

    def case(self) -> Case:
        self.graph.set_outputs(self.results, [f"y{n}" for n in range(len(self.results))])
        shapes = [[size if isinstance(size, int) else rows for size in self.x.shape] for rows in SIZES]
        return Case(self.module, tuple((self.numbers(*shape),) for shape in shapes))


# --- what reads a product ---------------------------------------------------------------------------------------------


def normed(s: Sketch, p: Value) -> Value:
    return s.builder.softmax(p, axis=-1)


def summed(s: Sketch, p: Value) -> Value:
    return s.builder.sum(p, axes=(s.choices.randrange(p.type.rank),), keepdims=False)


def ended(s: Sketch, p: Value) -> Value:
    return s.builder.tanh(p)


def read_twice(s: Sketch, p: Value) -> Value:
    return s.builder.mul(s.builder.tanh(p), p)


def returned(s: Sketch, p: Value) -> Value:
    return p


def beside_itself(s: Sketch, p: Value) -> Value:
    return s.builder.concat(p, p, axis=s.choices.randrange(p.type.rank))


def multiplied(s: Sketch, p: Value) -> Value:
    return s.builder.matmul(p, s.numbers(int(str(p.shape[-1])), 6))


def from_the_right(s: Sketch, p: Value) -> Value:
    left = s.numbers(5, int(str(p.shape[-1])))
    if s.choices.random() < 0.5:
        return s.builder.matmul(left, p, transpose_b=True)
    turned = (*range(p.type.rank - 2), p.type.rank - 1, p.type.rank - 2)
    return s.builder.matmul(left, s.builder.transpose(p, permutation=turned))


def flat(s: Sketch, p: Value) -> Value:
    return s.builder.softmax(s.builder.reshape(p, shape=(*p.shape[:-2], p.shape[-2] * p.shape[-1])), axis=-1)


def taken(s: Sketch, p: Value) -> Value:
    return s.builder.take(p, np.array([1, 0, 1]), axis=p.type.rank - 1)


def sliced(s: Sketch, p: Value) -> Value:
    rank, wide = p.type.rank, int(str(p.shape[-1]))
    starts = (*(0 for _ in range(rank - 1)), 1)
    return s.builder.softmax(s.builder.slice(p, starts=starts, sizes=(*p.shape[:-1], wide - 1), steps=(1,) * rank), axis=-1)


def padded(s: Sketch, p: Value) -> Value:
    rank = p.type.rank
    return s.builder.pad(p, before=(*(0 for _ in range(rank - 1)), 2), after=(0,) * rank)


def headed(s: Sketch, p: Value) -> Value:
    """Heads to the front; attention takes three of one shape, what is left over is summed."""
    rank, wide = p.type.rank, int(str(p.shape[-1]))
    count = s.choices.choice([n for n in (1, 2, 4) if wide % n == 0])
    split = s.builder.reshape(p, shape=(*p.shape[:-1], count, wide // count))
    heads = s.builder.transpose(split, permutation=(*range(rank - 2), rank - 1, rank - 2, rank))
    s.heads.append(heads)
    alike = [value for value in s.heads if value.shape == heads.shape]
    return s.builder.attention(*alike[-3:], scale=0.5) if len(alike) > 2 else s.builder.sum(heads, axes=(rank,), keepdims=False)


def written(s: Sketch, p: Value) -> Value:
    """Heads narrowed and written into a cache, as of keys and values."""
    if p.type.rank != 2:
        return headed(s, p)
    rows, wide = p.shape
    count = s.choices.choice([n for n in (1, 2, 4) if int(str(wide)) % n == 0])
    dtype = s.choices.choice([each for each in (f32, bf16, f16) if each != s.dtype])
    heads = s.builder.reshape(s.builder.cast(p, dtype=dtype), shape=(rows, count, int(str(wide)) // count))
    places = s.builder.iota(shape=(rows, 1), axis=0, dtype=i64)
    cache = np.zeros((64, count, int(str(wide)) // count), dtype.numpy)
    result: Value = s.builder.scatter_nd(cache, places, heads)
    return result


READERS: tuple[Callable[[Sketch, Value], Value], ...] = (
    *(headed, headed, headed, headed, written, written, normed, summed, ended, read_twice, returned),
    *(beside_itself, multiplied, from_the_right, flat, taken, sliced, padded),
)


def product(s: Sketch, transposed: bool, columns: int) -> Value:
    """A product of the input, with a bias of some shape or none."""
    weight = s.coded(columns, transposed) if s.coding else s.numbers(*((columns, s.depth) if transposed else (s.depth, columns)))
    value = s.builder.matmul(s.x, weight, transpose_b=transposed)
    if s.choices.random() < 0.1:
        s.results.append(s.builder.sum(s.builder.value(value.op.operands[1]), axes=(0,), keepdims=False))
    shape = s.choices.choice((None, None, (columns,), (columns,), (1, columns), (1,), ()))
    if shape is None:
        return value
    bias = s.numbers(*shape)
    return s.builder.add(value, bias) if s.choices.random() < 0.7 else s.builder.add(bias, value)


def draw(number: int, seed: int) -> Case:
    """Case `number` of a seed: products first, then what reads them, or each with its reader."""
    s = Sketch(random.Random(f"{seed} {number}"))
    transposed, columns, waits = s.choices.random() < 0.4, s.choices.choice(COLUMNS), s.choices.random() < 0.7
    values: list[Any] = []
    for _ in range(s.choices.randrange(2, 6)):
        turned = transposed if s.choices.random() < 0.9 else not transposed
        values.append(product(s, turned, columns if s.choices.random() < 0.6 else s.choices.choice(COLUMNS)))
        if not waits:
            s.results.append(s.choices.choice(READERS)(s, values.pop()))
    s.results += [s.choices.choice(READERS)(s, value) for value in values]
    return s.case()


@pytest.fixture(scope="module")
def drawn_cases(request: pytest.FixtureRequest) -> list[Case]:
    count, seed = request.config.getoption("--cases"), request.config.getoption("--seed", 0)
    return [draw(number, seed) for number in range(max(80, round(count * SHARE)))]


def test_joined_products_cost_a_kernel_less_and_give_the_same(drawn_cases: list[Case], request: pytest.FixtureRequest) -> None:
    seed, fired, wrong = request.config.getoption("--seed", 0), 0, []
    for number, case in enumerate(drawn_cases):
        after = draw(number, seed).module
        (record,) = PassManager([JoinProducts()], strict=True).run(after)
        fired += record.changed
        EliminateDeadCode().run(after, PassContext())
        fewer = products(case.module) - products(after)
        if kernels(after) > kernels(case.module) - fewer:
            wrong.append(f"{number}: {fewer} products fewer, {kernels(case.module)} kernels became {kernels(after)}")
        if weights(after) != weights(case.module):
            wrong.append(f"{number}: {weights(case.module)} numbers of weights became {weights(after)}")
        for run, inputs in enumerate(case.inputs):
            why = compared(case, run, interpret(after, inputs))
            wrong += [f"{number}: {why}"] if why else []
    assert not wrong and fired > len(drawn_cases) // 8, f"{fired} of {len(drawn_cases)} fired: {wrong}"


def products(module: Module) -> int:
    return sum(op.name == "matmul" for op in module.main)


def kernels(module: Module) -> int:
    return len(partition(module, module.main))


def weights(module: Module) -> int:
    """How many numbers the weights that are stored have."""
    return sum(int(str(value.type.elements)) for value in module.constants.values() if value.type.rank == 2 and 1 not in value.shape[:1])


def test_kernels_of_joined_products_are_right(drawn_cases: list[Case]) -> None:
    built = drawn_cases[::BUILT]
    groups = [built[start : start + BATCH] for start in range(0, len(built), BATCH)]
    assert [why for group in groups for _, why in failing(group)] == []
