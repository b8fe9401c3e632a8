"""Functions of one code as tables: drawn chains on two levels to the bit, codes of both signs, what is left as it is and why."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.types import DType, TensorType, f32, i8, i32, u8
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.tabulate_codes import FunctionOfCode
from ourcc.runtime.engine import Engine

ALL = np.arange(256, dtype=np.uint8)


def number(module: Module, name: str, value: float, dtype: DType = f32) -> Value:
    return module.add_constant(name, np.asarray(value).astype(dtype.numpy))


def drawn(seed: int) -> Module:
    """Codes of either sign through a drawn chain, which may split and meet again and pass through codes on its way."""
    draw = random.Random(seed)
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    first, last = draw.choice((u8, i8)), draw.choice((u8, i8))
    rows = module.declare("T", 1, 9) if draw.random() < 0.5 else 4
    code = graph.add_input("c", TensorType(first, (rows, 64)))

    def wide(value: Value, name: str) -> Value:
        zero = number(module, f"{name}.zero", draw.choice((0, 3, 100)), value.dtype)
        return b.dequantize(value, number(module, f"{name}.scale", draw.choice((0.01, 0.05, 0.2))), zero, dtype=f32)

    def narrow(value: Value, name: str, dtype: DType) -> Value:
        zero = number(module, f"{name}.zero", draw.choice((0, 7, 90)), dtype)
        return b.quantize(value, number(module, f"{name}.scale", draw.choice((0.02, 0.1))), zero, dtype=dtype)

    value = wide(code, "first")
    for step in range(draw.randint(1, 4)):
        name = f"step{step}"
        kinds: list[Callable[[], Value]] = [
            lambda value=value: b.mul(b.tanh(value), value),
            lambda value=value, name=name: b.pow(
                value, b.dequantize(number(module, f"{name}.power", 3, u8), number(module, f"{name}.one", 1.0), dtype=f32)
            ),
            lambda value=value: b.erf(b.exp(b.neg(b.abs(value)))),
            lambda value=value, name=name: wide(narrow(b.sigmoid(value), f"{name}.in", draw.choice((u8, i8))), f"{name}.out"),
            lambda value=value: b.maximum(value, b.sqrt(b.abs(value))),
        ]
        value = draw.choice(kinds)()
    graph.set_outputs([narrow(b.sinh(b.minimum(value, number(module, "top", 2.0))), "last", last)])
    return module


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("level", ["native", "x86-64-v3"])
def test_every_code_gives_what_the_ops_give(seed: int, level: str) -> None:
    module = drawn(seed)
    given = ALL.view(module.main.inputs[0].dtype.numpy).reshape(4, 64)
    (wanted,) = interpret(module, [given])
    contents = compile_module(module, build_options({"target": level}))
    assert [op.name for op in module.main if op.name != "cast"] == ["take"], "one lookup is left of it"
    np.testing.assert_array_equal(np.asarray(Engine(contents, threads=1)(given)), wanted)


def test_gpus_compute_it() -> None:
    module = drawn(0)
    given = ALL.view(module.main.inputs[0].dtype.numpy).reshape(4, 64)
    (wanted,) = interpret(module, [given])
    from ourcc.compiler.pipeline import product_passes

    assert "tabulate_codes" not in product_passes(build_options({"target": "sm_90a"}))
    assert "tabulate_codes" in product_passes(build_options({"target": "native"}))
    PassManager(parse_pipeline("tabulate_codes")).run(module)
    np.testing.assert_array_equal(interpret(module, [given])[0], wanted)


def _module() -> tuple[Module, Graph, Builder]:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    return module, graph, Builder(module, graph)


def test_what_is_left_as_it_is() -> None:
    module, graph, b = _module()
    x, y = (graph.add_input(name, TensorType(u8, shape)) for name, shape in (("x", (4, 8)), ("y", (8,))))
    one, per = number(module, "one", 0.1), module.add_constant("per", np.linspace(0.1, 0.8, 8, dtype=np.float32))
    wide, other, by_column = b.dequantize(x, one, dtype=f32), b.dequantize(y, one, dtype=f32), b.dequantize(x, per, dtype=f32, axis=1)

    def why(value: Value) -> str | None:
        assert value.op is not None
        return FunctionOfCode(40.0).check(value.op, module)

    made = {
        "the result is no code of 8 bits": b.tanh(wide),
        "it is not computed from one code": b.quantize(b.tanh(b.add(wide, other)), one, dtype=u8),
        "a dimension is broadcast": b.maximum(b.quantize(b.tanh(b.exp(other)), one, dtype=u8), b.full(value=3, shape=(4, 8), dtype=u8)),
    }
    assert {reason: why(value) for reason, value in made.items()} == {reason: reason for reason in made}
    assert why(b.quantize(b.tanh(by_column), one, dtype=u8)) == "it is not computed from one code"
    assert "less than the 40" in (why(b.quantize(b.relu(wide), one, dtype=u8)) or "")
    assert why(b.quantize(b.tanh(b.exp(wide)), one, dtype=u8)) is None


def test_two_lookups_become_one_and_a_code_with_other_readers_stays() -> None:
    module, graph, b = _module()
    x = graph.add_input("x", TensorType(i8, (256,)))
    one = number(module, "one", 0.05)
    middle = b.quantize(b.tanh(b.exp(b.dequantize(x, one, dtype=f32))), one, dtype=u8)
    last = b.quantize(b.erf(b.sqrt(b.dequantize(middle, one, dtype=f32))), number(module, "two", 0.004), dtype=i8)
    graph.set_outputs([last, middle])
    given = [ALL.view(np.int8)]
    wanted = interpret(module, given)
    PassManager(parse_pipeline("tabulate_codes, eliminate_dead_code")).run(module)
    looks = [op for op in module.main if op.name == "take"]
    assert len(looks) == 2 and all(op.operands[1] is not looks[0].result for op in looks), "each looks up x itself"
    for got, each in zip(interpret(module, given), wanted, strict=True):
        np.testing.assert_array_equal(got, each)


def test_an_index_of_the_table_need_not_be_a_number_of_one_code() -> None:
    """A lookup that a model writes is one, too."""
    module, graph, b = _module()
    x = graph.add_input("x", TensorType(u8, (5, 33)))
    known = module.add_constant("known", np.roll(ALL, 5))
    graph.set_outputs([b.take(known, x, axis=0), b.take(known, b.cast(x, dtype=i32), axis=0)])
    given = [np.random.default_rng(1).integers(0, 256, (5, 33)).astype(np.uint8)]
    wanted = interpret(module, given)
    for level in ("native", "x86-64-v3"):
        engine = Engine(compile_module(module, build_options({"target": level})), threads=1)
        for got, each in zip(engine(*given), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(got), each)
