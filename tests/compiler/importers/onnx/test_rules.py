"""What each rule refuses, and that it says so; what rules accept is ONNX's own suite (tests/suites)."""

import re

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.compiler.importers.onnx.context import RULES
from ourcc.ir.errors import InternalError, ModelError, UnsupportedError, UsageError
from ourcc.ir.graph.reference import interpret

F, D, INT, B = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL
S, U8 = TensorProto.STRING, TensorProto.UINT8


def ints(*values):
    return np.array(values, np.int64)


def floats(*values):
    return np.array(values, np.float32)


def single(model, op_type, operands, attributes, opset, domain=""):
    """A model of one node; an operand is a shape (float), a (dtype, shape) pair, an array (constant) or None."""
    inputs, constants, names = {}, {}, []
    for position, operand in enumerate(operands):
        name = f"x{position}" if operand is not None else ""
        names.append(name)
        if isinstance(operand, (np.ndarray, np.generic)):
            constants[name] = np.asarray(operand)
        elif operand is not None:
            inputs[name] = operand if isinstance(operand, tuple) else (F, operand)
    node = helper.make_node(op_type, names, ["y"], "n", domain=domain, **attributes)
    return model([node], inputs, ["y"], constants, opset=opset, domains={domain: 1} if domain else None)


BAD = [
    # shapes
    ("Reshape", [[2, 3], ints(2, 3, 0)], {}, "size 0 at axis 2 keeps a size that rank 2 does not have"),
    ("Reshape", [[2, 3], ints(-1, -1)], {}, "shape ['-1', '-1'] is not valid"),
    ("Reshape", [[2, 3], ints(-2, 3)], {}, "shape ['-2', '3'] is not valid"),
    ("Reshape", [[0, 3], ints(-1, 0)], {"allowzero": 1}, "size -1 in ['-1', '0'] is ambiguous, another size is 0"),
    ("Reshape", [[2, 3], ints(4, -1)], {}, "6 elements do not divide into groups of 4"),
    ("Reshape", [[2, 3], np.ones((1, 2), np.int64)], {}, "the shape has rank 2, expected 1"),
    ("Flatten", [[2, 3]], {"axis": 3}, "axis 3 is out of range for rank 2"),
    ("Squeeze", [[2, 3], ints(0)], {}, "axis 0 has size 2, expected 1"),
    ("Unsqueeze", [[2, 3], None], {}, "axes are missing"),
    ("Unsqueeze", [[2, 3], ints(0, 0)], {}, "axes [0, 0] name one axis twice"),
    ("Unsqueeze", [[2, 3], ints(7)], {}, "axis 7 is out of range for rank 3"),
    ("Expand", [[2, 3], ints(2, 4)], {}, "sizes 3 and 4 do not broadcast"),
    ("Tile", [[2, 3], ints(2)], {}, "got 1 repeats, expected one for each of 2 axes"),
    ("Range", [ints(0)[0], ints(4)[0], ints(0)[0]], {}, "step is 0"),
    ("Range", [floats(0)[0], floats(4)[0], floats(0)[0]], {}, "step is 0"),
    # movement
    ("Transpose", [[2, 3]], {"perm": [0]}, "perm has 1 axes, expected 2"),
    ("Split", [[4], ints(1, 2)], {}, "parts ['1', '2'] do not add up to size 4"),
    ("Split", [[4]], {"num_outputs": 0}, "cannot split into 0 parts"),
    ("Slice", [[4], ints(0, 1), ints(2), ints(0)], {}, "got 2 starts, 1 ends, 1 axes and 2 steps, expected as many of each"),
    ("Slice", [[4], ints(0), ints(2), ints(0), ints(0)], {}, "step is 0"),
    ("Pad", [[4], ints(1, 1)], {"mode": "mirror"}, "mode 'mirror' is not known, expected one of constant, edge, reflect, wrap"),
    ("Pad", [[4], ints(1)], {}, "got 1 pads, expected two for each of 1 axes"),
    ("DepthToSpace", [[4, 4]], {"blocksize": 2}, "got rank 2 and block size 2, expected rank 4 and a positive block size"),
    ("SpaceToDepth", [[1, 4, 2, 2]], {"blocksize": 0}, "got rank 4 and block size 0, expected rank 4"),
    ("Trilu", [[4]], {}, "input has rank 1, expected at least 2"),
    ("ReverseSequence", [[2, 3, 4], (INT, [2])], {"time_axis": 2}, "axes are 1 and 2, expected 0 and 1"),
    # pointwise and constants
    ("BitShift", [(U8, [2]), (U8, [2])], {"direction": "UP"}, "direction is 'UP', expected LEFT or RIGHT"),
    ("Cast", [[2]], {"to": 99}, "element type 99 is not known"),
    ("BitCast", [[2]], {"to": 99}, "element type 99 is not known"),
    ("Mean", [], {}, "has no inputs"),
    ("Constant", [], {}, "got 0 values, expected one"),
    ("Constant", [], {"value_float": 1.0, "value_int": 2}, "got 2 values, expected one"),
    ("Constant", [], {"value_matrix": 1.0}, "attribute 'value_matrix' is not known"),
    ("ConstantOfShape", [ints(2)], {"value": helper.make_tensor("v", F, [2], [1.0, 2.0])}, "value has 2 elements, expected one"),
    ("EyeLike", [[4]], {}, "input has rank 1, expected 2"),
    # products
    ("MatMul", [[], [2]], {}, "operands are f32[] and f32[2], expected rank 1 or more"),
    ("Gemm", [[2], [2, 2]], {}, "operands are f32[2] and f32[2, 2], expected matrices"),
    ("Einsum", [[2, 2]], {"equation": "ij->k"}, "result 'k' names an axis that no operand has"),
    ("Einsum", [[2, 2]], {"equation": "ij,jk->ik"}, "equation 'ij,jk->ik' does not fit 1 operands"),
    ("Einsum", [[2, 2]], {"equation": "i;j"}, "equation 'i;j' does not fit 1 operands"),
    ("Einsum", [[2, 2]], {"equation": "ijk->i"}, "operand 0 has rank 2, and its term is 'ijk'"),
    # indexing
    ("Gather", [[4], (INT, [2])], {"axis": 4}, "axis 4 is out of range for rank 1"),
    (
        "ScatterND",
        [[4], (INT, [2, 1]), [2]],
        {"reduction": "xor"},
        "reduction 'xor' is not known, expected one of none, add, mul, max, min",
    ),
    ("TopK", [[4], ints(9)], {}, "k is 9, expected 0 to 4"),
    ("CenterCropPad", [[4], ints(2, 2)], {}, "got 2 sizes for 1 axes"),
    ("TensorScatter", [[2, 4, 3], [2, 1, 3]], {"axis": 0}, "axis 0 is the batch, expected another"),
    ("Det", [[2, 3]], {}, "got f32[2, 3], expected square matrices"),
    # normalization
    ("InstanceNormalization", [[2, 3], [3], [3]], {}, "input has rank 2, expected at least 3"),
    (
        "GroupNormalization",
        [[2, 4, 3], [4], [4]],
        {"num_groups": 0},
        "got 0 groups of f32[2, 4, 3], expected at least 1 and rank 2 or more",
    ),
    ("LpNormalization", [[2, 3]], {"p": 3}, "p is 3, expected 1 or 2"),
    ("LRN", [[2, 3, 4]], {"size": 0}, "got size 0 for rank 3, expected a positive size and rank 2 or more"),
    # windows
    ("Conv", [[1, 2, 5], [2, 2, 3]], {"strides": [0]}, "strides is [0], expected 1 positive integers"),
    ("Conv", [[1, 2], [2, 2]], {}, "input has rank 2, expected at least 3"),
    ("Conv", [[1, 2, 5], [2, 2, 3]], {"pads": [1]}, "pads are [1], expected two for each of 1 axes"),
    ("Conv", [[1, 2, 5], [2, 2, 3]], {"auto_pad": "LIKE"}, "auto_pad 'LIKE' is not known"),
    ("Conv", [[1, 2, 5], [2, 2, 3, 3]], {}, "weights have rank 4, expected 3"),
    ("Conv", [[1, 2, 5], [2, 2, 3]], {"kernel_shape": [5]}, "kernel_shape is [5], and the weights are f32[2, 2, 3]"),
    ("ConvTranspose", [[1, 2, 5], [2, 2, 3]], {"auto_pad": "LIKE"}, "auto_pad 'LIKE' is not known"),
    ("ConvTranspose", [[1, 2, 5], [2, 2, 3]], {"pads": [1]}, "pads are [1] and output_padding [0] for 1 axes"),
    (
        "MaxPool",
        [[1, 2, 5]],
        {"kernel_shape": [2], "pads": [2, 0]},
        "padding of 2 and 0 makes windows of 2 (dilation 1) that hold nothing but padding",
    ),
    ("MaxPool", [[1, 2, "N"]], {"kernel_shape": [2], "pads": [0, 2]}, "hold nothing but padding"),
    ("MaxPool", [[1, 2, 2]], {"kernel_shape": [2], "dilations": [5], "pads": [3, 4]}, "hold nothing but padding"),
    ("AveragePool", [[1, 2, 5]], {"kernel_shape": [2], "pads": [2, 0]}, "hold nothing but padding"),
    ("MaxPool", [[1, 2, 5]], {}, "kernel_shape is missing, expected 1 positive integers"),
    ("LpPool", [[1, 2, 5]], {"kernel_shape": [2], "p": 0}, "p is 0, expected a positive integer"),
    # resampling
    ("Resize", [[1, 1, 4], None, floats(1, 1, 2)], {"mode": "magic"}, "mode 'magic' is not known"),
    ("Resize", [[1, 1, 4], None, floats(1, 2)], {}, "scales are [1.0, 2.0], expected a positive one for each of 3 axes"),
    ("Resize", [[1, 1, 4], None, None, ints(1, 8)], {}, "got 2 sizes for 3 axes"),
    ("Resize", [[1, 1, 4]], {}, "neither scales nor sizes are given"),
    ("Resize", [[1, 1, 4], None, None, ints(1, 1, 8)], {"keep_aspect_ratio_policy": "odd"}, "keep_aspect_ratio_policy 'odd' is not known"),
    ("Resize", [[4], floats(0), floats(2)], {"coordinate_transformation_mode": "tf_crop_and_resize"}, "the region has 1 bounds"),
    ("Resize", [[4], None, floats(2)], {"coordinate_transformation_mode": "odd"}, "coordinate_transformation_mode 'odd' is not known"),
    ("Resize", [[4], None, floats(2)], {"nearest_mode": "odd"}, "nearest_mode 'odd' is not known"),
    ("GridSample", [[1, 1, 4], [1, 4, 1]], {"padding_mode": "odd"}, "mode '' or padding 'odd' is not known"),
    ("GridSample", [[1, 1, 4], [1, 4, 2]], {}, "grid is f32[1, 4, 2], expected the coordinates of 1 axes for f32[1, 1, 4]"),
    ("RoiAlign", [[1, 1, 4], [1, 4], (INT, [1])], {}, "got f32[1, 1, 4], regions f32[1, 4] and a result of 1 x 1"),
    ("RoiAlign", [[1, 1, 4, 4], [1, 4], (INT, [1])], {"mode": "odd", "sampling_ratio": 1}, "mode 'odd' is not known, expected avg or max"),
    # attention
    ("Attention", [[2, 3, 4]] * 3, {}, "got f32[2, 3, 4] with q_num_heads = 0, expected rank 4, or rank 3 and a number of heads"),
    ("RotaryEmbedding", [[1, 2, 4], [1, 2, 2], [1, 2, 2]], {}, "num_heads is missing for an input of rank 3"),
    # recurrent
    ("RNN", [[3, 2], [1, 4, 2], [1, 4, 4]], {"hidden_size": 4}, "got f32[3, 2] and f32[1, 4, 2], expected rank 3"),
    ("RNN", [[3, 1, 2], [1, 4, 2], [1, 4, 4]], {"direction": "bidirectional"}, "direction 'bidirectional' does not fit weights for 1"),
    ("RNN", [[3, 1, 2], [1, 4, 2], [1, 4, 4]], {"activations": ["Tanh", "Tanh"]}, "got 2 activations, expected 1"),
    ("RNN", [[3, 1, 2], [1, 4, 2], [1, 4, 4]], {"activations": ["Sine"]}, "activation 'sine' is not known"),
    # signals
    ("DFT", [[1, 4, 3]], {}, "got f32[1, 4, 3] and axis 1, expected real or complex numbers along the last axis"),
    ("STFT", [[1, 8, 1], ints(2)[0]], {}, "neither a window nor a frame length is given"),
    ("STFT", [[1, 8, 1], ints(2)[0], None, ints(9)[0]], {}, "frames of 9 every 2 do not fit 8 samples"),
    (
        "MelWeightMatrix",
        [ints(0)[0], ints(8)[0], ints(8000)[0], floats(0)[0], floats(4)[0]],
        {},
        "got 0 bands of 8 points at 8000 from 0 to 4",
    ),
    # sequences
    ("SequenceLength", [[2]], {}, "input 0 is not a sequence"),
    ("SplitToSequence", [[4], ints(0)[0]], {}, "split is 0, expected a positive size"),
]


