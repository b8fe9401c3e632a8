"""Parts of an axis whose sizes a call decides, and triangles of any diagonal: ONNX Runtime's answers, and errors where it has none."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from ourcc.compiler.api import build
from ourcc.ir.errors import IndexRangeError, InputError

HEAD = '<ir_version: 9, opset_import: ["" : 19]> g '
SIZES = "zero = Constant<value_ints = [0]>()  s = Shape(x)  n = Gather(s, zero)  t = Shape(w)  m = Gather(t, zero)  r = Sub(n, m)"


@pytest.mark.parametrize("used", ["first", "second", "both"])
@pytest.mark.parametrize("order", ["m, r", "r, m"])
def test_a_part_must_be_there_whoever_reads_the_others(used: str, order: str) -> None:
    outputs = {"first": "float[A] y", "second": "float[B] z", "both": "float[A] y, float[B] z"}[used]
    text = f"{HEAD}(float[N] x, float[M] w) => ({outputs}) {{ {SIZES}  p = Concat<axis = 0>({order})  y, z = Split<axis = 0>(x, p) }}"
    model = parser.parse_model(text)
    engine, session = build(model, targets=["native"], tune="off"), onnxruntime.InferenceSession(model.SerializeToString())
    refused = 0
    for n, m in product((0, 1, 2, 5, 9), (0, 1, 2, 5, 9, 40)):
        x, w = np.arange(n, dtype=np.float32), np.zeros(m, np.float32)
        try:
            wanted = session.run(None, {"x": x, "w": w})
        except Exception:  # noqa: BLE001 - the runtime's own errors have no common type
            refused += 1
            with pytest.raises((IndexRangeError, InputError)):
                engine(x, w)
            continue
        found = engine(x, w)
        for ours, theirs in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert refused == sum(m > n for n, m in product((0, 1, 2, 5, 9), (0, 1, 2, 5, 9, 40)))


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles_of_any_diagonal(upper: int) -> None:
    model = parser.parse_model(f"{HEAD}(float[N, 5] x, int64 k) => (float[N, 5] y) {{ y = Trilu<upper = {upper}>(x, k) }}")
    engine = build(model, targets=["native"], tune="off")
    for k in (0, 1, -1, 3, -3, 5, -7, 2**31, -(2**31), 2**62, -(2**62), 2**63 - 1, 2**63 - 4, -(2**63), -(2**63) + 2):
        x = np.arange(1, 36, dtype=np.float32).reshape(7, 5)
        # Which elements lie on and above a diagonal, in integers without bounds.
        place = np.array([[column - row for column in range(5)] for row in range(7)], object)
        kept = (place >= k) if upper else (place <= k)
        np.testing.assert_array_equal(engine(x, np.array(k)), np.where(kept.astype(bool), x, 0))
