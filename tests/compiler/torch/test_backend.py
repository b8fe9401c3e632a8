"""`torch.compile(model, backend=...)`: answers, gradients, freezing, symbolic sizes, calls back into torch, errors."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ourcc as package
from ourcc.compiler.torch import backend
from ourcc.ir.errors import ContractError, UnsupportedError, UsageError
from ourcc.ir.graph.reference import judge

from ..torch_models import MODELS, Attention, agree, check, compiled, mlp

pytestmark = pytest.mark.usefixtures("fresh")

ROOT = Path(package.__file__).parent
F = nn.functional


@pytest.mark.parametrize("name", MODELS)
def test_a_model_answers_as_eager_does(name: str, graphs: list[backend.CompiledGraph]) -> None:
    make, shape = MODELS[name]
    check(make().eval(), torch.randn(shape))
    assert [graph.build.imported.fallbacks for graph in graphs if graph.build] == [()]


def test_the_judge_sees_a_small_error() -> None:
    """A relative error of 1e-4 is found: the tests here are able to fail."""
    model, x = mlp(), torch.randn(7, 12)
    with torch.no_grad(), pytest.raises(AssertionError, match=r"expected .* within"):
        agree(compiled(model)(x) * (1 + 1e-4), model(x), copy.deepcopy(model).double()(x.double()))


def test_a_mask_of_bools_and_one_of_numbers() -> None:
    model = Attention().eval()
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    check(model, torch.randn(2, 5, 32), mask)
    check(lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), torch.randn(2, 4, 5, 8), torch.randn(5, 5))


# --- inputs and outputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [lambda x: x.t().contiguous().t(), lambda x: x[1:], lambda x: x[:, ::2], lambda x: x[:1].expand(6, 14), lambda x: x.flip(0)[::3]],
    ids=["transposed", "offset", "steps", "expanded", "rows"],
)
def test_inputs_may_lie_in_memory_as_they_like(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(lambda x: torch.softmax(x * 2 + 1, -1), change(torch.randn(6, 14)))


def test_a_misaligned_view_uses_the_same_graph(graphs: list[backend.CompiledGraph]) -> None:
    fast = check(torch.tanh, torch.randn(5, 8))
    check(torch.tanh, torch.randn(41)[1:].view(5, 8), fast=fast)
    assert len(graphs) == 1


def test_outputs_are_fresh_memory() -> None:
    fast = compiled(lambda x: (x + 1, x * 2))
    x = torch.randn(4, 4)
    first, again = fast(x), fast(x)
    kept = [t.clone() for t in first]
    places = {t.untyped_storage().data_ptr() for t in (x, *first, *again)}
    assert len(places) == 5
    for t in again:
        t.zero_()
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_a_frozen_parameter_that_is_an_output_is_a_copy() -> None:
    model = nn.Linear(3, 3)
    fast = compiled(lambda x: (model(x), model.weight * 1))
    with torch.no_grad():
        weight = fast(torch.randn(2, 3))[1]
        weight.zero_()
        check(model, torch.randn(2, 3), fast=lambda x: fast(x)[0])


def test_sizes_numbers_and_none_are_returned() -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        return x.sum(), None, x.shape[0] + n, (x * n, [x.shape[1] * 2])

    fast = check(function, torch.randn(3, 4), 5, dynamic=True)
    check(function, torch.randn(6, 2), 9, fast=fast)


def test_outputs_keep_the_strides_of_torch() -> None:
    check(lambda x: (x.exp().t(), x.sum(0, keepdim=True).expand(4, 6), (x + 1)[:, None].expand(4, 3, 6)), torch.randn(4, 6))


def test_integers_and_bools() -> None:
    x = torch.randint(-50, 50, (6, 5))
    table = nn.Embedding(10, 4)
    check(lambda a: (a // 7, a % 7, a & 6, a > 3, a.sum(), a.argmax(1)), x)
    check(lambda a: table(a).sum(1), torch.randint(0, 10, (3, 4), dtype=torch.int32))
    check(lambda a, b: a ^ b, torch.tensor([True, False]), torch.tensor([True, True]))


def test_an_empty_tensor() -> None:
    check(lambda x: (x + 1, x.sum(), torch.cat((x, x), 1)), torch.randn(0, 4))


def test_an_input_is_changed_in_place() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    x = torch.randn(4)
    expected = x * 2
    answer = compiled(function)(x)
    assert torch.equal(x, expected) and torch.equal(answer, expected + 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_float_types(dtype: torch.dtype) -> None:
    model, x = mlp().to(dtype), torch.randn(7, 12, dtype=dtype)
    with torch.no_grad():
        ours, eager, wide = compiled(model)(x), model(x), copy.deepcopy(model).double()(x.double())
    verdict = judge(*(t.double().numpy() for t in (ours, eager, wide)), factor=2, floor=4 * torch.finfo(dtype).eps / 2**-52)
    assert ours.dtype == dtype and verdict.passed, verdict.reason


# --- gradients --------------------------------------------------------------------------------------------------------


def gradients(model: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor | None]:
    """The answer, and the gradients of its weighted sum by the input and the parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    answer = call(x)
    weights = torch.randn(answer.shape, generator=torch.Generator().manual_seed(1)).to(answer.dtype)
    (answer * weights).sum().backward()
    return [answer.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_eager(name: str, graphs: list[backend.CompiledGraph]) -> None:
    make, shape = MODELS[name]
    model, x = make().eval(), torch.randn(shape)
    wide = copy.deepcopy(model).double()
    fast = compiled(model)
    agree(*(gradients(m, call, value) for m, call, value in ((model, fast, x), (model, model, x), (wide, wide, x.double()))))
    assert [graph.build.watched for graph in graphs if graph.build] == [(), ()]


def test_gradients_of_a_masked_attention() -> None:
    model, x = Attention().eval(), torch.randn(2, 9, 32)
    mask = torch.ones(2, 1, 9, 9, dtype=torch.bool).tril()
    wide = copy.deepcopy(model).double()
    fast = compiled(model)
    cases = ((model, fast, x), (model, model, x), (wide, wide, x.double()))
    agree(*(gradients(m, lambda value, call=call: call(value, mask), given) for m, call, given in cases))


def test_only_required_gradients_are_made() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    answer = compiled(model)(torch.randn(7, 12))
    answer.sum().backward()
    assert [parameter.grad is not None for parameter in model.parameters()] == [False, False, True, True]


def test_training_goes_down_the_same_road_as_eager() -> None:
    model = mlp()
    eager = copy.deepcopy(model)
    x, y = torch.randn(16, 12), torch.randn(16, 5)
    losses = []
    for trained, call in ((model, compiled(model)), (eager, eager)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        history = []
        for _ in range(5):
            loss = F.mse_loss(call(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        losses.append(history)
    assert losses[0][-1] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# --- symbolic sizes ---------------------------------------------------------------------------------------------------

POINTS = [(2, 9), (1, 9), (3, 1), (1, 1), (5, 2), (1, 17), (8, 16), (4, 15), (7, 1), (2, 33), (1, 2), (16, 3), (2, 2), (3, 64)]


def test_two_symbols_make_at_most_four_graphs(graphs: list[backend.CompiledGraph]) -> None:
    model = Attention().eval()
    fast = compiled(model, dynamic=True)
    made = []
    for batch, sequence in POINTS:
        check(model, torch.randn(batch, sequence, 32), fast=fast)
        made.append(len(graphs))
    # The first four points are one of each kind; nothing is compiled after them.
    assert made[3:] == [made[3]] * (len(POINTS) - 3) and made[3] <= 4
    assert [graph.builds for graph in graphs] == [1] * made[3]


def test_a_size_that_only_an_integer_gives() -> None:
    fast = check(lambda n: torch.arange(n).float() * n, 5, dynamic=True)
    check(lambda n: torch.arange(n).float() * n, 11, fast=fast)


# --- what the compiler lacks ------------------------------------------------------------------------------------------


def rare(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(x + 1) * 2


def test_an_op_without_a_rule_is_called_back(graphs: list[backend.CompiledGraph]) -> None:
    check(rare, torch.randn(4, 3))
    build = graphs[0].build
    assert build is not None and build.engine is not None
    (fallback,) = build.imported.fallbacks
    assert fallback.operator == "aten._linalg_svd.default" and fallback.source.file == Path(__file__).name
    (row,) = [row for row in build.engine.contract if row.op == fallback.operator]
    assert row.realised == "aten call" and "has no rule" in row.why


def test_a_custom_op_is_called_back() -> None:
    @torch.library.custom_op("ourcc_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    check(lambda x: twice(x + 1) + 1, torch.randn(3, 4).t())


def test_a_requirement_that_a_fallback_breaks_is_an_error() -> None:
    with pytest.raises(Exception, match="no-fallback"):
        compiled(rare, require=["no-fallback"])(torch.randn(4, 3))


@pytest.mark.parametrize("kind", ["rest", "call"])
def test_no_fallback_refuses_a_graph_that_ends_early(kind: str) -> None:
    """What lies behind runs in eager, and no graph of it comes."""
    layer = torch.nn.LSTM(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x + 1) * 3  # torch makes no graph of a single op
        if kind == "call":
            torch._dynamo.graph_break()
            return y * 2
        z, _ = layer(y)
        return z * 2

    x = torch.randn(3, 4)
    with torch.no_grad():
        assert torch.equal(compiled(function)(x), function(x))
        for _ in range(2):
            with pytest.raises(ContractError, match="1 promise does not hold: no-fallback") as error:
                compiled(function, require=["no-fallback"])(x)
        line = function.__code__.co_firstlineno + (3 if kind == "call" else 5)
        assert f"{Path(__file__).name}:{line} (graph break) is left to torch: " in str(error.value) and "fullgraph=True" in str(error.value)
        compiled(lambda x: (x + 1) * 3, require=["no-fallback"])(x)


# --- how it is found, and what it refuses -----------------------------------------------------------------------------


def test_torch_finds_the_entry_point(tmp_path: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    info = tmp_path / "ourcc-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ourcc\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + "".join(f"{k} = {v}\n" for k, v in declared.items()))
    (tmp_path / "ourcc").symlink_to(ROOT)
    code = (
        "import torch, sys; assert 'ourcc' in torch._dynamo.list_backends(); assert 'ourcc' not in sys.modules; "
        "x = torch.randn(3); print(torch.equal(torch.compile(lambda x: x + 1, backend='ourcc')(x), x + 1))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(Exception, match=r"unknown option: got 'precison', expected one of .*precision") as caught:
        compiled(torch.tanh, precison="bf16")(torch.randn(3))
    assert isinstance(caught.value.inner_exception, UsageError)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(Exception, match="unknown mode: got 'fast', expected one of default, reduce-overhead, max-autotune"):
        torch.compile(torch.tanh, backend=backend.ourcc, mode="fast")(torch.randn(3))


def test_products_are_narrowed_as_asked(graphs: list[backend.CompiledGraph]) -> None:
    model, x = mlp(), torch.randn(2, 12)
    got, wide = compiled(model, precision="bf16")(x).detach(), model(x).detach()
    assert 0 < float((got - wide).abs().max()) < 2**-5 * float(wide.abs().max())


def test_a_precision_that_is_not_there_says_so() -> None:
    with pytest.raises(UnsupportedError, match="at fp64 is not converted to tf32 yet") as caught:
        compiled(mlp().double(), precision="tf32")(torch.randn(2, 12).double())
    assert "leave it at fp64" in str(caught.value)


def test_tf32_is_float32_on_a_cpu(graphs: list[backend.CompiledGraph]) -> None:
    model, x = mlp(), torch.randn(2, 12)
    assert torch.equal(compiled(model, precision="tf32")(x), compiled(model)(x))


def test_a_workload_of_no_symbol_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for function in (lambda x: torch.tanh(x), lambda x: x.tanh()):  # the second finds the engine of the first
        caplog.clear()
        compiled(function, workload=["nonsense=1"])(torch.randn(3))
        assert "the workload names nonsense, which a graph does not have: its sizes are fixed" in caplog.text


def test_requests_that_are_not_met_are_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ourcc.compiler.torch.telling._NOTED", set())
    model, x = torch.nn.Sequential(torch.nn.Linear(33, 20), torch.nn.Linear(20, 7)).eval(), torch.randn(3, 33)
    for quantize, said in (("nvfp4", "nvfp4 changes none of 2 weights"), ("int8", "")):
        for _ in range(2):
            torch.compiler.reset()
            with torch.no_grad():
                torch.compile(model, backend="ourcc", options={"quantize": quantize})(x)
        assert caplog.text.count("ourcc: ") == caplog.text.count(said or "nothing") == bool(said)
        caplog.clear()
    torch.compiler.reset()
    with torch.no_grad():
        # A graph without products is a part of a model, which may have some elsewhere.
        torch.compile(torch.nn.ReLU(), backend="ourcc", options={"quantize": "nvfp4"})(x)
    assert "changes nothing" not in caplog.text


def test_a_precision_that_only_saves_memory_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ourcc.compiler.torch.telling._NOTED", set())
    for size in (12, 16):
        model = torch.nn.Linear(size, 32)
        compiled(model, precision="bf16", target="x86-64-v3")(torch.randn(2, size))
    assert caplog.text.count("bf16 saves memory here and may take more time than float32: x86-64-v3 has no instruction") == 1


@pytest.mark.parametrize("leaves", [False, True])
def test_a_broken_promise_names_what_torch_compile_can_do(leaves: bool) -> None:
    """There is no engine file to inspect: neither for a new graph nor for a kept engine or a graph that is left to torch."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).to(torch.complex32).to(torch.complex64) if leaves else torch.tanh(x * 3)

    for _ in range(2):
        for promise in ("no-fallback" if leaves else "tanh:bf16", "target:sm_90a"):
            with torch.no_grad(), pytest.raises(ContractError) as error:
                compiled(function, require=[promise])(torch.randn(4))
            assert "ENGINE" not in str(error.value) and "--" not in str(error.value)
            assert ("options={'targets': [...]}" if "sm_90a" in promise else "ourcc.explain") in str(error.value)
        if not leaves:
            compiled(function)(torch.randn(4))  # the next round finds its engine


def test_a_graph_that_no_module_holds_is_left_to_torch(graphs: list[backend.CompiledGraph]) -> None:
    """A dtype without an element type here stands between two others."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).to(torch.complex32).to(torch.complex64)

    x = torch.randn(3)
    with torch.no_grad():
        assert torch.equal(compiled(function)(x), function(x))
    assert [graph.engine for graph in graphs] == [None]
    assert graphs[0].imported is not None and graphs[0].imported.is_left
    with pytest.raises(ContractError, match="1 promise does not hold: no-fallback"):
        compiled(function, require=["no-fallback"])(torch.randn(4))
