"""`torch.compile(model, backend=...)`: answers, gradients, freezing, symbolic sizes, calls back into torch, errors."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ourcc as package
from ourcc.compiler import backend
from ourcc.ir.errors import ContractError, UnsupportedError, UsageError
from ourcc.ir.reference import judge

ROOT = Path(package.__file__).parent
F = nn.functional


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graph of another test, seeded weights, one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[backend.CompiledGraph]:
    """Every graph that torch hands to the backend, in order."""
    made: list[backend.CompiledGraph] = []

    class Recorded(backend.CompiledGraph):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(backend, "CompiledGraph", Recorded)
    return made


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> backend.PackedWeights:
    """A pool of packed weights that no other test has filled."""
    made = backend.PackedWeights()
    monkeypatch.setattr(backend, "packed_weights", lambda: made)
    return made


def compiled(function: Any, *, dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(function, backend=backend.ourcc, dynamic=dynamic, options=options)


def flat(answer: Any) -> list[Any]:
    return [part for item in answer for part in flat(item)] if isinstance(answer, (tuple, list)) else [answer]


def wider(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def agree(got: Any, eager: Any, wide: Any) -> None:
    """The judge on every tensor; everything else must be equal."""
    for ours, theirs, exact in zip(flat(got), flat(eager), flat(wide), strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert type(ours) is type(theirs) and ours == theirs
            continue
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        verdict = judge(*(t.detach().numpy() for t in (ours, theirs, exact)), factor=4, floor=4)
        assert verdict.passed, verdict.reason


def check(function: Any, *inputs: Any, fast: Any = None, **options: Any) -> Any:
    """The compiled function against eager and float64; gives the compiled one."""
    fast = compiled(function, **options) if fast is None else fast
    wide = copy.deepcopy(function).double() if isinstance(function, nn.Module) else function
    with torch.no_grad():
        agree(fast(*inputs), function(*inputs), wide(*map(wider, inputs)))
    return fast


# --- models -----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention with a residual, heads of 8."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.read(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.write(mixed.transpose(1, 2).flatten(2))


class Rotary(nn.Module):
    """Grouped-query attention on rotated queries and keys: 4 heads read 2."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 32, bias=False), nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1], dtype=torch.float32).to(x.dtype)
        angle = place[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float32).to(x.dtype) / 8)
        cos, sin = (f(angle).repeat(1, 2) for f in (torch.cos, torch.sin))
        q, k, v = (part(x).unflatten(-1, (-1, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat((-t[..., 4:], t[..., :4]), -1) * sin for t in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.Linear(40, 5)).eval()


def conv_net() -> nn.Sequential:
    layers = (nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (7, 12)),
    "attention": (Attention, (2, 9, 32)),
    "convolution": (conv_net, (2, 3, 17, 17)),
    "rotary": (Rotary, (2, 6, 32)),
}


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


# --- parameters -------------------------------------------------------------------------------------------------------


def load(model: nn.Linear) -> None:
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()})


