"""The contract: a row for every source op, promises that hold and that do not, and what the command line makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.compiler.commands.inspect import describe_engine_contract
from ourcc.compiler.contract import (
    BUILT,
    MERGED,
    NO_INSTRUCTION,
    OWN,
    contract_of,
    enforce,
    is_notable,
    slower_decoded,
    source_ops,
    unmet,
    violations,
)
from ourcc.compiler.options import BuildOptions, build_options
from ourcc.compiler.pipeline import compile_again, compile_module
from ourcc.compiler.requests import parse_requirement
from ourcc.ir.errors import ContractError, Source, UnsupportedError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.types import DType, TensorType, f16, f32, i8
from ourcc.passes.quantize import QUANTIZATIONS
from ourcc.runtime.contents import Contract, ContractRow


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """fc1 can be pruned, fc2 cannot (6 contracted elements), table is read twice."""
    generator = np.random.default_rng(0)
    weights = {"w1": (16, 6), "w2": (6, 24), "table": (24, 24)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="fc1"),
        helper.make_node("Relu", ["a"], ["b"], name="act"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], name="fc2"),
        helper.make_node("MatMul", ["c", "table"], ["y"], name="head"),
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="embed"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 16]), helper.make_tensor_value_info("ids", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("y", ["B", 24]), ("rows", [3, 24]))],
        [numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items()],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_every_source_op_has_a_row(model: Path, tmp_path: Path) -> None:
    engine = ourcc.build(model, quantize="int8-weight", sparsity="2:4")
    rows = {row.source: row for row in engine.contract}
    assert list(rows) == ["fc1", "act", "fc2", "head", "embed"]
    asked, twice = "fp32, int8-weight, 2:4", "the weight is also read by take, and would be stored twice"
    lowered = {"runs": "kernel", "summed": "fp32"}
    stored = "int8-weight, 2:4"
    assert rows["fc1"] == ContractRow("fc1", "linear", asked, "fp32, int8-weight, 2:4", "", stored=stored, **lowered)
    # What keeps a weight dense is said, not that it was quantized afterwards.
    sparse = "2:4: the contracted axis has 6 elements, expected a multiple of 4"
    assert rows["fc2"] == ContractRow("fc2", "linear", asked, "fp32, int8-weight", sparse, stored="int8-weight", **lowered)
    why = f"int8-weight: {twice}; 2:4: {twice}"
    assert rows["head"] == ContractRow("head", "linear", asked, "fp32", why, stored="fp32", **lowered)
    assert (rows["act"].runs, rows["act"].stored, rows["act"].summed) == ("kernel", "", "")
    assert (rows["act"].op, rows["act"].requested, rows["act"].realised) == ("relu", "fp32", "fp32")
    assert [row.source for row in engine.contract if is_notable(row)] == ["fc1", "fc2", "head"]
    engine.save(tmp_path / "net.ourcc")
    assert ourcc.load(tmp_path / "net.ourcc").contract.rows == engine.contract.rows


def test_what_sparse_weights_are_kept_as_is_said(model: Path) -> None:
    """Codes of a sparse weight are multiplied as integers, and its groups are of what it keeps: both are told."""
    rows = {row.source: row for row in ourcc.build(model, quantize="int8", sparsity="2:4", tune="off").contract}
    assert (rows["fc1"].realised, rows["fc1"].why, rows["fc1"].stored) == ("int8, 2:4", "", "2:4")
    rows = {row.source: row for row in ourcc.build(model, quantize="int4-weight", sparsity="2:4", tune="off").contract}
    why = "int4-weight: the contracted axis has 16 elements, expected a multiple of 64"
    assert (rows["fc1"].realised, rows["fc1"].why, rows["fc1"].stored) == ("fp32, 2:4", why, "2:4")


def test_coded_sparse_weights_fulfil_both_promises(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", 32])],
        [numpy_helper.from_array(generator.standard_normal((128, 32)).astype(np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "net.onnx")
    promises = ["linear:int4-weight", "linear:2:4"]
    engine = ourcc.build(tmp_path / "net.onnx", quantize="int4-weight", sparsity="2:4", require=promises, tune="off")
    (row,) = engine.contract
    assert (row.requested, row.realised, row.why, row.stored) == (
        "fp32, int4-weight, 2:4",
        "fp32, int4-weight, 2:4",
        "",
        "int4-weight, 2:4",
    )


@pytest.mark.parametrize("leading", [("B",), ("B", "S")], ids=["rows", "batches"])
@pytest.mark.parametrize("quantize", ["int8-weight", "int8", "int4-a8"])
def test_products_that_became_one_have_a_row_each(tmp_path: Path, quantize: str, leading: tuple[str, ...]) -> None:
    generator = np.random.default_rng(0)
    names = ("query", "key")
    nodes = [helper.make_node("MatMul", ["x", f"{name}.w"], [f"{name}.p"], name=name) for name in names]
    nodes += [helper.make_node("Softmax", [f"{name}.p"], [f"{name}.y"], name=f"{name}.norm") for name in names]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*leading, 32])],
        [helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, [*leading, 8]) for name in names],
        [numpy_helper.from_array(generator.standard_normal((32, 8)).astype(np.float32), f"{name}.w") for name in names],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    engine = ourcc.build(path, quantize=quantize, require=[f"linear:{quantize}"])
    rows = {row.source: (row.op, row.requested, row.why) for row in engine.contract}
    promised = "int4-weight, int8-activation" if quantize == "int4-a8" else quantize
    assert rows["query"] == rows["key"] == ("linear", f"fp32, {promised}", "")


def test_without_a_request_nothing_is_notable(model: Path) -> None:
    contract = ourcc.build(model).contract
    assert len(contract) == 5 and not any(is_notable(row) for row in contract)


def test_an_op_that_is_gone_has_a_row() -> None:
    module = Module("m")
    b = Builder(module, module.functions.setdefault("main", Graph("main")))
    x = b.graph.add_input("x", TensorType(f32, (4,)))
    b.source = Source("twice")
    y = b.transpose(b.reshape(x, shape=(2, 2)), permutation=(1, 0))
    b.source = Source("back")
    z = b.reshape(b.transpose(y, permutation=(1, 0)), shape=(4,))
    b.source = Source("last")
    b.graph.set_outputs([b.neg(z)])
    asked = source_ops(module)
    from ourcc.compiler.pipeline import simplify

    simplify(module, BuildOptions())
    rows = contract_of(asked, module, BuildOptions()).rows
    expected = [("twice", "transpose", "fp32"), ("back", "reshape", "fp32"), ("last", "neg", "fp32")]
    assert [(row.source, row.op, row.realised) for row in rows] == expected
    assert rows[0].why == rows[1].why == "merged into other ops, or computed while building"


def test_a_call_back_into_torch_is_a_fallback() -> None:
    module = Module("m")
    b = Builder(module, module.functions.setdefault("main", Graph("main")))
    x = b.graph.add_input("x", TensorType(f32, (4,)))
    b.source = Source("layer.frob", "model.py", 7)
    call = {"target": "aten.frob.default", "key": 0, "dtypes": (f32,), "shapes": ((4,),), "why": "aten.frob has no rule"}
    b.graph.set_outputs([b.aten_call(x, **call)])
    (row,) = contract_of(source_ops(module), module, BuildOptions())
    assert row == ContractRow("layer.frob", "aten.frob.default", "fp32", "aten call", "aten.frob has no rule", "aten call")
    assert violations(Contract((row,)), parse_requirement("no-host"), ["cpu"]) == []
    with pytest.raises(ContractError, match="1 promise does not hold: no-fallback") as error:
        enforce(Contract((row,)), [parse_requirement("no-fallback")], ["cpu"])
    assert "no-fallback: layer.frob (aten.frob.default) is aten call: aten.frob has no rule" in str(error.value)


def test_a_step_of_the_host_has_a_row_and_a_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = (helper.make_tensor_value_info(n, t, s) for n, t, s in (("x", TensorProto.FLOAT, [4]), ("y", TensorProto.INT64, [1, "n"])))
    nodes = [helper.make_node("Neg", ["x"], ["h"], name="turn"), helper.make_node("NonZero", ["h"], ["y"], name="places")]
    path = tmp_path / "net.onnx"
    graph = helper.make_graph(nodes, "net", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    turn, places = ourcc.build(path, require=["no-fallback"]).contract
    assert (turn.runs, turn.realised) == ("kernel", "fp32")
    assert (places.op, places.runs, places.realised) == ("nonzero", "host step", f"{places.requested}, host step")
    assert is_notable(places) and "no kernel does it" in places.why
    with pytest.raises(ContractError, match="1 promise does not hold: no-host") as error:
        ourcc.build(path, require=["no-host"])
    assert "no-host: places (nonzero) is" in str(error.value)
    assert run(["build", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "no-fallback (no call into torch), no-host (no step in Python)" in text


def test_the_contract_names_no_format() -> None:
    from ourcc.compiler import contract
    from ourcc.passes.quantize import ACTIVATION, INTEGER

    text = Path(str(contract.__file__)).read_text(encoding="utf-8")
    assert [name for name in (*QUANTIZATIONS, ACTIVATION, INTEGER, "2:4") if f'"{name}"' in text] == []


ROWS = Contract(
    (
        ContractRow("fc1", "linear", "fp32, int8-weight", "fp32, int8-weight"),
        ContractRow("fc2", "linear", "fp32, int8-weight", "fp32", "int8-weight: the weight holds infinities or NaN"),
        ContractRow("act", "relu", "fp32", "fp32"),
    )
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no-fallback", []),
        ("target:cpu", []),
        ("target:sm_90a", ["got the targets native, cpu"]),
        ("linear:fp32", []),
        ("fc1:int8-weight", []),
        ("linear:int8-weight", ["fc2 (linear) is fp32: int8-weight: the weight holds infinities or NaN"]),
        ("linear:int8", ["fc1 (linear) is fp32, int8-weight", "fc2 (linear) is fp32: int8-weight: the weight holds infinities or NaN"]),
        ("conv:int8", ["no op of the model is called conv, its ops are linear, relu"]),
    ],
)
def test_violations(text: str, expected: list[str]) -> None:
    assert violations(ROWS, parse_requirement(text), ["native", "cpu"]) == expected


def test_an_empty_model_has_no_ops() -> None:
    assert violations(Contract(), parse_requirement("linear:int8"), []) == ["no op of the model is called linear, its ops are none"]


def test_all_broken_promises_are_named() -> None:
    with pytest.raises(ContractError) as error:
        enforce(ROWS, [parse_requirement(text) for text in ("linear:int8", "target:cpu", "relu:bf16")], ["cpu"])
    assert error.value.message == "2 promises do not hold: linear:int8, relu:bf16"
    assert error.value.exit_status == 3 and "relu:bf16: act (relu) is fp32" in str(error.value.note)
    assert error.value.hint == "build without the requirement, then ourcc inspect ENGINE --precision shows the whole contract"


def test_the_remedy_for_a_target_is_to_build_for_it() -> None:
    for texts, expected in ((("target:sm_90a",), BUILT.targets), (("target:sm_90a", "relu:bf16"), f"{BUILT.targets}; {BUILT.ops}")):
        with pytest.raises(ContractError, match="target:sm_90a") as error:
            enforce(ROWS, [parse_requirement(text) for text in texts], ["cpu"])
        assert error.value.hint == expected.format("sm_90a") and "--target" in error.value.hint


@pytest.mark.parametrize(("value", "near"), [("fp9", "fp8"), ("nvfp", "nvfp4-weight"), ("mxfp6", "mxfp6-weight")])
def test_formats_that_are_not_there_name_those_that_are(model: Path, value: str, near: str) -> None:
    with pytest.raises(ourcc.UsageError, match=f"quantize format: got '{value}'") as error:
        ourcc.build(model, quantize=value)  # type: ignore[arg-type]
    assert error.value.hint == f"did you mean '{near}'?"


def product(dtype: DType, rows: int = 64) -> Module:
    """A product with a weight."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    builder = Builder(module, graph)
    builder.source = Source("fc")
    x = graph.add_input("x", TensorType(dtype, (rows, 32)))
    weight = np.random.default_rng(0).standard_normal((32, 48)).astype(dtype.numpy)
    graph.set_outputs([builder.matmul(x, module.add_constant("w", weight))])
    return module


