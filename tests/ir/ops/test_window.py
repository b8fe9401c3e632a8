"""Windows over little or nothing: the reference has as many places as the type says, and the numbers of the region."""

from __future__ import annotations

import random

import numpy as np
import pytest

import ourcc.ir.ops  # noqa: F401 - declares the ops
from ourcc.ir import dims
from ourcc.ir.errors import InputError
from ourcc.ir.graph.reference import bind_attribute, concrete, judge
from ourcc.ir.ops import table
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.types import TensorType, f32

SIZE = dims.symbol("N")
CHANNELS = 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["conv", "conv_transpose", "max_pool", "avg_pool"])
def test_windows_over_little(name: str) -> None:
    choices, random_numbers = random.Random(name), np.random.default_rng(0)
    empty = refused = whole = 0
    for _ in range(300):
        size, window, stride, hole = choices.randrange(4), choices.randint(1, 5), choices.randint(1, 3), choices.randint(1, 2)
        before, after = (choices.choice((0, 0, 0, 1, 2, -1, -2)) for _ in range(2))
        attrs = {"strides": (stride,), "dilations": (hole,), "before": (before,), "after": (after,)}
        attrs |= {"output_padding": (choices.randrange(2),), "groups": 1} if name == "conv_transpose" else {}
        attrs |= {"groups": 1} if name == "conv" else {}
        attrs |= {"window": (window,)} if name.endswith("pool") else {}
        x = random_numbers.uniform(-2, 2, (2, CHANNELS, size)).astype(np.float32)
        w = random_numbers.uniform(-2, 2, (CHANNELS, CHANNELS, window)).astype(np.float32)
        operands = (x,) if name.endswith("pool") else (x, w)
        types = (TensorType(f32, (2, CHANNELS, SIZE)), TensorType(f32, w.shape))[: len(operands)]
        found = OPS[name].infer(types, attrs)
        expected = tuple(concrete(type, {"N": size}) for type in found)
        bound = {key: bind_attribute(value, {"N": size}) for key, value in attrs.items()}
        if expected[0].shape[2] < 0:
            if name != "conv_transpose" and min(before, after) >= 0:
                with pytest.raises(InputError, match=r"windows that reach over \[\d+\] are larger than the padded sizes \[\d\]"):
                    table.run(OPS[name], operands, bound, expected, wide=False)
                refused += 1
            continue
        (step,) = table.run(OPS[name], operands, bound, expected, wide=False)
        (wide,) = table.run(OPS[name], tuple(a.astype(np.float64) for a in operands), bound, expected, wide=True)
        assert step.shape == expected[0].shape, (attrs, size, window)
        region = region_of(OPS[name], types, attrs)
        got = run_region(region, {f"x{n}": a for n, a in enumerate(operands)}, {"N": size})["y0"]
        verdict = judge(got, step, wide)
        assert verdict.passed, (verdict.reason, attrs, size, window)
        empty, whole = empty + (step.size == 0), whole + (step.size > 0)
    assert min(empty, whole) > 10 and (refused > 10) == (name != "conv_transpose"), (empty, whole, refused)
