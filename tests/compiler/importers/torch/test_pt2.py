"""Files of torch.export.save: what comes back is the model; what is damaged or hostile is one error, and nothing runs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ourcc
from ourcc.compiler.importers.torch.pt2.program import import_pt2, read_program
from ourcc.ir.errors import ModelError, UnsupportedError
from ourcc.ir.graph.text import module_text

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


class Attention(nn.Module):
    """Self-attention whose mask is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        q, k, v = self.project(x).view(x.shape[0], length, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:length, :length])
        return self.out(y.transpose(1, 2).reshape(x.shape[0], length, 8))


class Stored(nn.Module):
    """Every way to keep a tensor: a buffer, one that is not saved, a plain attribute, a literal, one in no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.randn(4))
        self.register_buffer("dropped", torch.randn(4), persistent=False)
        self.plain = torch.arange(4)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            total = (x + self.kept).sum(0)
        values, places = (x * self.plain + self.dropped).max(dim=1)
        return {"total": total, "both": (values, places), "literal": x + torch.tensor([1.0, 2.0, 3.0, 4.0])}


class Weights(nn.Module):
    """Parameters that share memory: one twice, a part of another, a transposed one, an expanded one, an empty one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        whole = torch.arange(24).remainder(7).reshape(4, 6).to(dtype)
        self.first = nn.Parameter(whole, requires_grad=False)
        self.again = self.first
        self.part = nn.Parameter(whole[1:3, 2:5], requires_grad=False)
        self.turned = nn.Parameter(whole.t(), requires_grad=False)
        self.wide = nn.Parameter(torch.ones(1, 6).to(dtype).expand(4, 6), requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(0, 6).to(dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> Any:
        same = torch.cat([self.first.float() + self.wide.float(), self.empty.float()]) + self.again.float()
        return x @ same.t(), self.part.float(), self.turned.float()


class Shapes(nn.Module):
    """Arithmetic on sizes."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        doubled = torch.cat([x, x]).view(2, x.shape[0], -1)
        return doubled, torch.arange(x.shape[0] * 2 + 1) + y.shape[1] // 2, x.mean(dim=0, keepdim=True).expand(y.shape[1], -1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))


def dim(name: str, low: int = 1, high: int = 16) -> Any:
    return torch.export.Dim(name, min=low, max=high)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (mlp, (torch.randn(2, 4),)),
        (Attention, (torch.randn(2, 5, 8),)),
        (Stored, (torch.randn(3, 4),)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()), (torch.randn(1, 3, 6, 6),)),
        (lambda: nn.Embedding(9, 4), (torch.tensor([[1, 8, 0]]),)),
        (lambda: nn.LayerNorm(6), (torch.randn(2, 6).double().float(),)),
        *((lambda dtype=dtype: Weights(dtype), (torch.randn(2, 6),)) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
        *((lambda dtype=dtype: Weights(dtype), (torch.randn(2, 6),)) for dtype in (torch.int8, torch.uint8, torch.int64, torch.bool)),
        (lambda: Weights(torch.float8_e4m3fn), (torch.randn(2, 6),)),
    ],
    ids=["mlp", "attention", "stored", "conv", "embedding", "norm", "f32", "f16", "bf16", "i8", "u8", "i64", "bool", "f8"],
)
def test_a_program_comes_back(saved: Any, same: Any, model: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    built = model()
    path = saved(built, inputs)
    same(import_pt2(path), built, inputs)
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(built(*inputs))
    for got, value in zip(read_program(path).module()(*inputs), expected, strict=True):
        assert torch.equal(got, value)


def test_symbols_keep_their_ranges(saved: Any, same: Any) -> None:
    batch, length = dim("batch", 1, 12), dim("length", 2, 9)
    path = saved(Shapes(), (torch.randn(3, 4), torch.randn(3, 5)), ({0: batch}, {0: batch, 1: length}))
    module = import_pt2(path)
    assert sorted(str(facts) for facts in module.facts.ranges.values()) == ["1..12", "2..9"]
    for rows, columns in ((1, 2), (3, 5), (12, 9), (7, 7)):
        same(module, Shapes(), (torch.randn(rows, 4), torch.randn(rows, columns)))


def test_a_derived_size(saved: Any, same: Any) -> None:
    half = dim("half", 1, 6)
    path = saved(Pairs(), (torch.randn(8, 3), torch.randn(4, 3)), ({0: 2 * half}, {0: half}))
    module = import_pt2(path)
    for rows in (1, 4, 6):
        same(module, Pairs(), (torch.randn(2 * rows, 3), torch.randn(rows, 3)))


class Pairs(nn.Module):
    """The first input has two rows for each of the second."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.view(y.shape[0], 2, 3) + y[:, None]


def test_a_range_of_one_value_is_a_constant(saved: Any, changed: Any, same: Any) -> None:
    def fix(program: Any) -> None:
        (name,) = program["range_constraints"]
        program["range_constraints"][name] = {"min_val": 3, "max_val": 3}

    built = mlp()
    module = import_pt2(changed(saved(built, (torch.randn(5, 4),), ({0: dim("b")},)), {MODEL: fix}))
    assert module.main.inputs[0].type.shape == (3, 4) and not module.facts.ranges
    same(module, built, (torch.randn(3, 4),))


def test_names_and_sources_of_the_model(saved: Any) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, input: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.head(input) * scale

    module = import_pt2(saved(Named(), (torch.randn(2, 4), torch.randn(2))))
    text = module_text(module)
    assert [value.name for value in module.main.inputs] == ["input", "scale"]
    assert "@head.weight" in text and 'loc("head.' in text and '"test_pt2.py"' in text
    assert module.main.output_names == ["mul"]


def test_an_engine_from_a_file(saved: Any) -> None:
    model = mlp()
    engine = ourcc.build(saved(model, (torch.randn(2, 4),), ({0: dim("b", 1, 8)},)), targets=["native"])
    for rows in (1, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(engine(x), model(x).detach())


def test_numbers_that_json_does_not_know(saved: Any, same: Any) -> None:
    class Limits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 0, x, torch.full_like(x, float("-inf"))).clamp(max=float("inf"))

    same(import_pt2(saved(Limits(), (torch.randn(3, 4),))), Limits(), (torch.randn(3, 4),))


# --- what is not supported --------------------------------------------------------------------------------------------


def test_state_that_is_written(saved: Any) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    module = import_pt2(saved(Counter(), (torch.randn(2),)))
    assert list(module.states) == ["count"] and module.main.states == ["count"] and module.states["count"].initial is None


def test_control_flow_that_has_no_form(saved: Any) -> None:
    """Branches and loops do: test_pt2_control.py."""
    from torch._higher_order_ops.map import map as mapped

    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return mapped(lambda row: row.sin(), x)

    with pytest.raises(UnsupportedError, match=r"'torch.ops.higher_order.map_impl' is control flow, which has no form here") as caught:
        import_pt2(saved(Rows(), (torch.randn(2, 3),)))
    assert "node map" in str(caught.value)


# --- damaged and hostile files ----------------------------------------------------------------------------------------


@pytest.fixture
def path(saved: Any) -> Path:
    return saved(mlp(), (torch.randn(2, 4),), ({0: dim("b")},))


@pytest.mark.parametrize("content", [b"", b"not a program", b"PK\x03\x04 an archive", "half", "end"])
def test_a_file_that_is_no_archive(path: Path, content: bytes | str) -> None:
    whole = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2] if content == "half" else whole[:-30])
    with pytest.raises(ModelError, match=r"as an exported program|is no exported program"):
        import_pt2(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot open .*: No such file"):
        import_pt2(tmp_path / "none.pt2")


def test_every_part_of_an_archive_may_be_damaged(path: Path) -> None:
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        places = [info.header_offset for info in archive.infolist() if info.filename.endswith((".json", "weight_0", "archive_format"))]
    for place in places:
        path.write_bytes(whole[:place] + b"\x00" * 120 + whole[place + 120 :])
        with pytest.raises(ModelError):
            import_pt2(path)


def program_of(change: str) -> Any:
    """A change to the program: a Python path and a value."""
    place, _, value = change.partition(" = ")

    def apply(program: Any) -> None:
        target = program["graph_module"]
        *steps, last = place.split(".")
        for step in steps:
            target = target[int(step) if step.lstrip("-").isdigit() else step]
        target[int(last) if last.lstrip("-").isdigit() else last] = VALUES[value]

    return apply


VALUES: dict[str, Any] = {
    "unknown operator": "torch.ops.aten.frobnicate.default",
    "library operator": "torch.ops.evil.run.default",
    "python": "os.system",
    "method": "torch.ops.aten.__class__.default",
    "file": "torch.ops.aten.from_file.default",
    "nobody": {"as_tensor": {"name": "nobody"}},
    "object": {"as_custom_obj": {"name": "x", "class_fqn": "y"}},
    "two cases": {"as_int": 1, "as_float": 1.0},
    "text": "x",
    "none": None,
    "code": 'x"); import os; os.system("touch hacked',
    "lines": 'File "a\n", line 1, in <module>\nimport os\n  File "x\').y", line 3, in f',
    "list": [],
    "huge": {"as_int": 1 << 80},
    "big": {"as_int": 1 << 50},
    "negative": {"as_int": -4},
    "number": 99,
    "duplicate": "linear",
}
NODE = "graph.nodes.1"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (f"{NODE}.target = unknown operator", ModelError, "there is no operator 'torch.ops.aten.frobnicate.default'"),
        (f"{NODE}.target = library operator", UnsupportedError, "'torch.ops.evil.run.default' is not torch's own"),
        (f"{NODE}.target = python", UnsupportedError, "'os.system' is not torch's own"),
        (f"{NODE}.target = method", ModelError, "there is no operator"),
        (f"{NODE}.target = file", ModelError, "there is no operator 'torch.ops.aten.from_file.default'"),
        (f"{NODE}.target = none", ModelError, r"nodes\[1\].target: got 'None', expected text"),
        (f"{NODE}.inputs.0.arg = nobody", ModelError, "nothing before it is called 'nobody'"),
        (f"{NODE}.inputs.0.arg = object", UnsupportedError, "an argument of the kind 'as_custom_obj' has no form here"),
        (f"{NODE}.inputs.0.arg = two cases", ModelError, "expected one case of a union"),
        (f"{NODE}.inputs.0.arg = text", ModelError, "expected one case of a union"),
        (f"{NODE}.inputs.0.arg = huge", ModelError, "expected an integer"),
        (f"{NODE}.inputs.0.arg = negative", ModelError, "aten.gelu.default refuses its operands"),
        (f"{NODE}.inputs = list", ModelError, "aten.gelu.default refuses its operands"),
        (f"{NODE}.inputs = text", ModelError, "expected a list"),
        (f"{NODE}.outputs.0.as_tensor.name = code", ModelError, "expected a name of letters, digits and underscores"),
        (f"{NODE}.outputs.0.as_tensor.name = duplicate", ModelError, "the name 'linear' is given twice"),
        ("graph.inputs.0.as_tensor.name = code", ModelError, "expected a name of letters, digits and underscores"),
        ("graph.inputs.-1.as_tensor.name = code", ModelError, "lacks"),
        ("signature.input_specs.0.parameter.parameter_name = code", ModelError, "with dots between"),
        ("signature.input_specs.0.parameter.parameter_name = text", ModelError, "the archive holds no tensor 'x'"),
        ("signature.input_specs = list", ModelError, "describes 0 inputs, expected 5"),
        ("signature.output_specs = list", ModelError, "describes 0 results, expected 1"),
        ("graph.outputs = text", ModelError, "expected a list"),
        ("graph.tensor_values.input.sizes.1 = big", ModelError, "got size 1125899906842624, expected 0..1099511627776"),
        ("graph.tensor_values.input.sizes.1 = negative", ModelError, "got size -4"),
        ("graph.tensor_values.input.strides = list", ModelError, "got 2 sizes and 0 strides"),
        ("graph.tensor_values.input.dtype = number", ModelError, "dtype 99 is not known"),
        ("graph.tensor_values.input.layout = number", UnsupportedError, "got a tensor of layout 99, expected a dense one"),
        ("graph.tensor_values.p_0_weight.sizes = list", ModelError, "expected what the graph says of it"),
    ],
)
def test_a_hostile_program(path: Path, changed: Any, tmp_path: Path, change: str, error: type, message: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        import_pt2(changed(path, {MODEL: program_of(change)}))
    assert "changed.pt2" in str(caught.value)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("value", ["code", "lines"])
@pytest.mark.parametrize("key", ["stack_trace", "nn_module_stack", "torch_fn"])
def test_hostile_words_about_a_node_change_nothing(
    path: Path, changed: Any, tmp_path: Path, key: str, value: str, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    module = import_pt2(changed(path, {MODEL: program_of(f"{NODE}.metadata.{key} = {value}")}))
    assert len(module.main.outputs) == 1 and "import os" not in module_text(module)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("__import__('os').system('touch hacked')", "cannot read"),
        ("Symbol('s77').func(open('hacked', 'w'))", "cannot read"),
        ("Function('f')(Integer(1))", "Function of 1 arguments has no form here"),
        ("Mul(Integer(1), Symbol('s0'), evaluate=open('hacked'))", "has no form here|cannot read"),
        ("Pow(Integer(9), Integer(9999999))", "Pow of 2 arguments has no form here"),
        ("Add(" * 5000, "characters long"),
        ("Add(" * 500, "nested more than"),
        ("Symbol('x y')", "cannot read"),
        ("Symbol('__class__')", "got the symbol '__class__', expected the size of an input"),
        ("FloorDiv(Integer(1), Integer(0))", "in size|division|zero"),
        ("9" * 400, "out of range"),
    ],
)
def test_a_hostile_size(path: Path, changed: Any, tmp_path: Path, size: str, message: str, monkeypatch: Any) -> None:
    def hack(program: Any) -> None:
        program["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0] = {"as_expr": {"expr_str": size, "hint": None}}

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        import_pt2(changed(path, {MODEL: hack}))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [(5, 2, "got the range 5..2"), (-9, -3, "is at most -3, expected a size"), ("x", 3, "expected an integer")],
)
def test_a_hostile_range(path: Path, changed: Any, low: Any, high: Any, message: str) -> None:
    def hack(program: Any) -> None:
        (name,) = program["range_constraints"]
        program["range_constraints"][name] = {"min_val": low, "max_val": high}

    with pytest.raises(ModelError, match=message):
        import_pt2(changed(path, {MODEL: hack}))