def test_requests_that_no_pass_serves_are_refused(model: Path) -> None:
    with pytest.raises(UnsupportedError, match="linear at fp16 is not converted to tf32 yet") as error:
        compile_module(product(f16), build_options({"precision": "tf32"}))
    assert error.value.source is not None and error.value.source.name == "fc"
    assert error.value.hint == "leave it at fp16"
    assert ourcc.build(model, precision="fp32").contract.rows[0].requested == "fp32"


CPU_ALONE = "tf32: a CPU multiplies in float32, which has more digits"


@pytest.mark.parametrize(
    ("precision", "target", "told"),
    [("bf16", "x86-64-v3", True), ("fp16", "x86-64-v4", True), ("bf16", "x86-64-v4-bf16", False), ("fp16", "sm_90a", False)],
)
def test_a_precision_without_instructions_is_told(model: Path, precision: str, target: str, told: bool) -> None:
    notes = ourcc.build(model, precision=precision, targets=[target]).contents.report.get("notes", [])
    assert [f"{target} has no instruction that multiplies it" in note for note in notes] == [True] * told
    assert not ourcc.build(model, targets=[target]).contents.report.get("notes", [])


@pytest.mark.parametrize(("rows", "told"), [(4096, True), (1, False)])
def test_a_format_that_only_saves_memory_is_told(rows: int, told: bool, tmp_path: Path) -> None:
    """Of many rows the time goes to products; of one it goes to reading weights."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 256]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    options: Any = {"targets": ["x86-64-v3"], "tune": "off"}
    notes = ourcc.build(tmp_path / "m.onnx", quantize="int4-weight", **options).contents.report.get("notes", [])
    assert [note.startswith("int4-weight saves memory here and may take more time than float32") for note in notes] == [True] * told
    assert not ourcc.build(tmp_path / "m.onnx", quantize="int8", **options).contents.report.get("notes", [])


def test_tf32_is_float32_on_a_cpu_and_the_contract_says_so(model: Path) -> None:
    plain, engine = ourcc.build(model), ourcc.build(model, precision="tf32")
    rows = {row.source: row for row in engine.contract}
    assert {(rows[name].requested, rows[name].realised, rows[name].why) for name in ("fc1", "fc2", "head")} == {("tf32", "fp32", CPU_ALONE)}
    assert (rows["act"].requested, rows["act"].why) == ("fp32", "") and "in_tf32" not in engine.contents.report
    assert engine.contents.report["notes"] == [f"tf32 changes none of 3 products: {CPU_ALONE[6:]}"]
    x, ids = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32), np.arange(3)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(engine(x, ids), plain(x, ids), strict=True))
    with pytest.raises(ContractError, match="linear:tf32"):
        ourcc.build(model, precision="tf32", require="linear:tf32")


@pytest.mark.parametrize(("targets", "why"), [(["sm_90a"], ""), (["native", "sm_90a"], CPU_ALONE)])
def test_tf32_is_one_product_for_three_on_a_gpu(targets: list[str], why: str) -> None:
    """The default is nearly float32 by three products; a part that is made again is as it was, and one that was never asked is whole."""
    pytest.importorskip("triton")
    for precision, dots in ((None, "tf32x3"), ("tf32", "tf32")):
        asked = {"targets": targets, "precision": precision, **({"require": "linear:tf32"} if precision else {})}
        contents = compile_module(product(f32), build_options(asked))
        (row, *_) = Contract.from_json(contents.report["contract"])
        assert (row.requested, row.realised, row.why) == (("tf32", "tf32", why) if precision else ("fp32", "fp32", ""))
        again = compile_again(contents, build_options({"target": "sm_90a"}))
        for made in (contents, again):
            sources = [data.decode() for name, data in made.parts["sm_90a"].files.items() if name.endswith(".py")]
            assert sources and all(f'input_precision="{dots}"' in source for source in sources)


@pytest.mark.parametrize(("first", "second"), [("native", "sm_90a"), ("sm_90a", "native")])
def test_parts_that_come_later_are_in_tf32_as_was_asked(first: str, second: str) -> None:
    """What was asked is recorded, whether any part could; the rows are those of a build for both at once."""
    pytest.importorskip("triton")
    apart = compile_module(product(f32), build_options({"target": first, "precision": "tf32"}))
    again = compile_again(apart, build_options({"target": second}))
    sources = [data.decode() for name, data in again.parts["sm_90a"].files.items() if name.endswith(".py")]
    assert sources and all('input_precision="tf32"' in source for source in sources)
    together = compile_module(product(f32), build_options({"targets": ["native", "sm_90a"], "precision": "tf32"}))
    rows = [[row for row in each.report["contract"] if row["op"] != "schedules"] for each in (again, together)]
    assert rows[0] == rows[1]


def test_few_rows_take_no_instruction_and_stay_float32() -> None:
    pytest.importorskip("triton")
    contents = compile_module(product(f32, rows=1), build_options({"targets": ["sm_90a"], "precision": "tf32"}))
    (row, *_) = Contract.from_json(contents.report["contract"])
    assert (row.realised, row.why) == ("fp32", f"tf32: {NO_INSTRUCTION}")


def test_the_command_line_prints_the_contract(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["build", str(model), "-o", str(tmp_path / "net.ourcc"), "--quantize", "int8-weight"]
    assert run([*common, "--require", "fc1:int8-weight", "--require", "no-fallback", "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    realised = {row["source"]: row["realised"] for row in data["contract"]}
    assert realised == {"fc1": "fp32, int8-weight", "fc2": "fp32, int8-weight", "head": "fp32"}
    (tmp_path / "net.ourcc").unlink()
    assert run([*common, "--require", "linear:int8-weight"]) == 3
    text = capsys.readouterr().err
    assert "error: 1 promise does not hold: linear:int8-weight" in text and "head (linear) is fp32" in text
    assert not (tmp_path / "net.ourcc").exists()
    assert run(["build", str(model), "-o", str(tmp_path / "plain.ourcc")]) == 0
    assert "requested" not in capsys.readouterr().out


def test_the_pipeline_enforces(model: Path) -> None:
    from ourcc.compiler.models.importing import import_model

    options = build_options({"require": "relu:int8-weight"})
    with pytest.raises(ContractError):
        compile_module(import_model(model, options), options)


@pytest.mark.parametrize(
    ("option", "told"),
    [("--quantize=a8", "a8 changes none of 3 weights: "), ("--quantize=int8-weight", ""), ("--sparsity=2:4", "")],
)
def test_a_request_that_nothing_meets_is_told(
    option: str, told: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", str(model), option, "-o", str(tmp_path / "net.ourcc")]) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if " changes no" in line]
    assert [line for line in lines if told in line] == lines and bool(lines) is bool(told)


@pytest.mark.parametrize(("name", "part"), [("int4-a8", "int4-weight"), ("int8", "int8-weight")])
def test_a_request_that_is_met_in_part_says_which(name: str, part: str) -> None:
    """Weights are made small, activations are not: they are rounded to the precision that is asked for beside."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (64, 64)))
    for n in range(2):
        b.source, weight = Source(f"fc{n}"), np.random.default_rng(n).standard_normal((64, 64)).astype(np.float32)
        x = b.matmul(x, module.add_constant(f"w{n}", weight), transpose_a=True)
    graph.set_outputs([x])
    options = build_options({"quantize": name, "sparsity": "2:4", "precision": "bf16", "tune": "off"})
    contract = Contract.from_json(compile_module(module, options).report["contract"])
    assert all(row.realised == f"bf16, {part}, 2:4" and "bf16: " not in row.why for row in contract)
    why = "the left factor is not rows of floats"
    assert list(unmet(contract, options)) == [
        f"{name} is done in part: {part} for 2 of 2 weights, int8-activation for none of 2 weights: {why}"
    ]


