import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.compiler.importers.onnx.context import UnsupportedModelError
from ourcc.ir import dims
from ourcc.ir.errors import ModelError, UnsupportedError, UsageError
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import verify

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node
random = np.random.default_rng(0)


def draw(*shape):
    return random.standard_normal(shape).astype(np.float32)


def agrees(proto, *inputs, **options):
    """The module, after comparing its answer with ONNX Runtime's."""
    module = import_onnx(proto, **options)
    verify(module)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, {value.name: array for value, array in zip(session.get_inputs(), inputs, strict=True)})
    for got, want in zip(interpret(module, list(inputs)), expected, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return module


def names(module):
    return [op.name for op in module.main]


def mlp(model):
    constants = {"w0": draw(16, 8), "b0": draw(16), "w1": draw(4, 16), "b1": draw(4)}
    nodes = [
        node("Gemm", ["x", "w0", "b0"], ["h"], "fc0", transB=1),
        node("Relu", ["h"], ["a"], "act"),
        node("Gemm", ["a", "w1", "b1"], ["y"], "fc1", transB=1),
    ]
    return model(nodes, {"x": (F, ["B", 8])}, ["y"], constants)


# --- the whole road -----------------------------------------------------------------------------------------------------


def test_mlp_agrees_with_onnxruntime_at_several_batches(model):
    proto = mlp(model)
    for batch in (1, 3, 7):
        module = agrees(proto, draw(batch, 8))
    assert str(module.main.inputs[0].type) == "f32[B, 8]"
    assert str(module.main.outputs[0].type) == "f32[B, 4]"


def test_names_and_sources_are_the_models(model, tmp_path):
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp(model).SerializeToString())
    module = import_onnx(path)
    relu = next(op for op in module.main if op.name == "relu")
    assert str(relu.source) == "act (mlp.onnx)"
    assert relu.result.name == "a"
    assert module.main.output_names == ["y"]
    assert {"w0", "b0", "w1", "b1"} == set(module.constants)


def test_text_round_trip_of_an_import(model):
    module = import_onnx(mlp(model))
    again = parse_module(module_text(module), {value.constant.digest: value.constant.array for value in module.constants.values()})
    assert module_text(again) == module_text(module)
    x = draw(2, 8)
    np.testing.assert_array_equal(interpret(again, [x])[0], interpret(module, [x])[0])


def test_nodes_out_of_order_are_sorted(model):
    """What ONNX Runtime sorts by itself some tools write, conversion to half precision among them."""
    branch = helper.make_graph([node("Neg", ["late"], ["t"])], "b", [], [helper.make_empty_tensor_value_info("t")])
    nodes = [
        node("If", ["yes"], ["c"], then_branch=branch, else_branch=branch),
        node("Add", ["c", "b"], ["y"]),
        node("Exp", ["a"], ["b"]),
        node("Abs", ["x"], ["a"]),
        node("Relu", ["a"], ["late"]),
    ]
    agrees(model(nodes, {"x": (F, [4])}, ["y"], {"yes": np.array(True)}), draw(4))


def test_bytes_path_and_proto_are_the_same(model, tmp_path):
    proto = mlp(model)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    texts = {module_text(import_onnx(form, name="m")).replace(" (m.onnx)", "") for form in (proto, proto.SerializeToString())}
    assert len(texts) == 1
    assert names(import_onnx(path)) == names(import_onnx(proto))


def test_importing_an_mlp_loads_neither_torch_nor_sympy():
    import subprocess
    import sys

    code = "import sys, ourcc.compiler.importers.onnx; print([m for m in ('torch', 'sympy', 'onnx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# --- symbolic sizes -----------------------------------------------------------------------------------------------------