def tensor_change(**fields: Any) -> Any:
    def apply(weights: Any) -> None:
        entry = weights["config"]["0.weight"]
        for name, value in fields.items():
            target = entry if name in entry else entry["tensor_meta"]
            target[name] = value

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor_change(sizes=[{"as_int": 1 << 30}, {"as_int": 4}]), "has 128 bytes, which do not hold sizes"),
        (tensor_change(strides=[{"as_int": 1 << 30}, {"as_int": 1}]), "which do not hold sizes"),
        (tensor_change(sizes=[{"as_int": 1 << 39}, {"as_int": 4}], strides=[{"as_int": 0}, {"as_int": 0}]), "which do not hold sizes"),
        (tensor_change(storage_offset={"as_int": 8}), "which do not hold sizes"),
        (tensor_change(storage_offset={"as_int": -1}), "expected at most 32 numbers in 0..1099511627776"),
        (tensor_change(strides=[{"as_int": -4}, {"as_int": 1}]), "expected at most 32 numbers"),
        (tensor_change(sizes=[{"as_int": 1}] * 40), "expected at most 32 numbers"),
        (tensor_change(strides=[]), "got 2 sizes and 0 strides"),
        (tensor_change(dtype=77), "dtype 77 is not known"),
        (tensor_change(dtype=[]), "expected an integer"),
        (tensor_change(layout=1), "got a tensor of layout 1"),
        (tensor_change(path_name="../../secret"), "the archive lacks 'model/data/weights/../../secret'"),
        (tensor_change(tensor_meta=None), "lacks 'layout'"),
        (lambda weights: weights.pop("config"), "lacks 'config'"),
        (lambda weights: weights["config"].pop("0.weight"), "the archive holds no tensor '0.weight'"),
        (b"{", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (None, "the archive holds no tensor"),
    ],
)
def test_hostile_weights(path: Path, changed: Any, change: Any, message: str) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=message):
        import_pt2(changed(path, {WEIGHTS: change}))


