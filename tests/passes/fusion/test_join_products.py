"""Products of one left factor: joined into one by a wider weight where nothing is lost by it, refused with a reason elsewhere."""

from __future__ import annotations

import hashlib
from itertools import product
from typing import Any

import numpy as np
import pytest

from ourcc.ir.formats import FORMATS
from ourcc.ir.graph import Builder, ConstantData, Graph, Module, Op, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.target import AVX2, gpu_target
from ourcc.ir.types import DTYPES, DType, TensorType, f16, f32, i8, u8
from ourcc.passes.base import PassContext
from ourcc.passes.fusion.join_products import JoinProducts, why_not
from ourcc.passes.fusion.partition import HostOp, partition
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.manager import PassManager
from ourcc.passes.tidy.eliminate_dead_code import EliminateDeadCode
from ourcc.passes.tile.cpu import STRATEGIES as CPU
from ourcc.passes.tile.gpu import STRATEGIES as GPU

FIRST, SECOND = "1.0, 2.0, 3.0, 4.0", "5.0, 6.0, 7.0, 8.0"
THIRD, FOURTH = "-1.0, 0.5, 0.25, 2.0, -3.0, 1.5, 4.0, 9.0", "8.0, -7.0, 6.0, -5.0, 4.0, -3.0, 2.0, -1.0"
HEAD = f"""module @m symbols {{ B in 0..8 }} {{
  const @w : f32[2, 4] = [{FIRST}, {SECOND}]
  const @t : f32[4, 2] = [{FIRST}, {SECOND}]
  const @u : f32[2, 8] = [{THIRD}, {FOURTH}]
  const @v : f32[8, 2] = [{THIRD}, {FOURTH}]
  const @three : f32[2, 3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
  const @b : f32[4] = [0.5, -0.5, 1.0, 2.0]
  const @c : f32[1, 8] = [{THIRD}]
  const @left : f32[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
"""
NORMS = """    %m = softmax(%p) {axis = 1} : f32[B, 4]
    %n = softmax(%q) {axis = 1} : f32[B, 8]
"""
RESULTS = "(f32[B, 4], f32[B, 8])"


def program(body: str, results: str = "%m, %n", types: str = RESULTS, more: str = "", inputs: str = "%x: f32[B, 2]") -> str:
    return f"{HEAD}{more}  func @main({inputs}) -> {types} {{\n{body}    return {results}\n  }}\n}}\n"


def plain(norms: str = NORMS) -> str:
    return f"    %p = matmul(%x, @w) : f32[B, 4]\n    %q = matmul(%x, @u) : f32[B, 8]\n{norms}"


def parts(norms: str = NORMS, whole: str = "s") -> str:
    return f"""    %p = slice(%{whole}) {{starts = [0, 0], sizes = [B, 4], steps = [1, 1]}} : f32[B, 4]
    %q = slice(%{whole}) {{starts = [0, 4], sizes = [B, 8], steps = [1, 1]}} : f32[B, 8]
{norms}"""


WIDE = f"  const @wide : f32[2, 12] = [{FIRST}, {THIRD}, {SECOND}, {FOURTH}]\n"


def test_products_and_their_biases_become_one(check_pass):
    before = f"""    %p0 = matmul(%x, @w) : f32[B, 4]
    %p = add(%p0, @b) : f32[B, 4]
    %q0 = matmul(%x, @u) : f32[B, 8]
    %q = add(@c, %q0) : f32[B, 8]
{NORMS}"""
    bias = f"  const @bias : f32[12] = [0.5, -0.5, 1.0, 2.0, {THIRD}]\n"
    after = "    %a = matmul(%x, @wide) : f32[B, 12]\n    %s = add(%a, @bias) : f32[B, 12]\n" + parts()
    module = check_pass(JoinProducts(), program(before), program(after, more=WIDE + bias))
    assert "%p = slice(" in module_text(module)
    EliminateDeadCode().run(module, PassContext())
    assert [value.type.elements for value in module.constants.values()] == [24, 12]


