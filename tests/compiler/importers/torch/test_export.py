"""Torch modules and exported programs to graph modules and engines: shapes, names, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import ourcc
from ourcc.compiler.importers.torch.export import export_module, import_exported, input_shapes
from ourcc.compiler.models.importing import import_model
from ourcc.compiler.options import build_options
from ourcc.ir.errors import InputError, UnsupportedError, UsageError
from ourcc.ir.graph.text import module_text


class Scores(nn.Module):
    """Two inputs that share their batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(x) + mask.unsqueeze(1), dim=-1)


X, MASK = torch.randn(3, 5, 4), torch.randn(3, 3)


def imported(model: Any, inputs: tuple[Any, ...] | None = None, **options: Any) -> Any:
    return import_model(model, build_options(options), example_inputs=inputs)


def types(module: Any) -> list[str]:
    return [str(value.type) for value in module.main.inputs]


def program(low: int = 1, high: int = 16) -> Any:
    batch, rows = torch.export.Dim("batch", min=low, max=high), torch.export.Dim("rows", min=low, max=high)
    return torch.export.export(Scores(), (X, MASK), dynamic_shapes=({0: batch, 1: rows}, {0: batch}))


def test_without_shapes_sizes_are_those_of_the_example(same: Any) -> None:
    model = Scores()
    module = imported(model, (X, MASK))
    assert types(module) == ["f32[3, 5, 4]", "f32[3, 3]"]
    same(module, model, (X, MASK))


@pytest.mark.parametrize(
    ("shapes", "expected", "ranges"),
    [
        ({"x": "B:1..8,R:1..9,4", "mask": "B:1..8,3"}, ["f32[B, R, 4]", "f32[B, 3]"], {"B": "1..8", "R": "1..9"}),
        ({"x": "3,1..9,4"}, ["f32[3, s{}, 4]", "f32[3, 3]"], {"s": "1..9"}),
        ({"x": "3,rows,4"}, ["f32[3, rows, 4]", "f32[3, 3]"], {"rows": "1.."}),
    ],
)
def test_shapes_of_a_module(same: Any, shapes: Any, expected: list[str], ranges: dict[str, str]) -> None:
    model = Scores()
    module = imported(model, (X, MASK), shapes=shapes)
    found = {name: str(facts) for name, facts in module.facts.ranges.items()}
    (unnamed,) = [name for name in found if name[0] == "s"] or [""]
    assert types(module) == [text.replace("s{}", unnamed) for text in expected]
    assert {("s" if name == unnamed else name): text for name, text in found.items()} == ranges
    batches = (1, 3, 8) if "B" in found else (3,)
    for batch in batches:
        for rows in (1, 9):
            same(module, model, (torch.randn(batch, rows, 4), torch.randn(batch, 3)))


