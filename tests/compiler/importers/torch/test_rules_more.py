"""Rules and decompositions that the op database asked for: nothing falls back, and the answers are eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from ourcc.compiler.importers.torch.decompositions import decompositions
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.importers.torch.fallback import AtenCall, TensorOperand
from ourcc.compiler.importers.torch.imported import Imported
from ourcc.compiler.importers.torch.tensors import array_of, tensor_of
from ourcc.compiler.importers.torch.walk import import_graph
from ourcc.compiler.importers.torch.whole import left
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.verify import verify

F = nn.functional
Same = Callable[..., None]


class Wrapped(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def exported(function: Callable[..., Any], x: torch.Tensor, shapes: Any = None) -> Any:
    with torch.no_grad():
        return torch.export.export(Wrapped(function), (x,), dynamic_shapes=shapes)


def traced(function: Any, inputs: tuple[torch.Tensor, ...]) -> Any:
    """The function's ATen graph, as AOTAutograd makes it."""
    with torch.no_grad():
        functional = torch.func.functionalize(function, remove="mutations")
        tracer = make_fx(functional, decomposition_table=dict(decompositions()), tracing_mode="fake", _allow_non_fake_inputs=True)
        return tracer(*inputs)


def compiled(function: Any, *inputs: torch.Tensor) -> Imported:
    imported = import_graph(traced(function, inputs))
    assert [fallback.operator for fallback in imported.fallbacks] == []
    return imported


X = torch.linspace(-3, 3, 60).reshape(3, 4, 5)
INDEX = torch.tensor([[0, 2, 1, 0, 2], [1, 1, 0, 2, 0]])
SOURCE = torch.linspace(-5, 7, 10).reshape(2, 5)
SPECIAL = torch.tensor([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 3e38, 1e-30])


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_with_a_reduction(reduce: str, include_self: bool, same: Same) -> None:
    def function(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, INDEX, source, reduce, include_self=include_self)

    inputs = (X[:, 0].clone(), SOURCE)
    same(compiled(function, *inputs).module, function, inputs)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce: str, include_self: bool, same: Same) -> None:
    rows = torch.tensor([2, 0, 2])

    def function(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.index_reduce(1, rows, source, reduce, include_self=include_self)

    inputs = (X[:, :, 0].clone(), SOURCE.reshape(-1)[:9].reshape(3, 3).clone())
    same(compiled(function, *inputs).module, function, inputs)


def test_a_mean_of_integers_is_called_back() -> None:
    def function(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, INDEX, source, "mean")

    inputs = (torch.zeros(3, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64))
    (fallback,) = import_graph(traced(function, inputs)).fallbacks
    assert "a mean of i64" in fallback.why


@pytest.mark.parametrize("place", ["first", "middle", "last", "apart"])
@pytest.mark.parametrize("accumulate", [True, False])
def test_elements_are_put_at_indices_of_any_axes(place: str, accumulate: bool, same: Same) -> None:
    one, two = torch.tensor([0, 2, 1]), torch.tensor([1, 3, 0])
    places: dict[str, tuple[Any, ...]] = {
        "first": (one, two),
        "middle": (None, two),
        "last": (None, one, two),
        "apart": (one, None, two),
    }
    indices = places[place]
    shape = X[tuple(slice(None) if index is None else index for index in indices)].shape

    def function(x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = torch.ops.aten.index_put(x, indices, update, accumulate)
        return answer

    inputs = (X.clone(), torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape))
    same(compiled(function, *inputs).module, function, inputs)


@pytest.mark.parametrize("name", ["fmax", "fmin", "hypot"])
def test_special_values_of_pairs(name: str, same: Same) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x, y)

    inputs = (SPECIAL[:, None].clone(), SPECIAL[None, :].clone())
    same(compiled(function, *inputs).module, function, inputs)


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "unfold": lambda x: x.unfold(1, 2, 1) * 2,
    "unfold with steps, last axis": lambda x: x.unfold(-1, 3, 2) * 2,
    "vector norm": lambda x: torch.linalg.vector_norm(x, 3, dim=(0, 2)),
    "largest norm": lambda x: torch.linalg.vector_norm(x, math.inf, dim=1),
    "distance": lambda x: torch.dist(x, x * 2 + 1, 2),
    "round to digits": lambda x: torch.round(x, decimals=2),
    "round before the point": lambda x: torch.round(x * 100, decimals=-1),
    "ldexp": lambda x: torch.ldexp(x, torch.tensor([1, -2, 3, 0, 5])),
    "addmv": lambda x: torch.addmv(x[0, :, 0], x[1], x[2, 0], beta=0.5, alpha=2),
    "narrow copy": lambda x: torch.narrow_copy(x, 1, 1, 2),
    "permuted copy": lambda x: torch.permute_copy(x, (2, 0, 1)),
    "unbound copies": lambda x: torch.unbind_copy(x, 1),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "average with a divisor": lambda x: F.avg_pool2d(x, 2, stride=1, padding=1, divisor_override=3),
    "batch norm that learns": lambda x: torch.ops.aten._native_batch_norm_legit_functional(
        x, None, None, torch.zeros(4), torch.ones(4), True, 0.1, 1e-5
    ),
    "adaptive average in space": lambda x: F.adaptive_avg_pool3d(x[None, :, :, :4], (1, 2, 2)),
    "adaptive largest": lambda x: F.adaptive_max_pool2d(x[:, :, :4], (2, 1), return_indices=True),
    "adaptive largest in space": lambda x: F.adaptive_max_pool3d(x[None, :, :, :4], (1, 2, 2), return_indices=True),
    "diagonal": lambda x: torch.diagonal_scatter(x, torch.arange(12.0).reshape(3, 4), 0, 1, 2),
    "diagonal above": lambda x: torch.diagonal_scatter(x, torch.arange(8.0).reshape(4, 2), 3, 0, 2),
    "diagonal below": lambda x: torch.diagonal_scatter(x, torch.arange(10.0).reshape(5, 2), -2, 1, 0)[:, :, 1:],
    "grid sample": lambda x: F.grid_sample(x[None], torch.linspace(-1.2, 1.2, 12).reshape(1, 3, 2, 2), align_corners=False),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_compiled(name: str, same: Same) -> None:
    same(compiled(FUNCTIONS[name], X.clone()).module, FUNCTIONS[name], (X.clone(),))