@pytest.mark.parametrize(("op_type", "operands", "attributes", "text"), BAD, ids=[f"{c[0]}-{n}" for n, c in enumerate(BAD)])
def test_what_breaks_onnxs_rules_is_the_models_error(model, op_type, operands, attributes, text):
    opset = 26 if op_type in ("BitCast", "TensorScatter") else 23
    with pytest.raises(ModelError, match=re.escape(text)) as caught:
        import_onnx(single(model, op_type, operands, attributes, opset))
    assert caught.value.message.startswith(f"{op_type}: ") and str(caught.value.source) == "n"


UNSUPPORTED = [
    ("Squeeze", [["N", 1]], {}, "removes all sizes 1 of a symbolic shape"),
    ("Squeeze", [["N", 1], ints(0)], {}, "axis 0 has size N, which is not known to be 1"),
    ("Reshape", [[4], (INT, [2])], {}, "the shape is not known at import (computed from input x1)"),
    ("Range", [ints(0)[0], ints(4)[0], (INT, [])], {}, "the step is not known at import"),
    ("Split", [["N"]], {"num_outputs": 2}, "size N is not known to divide by 2"),
    ("Cast", [(S, [2])], {"to": F}, "cast from string to f32"),
    ("Cast", [[2]], {"to": 24}, "cast to f8e8m0"),
    ("BitCast", [[2]], {"to": TensorProto.INT32}, "reinterprets bits"),
    ("Dropout", [[2], floats(0.5)[0], np.array(True)], {}, "training mode draws random numbers"),
    ("QuantizeLinear", [[2], []], {"output_dtype": TensorProto.FLOAT8E8M0}, "quantizes to f8e8m0"),
    ("Det", [[9, 9]], {}, "determinant of size 9"),
    ("CenterCropPad", [["N"], ints(2)], {}, "the input has the symbolic shape f32[N]"),
    ("LayerNormalization", [[2, 3], [3]], {"stash_type": TensorProto.FLOAT16}, "statistics in f16"),
    ("Resize", [[1, 0], None, None, ints(1, 4)], {"mode": "linear"}, "resizes an empty axis"),
    ("Resize", [["N"], None, None, ints(2)], {"mode": "linear", "antialias": 1}, "antialiasing of the symbolic size N"),
    ("Resize", [["N"], None, None, ints(2)], {"keep_aspect_ratio_policy": "not_larger"}, "keeps the aspect ratio of symbolic sizes"),
    (
        "Resize",
        [["N"], floats(0, 1), floats(2)],
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
        "crops the symbolic size N",
    ),
    ("Resize", [["N"], None, floats(1e-9)], {}, "scale 9.999999717180685e-10 of the symbolic size N"),
    ("Resize", [[4000], None, None, ints(2)], {"mode": "linear", "antialias": 1}, "antialiasing over 4001 elements"),
    ("RoiAlign", [[1, 1, 4, 4], [1, 4], (INT, [1])], {}, "chooses the number of samples by the size of each region"),
    ("Attention", [[1, 1, 4, "D"]] * 3, {}, "head size D is symbolic"),
    ("DFT", [[1, "N", 1]], {}, "the signal has the symbolic shape f32[1, N, 1]"),
    ("DFT", [[1, "N", 1], ints(8)[0]], {}, "transforms the symbolic size N"),
    ("DFT", [[1, 4, 1], ints(100_000)[0]], {}, "transform of 100000 points"),
    ("SplitToSequence", [["N"]], {}, "splits the symbolic size N"),
]