def test_what_has_no_bias_has_one_that_changes_nothing(check_pass):
    before = f"""    %p0 = matmul(%x, @w) : f32[B, 4]
    %p = add(%p0, @b) : f32[B, 4]
    %q = matmul(%x, @u) : f32[B, 8]
{NORMS}"""
    bias = f"  const @bias : f32[12] = [0.5, -0.5, 1.0, 2.0{', -0.0' * 8}]\n"
    after = "    %a = matmul(%x, @wide) : f32[B, 12]\n    %s = add(%a, @bias) : f32[B, 12]\n" + parts()
    check_pass(JoinProducts(), program(before), program(after, more=WIDE + bias))


def test_transposed_weights_lie_below_each_other(check_pass):
    before = plain().replace("@w)", "@t) {transpose_b = true}").replace("@u)", "@v) {transpose_b = true}")
    wide = f"  const @wide : f32[12, 2] = [{FIRST}, {SECOND}, {THIRD}, {FOURTH}]\n"
    after = f"    %s = matmul(%x, @wide) {{transpose_b = true}} : f32[B, 12]\n{parts()}"
    check_pass(JoinProducts(), program(before), program(after, more=wide))


def test_what_reads_a_bias_apart_from_its_product(check_pass):
    """A product that others read before its bias comes is a part without it."""
    norms = f"""    %e = add(%p, @b) : f32[B, 4]
    %k = sum(%p) {{axes = [0], keepdims = true}} : f32[1, 4]
    %d = mul(%e, %k) : f32[B, 4]
{NORMS.replace("%p", "%d")}"""
    after = f"    %s = matmul(%x, @wide) : f32[B, 12]\n{parts(norms)}"
    check_pass(JoinProducts(), program(plain(norms)), program(after, more=WIDE))


HEADS = """    %p4 = reshape(%p) {shape = [B, 2, 2]} : f32[B, 2, 2]
    %h = transpose(%p4) {permutation = [1, 0, 2]} : f32[2, B, 2]
    %q4 = reshape(%q) {shape = [B, 4, 2]} : f32[B, 4, 2]
    %i = transpose(%q4) {permutation = [1, 0, 2]} : f32[4, B, 2]
    %i2 = slice(%i) {starts = [0, 0, 0], sizes = [2, B, 2], steps = [1, 1, 1]} : f32[2, B, 2]
"""


def test_heads_are_read_through_movements(check_pass):
    norms = f"{HEADS}    %y = attention(%h, %i2, %i2) {{scale = 0.5}} : f32[2, B, 2]\n"
    after = f"    %s = matmul(%x, @wide) : f32[B, 12]\n{parts(norms)}"
    check_pass(JoinProducts(), program(plain(norms), "%y", "f32[2, B, 2]"), program(after, "%y", "f32[2, B, 2]", more=WIDE))