def test_windows_of_different_sizes_are_called_back() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.adaptive_max_pool2d(x, (3, 2))

    (fallback,) = import_graph(traced(function, (X.clone(),))).fallbacks
    assert "windows differ in size: (4, 5) into (3, 2)" in fallback.why


def test_a_graph_that_no_module_holds_is_left_to_torch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.complex32).to(torch.complex64) + 1

    graph = traced(function, (X.clone(),))
    with pytest.raises(UnsupportedError, match=r"torch dtype torch\.complex32 has no element type here"):
        import_graph(graph)
    whole = left(graph, "why")
    assert whole.is_left
    assert [fallback.operator for fallback in whole.fallbacks] == ["aten._to_copy.default", "aten._to_copy.default", "aten.add.Tensor"]
    assert all(fallback.why == "its graph is not compiled: why" for fallback in whole.fallbacks)


def test_memory_around_an_operand_is_left_to_torch() -> None:
    around = torch.arange(12.0)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (2, 2), (1, 2), 5) * 2

    whole = traced(function, (around.clone(),))
    assert [fallback.operator for fallback in import_graph(whole).fallbacks] == ["aten.as_strided.default"]
    part = traced(function, (around[1:5],))
    with pytest.raises(UnsupportedError, match=r"aten\.as_strided\.default reads memory around its operand"):
        import_graph(part)


def test_a_decomposition_in_float32_rounds_once(same: Same) -> None:
    grid = torch.linspace(-1.2, 1.2, 12).reshape(1, 3, 2, 2).bfloat16()

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid.to(x.dtype), align_corners=False)

    x = X[None].bfloat16()
    (got,) = interpret(compiled(function, x).module, [array_of(x)])
    assert torch.equal(tensor_of(got), function(x.float()).bfloat16())


def test_results_of_calls_are_bytes_that_mean_their_values() -> None:
    def lazily(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.conj(), x.conj().imag

    x = torch.randn(3, dtype=torch.complex64)
    assert lazily(x)[0].is_conj() and lazily(x)[1].is_neg()
    results = AtenCall(lazily, (TensorOperand(0),), {}, ((0,), (1,)))([x])
    assert not any(result.is_conj() or result.is_neg() for result in results)
    assert all(torch.equal(result, value) for result, value in zip(results, lazily(x), strict=True))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), 1),
        lambda x: x.mean(1, keepdim=True).as_strided((2, 4, 1), (4, 1, 1)),
        lambda x: x.transpose(1, 2).exp().as_strided((2, 3, 4), (12, 4, 1)) * 2,
        lambda x: x.exp().as_strided((4, 3, 2), (1, 4, 12)),
        lambda x: x.exp().transpose(0, 2).as_strided((6, 4), (4, 1)),
        lambda x: x.exp().as_strided((1, 24), (7, 1)),
        lambda x: x.exp().sum().as_strided((1, 1), (1, 1)),
    ],
)
def test_dense_memory_by_other_strides(same: Same, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4) / 9
    nodes = exported(function, x).run_decompositions(dict(decompositions())).graph.nodes
    assert any("as_strided" in str(node.target) for node in nodes)
    same(import_exported(exported(function, x)), function, (x,))


