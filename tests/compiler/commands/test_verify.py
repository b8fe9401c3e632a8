"""`ourcc verify`: what is allowed follows the precision computed inside, not the dtype of the outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from ourcc.compiler.commands.bench import bench
from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.inspect import inspect
from ourcc.compiler.commands.load import load
from ourcc.compiler.commands.pruning import PrunedModel
from ourcc.compiler.commands.verify import beside_ties, factors_of, verify
from ourcc.compiler.engines.recorded import boards_of, recorded_changes, simplified_for
from ourcc.compiler.models.importing import import_model
from ourcc.compiler.models.precision import TF32
from ourcc.compiler.options import BenchOptions, InspectOptions, VerifyOptions, build_options
from ourcc.compiler.pipeline import compile_again
from ourcc.ir.errors import InputError, UsageError
from ourcc.ir.graph.reference import interpret
from ourcc.passes.quantize import QUANTIZATIONS
from ourcc.runtime.file import write_engine

pytest.importorskip("onnxruntime")


def attention(path: Path, inside: int, scale: float = 1.0, width: int = 16) -> Path:
    """A product, softmax and another product; floats at the ports, `inside` between."""
    rng = np.random.default_rng(0)
    dtype = helper.tensor_dtype_to_np_dtype(inside)
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) * factor * scale).astype(dtype), name)
        for name, shape, factor in (("w", (width, 2 * width), 3), ("v", (2 * width, 8), 10))
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=inside),
        helper.make_node("MatMul", ["h", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["z"]),
        helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", size]) for name, size in (("x", width), ("y", 8))]
    graph = helper.make_graph(nodes, "m", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def engine_of(model: Path, **options: object) -> Path:
    path = model.with_suffix(".ourcc")
    build(model, build_options(options)).save(path)
    return path


@pytest.mark.parametrize(("inside", "precision"), [(TensorProto.FLOAT, "f32"), (TensorProto.FLOAT16, "f16")])
def test_a_right_engine_passes_in_the_precision_that_it_computes_in(inside: int, precision: str, tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", inside)
    report = verify(VerifyOptions(engine_of(model), model))
    assert report.violations == () and report.facts["precision"] == precision
    assert {row["precision"] for row in report.tables[0].to_data()} == {precision}
    assert all(row["moved"] is None for row in report.tables[0].to_data())


def test_quantized_weights_are_judged_as_integers(tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT, scale=0.3)
    report = verify(VerifyOptions(engine_of(model, quantize="int8-weight"), model))
    assert report.violations == () and report.facts["precision"] == "i8"


def quantized(path: Path, scale: float = 0.02, by: float = 1.0) -> Path:
    """A chain of products as a quantizer writes it: codes of 8 bits, unsigned ones and signed weights, read as numbers between."""
    rng = np.random.default_rng(1)
    constants = [numpy_helper.from_array(np.float32(scale), "s"), numpy_helper.from_array(np.uint8(128), "z")]
    nodes, value = [], "x"
    for n in range(3):
        weight = rng.integers(-127, 128, (64, 64)).astype(np.int8)
        constants += [numpy_helper.from_array(weight, f"w{n}"), numpy_helper.from_array(np.float32(0.002 * by), f"t{n}")]
        nodes += [
            helper.make_node("QuantizeLinear", [value, "s", "z"], [f"c{n}"]),
            helper.make_node("DequantizeLinear", [f"c{n}", "s", "z"], [f"n{n}"]),
            helper.make_node("DequantizeLinear", [f"w{n}", f"t{n}"], [f"v{n}"]),
            helper.make_node("MatMul", [f"n{n}", f"v{n}"], [f"p{n}"]),
            helper.make_node("Tanh", [f"p{n}"], [f"y{n}"]),
        ]
        value = f"y{n}"
    nodes += [helper.make_node("QuantizeLinear", [value, "s", "z"], ["c"]), helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "m", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_a_quantizers_model_is_judged_with_codes_beside_ties(tmp_path: Path) -> None:
    """A code that another order of sums makes is a right one; the model rounds to codes itself, and the engine rounds no more."""
    model = quantized(tmp_path / "m.onnx")
    engine = engine_of(model)
    report = verify(VerifyOptions(engine, model))
    assert report.violations == () and "which its model does not" not in " ".join(report.tables[0].notes)
    assert len(verify(VerifyOptions(engine, quantized(tmp_path / "other.onnx", by=1.2))).violations) == 8


def test_a_peer_that_is_wrong_excuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's products of codes saturate on CPUs with AVX2 alone: an answer as far off as its is not allowed for that."""
    model = quantized(tmp_path / "m.onnx")
    engine, other = engine_of(model), quantized(tmp_path / "other.onnx", by=1.2)
    module = import_model(model, build_options({}))
    off = lambda arrays: [answer + 10 for answer in interpret(module, arrays)]  # noqa: E731
    monkeypatch.setattr("ourcc.compiler.commands.verify.make_peer", lambda *_: off)
    report = verify(VerifyOptions(engine, model))
    assert report.violations == () and "onnxruntime is more than 2 times as far off" in " ".join(report.tables[0].notes)
    assert len(verify(VerifyOptions(engine, other)).violations) == 8


