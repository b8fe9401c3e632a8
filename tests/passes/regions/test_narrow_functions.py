"""Functions of which 16 bits are read: which forms are known, through what, and that engines keep what the judge allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.expression import Apply, Constant
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.region import Axis, Let, Load, Operand, Reduce, Ref, Region, Scalar, Store, walk
from ourcc.ir.region.interpret import run_region
from ourcc.ir.types import DType, TensorType, bf16, f16, f32
from ourcc.passes.regions.narrow_functions import GPU_NARROW, narrow_functions
from ourcc.runtime.engine import Engine

NARROW = ("sigmoid_narrow", "gelu_narrow")
X: Scalar = Load("x0", (dims.symbol("i"),), f32)


def apply(primitive: str, *args: Scalar | float, dtype: DType = f32) -> Scalar:
    return Apply(primitive, tuple(Constant(arg, f32) if isinstance(arg, float) else arg for arg in args), dtype)


def region(value: Scalar, *lets: tuple[str, Scalar], dtype: DType = bf16, more: Scalar | None = None) -> Region:
    """One result of an input of 64 numbers, and perhaps a second one in float32."""
    kind, outputs = TensorType(f32, (64,)), [Operand("y0", TensorType(dtype, (64,)))]
    body = [*(Let(name, ("i",), each) for name, each in lets), Store("y0", ("i",), (dims.symbol("i"),), value)]
    if more is not None:
        outputs.append(Operand("y1", kind))
        body.append(Store("y1", ("i",), (dims.symbol("i"),), more))
    return Region("region", (Operand("x0", kind),), tuple(outputs), (Axis("i", 64),), tuple(body))


def gelu(x: Scalar) -> Scalar:
    return apply("mul", apply("mul", x, 0.5), apply("add", apply("erf", apply("mul", x, math.sqrt(0.5))), 1.0))


def gelu_divided(x: Scalar) -> Scalar:
    """As exporters write it."""
    return apply("mul", apply("mul", x, apply("add", 1.0, apply("erf", apply("div", x, math.sqrt(2.0))))), 0.5)


def gelu_tanh(x: Scalar) -> Scalar:
    cubic = apply("mul", apply("mul", apply("mul", x, x), x), 0.044715)
    return apply("mul", apply("mul", x, 0.5), apply("add", apply("tanh", apply("mul", apply("add", x, cubic), 0.7978845608)), 1.0))


def silu(x: Scalar) -> Scalar:
    return apply("mul", x, apply("div", 1.0, apply("add", apply("exp", apply("neg", x)), 1.0)))


def sigmoid_of_negative(x: Scalar) -> Scalar:
    return apply("div", 1.0, apply("add", 1.0, apply("exp", x)))


def rounded(value: Scalar, dtype: DType = bf16) -> Scalar:
    return Apply("cast", (value,), dtype)


def names(found: Region) -> list[str]:
    return [part.primitive for s in found.body for part in walk(s.value) if isinstance(part, Apply) and part.primitive in NARROW]


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize(
    ("form", "name"),
    [(gelu, "gelu"), (gelu_divided, "gelu"), (gelu_tanh, "sigmoid"), (silu, "sigmoid"), (sigmoid_of_negative, "sigmoid")],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_forms_that_are_known(form: Callable[[Scalar], Scalar], name: str, dtype: DType) -> None:
    before = region(rounded(form(X), dtype), dtype=dtype)
    after = narrow_functions(before)
    assert names(after) == [f"{name}_narrow"]
    given = {"x0": np.concatenate([np.linspace(-12, 12, 60), [0.0, -0.0, np.inf, np.nan]]).astype(np.float32)}
    (wide,), (narrow,) = (run_region(each, given, {}).values() for each in (before, after))
    np.testing.assert_allclose(narrow.astype(np.float32), wide.astype(np.float32), rtol=2**-7, atol=1e-6)


def test_what_lies_between_may_only_scale() -> None:
    through = apply("where", apply("lt", X, 0.0), apply("neg", apply("mul", silu(X), 3.0)), apply("div", gelu(X), X))
    assert sorted(names(narrow_functions(region(rounded(through))))) == ["gelu_narrow", "sigmoid_narrow"]
    for value in (apply("add", silu(X), 1.0), apply("max", gelu(X), 0.5), apply("exp", silu(X))):
        assert names(narrow_functions(region(rounded(value)))) == []
    assert names(narrow_functions(region(silu(X), dtype=f32))) == []


def test_only_forms_that_a_target_has() -> None:
    both = rounded(apply("mul", silu(X), gelu(X)))
    assert sorted(names(narrow_functions(region(both)))) == ["gelu_narrow", "sigmoid_narrow"]
    for form in ("gelu_narrow", "sigmoid_narrow"):
        assert names(narrow_functions(region(both), frozenset({form}))) == [form]


def softmax(value: Scalar, total: str = "sum", dtype: DType = bf16, power: str = "exp") -> Region:
    """Rows of 64 numbers, their powers and the sum of these."""
    i, j = dims.symbol("i"), dims.symbol("j")
    kinds = TensorType(f32, (3, 64)), TensorType(dtype, (3, 64))
    body = (
        Let("t", ("i", "j"), apply(power, Load("x0", (i, j), f32))),
        Reduce("s", ("i",), total, ("j",), Ref("t", f32), f32),
        Store("y0", ("i", "j"), (i, j), value),
    )
    return Region("softmax", (Operand("x0", kinds[0]),), (Operand("y0", kinds[1]),), (Axis("i", 3), Axis("j", 64)), body)


def test_softmax_of_sixteen_bits() -> None:
    """A sum of powers has the relative error of each of them; what else becomes of it is another function."""
    powers, total = Ref("t", f32), Ref("s", f32)
    before = softmax(rounded(apply("div", powers, total)))
    after = narrow_functions(before, GPU_NARROW)
    made = [part.primitive for s in after.body for part in walk(s.value) if isinstance(part, Apply)]
    assert made == ["exp2_narrow", "mul", "cast", "mul", "div_narrow"]
    given = {"x0": np.random.default_rng(0).uniform(-80, 0, (3, 64)).astype(np.float32)}
    (wide,), (narrow,) = (run_region(each, given, {}).values() for each in (before, after))
    np.testing.assert_allclose(narrow.astype(np.float32), wide.astype(np.float32), rtol=2**-7, atol=0)
    assert narrow_functions(before) == before


@pytest.mark.parametrize(
    ("found", "divided"),
    [
        (softmax(apply("div", Ref("t", f32), Ref("s", f32)), dtype=f32), False),
        (softmax(rounded(apply("log", apply("div", Ref("t", f32), Ref("s", f32))))), False),
        (softmax(rounded(apply("div", Ref("t", f32), apply("add", Ref("s", f32), 1.0)))), True),
        (softmax(rounded(apply("div", Ref("t", f32), Ref("s", f32))), "prod"), True),
        (softmax(rounded(apply("div", Ref("t", f32), Ref("s", f32))), power="sin"), True),
    ],
)
def test_powers_of_which_more_is_read_stay(found: Region, divided: bool) -> None:
    after = [part.primitive for s in narrow_functions(found, GPU_NARROW).body for part in walk(s.value) if isinstance(part, Apply)]
    assert "exp2_narrow" not in after and ("div_narrow" in after) is divided


def test_a_named_value_is_narrow_if_nobody_reads_more_of_it() -> None:
    named, ref = ("t", silu(X)), Ref("t", f32)
    assert names(narrow_functions(region(rounded(apply("mul", ref, ref)), named))) == ["sigmoid_narrow"]
    assert names(narrow_functions(region(rounded(apply("mul", ref, 2.0)), named, more=ref))) == []
    assert names(narrow_functions(region(rounded(apply("mul", ref, apply("add", ref, 1.0))), named))) == []
    below = ("u", apply("mul", ref, 2.0))
    assert names(narrow_functions(region(rounded(Ref("u", f32)), named, below))) == ["sigmoid_narrow"]
    assert names(narrow_functions(region(rounded(Ref("u", f32)), named, below, more=ref))) == []


def test_other_numbers_are_other_functions() -> None:
    near = apply("mul", apply("mul", X, 0.5), apply("add", apply("erf", apply("mul", X, 0.7)), 1.0))
    of_another = apply("mul", apply("mul", apply("abs", X), 0.5), apply("add", apply("erf", apply("mul", X, math.sqrt(0.5))), 1.0))
    two = apply("div", 2.0, apply("add", apply("exp", apply("neg", X)), 1.0))
    for value in (near, of_another, two, apply("div", 1.0, apply("add", apply("exp", X), 2.0))):
        assert names(narrow_functions(region(rounded(value)))) == []


def test_long_products_are_looked_through_no_farther_than_that_pays() -> None:
    value = silu(X)
    for _ in range(200):
        value = apply("mul", value, X)
    assert names(narrow_functions(region(rounded(value)))) == []


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "sigmoid", "gated"])
def test_engines(activation: str, precision: str, target: str) -> None:
    """Activations of a product, whose results the next product reads in 16 bits; far out as well."""

    def network() -> Module:
        module, numbers = Module("net"), np.random.default_rng(0)
        graph = module.functions["main"] = Graph("main")
        b = Builder(module, graph)
        x = graph.add_input("x", TensorType(f32, (33, 48)))

        def weight(name: str, *shape: int) -> Value:
            return module.add_constant(name, numbers.standard_normal(shape).astype(np.float32))

        inner = b.matmul(x, weight("u", 48, 96))
        kinds: dict[str, Callable[[], Any]] = {
            "gelu": lambda: b.gelu(inner),
            "gelu_tanh": lambda: b.gelu(inner, approximate="tanh"),
            "silu": lambda: b.mul(inner, b.sigmoid(inner)),
            "sigmoid": lambda: b.sigmoid(inner),
            "gated": lambda: b.mul(b.mul(inner, b.sigmoid(inner)), b.matmul(x, weight("g", 48, 96))),
        }
        graph.set_outputs([b.matmul(kinds[activation](), weight("v", 96, 16))])
        return module

    module = network()
    given = (np.random.default_rng(1).standard_normal((33, 48)) * np.geomspace(0.01, 3, 33)[:, None]).astype(np.float32)
    engine = Engine(compile_module(module, build_options({"target": target, "precision": precision, "tune": "off"})), threads=1)
    (step,), (exact,) = interpret(module, [given]), interpret(module, [given], wide=True)
    verdict = judge(np.asarray(engine(given)), step, exact, digits={"bf16": 8, "fp16": 11}[precision])
    assert verdict.passed, verdict.reason