@pytest.mark.parametrize(("op_type", "operands", "attributes", "text"), UNSUPPORTED, ids=[f"{c[0]}-{n}" for n, c in enumerate(UNSUPPORTED)])
def test_what_is_valid_and_not_supported_says_so(model, op_type, operands, attributes, text):
    with pytest.raises(UnsupportedError, match=re.escape(text)) as caught:
        import_onnx(single(model, op_type, operands, attributes, 26 if op_type == "BitCast" else 23))
    assert f"{op_type} 'n': " in str(caught.value) and caught.value.hint


OLD = [
    (ModelError, "Add", [[2, 3], [3, 3]], {"broadcast": 1, "axis": 1}, 6, "operand of rank 2 does not fit at axis 1 of rank 2"),
    (ModelError, "Gelu", [[2]], {}, 1, "is no op of opset 1"),
    (ModelError, "Upsample", [[1, 2], floats(1)], {}, 9, "got 1 scales for rank 2"),
    (UnsupportedError, "BatchNormalization", [[1, 2], [2], [2], [2], [2]], {}, 6, "training mode"),
    (UnsupportedError, "Dropout", [[2]], {}, 6, "training mode draws random numbers"),
]


@pytest.mark.parametrize(("error", "op_type", "operands", "attributes", "opset", "text"), OLD, ids=[case[1] for case in OLD])
def test_old_forms_are_refused_too(model, error, op_type, operands, attributes, opset, text):
    with pytest.raises(error, match=re.escape(text)):
        import_onnx(single(model, op_type, operands, attributes, opset))