LAST = "    %n = softmax(%q) {axis = 1} : f32[B, 8]\n"
REFUSED: dict[str, tuple[str, str, str, str]] = {
    "the caller's": (plain(LAST), "%p, %n", RESULTS, "the caller gets it"),
    "the caller's, moved": (
        plain(f"    %m = reshape(%p) {{shape = [B, 2, 2]}} : f32[B, 2, 2]\n{LAST}"),
        "%m, %n",
        "(f32[B, 2, 2], f32[B, 8])",
        "the caller gets it",
    ),
    "an end of its own": (
        plain(f"    %m = tanh(%p) : f32[B, 4]\n{LAST}"),
        "%m, %n",
        RESULTS,
        "tanh %m is computed at the end of its kernel",
    ),
    "an end that reads it twice": (
        plain(f"    %g = sigmoid(%p) : f32[B, 4]\n    %m = mul(%g, %p) : f32[B, 4]\n{LAST}"),
        "%m, %n",
        RESULTS,
        "sigmoid %g is computed at the end of its kernel",
    ),
    "a moved end": (
        plain(
            f"""    %p4 = reshape(%p) {{shape = [B, 2, 2]}} : f32[B, 2, 2]
    %m = tanh(%p4) : f32[B, 2, 2]
{LAST}"""
        ),
        "%m, %n",
        "(f32[B, 2, 2], f32[B, 8])",
        "tanh %m is computed at the end of its kernel",
    ),
    "rows and columns": (
        plain(
            f"""    %p4 = reshape(%p) {{shape = [B * 2, 2]}} : f32[B*2, 2]
    %m = softmax(%p4) {{axis = 1}} : f32[B*2, 2]
{LAST}"""
        ),
        "%m, %n",
        "(f32[B*2, 2], f32[B, 8])",
        "a reshape mixes its rows and its columns",
    ),
    "another order": (
        plain(
            f"""    %p4 = transpose(%p) {{permutation = [1, 0]}} : f32[4, B]
    %m = matmul(%p4, %x) : f32[4, 2]
{LAST}"""
        ),
        "%m, %n",
        "(f32[4, 2], f32[B, 8])",
        "matmul reads it in another order",
    ),
    "gathered": (
        plain(
            f"""    %z = iota() {{shape = [3], axis = 0, dtype = i64}} : i64[3]
    %m = take(%p, %z) {{axis = 1}} : f32[B, 3]
{LAST}"""
        ),
        "%m, %n",
        "(f32[B, 3], f32[B, 8])",
        "take does not read it where it lies",
    ),
    "three columns": (
        plain().replace("%p = matmul(%x, @w) : f32[B, 4]", "%p = matmul(%x, @three) : f32[B, 3]").replace("f32[B, 4]", "f32[B, 3]"),
        "%m, %n",
        "(f32[B, 3], f32[B, 8])",
        "its 3 columns of f32 are no multiple of 16 bytes",
    ),
    "a constant": (
        plain().replace("%x", "@left").replace("[B,", "[3,"),
        "%m, %n",
        "(f32[3, 4], f32[3, 8])",
        "the left factor is constant",
    ),
    "computed": (
        plain().replace("%p = matmul(%x, @w)", "%o = mul(@w, %f) : f32[2, 4]\n    %p = matmul(%x, %o)"),
        "%m, %n",
        RESULTS,
        "the right factor is computed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(check_pass, name):
    body, results, types, reason = REFUSED[name]
    text = program(body, results, types, inputs="%x: f32[B, 2], %f: f32[2, 4]")
    module = parse_module(text)
    product = next(op for op in module.main if op.name == "matmul")
    assert why_not(product, module, module.main) == reason
    check_pass(JoinProducts(), text, None)


def test_weights_of_many_dimensions_are_refused(check_pass):
    more = f"  const @deep : f32[1, 2, 4] = [{FIRST}, {SECOND}]\n"
    body = """    %p = matmul(%x, @deep) : f32[1, B, 4]
    %m = softmax(%p) {axis = 2} : f32[1, B, 4]
    %q = matmul(%x, @u) : f32[B, 8]
    %n = softmax(%q) {axis = 1} : f32[B, 8]
"""
    text = program(body, types="(f32[1, B, 4], f32[B, 8])", more=more)
    module = parse_module(text)
    assert why_not(next(iter(module.main)), module, module.main) == "the right factor has rank 3, expected a matrix"
    check_pass(JoinProducts(), text, None)


@pytest.mark.parametrize(
    ("more", "result"),
    [
        ("    %k = neg(@w) : f32[2, 4]\n    %o = sum(%k) {axes = [0], keepdims = false} : f32[4]\n", "f32[4]"),
        ("    %o = matmul(%m, @w) {transpose_b = true} : f32[B, 2]\n", "f32[B, 2]"),
    ],
    ids=["a sum", "another product"],
)
def test_weights_that_others_read_are_not_stored_twice(check_pass, more, result):
    check_pass(JoinProducts(), program(plain(NORMS + more), "%m, %n, %o", f"(f32[B, 4], f32[B, 8], {result})"), None)


def test_nothing_waits_longer_than_before(check_pass):
    """A product that stands between two others of one left factor keeps them apart."""
    body = """    %p = matmul(%x, @w) : f32[B, 4]
    %m = softmax(%p) {axis = 1} : f32[B, 4]
    %k = matmul(%m, @t) : f32[B, 2]
    %q = matmul(%x, @u) : f32[B, 8]
    %n = softmax(%q) {axis = 1} : f32[B, 8]
"""
    check_pass(JoinProducts(), program(body, "%k, %n", "(f32[B, 2], f32[B, 8])"), None)


def test_those_that_stay_alone_do_not_keep_others_apart(check_pass):
    alone = "    %z0 = matmul(%x, @z) : f32[B, 8]\n    %z = tanh(%z0) : f32[B, 8]\n"
    body, joined = (text.replace("    %q = ", f"{alone}    %q = ") for text in (plain(), parts()))
    more, results, types = f"  const @z : f32[2, 8] = [{FOURTH}, {THIRD}]\n", "%m, %n, %z", "(f32[B, 4], f32[B, 8], f32[B, 8])"
    after = f"    %s = matmul(%x, @wide) : f32[B, 12]\n{joined}"
    check_pass(JoinProducts(), program(body, results, types, more), program(after, results, types, more + WIDE))


def twice(second: str) -> Module:
    """A program of two functions, the second with another body."""
    main, step = (program(body) for body in (plain(), second))
    start = step.index("  func @main")
    return parse_module(f"{main.rstrip().removesuffix('}')}{step[start:].replace('@main', '@step')}")


@pytest.mark.parametrize(("limit", "widths"), [(128, [16]), (127, [12, 4]), (96, [12, 4]), (95, [4, 8, 4])])
def test_weights_are_joined_up_to_so_many_bytes(limit, widths):
    more = f"  const @z : f32[2, 4] = [{SECOND}, {FIRST}]\n"
    body = plain(f"    %o = matmul(%x, @z) : f32[B, 4]\n{NORMS}    %k = softmax(%o) {{axis = 1}} : f32[B, 4]\n")
    module = parse_module(program(body, "%m, %n, %k", "(f32[B, 4], f32[B, 8], f32[B, 4])", more))
    JoinProducts(limit=limit).run(module, PassContext())
    assert [op.result.shape[-1] for op in module.main if op.name == "matmul"] == widths


def test_functions_that_join_the_same_weights_share_the_wide_one():
    module = twice(plain())
    assert JoinProducts().run(module, PassContext())
    products = [op for graph in module.functions.values() for op in graph if op.name == "matmul"]
    assert len(products) == 2 and products[0].operands[1] is products[1].operands[1]


def test_a_function_that_reads_weights_otherwise_keeps_them_apart_for_all():
    module = twice(plain(NORMS.replace("softmax(%p)", "tanh(%p)").replace(" {axis = 1} : f32[B, 4]", " : f32[B, 4]")))
    assert not JoinProducts().run(module, PassContext())


def test_constants_without_values_are_joined_by_their_digests():
    module, again = parse_module(program(plain())), parse_module(program(plain()))
    for each in (module, again):
        for name, value in each.constants.items():
            digest = hashlib.sha256(name.encode()).hexdigest()
            value.constant = ConstantData(load=lambda: pytest.fail("nobody has the values"), digest=digest, available=False)
        assert JoinProducts().run(each, PassContext())
    (wide,) = (value for name, value in module.constants.items() if "joined" in name)
    assert wide.constant is not None and not wide.constant.available and wide.shape == (2, 12)
    assert module_text(module) == module_text(again)


# --- weights in number formats ----------------------------------------------------------------------------------------


def coded(form: str, columns: tuple[int, ...] = (128, 256), depth: int = 256, forms: tuple[str, ...] = ()) -> Module:
    """Two products of weights in a format, each with a softmax behind it."""
    module = Module("m")
    graph = module.functions.setdefault("main", Graph("main"))
    b, random = Builder(module, graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(f32, (3, depth)))
    results = []
    for width, name in zip(columns, forms or (form,) * len(columns), strict=True):
        known = FORMATS[name]
        if known.encode is None:
            fields = {f.name: made_up(t, random) for f, t in zip(known.fields, known.types((width, depth), 1), strict=True)}
        else:
            fields = known.encoded((random.standard_normal((width, depth)) / 8).astype(np.float32), 1)
        weight = b.decode(*(module.add_constant(field, each) for field, each in fields.items()), format=name, axis=1)
        results.append(b.softmax(b.matmul(x, weight, transpose_b=True), axis=1))
    graph.set_outputs(results)
    return module


def made_up(type: TensorType, random: np.random.Generator) -> np.ndarray[Any, Any]:
    shape = tuple(int(str(size)) for size in type.shape)
    numbers = random.random(shape) / 8 if type.dtype.is_float else random.integers(0, 100, shape)
    return numbers.astype(type.dtype.numpy)


@pytest.mark.parametrize("form", FORMATS)
def test_weights_in_a_format_lie_side_by_side_as_they_are_stored(form: str) -> None:
    module, shared = coded(form), any(field.rows is None for field in FORMATS[form].fields)
    bytes_of = sum(int(str(value.type.nbytes)) for value in module.constants.values())
    x = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
    before = interpret(module, [x])
    first = next(op for op in module.main if op.name == "matmul")
    assert why_not(first, module, module.main) == ("columns share scales" if shared else None)
    assert JoinProducts().run(module, PassContext()) != shared
    EliminateDeadCode().run(module, PassContext())
    assert sum(op.name == "matmul" for op in module.main) == (2 if shared else 1)
    assert sum(int(str(value.type.nbytes)) for value in module.constants.values()) == bytes_of
    for one, other in zip(before, interpret(module, [x]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


APART = [((64, 256), ("fp8.e4m3.block",) * 2), ((128, 128), ("int8", "fp8.e4m3")), ((128, 128), ("q4_0", "q4_1"))]


@pytest.mark.parametrize(("columns", "forms"), APART)
def test_columns_of_two_formats_and_parts_of_blocks_stay_apart(columns: tuple[int, ...], forms: tuple[str, ...]) -> None:
    assert not JoinProducts().run(coded("", columns, forms=forms), PassContext())


def held(b: Builder, kind: str, array: np.ndarray[Any, Any]) -> Value:
    """A weight as one of several graphs would have it."""

    def constant(numbers: np.ndarray[Any, Any], dtype: DType) -> Value:
        return b.module.add_constant("w", numbers.astype(dtype.numpy))

    codes, scale = np.round(array * 8), np.full(array.shape[0], 0.125)
    if kind in ("f16", "bf16"):
        return b.cast(constant(array, DTYPES[kind]), dtype=f32)
    dtype = u8 if kind == "u8" else i8
    more = [constant(np.full(array.shape[0], 3), dtype)] if kind in ("zero", "u8") else []
    parts = constant(codes + 9 if kind == "u8" else codes, dtype), constant(scale, f16 if kind == "narrow" else f32), *more
    return b.dequantize(*parts, axis=0, dtype=f32)


@pytest.mark.parametrize("kinds", list(product(("f16", "bf16", "plain", "zero", "u8", "narrow"), repeat=2)))
def test_weights_are_joined_where_they_are_held_alike(kinds: tuple[str, str]) -> None:
    """With zero points or without, in these dtypes or others: only what has the same fields lies side by side."""
    module = Module("m")
    graph = module.functions.setdefault("main", Graph("main"))
    b, random = Builder(module, graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(f32, (3, 8)))
    made = [held(b, kind, random.standard_normal((16, 8)).clip(-1, 1)) for kind in kinds]
    graph.set_outputs([b.softmax(b.matmul(x, weight, transpose_b=True), axis=1) for weight in made])
    given = random.standard_normal((3, 8)).astype(np.float32)
    before = interpret(module, [given])
    assert JoinProducts().run(module, PassContext()) == (kinds[0] == kinds[1])
    for one, other in zip(before, interpret(module, [given]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_table_that_others_read_too_stays_apart() -> None:
    """The head of a language model is its embedding."""
    module = coded("q8_0")
    b = Builder(module, module.main)
    first = next(op for op in module.main if op.name == "decode")
    rows = b.take(b.decode(*first.operands, format="q8_0", axis=1), np.asarray([1, 2]), axis=0)
    module.main.set_outputs([*module.main.outputs, rows])
    assert not JoinProducts().run(module, PassContext())


def test_a_bisection_counts_each_wider_product():
    module = parse_module(program(plain()))
    (record,) = PassManager([JoinProducts()], rewrite_limit=0).run(module)
    assert not record.changed and sum(op.name == "matmul" for op in module.main) == 2


# --- a layer of an encoder --------------------------------------------------------------------------------------------


def layer(heads: tuple[int, int, int] = (4, 4, 4), biases: tuple[bool, bool, bool] = (True, True, True), gated: bool = False) -> Module:
    """Attention over its own input, then a part that widens: with GELU, or gated."""
    module, width, head = Module("m"), 64, 16
    batch, length = module.declare("B", 1, 8), module.declare("S", 1, 64)
    graph = module.functions.setdefault("main", Graph("main"))
    b, random = Builder(module, graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(f32, (batch, length, width)))

    def weight(*shape: int) -> Any:
        return (random.standard_normal(shape) / 8).astype(np.float32)

    def side(count: int, has_bias: bool) -> Value:
        product = b.matmul(x, weight(width, count * head))
        total = b.add(product, weight(count * head)) if has_bias else product
        return b.transpose(b.reshape(total, shape=(batch, length, count, head)), permutation=(0, 2, 1, 3))

    q, k, v = (side(count, has_bias) for count, has_bias in zip(heads, biases, strict=True))
    mixed = b.transpose(b.attention(q, k, v, scale=0.25), permutation=(0, 2, 1, 3))
    h = b.add(b.matmul(b.reshape(mixed, shape=(batch, length, heads[0] * head)), weight(heads[0] * head, width)), x)
    n = b.layer_norm(h, None, None, axes=(2,), epsilon=1e-5)
    wide = b.matmul(n, weight(width, 128))
    wide = b.mul(b.matmul(n, weight(width, 128)), b.mul(wide, b.sigmoid(wide))) if gated else b.gelu(wide)
    graph.set_outputs([b.add(b.matmul(wide, weight(128, width)), h)])
    return module


@pytest.mark.parametrize("heads", [(4, 4, 4), (4, 2, 2)], ids=["heads", "groups of heads"])
@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True), (False, False, False)])
@pytest.mark.parametrize("gated", [False, True])
def test_a_layer_has_two_kernels_less(heads, biases, gated):
    module = layer(heads, biases, gated)
    before = [op.name for op in kernels(module)]
    assert JoinProducts().run(module, PassContext())
    after = [op.name for op in kernels(module)]
    # What follows is as it was: what reads the parts copies none of them, what has an end of its own or is gated keeps it.
    assert after[1:] == before[3:] and after[0] == ("add" if any(biases) else "matmul")
    products = [op for op in module.main if op.name == "matmul"]
    assert [int(str(op.result.shape[-1])) for op in products] == [16 * sum(heads), 64, *[128] * (1 + gated), 64]


def kernels(module: Module) -> list[Op]:
    """The op that each kernel ends in."""
    units = partition(module, module.main)
    assert not any(isinstance(unit, HostOp) for unit in units)
    return [unit.ops[-1] for unit in units]


@pytest.mark.parametrize("family", ["cpu", "gpu"])
def test_each_kernel_of_a_joined_layer_is_one_launch(family):
    module = layer((4, 2, 2))
    strategies, target = (CPU, AVX2) if family == "cpu" else (GPU, gpu_target("sm_90a"))
    launches = {}
    for step in ("before", "after"):
        scheduler = Scheduler(strategies, target, cheapest(target), lambda *_: {})
        units = partition(module, module.main)
        launches[step] = sum(len(scheduler.schedule(unit, module.facts).program.launches) for unit in units)
        JoinProducts().run(module, PassContext())
    assert launches["after"] == launches["before"] - 2