def test_dense_memory_of_a_symbolic_batch() -> None:
    function, x = lambda x: nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), 1), torch.randn(2, 3, 4)
    program = exported(function, x, ({0: torch.export.Dim("B", min=2)},))
    assert interpret(import_exported(program), [x.numpy()])[0].shape == (2, 4, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.exp().as_strided((2, 3), (3, 1)),  # a part
        lambda x: x.exp().as_strided((2, 3, 3), (12, 4, 2)),  # with holes
        lambda x: x.exp().as_strided((2, 3, 4), (12, 1, 1)),  # one element at many places
        lambda x: x.exp()[1].as_strided((3, 4), (4, 1), 0),  # the memory around it
        lambda x: x.exp()[:, :, 1].as_strided((2, 3), (3, 1)),
    ],
)
def test_memory_that_no_value_is_read_from_is_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(UnsupportedError, match=r"strides of memory have no meaning|reads memory around its operand"):
        import_exported(exported(function, torch.randn(2, 3, 4)))


def test_every_size_that_data_decide_has_a_name_of_its_own() -> None:
    """torch calls the third one u2, which is an element type here."""

    def function(x: torch.Tensor) -> Any:
        return tuple((x - n).nonzero() for n in range(4)), torch.full((2,), (x - 4).nonzero().shape[0])

    x = torch.tensor([0.0, 1, 1, 2, 3, 4, 4])
    module = import_exported(exported(function, x))
    verify(module)
    results = interpret(module, [x.numpy()])
    assert [len(result) for result in results[:4]] == [6, 5, 6, 6]
    assert results[4].tolist() == [5, 5]


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bilinear(shape: tuple[int, ...], dtype: torch.dtype, same: Same) -> None:
    model = nn.Bilinear(4, 5, 6).to(dtype)
    inputs = (torch.randn(*shape, 4, dtype=dtype), torch.randn(*shape, 5, dtype=dtype))
    with torch.no_grad():
        same(import_exported(torch.export.export(model, inputs)), model, inputs)


@pytest.mark.parametrize(
    ("sizes", "lacks", "summed"),
    [
        (((2, 3), (4, 3, 5), (2, 5)), ((1, 3), (0,), (1, 2)), (2, 3)),
        (((2, 3), (2, 3), (2, 3)), ((), (), ()), (0, 1)),
        (((2, 3), (3,), (2,)), ((), (0,), (1,)), ()),
        (((2, 3), (2, 4), (4, 5)), ((2, 3), (1, 3), (0, 1)), (1, 3)),
    ],
)
def test_trilinear(sizes: Any, lacks: Any, summed: tuple[int, ...], same: Same) -> None:
    inputs = tuple(torch.randn(size) for size in sizes)

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._trilinear(a, b, c, *lacks, summed)

    same(compiled(function, *inputs).module, function, inputs)


class TwoBuffers(nn.Module):
    """Two buffers that take one input."""

    def __init__(self, is_copied: bool) -> None:
        super().__init__()
        self.is_copied = is_copied
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a.copy_(x)
        self.b.copy_(x.clone() if self.is_copied else x)
        return x * 2


def test_what_torch_itself_refuses_is_one_error() -> None:
    program = torch.export.export(TwoBuffers(False), (torch.randn(3),))
    with pytest.raises(UnsupportedError, match="torch cannot take the program apart: SpecViolationError: ") as caught:
        import_exported(program)
    assert "value.clone()" in (caught.value.hint or "")
    module = import_exported(torch.export.export(TwoBuffers(True), (torch.randn(3),)))
    states: dict[str, Any] = {}
    assert interpret(module, [array_of(torch.ones(3))], states=states)[0].tolist() == [2, 2, 2]
    assert {name: state.tolist() for name, state in states.items()} == {"a": [1, 1, 1], "b": [1, 1, 1]}