def nested(model, op_type, operands, attributes, body, opset=21, outputs=("y",)):
    proto = single(model, op_type, operands, attributes, opset)
    proto.graph.node[0].attribute.append(helper.make_attribute("body", body))
    del proto.graph.node[0].output[:]
    proto.graph.node[0].output.extend(outputs)
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
    return proto


def scan_body():
    nodes = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Identity", ["c"], ["d"])]
    values = [helper.make_tensor_value_info(name, F, [2]) for name in "abcd"]
    return helper.make_graph(nodes, "body", values[:2], values[2:])


SCANS = [
    (ModelError, [[2], [3, 2]], {"num_scan_inputs": 3}, 21, "got 3 scanned of 2 inputs and 2 results"),
    (UnsupportedError, [(INT, [1]), [1, 2], [1, 3, 2]], {"num_scan_inputs": 1}, 8, "sequence lengths"),
    (UnsupportedError, [None, ["N", 2], ["N", 3, 2]], {"num_scan_inputs": 1}, 8, "batch of size N"),
]


@pytest.mark.parametrize(("error", "operands", "attributes", "opset", "text"), SCANS)
def test_scans_that_cannot_be_unrolled(model, error, operands, attributes, opset, text):
    with pytest.raises(error, match=re.escape(text)):
        import_onnx(nested(model, "Scan", operands, attributes, scan_body(), opset))


