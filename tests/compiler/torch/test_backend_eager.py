"""`torch.compile` against `aot_eager`: memory that outputs share, graphs and calls that stay torch's, faults of ours, modes."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import ourcc as package
from ourcc.compiler.torch import backend, telling
from ourcc.ir.errors import ContractError, InternalError, ToolchainError, UsageError

from ..torch_models import compiled

pytestmark = pytest.mark.usefixtures("fresh")

Function = Callable[..., Any]


def ours(function: Function, *inputs: Any) -> Any:
    torch.manual_seed(3)
    return torch.compile(function, backend=backend.ourcc)(*inputs)


def theirs(function: Function, *inputs: Any) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(3)
    return torch.compile(function, backend="aot_eager")(*inputs)


def near(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance)


# --- shared memory ----------------------------------------------------------------------------------------------------

VIEWS: dict[str, Function] = {
    "transposed": lambda y: (y, y.t()),
    "twice": lambda y: (y, y),
    "parts": lambda y: (y[0], y[1:], y[:, ::2]),
    "expanded": lambda y: (y, y.expand(2, 4, 6)),
    "strided": lambda y: (y, y.as_strided((2, 2), (1, 3), 3)),
    "views of views": lambda y: (y.view(-1)[2:], y.t()[1:].t(), y.detach()),
    "halves": lambda y: y.chunk(2),
    "other bits": lambda y: (y, y.view(torch.int32)),
    "symbolic": lambda y: (y, y.view(-1)[y.shape[0] :], y.unflatten(1, (-1, 2))),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("gradients", [False, True])
def test_views_of_one_tensor_share_its_memory(name: str, gradients: bool) -> None:
    if gradients and name == "other bits":
        pytest.skip("torch does not differentiate a view of other bits")
    x = torch.randn(4, 6, requires_grad=gradients)
    if name == "symbolic":
        torch._dynamo.maybe_mark_dynamic(x, 0)
    found, expected = ours(lambda x: VIEWS[name](x.sin()), x), theirs(lambda x: VIEWS[name](x.sin()), x)
    assert len({output.untyped_storage().data_ptr() for output in found}) == 1
    places = [[(output.stride(), output.storage_offset()) for output in outputs] for outputs in (found, expected)]
    assert places[0] == places[1]
    assert (found[0] is found[1]) == (expected[0] is expected[1])
    found[-1].detach().zero_()
    expected[-1].detach().zero_()
    near(found, expected)


def test_views_of_an_input_are_views_of_it() -> None:
    x = torch.arange(12.0).view(3, 4)
    first, rest = ours(lambda x: (x.t(), x[1:] + 1), x)
    assert first.data_ptr() == x.data_ptr() and rest.data_ptr() != x.data_ptr()
    x.zero_()
    assert not first.any()


def test_views_of_an_input_of_symbolic_size_start_where_they_should() -> None:
    x = torch.arange(24.0).view(6, 4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert torch.equal(ours(lambda x: x[1:], x), x[1:])


def captured(x: torch.Tensor) -> int:
    """A size that the data decide."""
    count = int(x.abs().max().long().item())
    torch._check(count >= 0)
    torch._check(count <= 6)
    return count


CAPTURED: dict[str, Function] = {
    "computed": lambda x: (y := x.sin(), y[:, : captured(x)]),
    "an input": lambda x: (x[:, : captured(x)], x + 1),
    "strided": lambda x: (y := x.t()[: captured(x)] * 1, y.t()),
    "indices": lambda x: (y := x.nonzero(), y.t(), y[1:]),
    "returned too": lambda x: (y := x.sin(), y[:, : captured(x)], captured(x)),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_views_whose_sizes_the_data_decide_share_memory(name: str, graphs: list[backend.CompiledGraph]) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        run, reference = torch.compile(CAPTURED[name], backend=backend.ourcc), CAPTURED[name]
        for largest in (1.0, 5.0, 3.0):
            x = torch.rand(4, 6)
            x[0, 0] = largest
            found, expected = run(x), reference(x)
            for one, other in zip(found, expected, strict=True):
                if isinstance(other, int):
                    assert one == other and type(one) is int
                else:
                    assert (one.shape, one.stride(), one.storage_offset()) == (other.shape, other.stride(), other.storage_offset())
                    torch.testing.assert_close(one, other)
            shared = [
                len({each.untyped_storage().data_ptr() for each in some if isinstance(each, torch.Tensor)}) for some in (found, expected)
            ]
            assert shared[0] == shared[1]
    assert all(graph.imported is not None and not graph.imported.is_left for graph in graphs)


def test_what_a_graph_without_inputs_answers_can_be_resized() -> None:
    def added(x: torch.Tensor) -> torch.Tensor:
        result = torch.empty(0)
        torch.add(x, 1, out=result)
        return result

    def resized(x: torch.Tensor) -> torch.Tensor:
        result = torch.empty(0)
        result.resize_(5)
        return x + result.shape[0]

    x = torch.arange(3.0)
    for function in (added, resized):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(function, backend=backend.ourcc)(x), function(x))
    filled = torch.compile(lambda: (torch.ones(3), torch.zeros(3, dtype=torch.bfloat16)), backend=backend.ourcc)()
    assert all(each.untyped_storage().resizable() for each in filled)


def test_what_is_copied_shares_nothing() -> None:
    y, *copies = ours(lambda x: (y := x.sin(), y.clone(), y + 0, y.t().contiguous()), torch.randn(3, 3))
    copies[0].zero_()
    assert y.any() and copies[1].any() and copies[2].any()
    assert len({each.data_ptr() for each in (y, *copies)}) == 4


def test_a_lazily_conjugated_output_stays_lazy() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    found = ours(lambda x: (x * 2).conj(), x)
    assert found.is_conj() and torch.equal(found, (x * 2).conj())


def test_views_that_are_remade_are_not_computed(graphs: list[backend.CompiledGraph]) -> None:
    ours(lambda x: (y := x.sin(), y.as_strided((2,), (5,))), torch.randn(3, 4))
    (graph,) = graphs
    assert graph.imported is not None and graph.imported.fallbacks == ()
    assert [op.name for op in graph.imported.module.main] == ["sin"]


# --- what torch does --------------------------------------------------------------------------------------------------


class Normed(nn.Module):
    """Norms of bfloat16 with float32 weights."""

    def __init__(self, norm: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.read, self.norm, self.dtype = nn.Linear(8, 8), norm, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype):
            result: torch.Tensor = self.norm(self.read(x))
            return result


NORMS = {
    "layer": lambda: nn.LayerNorm(8),
    "group": lambda: nn.GroupNorm(2, 8),
    "batch": lambda: nn.BatchNorm1d(8),
    "batch, eval": lambda: nn.BatchNorm1d(8).eval(),
    "batch, its own statistics": lambda: nn.BatchNorm1d(8, track_running_stats=False),
    "batch, no weights": lambda: nn.BatchNorm1d(8, affine=False),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_under_autocast_have_gradients(norm: str, dtype: torch.dtype, graphs: list[backend.CompiledGraph]) -> None:
    model, x = Normed(NORMS[norm](), dtype), torch.randn(5, 8)
    gradients = []
    for run in (ours, theirs):
        model.zero_grad()
        run(model, x).float().pow(3).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for one, other in zip(*gradients, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()
    assert [graph.imported is not None and graph.imported.fallbacks for graph in graphs] == [(), ()]


def test_a_checkpoint_draws_the_same_random_numbers_again() -> None:
    from torch.utils.checkpoint import checkpoint

    def function(x: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x.sin(), 0.5) * torch.rand_like(x)

        result: torch.Tensor = checkpoint(inner, x, use_reentrant=False)
        return result

    x = torch.randn(4, 8, requires_grad=True)
    results = []
    for run in (ours, theirs):
        y = run(function, x)
        results.append((y, torch.autograd.grad(y.sum(), x)))
    near(*results)


def test_random_numbers_are_those_of_eager() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.dropout(x, 0.3), torch.rand(3), torch.randint(0, 9, (4,)), x.clone().exponential_(), F.rrelu(x, training=True)

    near(ours(function, torch.ones(3, 4)), theirs(function, torch.ones(3, 4)))


@pytest.mark.parametrize("gradients", [False, True])
def test_jagged_tensors(gradients: bool) -> None:
    layer = nn.Linear(8, 8)

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(layer(x), (8,)).relu()

    x = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(5, 8)], layout=torch.jagged, requires_grad=gradients)
    near(ours(function, x).values(), theirs(function, x).values())


def test_flex_attention_with_a_score() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def function(q: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j) * 0.1).sin()

    q = torch.randn(1, 2, 128, 16)
    near(ours(function, q), theirs(function, q))


def test_control_flow_of_torch_needs_no_calls(graphs: list[backend.CompiledGraph]) -> None:
    from torch._higher_order_ops.scan import scan

    def function(x: torch.Tensor) -> Any:
        y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + 1
        return y, scan(lambda c, v: (c + v, c * v), y.new_zeros(4), y)

    x = torch.randn(3, 4)
    near(ours(function, x), theirs(function, x))
    imported = graphs[0].imported
    assert imported is not None and imported.fallbacks == ()


def test_a_check_of_data_raises() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "all must be positive")
        return x

    with pytest.raises(RuntimeError, match="all must be positive"):
        ours(function, -torch.ones(3))
    assert torch.equal(ours(function, torch.ones(3)), torch.ones(3))


def doubled(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "all must be positive")
    return x * 2


def counted(x: torch.Tensor) -> torch.Tensor:
    count = x.abs().max().long().item()
    torch._check(count <= 4)
    return x * count


@pytest.mark.parametrize(("function", "message"), [(doubled, "all must be positive"), (counted, "u0 <= 4")])
def test_a_check_is_the_engines_and_its_error_is_torchs(function: Function, message: str, graphs: list[backend.CompiledGraph]) -> None:
    good, bad = torch.full((3,), 2.0), torch.tensor([1.0, -9.0, 2.0])
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = torch.compile(function, backend=backend.ourcc)
        for _ in range(2):
            assert torch.equal(run(good), good * 2)
            with pytest.raises(RuntimeError, match=message):
                run(bad)
    (graph,) = graphs
    assert graph.imported is not None and not graph.imported.is_left and graph.imported.fallbacks == ()


# --- graphs that are left ---------------------------------------------------------------------------------------------


def test_a_device_without_a_target_is_left_to_torch() -> None:
    assert ours(lambda x: x + 1, torch.empty(3, device="meta")).device.type == "meta"
    with pytest.raises(ContractError, match="1 promise does not hold: no-fallback"):
        compiled(lambda x: x + 1, require=["no-fallback"])(torch.empty(3, device="meta"))


def test_a_call_that_is_not_what_its_trace_said_leaves_the_graph_to_torch(
    graphs: list[backend.CompiledGraph], caplog: pytest.LogCaptureFixture
) -> None:
    """Torch's trace says that a quantized tensor is float32."""
    caplog.set_level(logging.INFO, "ourcc.backend")

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x + 1, 0.1, 0, torch.qint8)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert ours(function, torch.randn(3)).is_quantized
    assert "this call and all that follow are left to torch: a call gave the torch dtype torch.qint8" in caplog.text
    assert graphs[0].imported is not None and graphs[0].imported.is_left