def test_ranges_fix_and_relate_symbols(model):
    nodes = [node("Add", ["x", "y"], ["z"])]
    proto = model(nodes, {"x": (F, ["B", 4]), "y": (F, ["C", 4])}, ["z"])
    # A batch may be empty; sizes that nothing relates broadcast.
    either = import_onnx(proto)
    assert either.facts.ranges["B"] == dims.Range(0, None)
    assert [tuple(map(str, pair)) for pair in either.facts.broadcasts] == [("B", "C")]
    module = import_onnx(proto, shapes={"C": "B", "B": (1, 32)})
    assert module.facts.ranges["B"] == dims.Range(1, 32)
    assert str(module.main.outputs[0].type) == "f32[B, 4]"
    assert str(import_onnx(proto, shapes={"C": 3, "B": "3"}).main.outputs[0].type) == "f32[3, 4]"
    assert import_onnx(proto, shapes={"C": "B", "B": "2.."}).facts.ranges["B"] == dims.Range(2, None)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"Q": 3}, "the model has no dimension named 'Q'"),
        ({"B": "3..x"}, "size '3..x' of dimension 'B' is not a number"),
        ({"B": (5, 2)}, "range 5..2 of dimension 'B' is empty"),
        ({"B": -1}, "range -1..-1 of dimension 'B' is empty"),
        ({"B": "1 + B"}, "is not a number, a range like 1..32"),
    ],
)
def test_wrong_shapes_are_usage_errors(model, shapes, text):
    with pytest.raises(UsageError, match=text.replace(".", r"\.").replace("+", r"\+")):
        import_onnx(mlp(model), shapes=shapes)


def test_unnamed_and_odd_names_become_fresh_symbols(model):
    nodes = [node("Relu", ["x"], ["y"])]
    module = import_onnx(model(nodes, {"x": (F, [None, "batch size!", "max", -1])}, ["y"]))
    assert len(module.facts.ranges) == 4
    verify(module)
    assert interpret(module, [draw(2, 3, 4, 5)])[0].shape == (2, 3, 4, 5)


def test_words_of_our_texts_are_names_of_sizes_too(model):
    nodes = [node("Relu", ["x"], ["y"])]
    module = import_onnx(model(nodes, {"x": (F, ["none", "f32", "true", "inf"])}, ["y"]))
    verify(module)
    assert interpret(module, [draw(2, 3, 4, 5)])[0].shape == (2, 3, 4, 5)


def test_a_size_that_is_an_expression_is_kept(model):
    nodes = [node("Concat", ["past", "x"], ["y"], axis=0), node("Add", ["y", "m"], ["z"])]
    module = import_onnx(model(nodes, {"past": (F, ["P", 2]), "x": (F, ["S", 2]), "m": (F, ["P + S", 2])}, ["z"]))
    assert str(module.main.outputs[0].type) == "f32[P + S, 2]"


def test_a_table_of_positions_limits_the_symbol(model):
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"]),
        node("Slice", ["table", "zero", "n", "zero"], ["p"]),
        node("Add", ["x", "p"], ["y"]),
    ]
    constants = {"one": np.array([1]), "zero": np.array([0]), "table": draw(512)}
    proto = model(nodes, {"x": (F, ["B", "S"])}, ["y"], constants)
    module = agrees(proto, draw(2, 7))
    assert module.facts.ranges["S"] == dims.Range(1, 512)
    with pytest.raises(UsageError, match=r"range 1\.\.1024 of dimension 'S' is too wide, the model is valid up to 512"):
        import_onnx(proto, shapes={"S": (1, 1024)})