def test_activations_that_may_be_rounded_do_not_widen_what_is_allowed(tmp_path: Path) -> None:
    """The peer rounds them to int8 where a node says that it may; an engine that does not is held to float32."""
    rng, model = np.random.default_rng(0), tmp_path / "bits.onnx"
    held = {"w": rng.integers(0, 256, (32, 4, 16), np.uint8), "s": rng.standard_normal((32, 4)).astype(np.float32)}
    attributes = {"K": 128, "N": 32, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", size]) for name, size in (("x", 128), ("y", 32))]
    graph = helper.make_graph([node], "m", ports[:1], ports[1:], [numpy_helper.from_array(array, name) for name, array in held.items()])
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), model)
    report = verify(VerifyOptions(engine_of(model), model))
    assert report.violations == () and report.facts["against"] == "the model, op by op and in float64"
    columns = report.tables[0].columns
    error, allowed = ([row[columns.index(name)] for row in report.tables[0].rows] for name in ("error", "allowed"))
    assert max(allowed) < 1e-3 and max(error) > 0


def test_a_pass_under_a_wide_bound_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What few codes leave of an answer may be off by much: then a pass shows little, and is not told as if it did."""
    model = quantized(tmp_path / "m.onnx")
    engine = engine_of(model)
    assert "a pass says little" not in " ".join(verify(VerifyOptions(engine, model)).tables[0].notes)
    monkeypatch.setattr("ourcc.compiler.commands.verify.WIDE", 0.0)
    assert "in 8 of 8 answers more was allowed" in " ".join(verify(VerifyOptions(engine, model)).tables[0].notes)


def test_what_lies_between_two_codes_becomes_either(tmp_path: Path) -> None:
    scale = 0.02
    module = import_model(quantized(tmp_path / "m.onnx", scale), build_options({}))
    x = (np.full((1, 64), 2.5, np.float64) * scale).astype(np.float32)
    states: dict[str, np.ndarray] = {}
    (answer,), (up, down) = interpret(module, [x]), (each[0] for each in beside_ties(module, [x], states))
    assert not np.array_equal(up, down) and (np.array_equal(answer, up) or np.array_equal(answer, down))
    # Numbers that are no ties have one code, however they were added up.
    x = (np.full((1, 64), 2.3, np.float64) * scale).astype(np.float32)
    first = next(op for op in module.main if op.name == "quantize")
    module.main.set_outputs([first.result])
    (answer,), (up, down) = interpret(module, [x]), (each[0] for each in beside_ties(module, [x], states))
    np.testing.assert_array_equal(up, answer)
    np.testing.assert_array_equal(down, answer)
    plain = import_model(attention(tmp_path / "plain.onnx", TensorProto.FLOAT), build_options({}))
    assert beside_ties(plain, [np.ones((1, 16), np.float32)], states) == []


@pytest.mark.parametrize("inside", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_an_engine_of_another_model_fails(inside: int, tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", inside)
    engine = engine_of(attention(tmp_path / "other.onnx", inside, scale=1.02))
    options = VerifyOptions(engine, model)
    assert len(verify(options).violations) == 8
    assert verify(replace(options, tolerance=10.0)).violations == ()


def test_a_model_that_the_peer_cannot_run_is_one_error(tmp_path: Path) -> None:
    from ourcc.compiler.commands.peers import make_peer
    from ourcc.ir.errors import ToolchainError

    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT)
    with pytest.raises(ToolchainError, match="the peer onnxruntime does not run this"):
        make_peer("onnxruntime", model)([np.zeros((2, 3), np.float32)])
    (tmp_path / "bad.onnx").write_bytes(b"junk")
    with pytest.raises(ToolchainError, match="the peer onnxruntime does not run this"):
        make_peer("onnxruntime", tmp_path / "bad.onnx")


@pytest.mark.parametrize("format", QUANTIZATIONS)
def test_every_format_is_judged_by_its_own_digits(format: str, tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT, scale=0.03, width=128)
    engine = engine_of(model, quantize=format)
    rows = verify(VerifyOptions(engine, model)).tables[0].to_data()
    assert all(row["passed"] is True for row in rows)
    assert all(isinstance(row["error"], float) and row["sizes"][0][-1] == 128 for row in rows)
    assert format == "a8" or {row["precision"] for row in rows} != {"f32"}
    # What the format costs is a number of its own, whoever is judged by what; that of answers of zeros is 1.
    costs = [row["moved"] for row in verify(VerifyOptions(engine, model, tolerance=10.0)).tables[0].to_data()]
    assert costs == [row["moved"] for row in rows] and (format == "a8" or all(1e-5 < cost < 1 for cost in costs))  # type: ignore[operator]
    # What another model answers is no error of rounding, however near it is.
    for scale in (-0.03, 0.0303):
        other = attention(tmp_path / "other.onnx", TensorProto.FLOAT, scale=scale, width=128)
        violations = verify(VerifyOptions(engine, other)).violations
        assert len(violations) == 8
    assert format == "a8" or "the engine was made of another model" in violations[0]


@pytest.mark.parametrize("format", [None, "int8-weight", "int4-weight", "int8", "int4-a8", "fp8-weight"])
def test_a_pruned_engine_is_judged_by_the_pruned_model(format: str | None, tmp_path: Path) -> None:
    # Weights that are large against each other: pruning half of them changes every answer.
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT, scale=0.03, width=128)
    engine = engine_of(model, sparsity="2:4", **({} if format is None else {"quantize": format}))
    report = verify(VerifyOptions(engine, model))
    rows = report.tables[0].to_data()
    assert all(row["passed"] is True for row in rows), rows
    assert report.facts["against"] == "the model pruned 2:4, op by op and in float64"
    assert all(float(row["pruning"]) > 20 * float(row["error"]) for row in rows) or format is not None  # type: ignore[arg-type]
    notes = " ".join(report.tables[0].notes)
    assert "pruning changes what it computes" in notes and ("its model does not" in notes) == (format is not None)
    # Numbers that are kept as they are have all their digits.
    assert format is not None or {row["precision"] for row in rows} == {"f32"}
    # A tolerance is told of the whole model.
    whole = verify(VerifyOptions(engine, model, tolerance=1e-4))
    assert whole.violations and whole.facts["against"] == "onnxruntime and float64"
    other = attention(tmp_path / "other.onnx", TensorProto.FLOAT, scale=0.031, width=128)
    assert verify(VerifyOptions(engine, other)).violations


@pytest.mark.parametrize("is_said", [True, False])
def test_what_was_asked_stays_as_it_was_said_when_built_again(is_said: bool, tmp_path: Path) -> None:
    """An engine that does not say what was asked of it, as older ones do not, is not taken for one that was asked for nothing."""
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT, scale=0.03, width=128)
    contents = build(model, build_options({"quantize": "int8-weight"})).contents
    said = {key: value for key, value in contents.provenance.items() if is_said or key != "changes"}
    again = compile_again(replace(contents, provenance=said), build_options({"targets": ["native"]}))
    assert recorded_changes(again) == ({"quantize": "int8-weight"} if is_said else None)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8", "int8"])
def test_a_part_made_later_is_judged_by_what_the_first_targets_made_of_the_model(format: str, tmp_path: Path) -> None:
    """Programs for GPUs alone round numbers in another form than those for CPUs: near codes may differ."""
    pytest.importorskip("triton")
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT, scale=0.03, width=128)
    gpu = build(model, build_options({"quantize": format, "targets": ["b200"], "tune": "off"})).contents
    both = compile_again(compile_again(gpu, build_options({"targets": ["native"]})), build_options({"targets": ["native"]}))
    assert simplified_for(both) == ["b200"] and list(both.provenance["targets"]) == ["b200", "native"]
    write_engine(tmp_path / "again.ourcc", both)
    assert verify(VerifyOptions(tmp_path / "again.ourcc", model)).violations == ()
    other = attention(tmp_path / "other.onnx", TensorProto.FLOAT, scale=0.0303, width=128)
    assert len(verify(VerifyOptions(tmp_path / "again.ourcc", other)).violations) == 8
    # An engine from before says for which targets its parts are.
    said = {key: value for key, value in both.provenance.items() if key != "program"}
    assert simplified_for(replace(both, provenance=said)) == ["b200", "native"]
    # A part is made for a board of its own architecture, whatever a damaged file says.
    for asked, board in (("b200", "b200"), ("sm_100a", "b200"), ("junk", "b200"), ("h100", "b200")):
        damaged = {**both.provenance, "parts": {**both.provenance["parts"], "sm_100a": asked}}
        assert boards_of(replace(both, provenance=damaged)) == {"sm_100a": board}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_products_in_16_bits_are_judged_by_the_model_rounded_alike(precision: str, tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT, scale=0.03, width=128)
    engine = engine_of(model, precision=precision)
    assert verify(VerifyOptions(engine, model)).violations == ()
    other = attention(tmp_path / "other.onnx", TensorProto.FLOAT, scale=0.0303, width=128)
    assert verify(VerifyOptions(engine, other)).violations


def test_tf32_has_few_digits_where_a_gpu_rounds_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's part of such an engine is judged as float32 is; a GPU's by the digits of its products, whatever follows them."""
    pytest.importorskip("triton")
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT, scale=0.03, width=128)
    engine = load(engine_of(model, precision="tf32", targets=["native", "sm_90a"]))
    assert factors_of(engine) is None
    (before,) = verify(VerifyOptions(model.with_suffix(".ourcc"), model)).tables
    monkeypatch.setattr(type(engine), "part", "sm_90a")
    assert factors_of(engine) == TF32
    report = verify(VerifyOptions(model.with_suffix(".ourcc"), model))
    assert report.violations == () and report.facts["precision"] == "tf32"
    allowed = [[row["allowed"] for row in table.to_data()] for table in (before, report.tables[0])]
    assert min(allowed[1]) > 100 * max(allowed[0])
    monkeypatch.setattr(type(engine), "part", "sm_90a")
    assert factors_of(load(engine_of(model, targets=["native", "sm_90a"]))) is None