def broken(*arguments: Any, **keywords: Any) -> Any:
    raise InternalError("no strategy takes it")


@pytest.mark.parametrize("step", ["import_graph", "SharedProgram.of", "Engine"])
def test_a_fault_of_ours_is_told_and_torch_answers(step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OURCC_CACHE_DIR", str(tmp_path))
    name, _, method = step.partition(".")
    monkeypatch.setattr(getattr(backend, name) if method else backend, method or name, broken)
    x = torch.randn(3)
    with pytest.warns(
        telling.CompilerFault, match="a fault of ourcc: a graph of 2 ops is left to torch.*no strategy takes it.*please report"
    ):
        assert torch.equal(compiled(lambda x: x.sin() + 1)(x), x.sin() + 1)
    (file,) = (tmp_path / "reproducers").iterdir()
    assert "torch.ops.aten.sin.default" in file.read_text() and "InternalError: no strategy takes it" in file.read_text()


def test_a_fault_is_an_error_where_no_fallback_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "import_graph", broken)
    with pytest.raises(InternalError, match="no strategy takes it"):
        compiled(lambda x: x + 1, require=["no-fallback"])(torch.randn(3))


def test_a_machine_without_a_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **keywords: Any) -> Any:
        raise ToolchainError("no C compiler was found")

    monkeypatch.setattr(backend, "Engine", missing)
    with pytest.raises(ToolchainError, match="no C compiler was found"):
        compiled(lambda x: x + 1)(torch.randn(3))