@pytest.mark.parametrize("name", ["int4-weight", "mxfp4-weight", "int4-a8"])
def test_a_request_that_only_some_weights_meet_says_how_many(name: str) -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (4, 64)))
    for n, shape in enumerate(((64, 64), (64, 30), (30, 8))):
        b.source = Source(f"fc{n}")
        x = b.matmul(x, module.add_constant(f"w{n}", np.random.default_rng(n).standard_normal(shape).astype(np.float32)))
    graph.set_outputs([x])
    options = build_options({"quantize": name, "tune": "off"})
    (note,) = compile_module(module, options).report["notes"]
    parts = QUANTIZATIONS[name].parts
    assert note.startswith(f"{name} is done in part: {parts[0]} for 2 of 3 weights"), note
    assert ": " in note.removeprefix(f"{name} is done in part: ")


def test_reasons_of_several_words_are_told_apart() -> None:
    """A reason may hold a semicolon; it is told whole, and alone."""
    why = "the weight is quantized already, to i8; prune before quantizing"
    row = ContractRow("fc", "linear", "bf16, int8-weight, 2:4", "fp32", f"int8-weight: it is a table; 2:4: {why}; bf16: its scales")
    options = build_options({"quantize": "int8-weight", "sparsity": "2:4"})
    assert list(unmet(Contract((row,)), options)) == [
        "int8-weight changes not the one weight: it is a table",
        f"2:4 changes not the one weight: {why}",
    ]