def step(model: nn.Linear) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.enable_grad():
        model(torch.randn(3, 6)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def assign(model: nn.Linear) -> None:
    model.weight.data = torch.randn_like(model.weight)


def replace(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.randn_like(model.weight))


def add(model: nn.Linear) -> None:
    model.weight.add_(1)


CHANGES = {"load_state_dict": load, "optimizer": step, "data": assign, "replaced": replace, "in place": add}


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "read as they lie"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_parameter_is_seen(change: str, freeze: bool, graphs: list[backend.CompiledGraph]) -> None:
    model, x = nn.Linear(6, 4), torch.randn(3, 6)
    fast = check(model, x, freeze=freeze)
    with torch.no_grad():
        CHANGES[change](model)
    check(model, x, fast=fast)
    check(model, x, fast=fast)
    assert len(graphs) == 1
    assert graphs[0].builds == (2 if freeze else 1)


def test_without_freezing_writes_through_data_are_seen() -> None:
    model, x = nn.Linear(6, 4), torch.randn(3, 6)
    fast = check(model, x, freeze=False)
    model.weight.data.add_(1)
    check(model, x, fast=fast)


def test_parameters_that_change_all_the_time_are_read_where_they_lie(graphs: list[backend.CompiledGraph]) -> None:
    model, x = nn.Linear(6, 4), torch.randn(3, 6)
    fast = check(model, x)
    for _ in range(backend.REPACKS + 4):
        load(model)
        check(model, x, fast=fast)
    assert graphs[0].builds == backend.REPACKS + 2
    assert graphs[0].build is not None
    assert graphs[0].build.watched == ()


def test_buffers_that_a_graph_writes_are_not_frozen(graphs: list[backend.CompiledGraph]) -> None:
    model = conv_net().train()
    eager = copy.deepcopy(model)
    fast = compiled(model)
    for seed in range(3):
        x = torch.randn(4, 3, 17, 17, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            wide = copy.deepcopy(eager).double()
            agree(fast(x), eager(x), wide(x.double()))
        states = (list(m.state_dict().values()) for m in (model, eager, wide))
        agree(*states)
    assert [graph.builds for graph in graphs] == [1]
    check(model.eval(), x)


def test_tied_parameters() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    fast = check(model, torch.randn(2, 6))
    with torch.no_grad():
        model[0].weight.mul_(-1)
    check(model, torch.randn(2, 6), fast=fast)


def test_threads_that_call_at_once_compile_once(graphs: list[backend.CompiledGraph]) -> None:
    model, x = mlp(), torch.randn(7, 12)
    fast = check(model, x)
    load(model[0])

    def call(_: int) -> torch.Tensor:
        # Whether gradients are on is each thread's own.
        with torch.no_grad():
            return fast(x)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(call, range(8)))
    assert len(graphs) == 1 and graphs[0].builds == 2
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    check(model, x, fast=fast)


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


def test_graphs_of_one_model_share_packed_weights(graphs: list[backend.CompiledGraph], pool: backend.PackedWeights) -> None:
    model = mlp()
    fast = compiled(model, dynamic=True)
    for batch in (3, 1):
        check(model, torch.randn(batch, 12), fast=fast)
    engines = [graph.build.engine for graph in graphs if graph.build]
    held = [{c.data.ctypes.data for group in engine.contents.weights.values() for c in group.values()} for engine in engines if engine]
    assert held[0] == held[1] and len(held[0]) == 4
    assert len(pool) == 2  # biases are read where the parameters lie


def test_shared_weights_end_with_their_graphs(graphs: list[backend.CompiledGraph], pool: backend.PackedWeights) -> None:
    check(mlp(), torch.randn(3, 12))
    assert len(pool) == 2
    torch._dynamo.reset()
    graphs.clear()
    gc.collect()
    assert len(pool) == 0


def test_weights_that_lie_in_a_parameter_are_not_shared_by_content(graphs: list[backend.CompiledGraph]) -> None:
    """Two models with equal biases; one changes where it lies."""
    first, second = nn.Linear(6, 4), nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    second[0].load_state_dict(first.state_dict())
    x = torch.randn(3, 6)
    fast = [check(model, x) for model in (first, second)]
    load(first)
    for model, call in zip((first, second), fast, strict=True):
        check(model, x, fast=call)
    assert [graph.builds for graph in graphs] == [2, 1]


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


def test_a_mode_is_refused() -> None:
    with pytest.raises(Exception, match="got mode 'max-autotune', expected none: backend 'ourcc' takes options"):
        torch.compile(torch.tanh, backend=backend.ourcc, mode="max-autotune")(torch.randn(3))


def test_inputs_on_an_unknown_device_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="inputs are on meta, expected cpu or cuda"):
        backend.with_target(backend.build_options({}), [torch.empty(3, device="meta")])


def test_a_precision_that_is_not_there_says_so() -> None:
    with pytest.raises(UnsupportedError, match="at fp32 is not converted to bf16 yet") as caught:
        compiled(mlp(), precision="bf16")(torch.randn(2, 12))
    assert "convert the model to bf16" in str(caught.value)


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