def test_a_missing_or_short_storage(path: Path, changed: Any) -> None:
    with pytest.raises(ModelError, match="the archive lacks 'model/data/weights/weight_0'"):
        import_pt2(changed(path, {"data/weights/weight_0": None}))
    with pytest.raises(ModelError, match="has 4 bytes, which do not hold sizes"):
        import_pt2(changed(path, {"data/weights/weight_0": b"1234"}))


def test_a_compressed_member_is_not_unpacked(path: Path, changed: Any) -> None:
    with pytest.raises(ModelError, match=r"'model/data/weights/weight_0' is compressed, expected it stored"):
        import_pt2(changed(path, {"data/weights/weight_0": bytes(1 << 24)}, zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"archive_format": b"zip"}, "its archive_format is missing or not 'pt2'"),
        ({"archive_format": None}, "its archive_format is missing or not 'pt2'"),
        ({"byteorder": b"big"}, "are not little-endian"),
        ({MODEL: None}, "the archive holds 0 programs, expected one"),
        ({"models/other.json": b"{}"}, "the archive holds 2 programs, expected one"),
        ({MODEL: b"[]"}, "lacks 'schema_version'"),
        ({MODEL: b"\xff\xfe"}, "is no JSON"),
    ],
)
def test_a_foreign_archive(path: Path, changed: Any, members: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_pt2(changed(path, members))


def test_a_program_of_another_age(path: Path, changed: Any) -> None:
    def age(program: Any) -> None:
        program["schema_version"]["major"] = 5

    with pytest.raises(UnsupportedError, match="the program has schema version 5, expected 8"):
        import_pt2(changed(path, {MODEL: age}))


# --- pickles ----------------------------------------------------------------------------------------------------------

EVIL = b"cos\nsystem\n(S'touch hacked'\ntR."


def test_a_pickled_member_that_nobody_needs_is_not_read(path: Path, changed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    import_pt2(changed(path, {"data/sample_inputs/model.pt": EVIL}))
    import_pt2(changed(path, {"data/sample_inputs/model.pt": EVIL}), trust_pickle=True)
    assert not (tmp_path / "hacked").exists()


def test_a_pickled_weight_is_refused(path: Path, changed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = changed(path, {WEIGHTS: tensor_change(use_pickle=True), "data/weights/weight_0": EVIL})
    with pytest.raises(ModelError, match=r"the tensor '0.weight' is pickled, and reading it may run code") as caught:
        import_pt2(hostile)
    assert "--trust-pickle" in str(caught.value) and not (tmp_path / "hacked").exists()


def test_a_trusted_pickle(path: Path, changed: Any, same: Any) -> None:
    model = mlp()
    data = io.BytesIO()
    torch.save(model[0].weight, data)
    weights = {"weight_1": model[0].bias, "weight_2": model[2].weight, "weight_3": model[2].bias}
    raw = {f"data/weights/{name}": value.detach().numpy().tobytes() for name, value in weights.items()}
    trusted = changed(path, {WEIGHTS: tensor_change(use_pickle=True), "data/weights/weight_0": data.getvalue(), **raw})
    same(import_pt2(trusted, trust_pickle=True), model, (torch.randn(3, 4),))


@pytest.mark.parametrize(("value", "message"), [({"a": 1}, "is a dict, expected a plain tensor"), (b"?", "cannot be unpickled")])
def test_a_trusted_pickle_of_something_else(path: Path, changed: Any, value: Any, message: str) -> None:
    data = io.BytesIO()
    if not isinstance(value, bytes):
        torch.save(value, data)
    hostile = changed(path, {WEIGHTS: tensor_change(use_pickle=True), "data/weights/weight_0": data.getvalue() or value})
    with pytest.raises((ModelError, UnsupportedError), match=message):
        import_pt2(hostile, trust_pickle=True)


def test_tensors_that_share_memory_share_it_here(saved: Any) -> None:
    program = read_program(saved(Weights(torch.float32), (torch.randn(2, 6),)))
    pointers = {name: value.untyped_storage().data_ptr() for name, value in program.state_dict.items()}
    assert pointers["first"] == pointers["part"] == pointers["turned"]
    assert np.shares_memory(program.state_dict["first"].numpy(), program.state_dict["part"].numpy())
