"""Models of one node whose inputs have symbolic sizes, and how ONNX Runtime's answer differs from what is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from generator import Case
from onnx import helper, numpy_helper
from quantizing import theirs, wrong_engines

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.ir.graph import Module
from ourcc.ir.graph.reference import interpret, judge

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Operand:
    """An operand: its elements, the names that some of its dimensions have, and whether it is a constant of the model."""

    array: Array
    sizes: tuple[str | None, ...] = ()
    constant: bool = False


@dataclass(frozen=True)
class NodeCase:
    """One node with its operands; an operand that is None is left out."""

    op_type: str
    operands: Sequence[Operand | Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[bool] = (True,)
    domain: str = MICROSOFT

    def __str__(self) -> str:
        shapes = [None if x is None else list(_operand(x).array.shape) for x in self.operands]
        return f"{self.op_type} {shapes} {dict(self.attributes)} -> {list(self.outputs)}"


def _operand(x: Operand | Array) -> Operand:
    return x if isinstance(x, Operand) else Operand(np.asarray(x))


Draw = Callable[[np.random.Generator], NodeCase]


def node_model(case: NodeCase, opset: int = 21) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model of a case and what is fed to it."""
    names, infos, constants, given = [], [], [], {}
    for position, entry in enumerate(case.operands):
        name = "" if entry is None else f"x{position}"
        names.append(name)
        if entry is None:
            continue
        operand = _operand(entry)
        array = np.asarray(operand.array)
        if operand.constant:
            constants.append(numpy_helper.from_array(array, name))
            continue
        given[name] = array
        sizes = [symbol or size for symbol, size in zip((*operand.sizes, *(None,) * array.ndim), array.shape, strict=False)]
        infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes))
    results = [f"y{position}" if wanted else "" for position, wanted in enumerate(case.outputs)]
    node = helper.make_node(case.op_type, names, results, "n", domain=case.domain, **case.attributes)
    outputs = [helper.make_empty_tensor_value_info(name) for name in results if name]
    graph = helper.make_graph([node], "g", infos, outputs, constants)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), given


def difference(case: NodeCase) -> tuple[Module, list[Array], str | None]:
    """The imported module, its inputs, and in which result ONNX Runtime computes something else."""
    model, given = node_model(case)
    wanted = theirs(model, given)
    module = import_onnx(model)
    inputs = [given[value.name] for value in module.main.inputs]
    ours, wide = interpret(module, inputs), interpret(module, inputs, wide=True)
    positions = [position for position, is_wanted in enumerate(case.outputs) if is_wanted]
    for position, got, want, exact in zip(positions, ours, wanted, wide, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            return module, inputs, f"{case}: output {position} is {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        verdict = judge(want, got, exact)
        if not verdict.passed:
            return module, inputs, f"{case}: output {position}: {verdict.reason}"
    return module, inputs, None


def differences(draw: Draw, count: int) -> list[str]:
    """What ONNX Runtime computes otherwise, of so many drawn nodes."""
    rng = np.random.default_rng(0)
    return [why for _, _, why in (difference(draw(rng)) for _ in range(count)) if why]


def faults_of_engines(draws: Sequence[Draw], count: int) -> list[str]:
    """Where engines compute something else than the reference, of so many nodes of each draw."""
    cases, names = [], []
    for draw in draws:
        rng = np.random.default_rng(1)
        for _ in range(count):
            case = draw(rng)
            module, inputs, _ = difference(case)
            cases.append(Case(module, (tuple(inputs),)))
            names.append(str(case))
    return wrong_engines(cases, names)