@pytest.mark.parametrize(("realised", "asked"), [("fp32, int8-weight", "int8-weight"), ("fp32", ""), ("fp32, 2:4", "2:4")])
def test_formats_that_changed_nothing_make_nothing_slower(realised: str, asked: str) -> None:
    """As where a model's own weights are coded."""
    options = build_options({"quantize": "int8-weight", "sparsity": "2:4"})
    contract = Contract((ContractRow("fc", "linear", "int8-weight, 2:4", realised, "it is coded already"),))
    notes = list(slower_decoded(contract, options, [("sm_90a", 3e-5, 1e-5, ("bf16",))]))
    assert [note.split(" is predicted")[0] for note in notes] == ([asked] if asked else [])


class Recorded:
    """Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append(name)

    def advance(self, steps: int = 1) -> None:
        pass

    def note(self, message: str) -> None:
        pass


@pytest.mark.parametrize(
    ("promise", "options", "stages", "said"),
    [
        (
            "linera:int8",
            {"quantize": "int8"},
            1,
            "no op of the model is called linera, its ops are linear, relu, take; did you mean 'linear'?",
        ),
        ("fc9:int8", {}, 1, "no op of the model is called fc9, its ops are linear, relu, take; did you mean 'fc2'?"),
        ("conv:int8", {"quantize": "int8"}, 2, "no op of the model is called conv, its ops are linear, relu"),
        ("linear:int8", {}, 2, "fc1 (linear) is fp32"),
        ("linear:2:4", {"quantize": "int8"}, 2, "fc1 (linear) is int8"),
    ],
)
def test_a_promise_that_cannot_hold_is_refused_before_kernels_are_compiled(
    model: Path, promise: str, options: dict[str, Any], stages: int, said: str
) -> None:
    told = Recorded()
    with pytest.raises(ContractError, match="1 promise does not hold") as error:
        ourcc.build(model, progress=told, require=promise, **options)
    assert said in str(error.value.note)
    assert told.stages == ["import", "simplify"][:stages]


def test_what_kernels_decide_is_judged_behind_them(model: Path) -> None:
    told = Recorded()
    with pytest.raises(ContractError, match="1 promise does not hold: linear:tf32"):
        ourcc.build(model, progress=told, require="linear:tf32", precision="tf32")
    assert told.stages[-1].startswith("compile for")
    assert ourcc.build(model, require=["fc1:int8", "no-fallback", "relu:fp32", "target:native"], quantize="int8").contract


@pytest.mark.parametrize(
    ("size", "why"),
    [(25, f"{OWN}; int8: the channels of a group are no multiple of 4, and floats add up no 625 products of codes exactly"), (3, OWN)],
)
def test_codes_that_are_multiplied_in_floats_say_why(size: int, why: str) -> None:
    """A model that comes in codes asks for nothing, and is told nonetheless."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (1, 16, 25, 25)))
    b.source = Source("conv")
    scale = module.add_constant("scale", np.array(0.1, np.float32))
    image = b.dequantize(b.quantize(x, scale, dtype=i8), scale, dtype=f32)
    codes = np.random.default_rng(0).integers(-127, 128, (16, 1, size, size)).astype(np.int8)
    weight = b.dequantize(module.add_constant("w", codes), scale, dtype=f32)
    graph.set_outputs([b.conv(image, weight, strides=(1, 1), before=(1, 1), after=(1, 1), dilations=(1, 1), groups=16)])
    rows = Contract.from_json(compile_module(module, build_options({"tune": "off"})).report["contract"])
    assert [row.why for row in rows if row.op == "conv"] == [why]


