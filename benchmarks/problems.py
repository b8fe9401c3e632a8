"""Problems that schedules are chosen for: the kinds of kernels that models are made of, each as a graph of one or a few ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir import dims
from ourcc.ir.formats import format_of
from ourcc.ir.graph import Builder, ConstantData, Graph, Module, Value
from ourcc.ir.region.cost import cost_of
from ourcc.ir.target import CpuLevel
from ourcc.ir.types import DType, TensorType, bf16, f32, i8, i32, i64, u8
from ourcc.ir.workload import Point, Workload
from ourcc.passes.lower.schedule import Choose
from ourcc.passes.tile.schedule import Candidate, Problem


@dataclass(frozen=True)
class Made:
    """A graph under construction, of one input or several."""

    module: Module
    b: Builder

    def given(self, name: str, shape: Sequence[Any], dtype: DType = f32) -> Value:
        return self.module.main.add_input(name, TensorType(dtype, tuple(shape)))

    def constant(self, name: str, *shape: int, dtype: DType = f32) -> Value:
        drawn = np.random.default_rng(len(name) + sum(shape)).standard_normal(shape).astype(np.float32) / 8
        return self.module.add_constant(name, drawn.astype(dtype.numpy) if dtype.is_float else (drawn * 64).astype(dtype.numpy))


@dataclass(frozen=True)
class Case:
    """How to build a graph, the size of its symbol S if it has one, how its weights are coded, and what of them is pruned."""

    build: Callable[[Made], Value]
    rows: int | None = None
    quantize: str | None = None
    sparsity: str | None = None

    def module(self) -> Module:
        """The graph as kernels are made of it."""
        module = Module("case")
        module.functions["main"] = Graph("main")
        if self.rows is not None:
            module.declare("S", 1, 4096)
        module.main.set_outputs([self.build(Made(module, Builder(module, module.main)))], ["y"])
        simplify(module, self.options())
        return module

    def options(self) -> Any:
        asked = {"quantize": self.quantize, "sparsity": self.sparsity}
        return build_options({"tune": "off", **{name: value for name, value in asked.items() if value is not None}})

    def workload(self) -> Workload | None:
        return None if self.rows is None else Workload((Point((("S", self.rows),)),))


def product(rows: int | str, depth: int, width: int, then: str = "", dtype: DType = f32) -> Callable[[Made], Value]:
    """Rows by a constant, with a bias and what follows."""

    def build(m: Made) -> Value:
        x = m.given("x", (dims.symbol(rows) if isinstance(rows, str) else rows, depth), dtype)
        y = m.b.matmul(x, m.constant("w", depth, width, dtype=dtype))
        if then:
            y = m.b.add(y, m.constant("bias", width, dtype=dtype))
        return getattr(m.b, then)(y) if then not in ("", "add") else y

    return build


def stored(rows: str, depth: int, width: int, format: str, m: Made) -> Value:
    """Rows by weights as a checkpoint stores them: [width, depth], in a format of blocks along depth."""
    drawn = np.random.default_rng(depth).standard_normal((width, depth)).astype(np.float32)
    fields = [m.module.add_constant(f"w.{name}", ConstantData(each)) for name, each in format_of(format).encoded(drawn, 1).items()]
    return m.b.matmul(m.given("x", (dims.symbol(rows), depth)), m.b.decode(*fields, format=format, axis=1, dtype=f32), transpose_b=True)


def of_bytes(rows: int, depth: int, width: int, m: Made) -> Value:
    return m.b.matmul(m.given("x", (rows, depth), u8), m.constant("w", depth, width, dtype=i8))


def between(left: Sequence[int], right: Sequence[int], transposed: bool, m: Made) -> Value:
    return m.b.matmul(m.given("x", left), m.given("z", right), transpose_b=transposed)


def conv(channels: int, size: int, out: int, kernel: int, stride: int, groups: int, m: Made) -> Value:
    x, w = m.given("x", (1, channels, size, size)), m.constant("w", out, channels // groups, kernel, kernel)
    edge = (kernel // 2, kernel // 2)
    found = m.b.conv(x, w, m.constant("bias", out), strides=(stride, stride), dilations=(1, 1), before=edge, after=edge, groups=groups)
    return m.b.relu(found)


def attention(heads: int, rows: int, columns: int, size: int, causal: bool, m: Made) -> Value:
    q, k, v = m.given("q", (1, heads, rows, size)), m.given("k", (1, heads, columns, size)), m.given("v", (1, heads, columns, size))
    return m.b.attention(q, k, v, scale=size**-0.5, causal=causal)


def one(op: str, *shape: int, then: str = "", **attrs: Any) -> Callable[[Made], Value]:
    def build(m: Made) -> Value:
        y = getattr(m.b, op)(m.given("x", shape), **attrs)
        return getattr(m.b, then)(y) if then else y

    return build


def norm(op: str, rows: int, width: int, m: Made) -> Value:
    parameters = [m.constant("g", width), m.constant("c", width)][: 2 if op == "layer_norm" else 1]
    return getattr(m.b, op)(m.given("x", (rows, width)), *parameters, axes=(-1,), epsilon=1e-5)


def both(op: str, left: Sequence[int], right: Sequence[int], m: Made) -> Value:
    return getattr(m.b, op)(m.given("x", left), m.given("z", right))


def chain(rows: int, width: int, m: Made) -> Value:
    x = m.given("x", (rows, width))
    return m.b.mul(m.b.exp(m.b.sub(x, m.constant("g", width))), m.b.sigmoid(m.b.add(x, m.constant("c", width))))


def looked_up(count: int, width: int, rows: int, m: Made) -> Value:
    return m.b.take(m.constant("table", count, width), m.given("x", (rows,), i64), axis=0)


def narrowed(rows: int, width: int, m: Made) -> Value:
    return m.b.cast(m.given("x", (rows, width)), dtype=bf16)


def counted(rows: int, width: int, m: Made) -> Value:
    return m.b.mul(m.b.add(m.given("x", (rows, width), i32), m.given("z", (rows, width), i32)), m.given("v", (width,), i32))


def cases() -> Mapping[str, Case]:
    """All of them by name."""
    return dict(_cases())


def _cases() -> Iterator[tuple[str, Case]]:
    for rows, depth, width, then in PRODUCTS:
        yield f"product {rows}x{depth}x{width} {then}".strip(), Case(product(rows, depth, width, then))
    for rows, depth, width in ((1, 384, 384), (8, 384, 1536), (40, 384, 384), (128, 384, 384), (300, 768, 768)):
        yield f"product S={rows}x{depth}x{width} gelu", Case(product("S", depth, width, "gelu"), rows)
    for rows in (1, 16, 128):
        yield f"product {rows}x768x768 of bf16", Case(product(rows, 768, 768, "add", bf16))
        yield f"product {rows}x768x768 of bytes", Case(partial(of_bytes, rows, 768, 768))
    for name in ("int8-weight", "int4-weight", "mxfp4-weight", "int4-a8", "mxfp4-a8"):
        for rows in (1, 16, 128):
            yield f"product {rows}x1024x512 {name}", Case(product(rows, 1024, 512), None, name)
    for rows, depth, width, coded in ((1, 1024, 512, None), (128, 768, 768, None), (128, 1024, 512, None), (128, 1024, 512, "int4-weight")):
        yield f"product {rows}x{depth}x{width} 2:4 {coded or ''}".strip(), Case(product(rows, depth, width), None, coded, "2:4")
    for format, depth, width in (("q4_1", 576, 1536), ("q4_1", 1536, 576), ("q4_0", 2048, 2048), ("q8_0", 576, 4096)):
        yield f"product S=1x{depth}x{width} {format} a8", Case(partial(stored, "S", depth, width, format), 1, "a8")
        yield f"product S=1x{depth}x{width} {format}", Case(partial(stored, "S", depth, width, format), 1)
    for left, right, turned in BETWEEN:
        words = "x".join(map(str, left)), "x".join(map(str, right))
        yield f"product {words[0]} by {words[1]}{' turned' if turned else ''}", Case(partial(between, left, right, turned))
    for sizes in CONVOLUTIONS:
        yield "conv {}x{} to {} kernel {} stride {} groups {}".format(*sizes), Case(partial(conv, *sizes))
    for heads, rows, columns, size, causal in ATTENTIONS:
        what = "causal attention" if causal else "attention"
        yield f"{what} {heads}x{rows}x{columns}x{size}", Case(partial(attention, heads, rows, columns, size, causal))
    for op, rows, width in (("layer_norm", 128, 384), ("layer_norm", 1, 768), ("layer_norm", 1024, 768), ("rms_norm", 128, 2048)):
        yield f"{op} {rows}x{width}", Case(partial(norm, op, rows, width))
    for op, shape, attrs in FOLDS:
        yield (
            f"{op} {'x'.join(map(str, shape))} along {'x'.join(map(str, attrs.get('axes', (attrs.get('axis'),))))}",
            Case(one(op, *shape, **attrs)),
        )
    for op, count in (("gelu", 128 * 3072), ("tanh", 1 << 14), ("relu", 1 << 16), ("relu", 1 << 22), ("exp", 1 << 10), ("sqrt", 1 << 18)):
        yield f"{op} {count}", Case(one(op, count))
    for left, right in (
        ((1 << 12,), (1 << 12,)),
        ((1 << 20,), (1 << 20,)),
        ((128, 768), (768,)),
        ((512, 768), (512, 1)),
        ((3, 1, 70), (50, 1)),
    ):
        yield f"add {'x'.join(map(str, left))} and {'x'.join(map(str, right))}", Case(partial(both, "add", left, right))
    yield "chain 256x1000", Case(partial(chain, 256, 1000))
    yield "lookup 1000x384 of 128", Case(partial(looked_up, 1000, 384, 128))
    yield "narrowed 512x768", Case(partial(narrowed, 512, 768))
    yield "integers 300x500", Case(partial(counted, 300, 500))
    for shape, permutation in (((512, 512), (1, 0)), ((128, 12, 32), (1, 0, 2)), ((1, 64, 56, 56), (0, 2, 3, 1)), ((30, 1000), (1, 0))):
        yield f"transpose {'x'.join(map(str, shape))}", Case(one("transpose", *shape, then="neg", permutation=permutation))


PRODUCTS: tuple[tuple[int, int, int, str], ...] = (
    *(
        (1, 384, 384, "add"),
        (1, 1024, 4096, "gelu"),
        (1, 2048, 1000, "add"),
        (4, 512, 512, ""),
        (8, 768, 768, "tanh"),
        (12, 384, 1536, "gelu"),
    ),
    *((16, 384, 384, "add"), (17, 256, 256, "relu"), (32, 768, 3072, "gelu"), (64, 512, 128, ""), (128, 384, 384, "add")),
    *((128, 384, 1536, "gelu"), (128, 1536, 384, "add"), (128, 768, 768, "add"), (100, 300, 37, ""), (197, 768, 768, "add")),
    *(
        (128, 768, 3072, "gelu"),
        (255, 96, 1000, ""),
        (512, 64, 64, "relu"),
        (1000, 27, 64, "relu"),
        (1024, 256, 256, ""),
        (49, 512, 2048, ""),
    ),
    *((6, 4096, 64, ""), (128, 64, 10, "")),
)
BETWEEN: tuple[tuple[tuple[int, ...], tuple[int, ...], bool], ...] = (
    *(
        ((64, 64), (64, 64), False),
        ((256, 256), (256, 256), True),
        ((12, 128, 32), (12, 128, 32), True),
        ((12, 128, 128), (12, 128, 32), False),
    ),
    *(((8, 1, 64), (8, 300, 64), True), ((100, 50), (50, 70), False)),
)
CONVOLUTIONS = (
    *((3, 224, 64, 7, 2, 1), (64, 56, 64, 3, 1, 1), (64, 56, 256, 1, 1, 1), (256, 28, 128, 1, 1, 1), (128, 28, 128, 3, 1, 1)),
    *((256, 14, 256, 3, 1, 1), (512, 7, 512, 3, 1, 1), (32, 112, 32, 3, 1, 32), (144, 56, 144, 3, 2, 144), (20, 30, 50, 3, 1, 1)),
)
ATTENTIONS = (
    *((12, 128, 128, 32, False), (12, 197, 197, 64, False), (4, 512, 512, 64, False), (12, 1, 128, 64, False)),
    *((8, 256, 256, 64, True), (2, 30, 900, 128, False)),
)
FOLDS: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    *(("softmax", (1536, 128), {"axis": -1}), ("softmax", (1, 1000), {"axis": -1}), ("softmax", (64, 8192), {"axis": -1})),
    *(("softmax", (64, 100, 30), {"axis": 1}), ("sum", (1024, 256), {"axes": (0,)}), ("sum", (256, 1024), {"axes": (1,)})),
    *(("sum", (1 << 20,), {"axes": (0,)}), ("mean", (1, 2048, 7, 7), {"axes": (2, 3)}), ("mean", (8, 197, 768), {"axes": (1,)})),
    *(
        ("reduce_max", (500, 300), {"axes": (1,)}),
        ("reduce_max", (4, 60, 60, 32), {"axes": (1, 2)}),
        ("logsumexp", (128, 1000), {"axes": (1,)}),
    ),
    *(("argmax", (128, 1000), {"axis": -1}), ("cumsum", (64, 512), {"axis": 1}), ("cumsum", (512, 64), {"axis": 0})),
    *(("prod", (33, 77), {"axes": (1,)}), ("sum", (40, 50, 60), {"axes": (0, 2)})),
)


def problem_of_case(case: Case, level: CpuLevel, choose: Choose) -> tuple[Problem, list[list[Candidate]]]:
    """The problem of a case's largest kernel, and what each strategy offers for it."""
    found: list[tuple[Problem, list[list[Candidate]]]] = []

    def asked(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        every = [list(family) for family in families]
        found.append((problem, every))
        return choose(problem, iter(every))

    lower_cpu(case.module(), level, asked, case.workload())
    return max((each for each in found if each[0].points or case.rows is None), key=lambda each: _weight(each[0]))


def _weight(problem: Problem) -> float:
    cost = cost_of(problem.region, problem.sizes)
    return cost.operations + cost.bytes