def test_a_scan_is_unrolled(model):
    proto = nested(model, "Scan", [[2], [3, 2]], {"num_scan_inputs": 1}, scan_body(), outputs=("y", "z"))
    x, steps = np.ones(2, np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
    last, rows = interpret(import_onnx(proto), [x, steps])
    np.testing.assert_array_equal(rows, np.cumsum(steps, 0) + 1)
    np.testing.assert_array_equal(last, rows[-1])


def test_nested_graphs_need_their_inputs(model):
    body = scan_body()
    del body.input[1]
    with pytest.raises(ModelError, match="nested graph has 1 inputs, expected 2"):
        import_onnx(nested(model, "Scan", [[2], [3, 2]], {"num_scan_inputs": 1}, body))


def chain(model, *nodes, inputs=None, constants=None):
    return import_onnx(model(nodes, inputs or {"x": (F, [2])}, [nodes[-1].output[0]], constants))


def test_sequences_and_optionals_that_are_misused(model):
    node = helper.make_node
    empty = node("SequenceEmpty", [], ["s"])
    one = node("SequenceConstruct", ["x"], ["s"])
    with pytest.raises(ModelError, match="position 3 is out of range for a sequence of 1"):
        chain(model, one, node("SequenceAt", ["s", "k"], ["y"]), constants={"k": ints(3)[0]})
    for op_type in ("SequenceErase", "ConcatFromSequence"):
        with pytest.raises(ModelError, match=f"{op_type}: the sequence is empty"):
            chain(model, empty, node(op_type, ["s"], ["y"]))
    with pytest.raises(ModelError, match="the optional holds nothing"):
        chain(model, node("Optional", [], ["o"], type=helper.make_tensor_type_proto(F, [2])), node("OptionalGetElement", ["o"], ["y"]))
    with pytest.raises(ModelError, match="Relu: input 0 is not a tensor"):
        chain(model, one, node("Relu", ["s"], ["y"]))


def test_a_loop_that_collects_sequences_is_refused(model):
    nodes = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("SequenceConstruct", ["x0"], ["out"])]
    values = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", INT), ("go", B), ("on", B), ("out", F))]
    body = helper.make_graph(nodes, "body", values[:2], values[2:])
    proto = model([helper.make_node("Loop", ["n", ""], ["y"], "n", body=body)], {"x0": (F, [2])}, ["y"], {"n": ints(2)[0]})
    with pytest.raises(UnsupportedError, match="collects sequences or optionals"):
        import_onnx(proto)