def cnn(folder: Path, form: str | None, activations: str = "QUInt8", depth: int = 10) -> Path:
    """A small network of convolutions with relu, quantized by onnxruntime; the first image has 3 channels."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    generator, channels = np.random.default_rng(0), (3, *[8] * depth)
    names = [f"{'abcdefghijkl'[layer]}/conv" for layer in range(depth)]
    weights = [
        numpy_helper.from_array(generator.standard_normal((8, channels[layer], 3, 3)).astype(np.float32), f"w{layer}")
        for layer in range(depth)
    ]
    nodes = []
    for layer, name in enumerate(names):
        nodes.append(helper.make_node("Conv", [f"x{layer}", f"w{layer}"], [f"c{layer}"], name=name, pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"x{layer + 1}"], name=f"r{layer}"))
    x, y = (helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [1, channels[n], 8, 8]) for n in (0, depth))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "cnn.onnx")
    if form is None:
        return folder / "cnn.onnx"

    class Images(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.images = iter([{"x0": generator.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(2)])

        def get_next(self) -> Any:
            return next(self.images, None)

    types = {"activation_type": quantization.QuantType[activations], "weight_type": quantization.QuantType.QInt8}
    quantization.quantize_static(folder / "cnn.onnx", folder / "q.onnx", Images(), quant_format=quantization.QuantFormat[form], **types)
    return folder / "q.onnx"


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_what_models_of_codes_ask_for_is_int8(form: str, tmp_path: Path) -> None:
    path = cnn(tmp_path, form, depth=2)
    rows = [row for row in ourcc.build(path, tune="off", target="x86-64-v3").contract if row.op == "conv"]
    assert [(row.requested, row.realised, row.why) for row in rows] == [("int8", "int8", OWN)] * 2 and not any(map(is_notable, rows))
    # What they have nothing left of to quantize is said with the reason that comes first.
    rows = [row for row in ourcc.build(path, tune="off", target="x86-64-v3", quantize="int4-weight").contract if row.op == "conv"]
    why = f"{OWN}; int4-weight: the weight is i8, expected a float"
    assert [(row.requested, row.realised, row.why) for row in rows] == [("int8, int4-weight", "int8", why)] * 2


def test_integer_products_of_a_model_are_int8(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["c", "s", "z"], name="round"),
        helper.make_node("MatMulInteger", ["c", "w", "z"], ["p"], name="fc"),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT, name="cast"),
        helper.make_node("Mul", ["f", "s"], ["y"], name="scale"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, size]) for name, size in (("x", 16), ("y", 8)))
    weight = numpy_helper.from_array(np.random.default_rng(0).integers(-127, 128, (16, 8)).astype(np.int8), "w")
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    rows = {row.source: row for row in ourcc.build(tmp_path / "m.onnx", tune="off").contract}
    assert (rows["fc"].requested, rows["fc"].realised, rows["fc"].why) == ("int8", "int8", OWN)


def test_codes_of_16_bits_are_multiplied_as_floats_and_say_so(tmp_path: Path) -> None:
    path = cnn(tmp_path, "QDQ", "QUInt16", depth=2)
    rows = [row for row in ourcc.build(path, tune="off", target="x86-64-v3").contract if row.op == "conv"]
    why = "int8: activations are codes of 16 bits, which are multiplied as floats"
    assert [(row.realised, row.why) for row in rows] == [("fp32, int8-weight", why)] * 2


def test_rows_that_say_the_same_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, built = cnn(tmp_path, None), str(tmp_path / "cnn.ourcc")
    assert run(["build", str(path), "-o", built, "-q", "--quantize", "int4-weight", "--target", "x86-64-v3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("the contracted axis has * elements, expected a multiple of 32") == 1 and "a/conv" not in shown
    assert run(["inspect", built, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["contract"]) == 10


class Normed(torch.nn.Module):
    """A convolution whose norm becomes a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.other = torch.nn.Conv2d(16, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.relu(self.norm(self.conv(x))))