def test_shape_arithmetic_leaves_no_ops(model):
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"], axis=0),
        node("Gather", ["s", "one"], ["t"], axis=0),
        node("Mul", ["b", "t"], ["bt"]),
        node("Unsqueeze", ["bt", "axis0"], ["v"]),
        node("Concat", ["v", "four", "minus"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
        node("Equal", ["target", "minus"], ["is_minus"]),
        node("Where", ["is_minus", "ones", "target"], ["safe"]),
        node("ConstantOfShape", ["safe"], ["zeros"]),
        node("Expand", ["y", "safe"], ["wide"]),
        node("Div", ["bt", "b"], ["t2"]),
        node("Sub", ["t2", "one"], ["t3"]),
        node("Range", ["zero", "t2", "one"], ["r"]),
        node("Cast", ["t3"], ["last"], to=TensorProto.INT64),
    ]
    constants = {
        "zero": np.int64(0),
        "one": np.int64(1),
        "axis0": np.array([0]),
        "four": np.array([4]),
        "minus": np.array([-1]),
        "ones": np.ones(3, np.int64),
    }
    proto = model(nodes, {"x": (F, ["B", "T", 8])}, ["y", "r", "last"], constants)
    module = agrees(proto, draw(2, 5, 8))
    assert str(module.main.outputs[0].type) == "f32[B*T, 4, 2]"
    assert sorted(names(module)) == ["dim", "iota", "reshape"]
    assert str(module.main.outputs[1].type) == "i64[T]"


def test_constant_parts_of_a_symbolic_shape_are_constants(model):
    nodes = [
        node("Shape", ["x"], ["s"], start=-1),
        node("Cast", ["s"], ["f"], to=F),
        node("Sqrt", ["f"], ["root"]),
        node("Div", ["x", "root"], ["y"]),
    ]
    module = agrees(model(nodes, {"x": (F, ["B", 16])}, ["y"]), draw(3, 16))
    assert names(module) == ["div"]


def test_a_reshape_that_may_not_divide_is_refused(model):
    proto = model([node("Reshape", ["x", "t"], ["y"])], {"x": (F, ["B"])}, ["y"], {"t": np.array([4, -1])})
    with pytest.raises(UnsupportedError, match="B elements are not known to divide into groups of 4"):
        import_onnx(proto)
    assert str(import_onnx(proto, shapes={"B": 8}).main.outputs[0].type) == "f32[4, 2]"


def grid_gather(model, first, second, shape):
    """x[i, j] with i counting along axis `first` and j along axis `second` of a grid [B, S, S]."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["b"]), node("Gather", ["s", "one"], ["t"])]
    nodes += [node("Concat", ["b1", "t1", "t1"], ["grid"], axis=0)]
    nodes[3:3] = [node("Unsqueeze", [name, "axis0"], [f"{name}1"]) for name in "bt"]
    for size, name, axis in (("b", "i", first), ("t", "j", second)):
        nodes += [
            node("Range", ["zero", size, "one"], [f"{name}0"]),
            node("Unsqueeze", [f"{name}0", f"around{axis}"], [f"{name}1"]),
            node("Expand", [f"{name}1", "grid"], [f"{name}2"]),
            node("Unsqueeze", [f"{name}2", "last"], [f"{name}3"]),
        ]
    nodes += [node("Concat", ["i3", "j3"], ["index"], axis=-1), node("GatherND", ["x", "index"], ["y"])]
    constants = {"zero": np.int64(0), "one": np.int64(1), "axis0": np.array([0]), "last": np.array([3])}
    constants |= {"around0": np.array([1, 2]), "around1": np.array([0, 2]), "around2": np.array([0, 1])}
    return model(nodes, {"x": (F, shape)}, ["y"], constants)


@pytest.mark.parametrize("second", [1, 2])
def test_a_gather_by_counting_indices_is_the_value_itself(model, second):
    module = agrees(grid_gather(model, 0, second, ["B", "S"]), draw(2, 3))
    assert names(module) == ["reshape", "broadcast_to"]


def test_constant_indices_are_looked_at_too(model):
    assert names(agrees(grid_gather(model, 1, 2, [3, 3]), draw(3, 3))) == ["reshape", "broadcast_to"]
    constants = {"i": np.array([[1, 0], [0, 0]])}
    assert names(agrees(model([node("GatherND", ["x", "i"], ["y"])], {"x": (F, [2, 2])}, ["y"], constants), draw(2, 2))) == ["gather_nd"]


# --- slices -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize(("start", "end"), [(0, 3), (1, -1), (-2, 100), (-100, 2), (4, 1), (100, -100), (2**62, -(2**62)), (0, 0)])
def test_slices_are_numpys(model, start, end, step):
    constants = {"s": np.array([start]), "e": np.array([end]), "a": np.array([0]), "t": np.array([step])}
    proto = model([node("Slice", ["x", "s", "e", "a", "t"], ["y"])], {"x": (F, [5])}, ["y"], constants)
    x = draw(5)
    np.testing.assert_array_equal(interpret(import_onnx(proto), [x])[0], x[slice(start, end, step)])


def test_slices_of_a_symbolic_axis(model):
    constants = {"s": np.array([1]), "e": np.array([2**63 - 1]), "a": np.array([1])}
    proto = model([node("Slice", ["x", "s", "e", "a"], ["y"])], {"x": (F, ["B", "S"])}, ["y"], constants)
    module = agrees(proto, draw(2, 6))
    assert str(module.main.outputs[0].type) == "f32[B, S - 1]"


# --- old and new forms --------------------------------------------------------------------------------------------------


def test_attributes_of_old_opsets_are_operands_of_new_ones(model):
    x = draw(2, 1, 6)
    pairs = [
        (node("Squeeze", ["x"], ["y"], axes=[1]), 11, node("Squeeze", ["x", "a"], ["y"]), {"a": np.array([1])}),
        (node("Unsqueeze", ["x"], ["y"], axes=[0, -1]), 11, node("Unsqueeze", ["x", "a"], ["y"]), {"a": np.array([0, -1])}),
        (node("ReduceSum", ["x"], ["y"], axes=[2], keepdims=0), 11, node("ReduceSum", ["x", "a"], ["y"], keepdims=0), {"a": np.array([2])}),
        (
            node("Split", ["x"], ["y", "z"], axis=2, split=[2, 4]),
            11,
            node("Split", ["x", "a"], ["y", "z"], axis=2),
            {"a": np.array([2, 4])},
        ),
        (node("Clip", ["x"], ["y"], min=0.0, max=0.5), 6, node("Clip", ["x", "l", "h"], ["y"]), {"l": np.float32(0), "h": np.float32(0.5)}),
        (node("Pad", ["x"], ["y"], pads=[0, 0, 1, 0, 0, 2]), 10, node("Pad", ["x", "a"], ["y"]), {"a": np.array([0, 0, 1, 0, 0, 2])}),
        (
            node("Slice", ["x"], ["y"], starts=[1], ends=[4], axes=[2]),
            9,
            node("Slice", ["x", "s", "e", "a"], ["y"]),
            {"s": [1], "e": [4], "a": [2]},
        ),
    ]
    for old, opset, new, constants in pairs:
        results = []
        for made, version, values in ((old, opset, {}), (new, 18, constants)):
            proto = model([made], {"x": (F, [2, 1, 6])}, list(made.output), {k: np.asarray(v) for k, v in values.items()}, opset=version)
            results.append(interpret(import_onnx(proto), [x]))
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)


def test_softmax_before_opset_13_flattens(model):
    x = draw(2, 3, 4)
    proto = model([node("Softmax", ["x"], ["y"], axis=1)], {"x": (F, [2, 3, 4])}, ["y"], opset=11)
    flat = np.exp(x.reshape(2, 12) - x.reshape(2, 12).max(1, keepdims=True))
    np.testing.assert_allclose(interpret(import_onnx(proto), [x])[0].reshape(2, 12), flat / flat.sum(1, keepdims=True), rtol=1e-6)


def test_broadcasting_before_opset_7_is_by_axis(model):
    proto = model([node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)], {"x": (F, [2, 3, 4]), "b": (F, [3])}, ["y"], opset=6)
    x, b = draw(2, 3, 4), draw(3)
    np.testing.assert_array_equal(interpret(import_onnx(proto), [x, b])[0], x + b[:, None])


def test_constants_listed_as_inputs_are_constants(model):
    proto = mlp(model)
    proto.graph.input.append(helper.make_tensor_value_info("w0", F, [16, 8]))
    assert [value.name for value in import_onnx(proto).main.inputs] == ["x"]


# --- functions, branches, loops -----------------------------------------------------------------------------------------


def test_functions_of_the_model_are_inlined_with_their_attributes(model):
    body = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        node("LeakyRelu", ["a"], ["l"]),
        node("Mul", ["l", "two"], ["r"]),
    ]
    reference = body[1].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", 1
    function = helper.make_function("my", "Twice", ["a"], ["r"], body, [helper.make_opsetid("", 21)], ["slope"])
    nodes = [node("Twice", ["x"], ["h"], "first", domain="my", slope=0.5), node("Twice", ["h"], ["y"], "second", domain="my")]
    proto = model(nodes, {"x": (F, ["N"])}, ["y"], functions=[function], domains={"my": 1})
    module = agrees(proto, draw(6))
    leaky = [op for op in module.main if op.name == "leaky_relu"]
    assert [op.attrs["alpha"] for op in leaky] == [0.5, pytest.approx(0.01)]
    assert str(leaky[0].source) == "first/l"


def test_a_function_that_calls_itself_is_an_error(model):
    function = helper.make_function("my", "F", ["a"], ["r"], [node("F", ["a"], ["r"], domain="my")], [helper.make_opsetid("my", 1)])
    proto = model([node("F", ["x"], ["y"], domain="my")], {"x": (F, [2])}, ["y"], functions=[function], domains={"my": 1})
    with pytest.raises(ModelError, match="functions call each other more than 64 deep"):
        import_onnx(proto)


def test_ops_that_onnx_defines_by_others_use_that_body(model):
    proto = model([node("Shrink", ["x"], ["y"], lambd=0.5, bias=0.25)], {"x": (F, ["N"])}, ["y"])
    agrees(proto, draw(9))


def branches(model, condition):
    then = helper.make_graph([node("Relu", ["x"], ["t"])], "then", [], [helper.make_tensor_value_info("t", F, None)])
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [helper.make_tensor_value_info("e", F, None)])
    inputs = {"x": (F, ["N"])} if condition is not None else {"x": (F, ["N"]), "c": (B, [])}
    constants = {} if condition is None else {"c": np.array(condition)}
    return model([node("If", ["c"], ["y"], "choice", then_branch=then, else_branch=other)], inputs, ["y"], constants)


@pytest.mark.parametrize(("condition", "name"), [(True, "relu"), (False, "neg")])
def test_a_decided_branch_is_taken(model, condition, name):
    assert names(agrees(branches(model, condition), draw(4))) == [name]


def test_an_undecided_branch_is_decided_by_a_value(model):
    assert names(import_onnx(branches(model, None))) == ["branch"]
    assert names(import_onnx(branches(model, None), values={"c": np.array(True)})) == ["relu"]


@pytest.mark.parametrize(
    ("values", "text"),
    [({"q": np.array(True)}, "no input named 'q'"), ({"c": np.array([True])}, "value of input 'c'"), ({"c": np.array(1)}, "expected bool")],
)
def test_values_that_do_not_fit_are_usage_errors(model, values, text):
    with pytest.raises(UsageError, match=text):
        import_onnx(branches(model, None), values=values)


def loop(model, trips):
    body = helper.make_graph(
        [node("Add", ["a", "x"], ["b"]), node("Identity", ["go"], ["on"]), node("Identity", ["b"], ["out"])],
        "body",
        [helper.make_tensor_value_info(n, k, s) for n, k, s in (("i", INT, []), ("go", B, []), ("a", F, [3]))],
        [helper.make_tensor_value_info(n, k, s) for n, k, s in (("on", B, []), ("b", F, [3]), ("out", F, [3]))],
    )
    return model([node("Loop", ["n", "", "x"], ["y", "rows"], body=body)], {"x": (F, [3])}, ["y", "rows"], {"n": np.int64(trips)})


def test_a_loop_of_known_length_is_unrolled(model):
    x = draw(3)
    y, rows = interpret(import_onnx(loop(model, 4)), [x])
    np.testing.assert_allclose(y, 5 * x, rtol=1e-6)
    assert rows.shape == (4, 3)


@pytest.mark.parametrize("trips", [0, 5000])
def test_loops_that_are_not_unrolled(model, trips):
    module = import_onnx(loop(model, trips))
    assert names(module) == ["loop"]
    x = draw(3)
    y, rows = interpret(module, [x])
    np.testing.assert_allclose(y, (trips + 1) * x, rtol=1e-3)
    assert rows.shape == (trips, 3)


def test_sequences_cost_nothing(model):
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=0),
        node("SequenceAt", ["s", "one"], ["a"]),
        node("SequenceInsert", ["s", "a"], ["t"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    agrees(model(nodes, {"x": (F, [3, 2])}, ["y"], {"one": np.int64(1)}), draw(3, 2))


def test_symbols_bound_by_the_run(model):
    nodes = [node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["t"]), node("GatherND", ["x", "t"], ["y"])]
    module = agrees(model(nodes, {"x": (F, ["N", 3])}, ["y"]), np.array([[0, 1, 2], [3, 0, 0]], np.float32))
    assert str(module.main.outputs[0].type) == "f32[found_0]"


# --- what is not supported ----------------------------------------------------------------------------------------------


def test_all_unsupported_nodes_are_listed_at_once(model):
    nodes = [
        node("ImageDecoder", ["x"], ["a"], "decode"),
        node("Relu", ["a"], ["b"], "after"),
        node("Mystery", ["b"], ["c"], "riddle", domain="other"),
        node("RandomNormalLike", ["z"], ["d"], "noise"),
    ]
    with pytest.raises(UnsupportedModelError) as caught:
        import_onnx(model(nodes, {"x": (TensorProto.UINT8, [4]), "z": (F, [2])}, ["c", "d"], domains={"other": 1}))
    error = caught.value
    assert [(p.node, p.op_type) for p in error.problems] == [
        ("decode", "ImageDecoder"),
        ("riddle", "Mystery"),
        ("noise", "RandomNormalLike"),
    ]
    text = str(error)
    assert text.startswith("3 nodes are not supported: ImageDecoder, Mystery, RandomNormalLike")
    assert "Mystery 'riddle': there is no rule for Mystery of domain 'other'" in text and "help: " in text


def test_results_that_are_sequences_are_refused(model):
    with pytest.raises(UnsupportedError, match="is a sequence or an optional, expected a tensor"):
        import_onnx(model([node("SequenceConstruct", ["x"], ["s"])], {"x": (F, [2])}, ["s"]))


def test_inputs_that_are_no_tensors_are_refused(model):
    proto = model([node("SequenceLength", ["s"], ["n"])], {}, ["n"])
    proto.graph.input.append(helper.make_tensor_sequence_value_info("s", F, None))
    with pytest.raises(UnsupportedError, match="input 's' is sequence type, expected a tensor"):
        import_onnx(proto)


def test_an_input_without_a_rank_is_refused(model):
    with pytest.raises(UnsupportedError, match="input 'x' has no shape"):
        import_onnx(model([node("Relu", ["x"], ["y"])], {"x": (F, None)}, ["y"]))


def test_constants_are_read_when_first_used(model):
    proto = mlp(model)
    module = import_onnx(proto.SerializeToString())
    assert module.constants["w0"].constant._array is None
    np.testing.assert_array_equal(module.constants["w0"].constant.array, numpy_helper.to_array(proto.graph.initializer[0]))