def test_explain_tells_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ourcc.compiler.commands import explain

    monkeypatch.setenv("OURCC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(explain, "simplify", broken)
    with pytest.warns(telling.CompilerFault):
        report = package.explain(lambda x: x + 1, torch.randn(3)).to_data()
    assert [row["why"] for row in report["fallbacks"]] == [
        "its graph is not compiled: a fault of the compiler: InternalError: no strategy takes it"
    ]


# --- modes and the log ------------------------------------------------------------------------------------------------


def test_modes_of_torch_are_options() -> None:
    assert backend.options_of(None) == backend.options_of("default") == backend.options_of("reduce-overhead") == {}
    assert backend.build_options(backend.options_of("max-autotune")).tune.count == 16
    assert [backend.build_options(backend.options_of(f"max-autotune{end}")).graphs for end in ("", "-no-cudagraphs")] == [True, False]
    with pytest.raises(UsageError, match="unknown mode: got 'fast', expected one of default, reduce-overhead, max-autotune"):
        backend.options_of("fast")
    x = torch.randn(3)
    assert torch.equal(torch.compile(lambda x: x + 1, backend=backend.ourcc, mode="reduce-overhead")(x), x + 1)


def test_a_long_build_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ourcc.backend")
    graph = torch.fx.symbolic_trace(lambda x: torch.sin(x))
    with telling.long_build(graph, seconds=0.01):
        time.sleep(0.2)
    first, last = (record for record in caplog.records if record.name == "ourcc.backend")
    assert first.getMessage() == "ourcc: compiling a graph of 1 ops takes longer than 0.01 s" and first.levelname == "WARNING"
    assert last.getMessage().startswith("ourcc: compiling a graph of 1 ops took 0.")


def test_a_short_build_says_nothing_by_default(caplog: pytest.LogCaptureFixture) -> None:
    with telling.long_build(torch.fx.symbolic_trace(lambda x: torch.sin(x))):
        pass
    assert [record.levelno for record in caplog.records if record.name == "ourcc.backend"] in ([], [logging.INFO])


# --- indices that count from the end ----------------------------------------------------------------------------------

INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "index_add": lambda w, i, s: w.index_add(0, i, s),
    "index_add, alpha": lambda w, i, s: w.index_add(-2, i, s, alpha=3),
    "index_copy": lambda w, i, s: w.index_copy(0, i, s),
    "index_fill": lambda w, i, s: w.index_fill(0, i, 2.0),
    "index_reduce": lambda w, i, s: w.index_reduce(0, i, s, "amax"),
    "index_select": lambda w, i, s: w.index_select(0, i),
    "embedding": lambda w, i, s: F.embedding(i, w),
    "embedding_bag": lambda w, i, s: F.embedding_bag(i[None], w),
    "gather": lambda w, i, s: w.gather(0, i[:, None]),
    "scatter": lambda w, i, s: w.scatter(0, i[:, None], s),
    "scatter_add": lambda w, i, s: w.scatter_add(0, i[:, None], s),
    "take": lambda w, i, s: w.take(i),
    "put": lambda w, i, s: w.put(i, s[:, 0]),
    "x[i]": lambda w, i, s: w[i],
    "x[i] = s": lambda w, i, s: w.index_put((i,), s),
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_negative_indices_are_refused_where_torch_refuses_them(name: str) -> None:
    w, s = torch.arange(12.0).reshape(4, 3), torch.ones(2, 3)

    def answer(function: Any, *first: int) -> Any:
        try:
            return function(w, torch.tensor(first), s)
        except (RuntimeError, IndexError):
            return None

    for first in ((2, 0), (-1, 0)):
        expected = answer(INDEXED[name], *first)
        found = answer(torch.compile(INDEXED[name], backend=backend.ourcc), *first)
        assert (found is None) == (expected is None)
        assert expected is None or torch.equal(found, expected)


def test_roundings_of_a_long_product_do_not_add_up() -> None:
    values = 1 + (torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)) - 0.5) * 1e-5
    found = torch.compile(lambda x: x.cumprod(0), backend=backend.ourcc)(values)
    exact = values.double().cumprod(0)
    assert ((found.double() - exact) / exact).abs().max() < 1e-7