@pytest.mark.parametrize(("precision", "expected"), [(None, "fp32"), ("bf16", "bf16"), ("tf32", "fp32")])
def test_what_a_norm_became_is_asked_for_as_products_are(precision: str | None, expected: str) -> None:
    """Before, the norm asked for fp32 and got bf16, as if its precision had not been kept."""
    exported = torch.export.export(Normed().eval(), (torch.zeros(1, 16, 12, 12),))
    rows = [row for row in ourcc.build(exported, precision=precision, tune="off").contract if row.op == "conv" and row.why != MERGED]
    merged, plain = rows
    assert merged.requested == plain.requested == (precision or "fp32") and merged.realised == plain.realised == expected
    assert merged.why.endswith("batch_norm became a part of it") and "batch_norm" not in plain.why and "factors" not in merged.why


def test_what_fp32_is_on_gpus_is_told_where_there_is_one() -> None:
    report = {"contract": [vars(ContractRow("fc", "linear", "fp32", "fp32"))]}
    for has_gpu in (False, True):
        notes = describe_engine_contract(report, has_gpu=has_gpu).notes
        assert any("tf32x3" in note for note in notes) == has_gpu
    halved = {"contract": [vars(ContractRow("fc", "linear", "bf16", "bf16"))]}
    assert not any("tf32x3" in note for note in describe_engine_contract(halved, has_gpu=True).notes)
