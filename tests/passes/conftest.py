"""`check_pass`: a pass's test from two programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.graph import Module
from ourcc.ir.graph.compare import difference
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import verify
from ourcc.ir.types import TensorType
from ourcc.passes.base import Pass, PassContext
from ourcc.passes.manager import PassManager

CheckPass = Callable[..., Module]


def draw(type: TensorType, sizes: dict[str, int], generator: np.random.Generator, special: bool = False) -> np.ndarray:
    """A seeded array; floats hold zeros of both signs, and with `special` infinities and NaN too."""
    shape = tuple(dims.evaluate(size, sizes) for size in type.shape)
    if type.dtype.kind == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if type.dtype.is_integer:
        return generator.integers(0 if type.dtype.kind == "uint" else -3, 4, shape).astype(type.dtype.numpy)
    array = generator.standard_normal(shape)
    if array.size > 3:
        array.reshape(-1)[:2] = 0.0, -0.0
        array.reshape(-1)[2:5] = (np.inf, -np.inf, np.nan)[: array.size - 2] if special else array.reshape(-1)[2:5]
    return array.astype(type.dtype.numpy)


def sizes_of(module: Module) -> dict[str, int]:
    """A size for each symbol, within its range and a multiple of its divisor, different for different symbols."""
    sizes = {}
    for n, (name, bounds) in enumerate(module.facts.ranges.items()):
        divisor = module.facts.divisors.get(name, 1)
        wanted = max(bounds.low or 0, 2 + n)
        size = -(-wanted // divisor) * divisor
        sizes[name] = size if bounds.high is None else min(size, bounds.high)
    return sizes


def expect_same_results(before: Module, after: Module, exact: bool) -> None:
    """Both programs on the same inputs, compared by the judge; an exact rewrite must agree bit for bit, on infinities
    and NaN too (of NaN only that it is one: its sign and payload mean nothing).
    """
    generator = np.random.default_rng(0)
    sizes = sizes_of(before)
    inputs = [draw(value.type, sizes, generator) for value in before.main.inputs]
    stepwise, wide, got = interpret(before, inputs), interpret(before, inputs, wide=True), interpret(after, inputs)
    assert len(got) == len(stepwise)
    for one, step, exactly in zip(got, stepwise, wide, strict=True):
        verdict = judge(one, step, exactly)
        assert verdict.passed, verdict.reason
    if exact:
        special = [draw(value.type, sizes, generator, special=True) for value in before.main.inputs]
        pairs = [*zip(got, stepwise, strict=True), *zip(interpret(after, special), interpret(before, special), strict=True)]
        for one, step in pairs:
            assert bits(one) == bits(step)


def bits(array: np.ndarray) -> bytes:
    """The bytes of an array, all NaNs alike."""
    if not np.any(array != array):
        return array.tobytes()
    return np.where(array != array, np.asarray(np.nan).astype(array.dtype), array).tobytes()


@pytest.fixture
def check_pass() -> CheckPass:
    """check_pass(step, before, after): structure, changed flag, idempotence and results; `after=None`: unchanged."""

    def check(step: Pass, before: str, after: str | None = None, *, exact: bool | None = None) -> Module:
        original, module = parse_module(before), parse_module(before)
        expected = parse_module(before if after is None else after)
        verify(expected)
        records = PassManager([step], strict=True).run(module)
        found = difference(module, expected)
        assert found is None, f"{found}\n{module_text(module)}"
        assert records[0].changed == (after is not None)
        assert not step.run(module, PassContext()), f"not idempotent\n{module_text(module)}"
        assert difference(module, expected) is None
        again = parse_module(module_text(module))
        assert difference(module, again) is None
        assert module_text(again) == module_text(module)
        expect_same_results(original, module, step.numerics == "EXACT" if exact is None else exact)
        return module

    return check