def test_scores_of_attention_have_four_stages(model):
    node = helper.make_node("Attention", ["q", "q", "q"], ["y", "", "", "s"], qk_matmul_output_mode=7)
    with pytest.raises(ModelError, match="qk_matmul_output_mode is 7, expected 0 to 3"):
        import_onnx(model([node], {"q": (F, [1, 1, 2, 4])}, ["y", "s"], opset=23))


def test_a_slice_bound_of_unknown_sign_is_refused(model):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Sub", ["s", "four"], ["start"]),
        helper.make_node("Slice", ["x", "start", "end"], ["y"]),
    ]
    proto = model(nodes, {"x": (F, ["N"])}, ["y"], {"four": ints(4), "end": ints(100)})
    with pytest.raises(UnsupportedError, match="bound N - 4 may be negative or not"):
        import_onnx(proto)
    import_onnx(proto, shapes={"N": (4, 9)})


def test_a_symbolic_range_step_and_axes_are_refused(model):
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "zero"], ["n"])]
    constants = {"zero": ints(0)[0], "one": ints(9)[0]}
    stepped = [*nodes, helper.make_node("Range", ["zero", "one", "n"], ["y"])]
    with pytest.raises(UnsupportedError, match="step is symbolic"):
        import_onnx(model(stepped, {"x": (F, ["N"])}, ["y"], constants))
    summed = [*nodes, helper.make_node("ReduceSum", ["x", "s"], ["y"])]
    with pytest.raises(UnsupportedError, match="the axes depends on a symbolic size"):
        import_onnx(model(summed, {"x": (F, ["N"])}, ["y"], constants))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_names_that_break_onnxs_own_bodies_are_the_models_error():
    from onnx.backend.test.loader import load_model_tests

    case = next(case for case in load_model_tests(kind="node") if case.name == "test_flexattention_causal_mask")
    proto = ModelProto.FromString(case.model.SerializeToString())
    body = next(attribute.g for attribute in proto.graph.node[0].attribute if attribute.HasField("g"))
    body.initializer[0].name = "5 (}"
    with pytest.raises(ModelError, match="its names or attributes do not fit the body that ONNX gives for it"):
        import_onnx(proto)


# --- symbolic sizes through rules ---------------------------------------------------------------------------------------

