"""Contents of an engine: constants kept once, contracts as tables."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.errors import EngineError
from ourcc.ir.plan import Plan
from ourcc.runtime import Constant, Contract, ContractRow, EngineContents, PartContents

EMPTY = PartContents({"main": Plan("cpu", dims.NO_FACTS, (), (), (), (), ())})


def test_constants_that_targets_keep_alike_are_kept_once():
    a, b = np.arange(4.0), np.arange(4.0) + 1
    weights = {"cpu": {"x": a, "y": a, "z": a}, "sm_100a": {"x": b, "y": a}, "sm_90a": {"x": b, "y": a.copy(), "w": b}}
    contents = EngineContents.of({"cpu": EMPTY, "sm_90a": EMPTY, "sm_100a": EMPTY}, weights)
    places = {(file, name) for file, group in contents.weights.items() for name in group}
    assert places == {("shared", "y"), ("shared", "x"), ("cpu", "x"), ("cpu", "z"), ("sm_90a", "w")}
    for target, group in weights.items():
        for name, array in group.items():
            assert contents.constant(target, name) == Constant.of(array)
    with pytest.raises(EngineError, match="engine holds no constant 'w' for cpu"):
        contents.constant("cpu", "w")


def test_a_contract_is_a_table_and_survives_json():
    contract = Contract((ContractRow("fc1", "matmul", "int8", "f32", "slower"), ContractRow("a", "gelu", "f32", "f32")))
    assert str(contract).splitlines() == [
        "source  op      requested  realised  why",
        "fc1     matmul  int8       f32       slower",
        "a       gelu    f32        f32",
    ]
    assert Contract.from_json(contract.to_json()) == contract
    for damaged in ([{"source": "x"}], [5], 7):
        with pytest.raises(EngineError, match=r"contract in report.json is damaged"):
            Contract.from_json(damaged)