def test_a_program_that_simplifying_changed_is_no_pruned_model(tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT)
    pruned = PrunedModel(model, build_options({"sparsity": "2:4"}))
    arrays = [np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)]
    (whole,) = interpret(import_model(model, build_options({})), arrays, wide=True)
    for answer, passed in ((whole, True), (whole + 1e-3, False)):
        ((distance, verdict),) = pruned.changes(arrays, pruned.answers(arrays), [answer])
        assert verdict.passed == passed and distance > 1e-2


DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.float64, torch.int8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_torch_model_of_any_dtype_is_compared_and_measured(dtype: torch.dtype, tmp_path: Path) -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.clone(), (x.to(torch.float32) + 1).to(dtype)

    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Same(), (torch.ones(4, 8).to(dtype),)), path)
    engine = engine_of(path)
    assert verify(VerifyOptions(engine, path)).violations == ()
    (table,) = bench(BenchOptions(engine, ("eager",), rounds=1)).tables
    assert [row[0] for row in table.rows] == ["ourcc", "eager"]


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(4))


class Add(Kept):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sum += x
        return self.sum * 2


class Show(Kept):
    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.sum + y


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`add.pt2` and `show.pt2`, and `both.ourcc` of them."""
    folder = tmp_path_factory.mktemp("functions")
    torch.export.save(torch.export.export(Add().eval(), (torch.ones(4),)), folder / "add.pt2")
    torch.export.save(torch.export.export(Show().eval(), (torch.ones(4),)), folder / "show.pt2")
    build({"add": folder / "add.pt2", "show": folder / "show.pt2"}, build_options({"tune": "off"})).save(folder / "both.ourcc")
    return folder


def test_each_function_is_verified_by_name(functions: Path) -> None:
    options = VerifyOptions(functions / "both.ourcc", functions / "add.pt2")
    first = verify(options)
    assert first.violations == () and first.facts["function"] == "add"
    assert first.facts["not_checked"] == "show (--function NAME checks one)"
    second = verify(replace(options, model=functions / "show.pt2", function="show"))
    assert second.violations == () and second.facts["function"] == "show"
    with pytest.raises(InputError, match="the engine's inputs are x, the model's y"):
        verify(replace(options, model=functions / "show.pt2"))
    with pytest.raises(UsageError, match="--function shew: the engine has add, show"):
        verify(replace(options, function="shew"))


def test_kernels_and_values_say_their_function(functions: Path) -> None:
    options = InspectOptions(functions / "both.ourcc", kernels=True, fusion=True)
    for table in inspect(options).tables:
        assert {str(row["function"]) for row in table.to_data()} == {"add", "show"}
    single = build(functions / "add.pt2", build_options({"tune": "off"}))
    single.save(functions / "one.ourcc")
    for table in inspect(replace(options, subject=functions / "one.ourcc")).tables:
        assert {row["function"] for row in table.to_data()} == {None}


def test_each_function_is_measured_by_name(functions: Path) -> None:
    options = BenchOptions(functions / "both.ourcc", (f"eager={functions / 'show.pt2'}",), rounds=1, function="show", kernels=True)
    report = bench(options)
    assert report.facts["function"] == "show" and [row[0] for row in report.tables[0].rows] == ["ourcc", "eager"]


def test_a_wrong_name_of_a_function_lists_the_functions(functions: Path) -> None:
    engine = load(functions / "both.ourcc")
    for held in (engine.functions, engine.session().functions):
        with pytest.raises(InputError, match="there is no function 'shw', the engine has add, show") as error:
            held["shw"]
        assert error.value.hint == "did you mean 'show'?" and "shw" not in held
    assert "add(x: f32[4]) -> " in repr(engine) and "show(y: f32[4]) -> " in repr(engine)