SYMBOLIC = [
    ("Conv", [["N", 3, "H", "W"], [4, 3, 3, 3]], {"strides": [2, 2], "pads": [1, 1, 1, 1]}, [(2, 3, 7, 8), (4, 3, 3, 3)]),
    ("Conv", [["N", 3, "H"], [4, 3, 3]], {"strides": [2], "auto_pad": "SAME_UPPER"}, [(2, 3, 7), (4, 3, 3)]),
    ("ConvTranspose", [["N", 3, "H"], [3, 4, 3]], {"strides": [2], "pads": [1, 1]}, [(2, 3, 5), (3, 4, 3)]),
    ("MaxPool", [["N", 2, "H"]], {"kernel_shape": [3], "strides": [2]}, [(2, 2, 8)]),
    ("AveragePool", [["N", 2, "H"]], {"kernel_shape": [3], "pads": [1, 1]}, [(1, 2, 5)]),
    ("GlobalAveragePool", [["N", 2, "H"]], {}, [(1, 2, 5)]),
    ("Gemm", [["N", 4], [5, 4], [5]], {"transB": 1, "alpha": 0.5, "beta": 2.0}, [(3, 4), (5, 4), (5,)]),
    ("MatMul", [["N", "M", 4], [4]], {}, [(2, 3, 4), (4,)]),
    ("Einsum", [["B", "S", 4], [5, 4]], {"equation": "bsd,ed->bse"}, [(2, 3, 4), (5, 4)]),
    ("Einsum", [["B", "H", "S", 4], ["B", "H", "T", 4]], {"equation": "...qd,...kd->...qk"}, [(2, 3, 4, 4), (2, 3, 5, 4)]),
    ("LayerNormalization", [["N", 6], [6], [6]], {}, [(3, 6), (6,), (6,)]),
    ("InstanceNormalization", [["N", 2, "H"], [2], [2]], {}, [(2, 2, 5), (2,), (2,)]),
    ("Softmax", [["N", "M"]], {"axis": 0}, [(2, 3)]),
    ("ReduceMean", [["N", "M"], ints(1)], {"keepdims": 0}, [(2, 3)]),
    ("CumSum", [["N", "M"], ints(1)[0]], {"reverse": 1}, [(2, 3)]),
    ("Trilu", [["N", "M"]], {"upper": 0}, [(3, 4)]),
    ("Tile", [["N", 2], ints(2, 3)], {}, [(3, 2)]),
    ("Pad", [["N", 2], ints(1, 0, 2, 1)], {"mode": "edge"}, [(3, 2)]),
    ("DepthToSpace", [["N", 8, "H", "W"]], {"blocksize": 2}, [(1, 8, 2, 3)]),
    ("Split", [["N", 6]], {"num_outputs": 1, "axis": 1}, [(2, 6)]),
    ("Flatten", [["N", 2, "M"]], {"axis": 2}, [(2, 2, 3)]),
    ("OneHot", [(INT, ["N"]), ints(5)[0], floats(0, 1)], {}, [ints(0, -1, 4)]),
    ("LSTM", [[3, "N", 4], [1, 20, 4], [1, 20, 5], [1, 40]], {"hidden_size": 5}, [(3, 2, 4), (1, 20, 4), (1, 20, 5), (1, 40)]),
]


@pytest.mark.parametrize(("op_type", "operands", "attributes", "given"), SYMBOLIC, ids=[f"{c[0]}-{n}" for n, c in enumerate(SYMBOLIC)])
def test_symbolic_sizes_agree_with_onnxruntime(model, op_type, operands, attributes, given):
    proto = single(model, op_type, operands, attributes, 20)
    random = np.random.default_rng(0)
    arrays = [a if isinstance(a, np.ndarray) else random.standard_normal(a).astype(np.float32) for a in given]
    module = import_onnx(proto)
    assert any("N" in str(value.type) or "B" in str(value.type) for value in module.main.outputs)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, {value.name: array for value, array in zip(session.get_inputs(), arrays, strict=True)})
    np.testing.assert_allclose(interpret(module, arrays)[0], expected[0], rtol=1e-5, atol=1e-5)


