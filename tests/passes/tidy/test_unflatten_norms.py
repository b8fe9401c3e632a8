"""Norms of joined dimensions: taken over the dimensions themselves, for groups of channels too; what is left and why."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.passes.tidy.unflatten_norms import NormOfJoined, UnflattenNorms
from ourcc.runtime.engine import Engine


def program(source: str, joined: str, attrs: str = "axes = [2], epsilon = 1e-05", op: str = "layer_norm", more: str = "") -> str:
    return f"""
module @m symbols {{ N in 1..4 }} {{
  const @s : f32[3136] = {[1.0] * 3136}
  func @main(%x: f32[{source}]) -> f32[{source}] {{
    %a = reshape(%x) {{shape = [{joined}]}} : f32[{joined}]
    %b = {op}(%a{more}) {{{attrs}}} : f32[{joined}]
    %y = reshape(%b) {{shape = [{source}]}} : f32[{source}]
    return %y
  }}
}}
"""


def check(text: str) -> str | None:
    module = parse_module(text)
    return next(NormOfJoined().check(op, module) for op in module.main if op.name.endswith("norm"))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    ("source", "joined", "apart"),
    [
        ("N, 64, 7, 7", "N, 1, 3136", "N, 1, 64, 7, 7"),
        ("N, 64, 7, 7", "N, 8, 392", "N, 8, 8, 7, 7"),
        ("N, 1, 64, 49", "N, 1, 3136", "N, 1, 64, 49"),
    ],
    ids=["all", "groups", "trailing"],
)
def test_dimensions_stay_apart(check_pass, source: str, joined: str, apart: str, op: str) -> None:
    before = program(source, joined, op=op)
    axes = list(range(2, len(apart.split(","))))
    after = f"""
module @m symbols {{ N in 1..4 }} {{
  const @s : f32[3136] = {[1.0] * 3136}
  func @main(%x: f32[{source}]) -> f32[{source}] {{
    {"" if apart == source else f"%s = reshape(%x) {{shape = [{apart}]}} : f32[{apart}]"}
    %n = {op}(%{"x" if apart == source else "s"}) {{axes = {axes}, epsilon = 1e-05}} : f32[{apart}]
    %b = reshape(%n) {{shape = [{joined}]}} : f32[{joined}]
    %y = reshape(%b) {{shape = [{source}]}} : f32[{source}]
    return %y
  }}
}}
"""
    check_pass(UnflattenNorms(), before, after, exact=False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (program("N, 64, 49", "N, 3136", "axes = [1], epsilon = 1e-05"), None),
        (program("N, 64, 7, 7", "N, 64, 49", "axes = [1, 2], epsilon = 1e-05"), "not the last dimension alone"),
        (program("N, 64, 7, 7", "N, 1, 3136", more=", @s"), "a scale or a bias for each element"),
        (program("N, 6, 4, 7", "N, 4, 42"), "does not join trailing dimensions"),
        (program("N, 64, 49", "N, 64, 49"), "does not join trailing dimensions"),
    ],
    ids=["one", "two axes", "scaled", "no groups", "nothing joined"],
)
def test_what_is_left(text: str, why: str | None) -> None:
    found = check(text)
    assert found is None if why is None else found is not None and why in found


@pytest.mark.parametrize("groups", [1, 4, 32])
def test_group_norms_of_images_with_channels_last_are_right(groups: int) -> None:
    """Memory holds the image with its channels last, as convolutions write it."""
    random = np.random.default_rng(groups)
    text = f"""
module @m symbols {{ N in 1..4 }} {{
  func @main(%x: f32[N, 32, 6, 5], %w: f32[32, 32, 3, 3], %s: f32[32]) -> f32[N, 32, 6, 5] {{
    %c = conv(%x, %w) {{strides = [1, 1], dilations = [1, 1], before = [1, 1], after = [1, 1]}} : f32[N, 32, 6, 5]
    %g = group_norm(%c, %s, %s) {{groups = {groups}, epsilon = 1e-05}} : f32[N, 32, 6, 5]
    %y = conv(%g, %w) {{strides = [1, 1], dilations = [1, 1], before = [1, 1], after = [1, 1]}} : f32[N, 32, 6, 5]
    return %y
  }}
}}
"""
    module = parse_module(text)
    given = [random.standard_normal(shape).astype(np.float32) for shape in ((2, 32, 6, 5), (32, 32, 3, 3), (32,))]
    (step,), (exact,) = interpret(module, given), interpret(module, given, wide=True)
    verdict = judge(np.asarray(Engine(compile_module(module, build_options({})), threads=1)(*given)), step, exact)
    assert verdict.passed, verdict.reason
    norms = [op for op in module.main if op.name == "layer_norm"]
    assert norms and all(len(op.attrs["axes"]) == (2 if groups == 32 else 3) for op in norms)
