"""Drawn products of 8-bit codes: signs, zero points at the ends, sizes that are no multiples of anything, pads, and what reads them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from generator import Case
from harness import compared, failing

from ourcc.ir.dims import Dim
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import Array, bind_symbols, interpret
from ourcc.ir.ops.quantization import limits
from ourcc.ir.types import DType, TensorType, f16, f32, i8, i32, u8
from ourcc.passes.manager import PassManager
from ourcc.passes.quantize.integer_products import IntegerProducts

SHARE = 0.25
"""Of the option --cases: each is built as whole kernels."""
BATCH = 12
SIZES = (3, 1)
"""What the symbol of rows and images stands for, at the two bindings."""
DEPTHS = (1, 2, 3, 4, 5, 7, 8, 9, 31, 64)


@dataclass
class Sketch:
    """A program under construction: one input of codes, and constants from the same seed."""

    choices: random.Random
    module: Module = field(default_factory=lambda: Module("case"))

    def __post_init__(self) -> None:
        self.graph = Graph("main")
        self.module.functions["main"] = self.graph
        self.builder = Builder(self.module, self.graph)
        self.random = np.random.default_rng(self.choices.getrandbits(32))
        self.dtype = self.choices.choice((u8, i8))
        self.float = self.choices.choice((f32, f32, f32, f16))

    def rows(self) -> Dim:
        """A number of rows or images: a number, or a symbol."""
        return self.module.declare("M", 0, 64) if self.choices.random() < 0.4 else self.choices.choice((1, 2, 5))

    def codes(self, dtype: DType, *shape: int) -> Array:
        """Any codes, or those at one end alone."""
        low, high = (int(end) for end in limits(dtype))
        ends = self.choices.choice(((low, high), (low, high), (low, low), (high, high)))
        return self.random.integers(ends[0], ends[1] + 1, shape).astype(dtype.numpy)

    def dequantized(self, x: Value | Array, dtype: DType, axis: int, count: Dim | None, moved: bool = True) -> Value:
        """Codes with one scale and zero point, or one for each place of an axis whose size is a number, each as it comes."""
        each = (count,) if isinstance(count, int) and self.choices.random() < 0.6 else None
        shapes = [self.choices.choice(((), each)) if each else self.choices.choice(((), (1,))) for _ in range(2)]
        scales = self.random.uniform(0.01, 0.1, shapes[0]).astype(self.float.numpy)
        zeros = self.codes(dtype, *shapes[1]) if moved and self.choices.random() < 0.8 else None
        along = axis if each and each in (scales.shape, None if zeros is None else zeros.shape) else None
        return self.builder.dequantize(x, scales, zeros, axis=along, dtype=self.float)

    def case(self, *values: Value) -> Case:
        self.graph.set_outputs(list(values), [f"y{n}" for n in range(len(values))])
        (x,) = self.graph.inputs
        shapes = [[size if isinstance(size, int) else rows for size in x.shape] for rows in SIZES]
        return Case(self.module, tuple((self.codes(self.dtype, *shape),) for shape in shapes))


def linear(s: Sketch) -> list[Value]:
    depth, columns, rows = s.choices.choice(DEPTHS), s.choices.randrange(1, 41), s.rows()
    lead = s.choices.choice(((), (), (2,), (3, 1)))
    x = s.graph.add_input("x", TensorType(s.dtype, (*lead, rows, depth)))
    transposed, weight = s.choices.random() < 0.4, s.choices.choice((i8, i8, u8))
    codes = s.codes(weight, columns, depth) if transposed else s.codes(weight, depth, columns)
    left = s.dequantized(x, s.dtype, len(lead), rows)
    right = s.dequantized(codes, weight, 0 if transposed else 1, columns, moved=weight == u8 or s.choices.random() < 0.5)
    product = s.builder.matmul(left, right, transpose_b=transposed)
    return [product, *([s.builder.relu(left)] if s.choices.random() < 0.2 else [])]


def image(s: Sketch) -> list[Value]:
    rank, channels, wide = s.choices.choice((1, 2, 2, 3)), s.choices.randrange(1, 10), s.choices.randrange(1, 20)
    kernel = [s.choices.choice((1, 2, 3)) for _ in range(rank)]
    before, after = (tuple(s.choices.choice((0, 0, 1, 2, -1)) for _ in range(rank)) for _ in range(2))
    x = s.graph.add_input("x", TensorType(s.dtype, (s.rows(), channels, *(size + 5 for size in kernel))))
    filters = s.dequantized(s.codes(i8, wide, channels, *kernel), i8, 0, wide, moved=s.choices.random() < 0.4)
    left = s.dequantized(x, s.dtype, 1, None)
    bias = s.random.standard_normal(wide).astype(s.float.numpy) if s.choices.random() < 0.5 else None
    steps = tuple(s.choices.choice((1, 2)) for _ in range(rank))
    return [s.builder.conv(left, filters, bias, strides=steps, dilations=(1,) * rank, before=before, after=after)]


def integers(s: Sketch) -> list[Value]:
    """Codes as 32-bit integers, moved by numbers that are codes, or are not."""
    depth, columns, b = s.choices.choice(DEPTHS), s.choices.randrange(1, 41), s.builder
    x = s.graph.add_input("x", TensorType(s.dtype, (s.rows(), depth)))
    wide, weight = b.cast(x, dtype=i32), b.cast(s.codes(i8, depth, columns), dtype=i32)
    if s.choices.random() < 0.7:
        shape = (1,) * s.choices.choice((0, 1, 2, 3))
        wide = b.sub(wide, np.full(shape, s.choices.choice((0, 128, -5, 255, 300, 100_000, (1 << 31) - 1)), np.int32))
    return [b.matmul(wide, weight)]


KINDS: dict[str, Callable[[Sketch], list[Value]]] = {"linear": linear, "image": image, "integers": integers}


def draw(number: int, seed: int) -> tuple[str, Case]:
    """Case `number` of a seed; kinds take turns."""
    kind = list(KINDS)[number % len(KINDS)]
    sketch = Sketch(random.Random(f"{seed} {number}"))
    return kind, sketch.case(*KINDS[kind](sketch))


@pytest.fixture(scope="module")
def drawn_cases(request: pytest.FixtureRequest) -> list[tuple[str, Case]]:
    count, seed = request.config.getoption("--cases"), request.config.getoption("--seed", 0)
    return [draw(number, seed) for number in range(max(8 * len(KINDS), round(count * SHARE)))]


@pytest.mark.parametrize("codes", ["u8", "i8"])
def test_codes_give_what_the_numbers_mean(drawn_cases: list[tuple[str, Case]], codes: str, request: pytest.FixtureRequest) -> None:
    seed, fired, wrong = request.config.getoption("--seed", 0), 0, []
    for number, (kind, case) in enumerate(drawn_cases):
        after = draw(number, seed)[1].module
        (record,) = PassManager([IntegerProducts(codes)], strict=True).run(after)
        fired += record.changed
        for run, inputs in enumerate(case.inputs):
            assert bind_symbols(after.main.inputs, list(inputs)).get("M", SIZES[run]) == SIZES[run]
            why = compared(case, run, interpret(after, inputs))
            wrong += [f"{kind} {number}: {why}"] if why else []
    assert not wrong and fired > len(drawn_cases) // 4, f"{fired} of {len(drawn_cases)} fired: {wrong}"


def test_kernels_give_what_the_numbers_mean(drawn_cases: list[tuple[str, Case]]) -> None:
    cases = [case for _, case in drawn_cases]
    groups = [cases[start : start + BATCH] for start in range(0, len(cases), BATCH)]
    assert [why for group in groups for _, why in failing(group)] == []
