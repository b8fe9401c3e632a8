"""Which functions a `.pt2` may name."""

from __future__ import annotations

import math
import operator

import pytest
import torch

from ourcc.compiler.importers.torch.pt2.operators import resolve
from ourcc.ir.errors import ModelError, Source, UnsupportedError

SOURCE = Source("model.pt2")


@pytest.mark.parametrize(
    ("target", "function"),
    [
        ("torch.ops.aten.add.Tensor", torch.ops.aten.add.Tensor),
        ("torch.ops.prims.iota.default", torch.ops.prims.iota.default),
        ("_operator.floordiv", operator.floordiv),
        ("operator.mul", operator.mul),
        ("_operator.getitem", operator.getitem),
        ("torch.sym_max", torch.sym_max),
        ("math.trunc", math.trunc),
    ],
)
def test_torchs_own(target: str, function: object) -> None:
    assert resolve(target, SOURCE) is function


@pytest.mark.parametrize(
    "target",
    [
        *(
            "os.system",
            "builtins.eval",
            "torch.load",
            "torch.hub.load",
            "torch.compile",
            "torch.ops.load_library",
            "_operator.methodcaller",
        ),
        *("_operator.attrgetter", "torch.sym_max.__globals__", "torch.ops.aten.add", "torch.ops.aten.add.Tensor.__call__", "math.exp"),
        *("torch.ops.mylib.run.default", "torch.ops.aten.add.Tensor\n", "", "torch.ops.aten. add.Tensor", "#custom:op"),
    ],
)
def test_what_is_not_torchs_own(target: str) -> None:
    with pytest.raises(UnsupportedError, match="is not torch's own"):
        resolve(target, SOURCE)


@pytest.mark.parametrize(
    "target",
    [
        *(
            "torch.ops.aten.frobnicate.default",
            "torch.ops.aten.add.Frobnicate",
            "torch.ops.aten.add.__class__",
            "torch.ops.aten.__class__.mro",
        ),
        *("torch.ops.aten.from_file.default", "torch.ops.aten._print.default", "torch.ops.prims.__init__.__globals__"),
    ],
)
def test_what_torch_does_not_have(target: str) -> None:
    with pytest.raises(ModelError, match="there is no operator") as caught:
        resolve(target, SOURCE)
    assert "model.pt2" in str(caught.value)


def test_control_flow() -> None:
    with pytest.raises(UnsupportedError, match="is control flow, which has no form here"):
        resolve("torch.ops.higher_order.scan", SOURCE)
    assert resolve("torch.ops.higher_order.cond", SOURCE) is torch.ops.higher_order.cond