@pytest.mark.parametrize(
    ("wish", "expected", "ranges"),
    [
        ({}, "f32[{0}, {1}, 4]", ["1..16", "1..16"]),
        ({"x": "B,S,4"}, "f32[B, S, 4]", ["1..16", "1..16"]),
        ({"x": "B:2..4,7,4"}, "f32[B, 7, 4]", ["2..4"]),
        ({"x": "A,A,4"}, "f32[A, A, 4]", ["1..16"]),
        ({"0": "2..5"}, "f32[{0}, {1}, 4]", ["1..16", "2..5"]),
        ({"0": "4", "1": "T:3.."}, "f32[4, T, 4]", ["3..16"]),
    ],
)
def test_shapes_of_an_exported_program(same: Any, wish: dict[str, str], expected: str, ranges: list[str]) -> None:
    exported = program()
    batch, rows = (str(size) for size in input_shapes(exported)["x"][:2])
    module = imported(exported, shapes={{"0": batch, "1": rows}.get(name, name): text for name, text in wish.items()})
    assert types(module)[0] == expected.format(batch, rows)
    assert sorted(str(facts) for facts in module.facts.ranges.values()) == ranges
    count, length = (4, 4) if "A" in expected else (4, 7)
    same(module, exported.module(), (torch.randn(count, length, 4), torch.randn(count, 3)))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": "1..64,S,4"}, r"shape: got 1..64 for s\d+, expected sizes in 2..16"),
        ({"x": "B:1..4,S,4"}, r"shape: got 1..4 for s\d+, expected sizes in 2..16"),
        ({"x": "20,S,4"}, r"shape: got 20..20 for s\d+, expected sizes in 2..16"),
        ({"x": "B,S,5"}, "axis 2 of x is 4 in the model, got 5"),
        ({"x": "B,S"}, "got 2 axes, expected 3"),
        ({"y": "B"}, "got y, which is no input and no dimension"),
    ],
)
def test_shapes_that_were_not_exported(shapes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        imported(program(low=2), shapes=shapes)


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({"y": "B"}, UsageError, "shape: got the input 'y', expected one of x, mask"),
        ({"x": "2*B,5,4"}, UsageError, r"shape: got 2\*B, expected one symbol or a size"),
        ({"x": "A:1..8,5,4", "mask": "B:1..8,3"}, UnsupportedError, "torch.export cannot export this model for these shapes"),
        ({"x": "4,5,4"}, UsageError, "axis 0 of x is 3 in the model, got 4"),
    ],
)
def test_shapes_that_do_not_fit_a_module(shapes: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        imported(Scores(), (X, MASK), shapes=shapes)


def test_names_of_inputs_weights_outputs_and_sources() -> None:
    module = import_exported(program())
    text = module_text(module)
    assert [value.name for value in module.main.inputs] == ["x", "mask"]
    assert module.main.output_names == ["softmax"]
    assert "@head.weight" in text and 'loc("head.' in text and '"test_export.py"' in text


def test_a_result_that_is_returned_twice_has_two_names() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x + 1
            return y, y

    module = imported(Twice(), (X,))
    assert module.main.output_names == ["add", "add_1"] and module.main.outputs[0] is module.main.outputs[1]


def test_an_engine_of_a_module() -> None:
    model = Scores()
    engine = ourcc.build(model, (X, MASK), shapes={"x": "B:1..8,R:1..8,4", "mask": "B:1..8,3"}, targets=["native"])
    for batch, rows in ((1, 1), (8, 3)):
        x, mask = torch.randn(batch, rows, 4), torch.randn(batch, 3)
        torch.testing.assert_close(engine(x, mask), model(x, mask).detach())


class Number(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x, x.shape[0]


class Writes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return x * x


class Missing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x @ x.transpose(-1, -2)) + torch.special.bessel_j0(x).sum()


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Many(nn.Module):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0]


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (Writes(), {}, UnsupportedError, "the program writes its input 'x', and an engine writes no memory of its caller's"),
        (Missing(), {}, UnsupportedError, "2 nodes are not supported: aten.linalg_eig.default, aten.special_bessel_j0.default"),
        (Branches(), {}, UnsupportedError, "torch.export cannot export this model"),
        (Many(), {"shapes": {"x": "B,5,4"}}, UsageError, r"the model's forward takes \*inputs"),
        (Number(), {"shapes": {"x": "B,5,4"}}, UnsupportedError, "the program returns a number or None, expected tensors"),
        (lambda x: x, {}, UsageError, "got a function, expected a torch module"),
        (3, {}, UsageError, "got a int, expected a path, an ONNX model, an exported program or a torch module"),
    ],
)
def test_what_is_refused(model: Any, options: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        imported(model, (X,), **options)


def test_a_module_needs_example_inputs() -> None:
    with pytest.raises(UsageError, match="got a Scores without example inputs"):
        imported(Scores())


def test_all_unsupported_nodes_are_named_with_their_lines() -> None:
    with pytest.raises(UnsupportedError) as caught:
        imported(Missing(), (X,))
    assert str(caught.value).count("test_export.py:") >= 2 and "torch.compile" in str(caught.value)


def test_an_integer_argument_is_a_scalar_of_the_engine() -> None:
    class Grows(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x.new_zeros(n) + x.sum()

    exported = torch.export.export(Grows(), (X, 3), dynamic_shapes=(None, torch.export.Dim.DYNAMIC))
    engine = ourcc.build(exported)
    assert [str(port) for port in engine.inputs] == ["x: f32[3, 5, 4]", "n: i64[]"]
    for n in (3, 2, 7):
        torch.testing.assert_close(engine(X, n), Grows()(X, n))
    with pytest.raises(InputError, match="input 'n' is -2, so"):
        engine(X, -2)


def test_an_export_for_all_sizes_of_one_axis() -> None:
    exported = export_module(Scores(), (X, MASK), {})
    assert input_shapes(exported) == {"x": (3, 5, 4), "mask": (3, 3)}


def test_example_inputs_may_be_views() -> None:
    exported = export_module(Scores(), (X[1:], torch.randn(4, 3).t()[:2].t()[:2, :1].expand(2, 3)), {})
    assert not any("_base" in guard for guard in exported._guards_code)


def test_what_torch_cannot_take_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, table: Any) -> Any:
        raise AttributeError("'NoneType' object has no attribute 'size'\nwhile executing a guard")

    exported = program()
    monkeypatch.setattr(type(exported), "run_decompositions", refuse)
    with pytest.raises(UnsupportedError, match="torch cannot take the program apart: 'NoneType' object has no attribute 'size'") as caught:
        import_exported(exported)
    assert caught.value.note == "while executing a guard"


def test_programs_are_imported_by_several_threads() -> None:
    """Torch takes one program apart at a time."""
    programs = [torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)), (torch.ones(2, 4),)) for _ in range(8)]
    expected = [op.name for op in import_exported(programs[0]).main]
    with ThreadPoolExecutor(4) as pool:
        found = [[op.name for op in module.main] for module in pool.map(import_exported, programs)]
    assert found == [expected] * 8