def refusal(model, op_type, inputs, attributes=None):
    names = [f"x{n}" for n in range(len(inputs))]
    proto = model([helper.make_node(op_type, names, ["y"], **(attributes or {}))], dict(zip(names, inputs, strict=True)), ["y"])
    with pytest.raises((UnsupportedError, ModelError, InternalError)) as caught:
        import_onnx(proto)
    return caught.value


def test_what_a_call_decides_is_not_the_models_fault(model, monkeypatch):

    error = refusal(model, "Det", [(F, ["N", "M", "K"])])
    assert isinstance(error, UnsupportedError) and "determinant of size K" in str(error)
    error = refusal(model, "DFT", [(F, ["N", "L", "K"])])
    assert isinstance(error, UnsupportedError) and "the last axis of f32[N, L, K] is symbolic" in str(error)
    error = refusal(model, "GridSample", [(F, ["N", "C", "H", "W"]), (F, ["N", "A", "B", "K"])])
    assert isinstance(error, UnsupportedError) and "relate or fix the symbolic sizes" in str(error)

    def stumbles(n):
        return n.x().shape[0] < "4"

    # Our own TypeError: sizes of a call may have led to it; without any it is a bug, unless ONNX refuses the node itself.
    monkeypatch.setitem(RULES, ("", "Relu"), stumbles)
    error = refusal(model, "Relu", [(F, ["N", 4])])
    assert isinstance(error, UnsupportedError) and "not with the symbolic sizes N" in str(error)
    error = refusal(model, "Relu", [(F, [2, 4])])
    assert isinstance(error, InternalError) and str(error).startswith("Relu at y: TypeError: '<' not supported")
    error = refusal(model, "Relu", [(F, [2, 4]), (F, [2, 4])])
    assert isinstance(error, ModelError) and "Relu: node is malformed: Node" in str(error)


@pytest.mark.parametrize(("sizes", "channels"), [([4], 4), (["C"], "C")])
def test_instance_normalization_of_symbolic_sizes(model, sizes, channels):

    inputs = {"x": (F, ["N", "C", "H", "W"]), "s": (F, sizes), "b": (F, sizes)}
    module = import_onnx(model([helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])], inputs, ["y"]))
    assert str(module.main.inputs[0].shape[1]) == str(channels)
    rng = np.random.default_rng(0)
    x, s, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 3, 5), 4, 4))
    wide = x.astype(np.float64)
    centered = wide - wide.mean((2, 3), keepdims=True)
    wanted = centered / np.sqrt((centered**2).mean((2, 3), keepdims=True) + 1e-5) * s[:, None, None] + b[:, None, None]
    assert np.abs(interpret(module, [x, s, b])[0] - wanted).max() < 1e-5
    if channels == "C":
        with pytest.raises(UsageError, match="too wide, the model is valid"):
            import_onnx(
                model([helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])], {**inputs, "s": (F, [4]), "b": (F, [4])}, ["y"]),
                shapes={"C": (1, 8)},
            )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("op_type", "expected"), [("ReduceL2", [5, 7]), ("ReduceLogSum", [1, 2]), ("ReduceLogSumExp", [4, 6])])
def test_roots_and_logarithms_of_integers_are_cut_off(model, op_type, expected, dtype):
    x = np.array([[3, 4], [3, 6]], dtype) if op_type != "ReduceL2" else np.array([[3, 4], [-2, 7]], dtype)
    built = single(
        model, op_type, [(TensorProto.INT64 if dtype == np.int64 else TensorProto.INT32, [2, 2])], {"axes": [1], "keepdims": 0}, 13
    )
    (got,) = interpret(import_onnx(built), [x])
    assert got.dtype == dtype and got.tolist() == expected
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x0": x})[0].tolist() == expected


@pytest.mark.parametrize(("shape", "axis"), [([2, 0], -1), ([0, 3], 0), ([0], 0)])
def test_hardmax_of_nothing_is_nothing(model, shape, axis):
    (got,) = interpret(import_onnx(single(model, "Hardmax", [shape], {"axis": axis}, 13)), [np.zeros(shape, np.float32)])
    assert list(got.shape) == shape
