import os
import random

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from ourcc.compiler.importers.onnx import import_onnx, load, tensors, walk
from ourcc.ir.errors import CompilerError, ModelError, UnsupportedError
from ourcc.ir.graph.reference import interpret

F, INT = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def add(model, constant):
    """x + constant, the constant given as a TensorProto named w."""
    return model([node("Add", ["x", "w"], ["y"])], {"x": (F, [4])}, ["y"], {"w": constant})


def refused(proto, text):
    with pytest.raises(ModelError, match=text) as caught:
        import_onnx(proto)
    message = caught.value.message
    assert message[0].islower() or not message[0].isalpha() or message.split(":")[0].isidentifier()
    assert not message.endswith(".")
    return caught.value


# --- files --------------------------------------------------------------------------------------------------------------


def test_files_that_are_no_models(tmp_path):
    for content, text in (
        (b"", "the model file is empty"),
        (b"PK\3\4 not a model", "is not an ONNX model|holds no ONNX graph"),
        (b"\x08\x09", "no ONNX graph"),
    ):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        refused(path, text)
        refused(content, text)


def test_paths_that_cannot_be_read(tmp_path):
    refused(tmp_path / "absent.onnx", "cannot open .*absent.onnx.*: No such file")
    refused(tmp_path, "is not a regular file")
    refused("a\0b", "cannot open")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "is not a regular file")


def test_a_file_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(load, "FILE_BYTES", 99)
    assert "external data" in str(refused(path, "has 100 bytes, expected at most 99"))


def test_every_truncation_is_one_clear_error_or_a_model(model):
    data = add(model, numpy_helper.from_array(np.ones(4, np.float32), "w")).SerializeToString()
    for length in range(len(data)):
        try:
            import_onnx(data[:length])
        except CompilerError as error:
            assert str(error)


def test_random_damage_is_one_clear_error_or_a_model(model):
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[1, 1], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Shape", ["r"], ["s"]),
        node("Reshape", ["r", "t"], ["f"]),
        node("Gemm", ["f", "v"], ["y"], transB=1),
    ]
    constants = {"w": np.ones((2, 3, 3, 3), np.float32), "t": np.array([0, -1]), "v": np.ones((4, 128), np.float32)}
    data = model(nodes, {"x": (F, ["N", 3, 8, 8])}, ["y"], constants).SerializeToString()
    generator = random.Random(0)
    refusals = 0
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(generator.choice((1, 1, 2, 8))):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            import_onnx(bytes(damaged))
        except CompilerError as error:
            refusals += 1
            assert str(error)
    assert refusals > 50


# --- structure ----------------------------------------------------------------------------------------------------------


def test_structures_that_are_no_programs(model):
    relu = node("Relu", ["x"], ["y"])
    inputs = {"x": (F, [4])}
    refused(model([node("Relu", ["ghost"], ["y"])], inputs, ["y"]), "value 'ghost' is read and never defined")
    refused(model([node("Relu", ["z"], ["y"]), node("Relu", ["y"], ["z"])], inputs, ["y"]), "value 'z' is read and never defined")
    refused(model([relu, node("Neg", ["x"], ["y"])], inputs, ["y"]), "value 'y' is defined twice")
    refused(model([relu], inputs, ["y"], {"y": np.ones(1, np.float32)}), "value 'y' is defined twice")
    refused(model([relu], inputs, ["q"]), "value 'q' is read and never defined")
    refused(model([relu], inputs, ["y", "y"]), "two outputs of the graph have the same name")
    refused(model([node("Relu", [], ["y"])], inputs, ["y"]), "Relu: relu: got 0 operands, expected 1")
    refused(model([node("MatMul", ["x"], ["y"])], inputs, ["y"]), "MatMul: input 1 is missing")
    refused(model([node("Relu", ["x"], ["y", "z"])], inputs, ["y"]), "Relu: has no output 1")
    refused(model([node("Sum", [], ["y"])], inputs, ["y"]), "Sum: has no inputs")
    twice = model([relu], inputs, ["y"])
    twice.graph.input.append(twice.graph.input[0])
    refused(twice, "two inputs of the graph have the same name")
    same = model([relu], inputs, ["y"], {"w": np.ones(1, np.float32)})
    same.graph.initializer.append(same.graph.initializer[0])
    refused(same, "value 'w' is defined twice")


def test_names_that_are_no_text(model):
    data = model([node("Relu", ["x"], ["y"], "name")], {"x": (F, [4])}, ["y"]).SerializeToString()
    refused(data.replace(b"name", b"n\xffme"), r"the name b'n\\xffme' is not UTF-8 text")


def test_versions_that_are_not_known(model):
    def made(opset, ir_version=10):
        proto = model([node("Relu", ["x"], ["y"])], {"x": (F, [4])}, ["y"])
        proto.opset_import[0].version = opset
        proto.ir_version = ir_version
        return proto

    refused(made(999), "opset 999 is newer than")
    refused(made(0), "opset version 0 of domain '' is not valid")
    refused(made(-5), "opset version -5")
    refused(made(21, -1), "ir_version -1 is not valid")


def test_sizes_that_no_honest_model_has(model):
    def sized(*shape):
        return model([node("Relu", ["x"], ["y"])], {"x": (F, shape)}, ["y"])

    refused(sized(2**62, 2**62, 2**62, 2**62), f"dimension {2**62} is out of range")
    refused(sized(-7), "dimension -7 is out of range")
    refused(sized(2**30, 2**30), "is larger than")
    refused(sized(*[1] * 33), "tensor has rank 33, expected at most 32")
    refused(sized(*[None] * 33), "input 'x' has rank 33, expected at most 32")
    odd = sized(3)
    odd.graph.input[0].type.tensor_type.elem_type = 99
    refused(odd, "element type 99 is not known")


def test_counts_and_depths_are_limited(model, monkeypatch):
    chain = [node("Relu", [f"v{n}" if n else "x"], [f"v{n + 1}"]) for n in range(5)]
    proto = model(chain, {"x": (F, [4])}, ["v5"])
    monkeypatch.setattr(load, "NODES", 4)
    refused(proto, "the model has 5 nodes, expected at most 4")
    monkeypatch.setattr(load, "NODES", 10)
    monkeypatch.setattr(walk, "STEPS", 4)
    monkeypatch.setattr(walk, "GROWTH", 0)
    refused(proto, "unrolls to more than 4 nodes, its file has 5")
    refused(
        model([node("Relu", ["x"], ["y" * 20_000])], {"x": (F, [4])}, ["y" * 20_000]), "is 20000 characters long, expected at most 16384"
    )
    monkeypatch.setattr(load, "FUNCTIONS", 0)
    function = helper.make_function("d", "f", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 21)])
    refused(model(chain, {"x": (F, [4])}, ["v5"], functions=[function]), "the model has 1 functions, expected at most 0")


def test_nesting_is_limited(model):
    graph = helper.make_graph([node("Relu", ["x"], ["r"])], "leaf", [], [helper.make_tensor_value_info("r", F, None)])
    for depth in range(26):
        output = helper.make_tensor_value_info(f"n{depth}", F, None)
        graph = helper.make_graph([node("If", ["c"], [f"n{depth}"], then_branch=graph, else_branch=graph)], "g", [], [output])
        if depth > 6:
            # Both branches would double the file at each level.
            graph.node[0].attribute.pop()
    proto = model([], {"x": (F, [4])}, ["n25"], {"c": np.array(True)})
    proto.graph.node.extend(graph.node)
    refused(proto, "graphs are nested more than 24 deep")


def test_attributes_of_a_wrong_kind(model):
    def made(**attributes):
        return model([node("LeakyRelu", ["x"], ["y"], **attributes)], {"x": (F, [4])}, ["y"])

    twice = made(alpha=0.5)
    twice.graph.node[0].attribute.append(twice.graph.node[0].attribute[0])
    refused(twice, "attribute 'alpha' is given twice")
    unknown = made(alpha=0.5)
    unknown.graph.node[0].attribute[0].type = AttributeProto.UNDEFINED
    unknown.graph.node[0].attribute[0].ClearField("f")
    refused(unknown, "attribute 'alpha' has the unknown type 0")
    text = model([node("Transpose", ["x"], ["y"], perm="ab")], {"x": (F, [4])}, ["y"])
    refused(text, "Transpose: attribute 'perm' is not a list")
    floats = model([node("Transpose", ["x"], ["y"], perm=[0.5])], {"x": (F, [4])}, ["y"])
    refused(floats, "Transpose: attribute 'perm' is not a list of int")
    number = model([node("Concat", ["x", "x"], ["y"], axis="zero")], {"x": (F, [4])}, ["y"])
    refused(number, "Concat: attribute 'axis' is not an integer")
    latin = model([node("Gelu", ["x"], ["y"], approximate="none")], {"x": (F, [4])}, ["y"])
    latin.graph.node[0].attribute[0].s = b"\xff\xfe"
    refused(latin, "attribute 'approximate' is not UTF-8 text")
    missing = model([node("If", ["c"], ["y"])], {}, ["y"], {"c": np.array(True)})
    refused(missing, "If: attribute 'then_branch' is missing")


def test_types_that_do_not_fit_are_the_models_error(model):
    refused(model([node("Add", ["x", "i"], ["y"])], {"x": (F, [4]), "i": (INT, [4])}, ["y"]), "Add: add: .*i64")
    refused(model([node("MatMul", ["x", "w"], ["y"])], {"x": (F, [2, 3]), "w": (F, [4, 5])}, ["y"]), "MatMul: matmul: ")


# --- tensors ------------------------------------------------------------------------------------------------------------


def raw(dims, data, kind=F):
    return TensorProto(name="w", dims=dims, data_type=kind, raw_data=data)


def test_tensors_whose_bytes_do_not_fit(model):
    refused(add(model, raw([4], b"\0" * 15)), "tensor 'w': got 15 bytes, expected 16")
    refused(add(model, raw([2**40], b"\0" * 16)), "is larger than")
    refused(add(model, raw([-4], b"\0" * 16)), "dimension -4 is out of range")
    refused(add(model, raw([4], b"\0" * 16, 77)), "element type 77 is not known")
    refused(add(model, TensorProto(name="w", dims=[4], data_type=F, float_data=[1.0])), "tensor 'w': got 1 values, expected 4")
    refused(add(model, TensorProto(name="w", dims=[4], data_type=TensorProto.INT4, int32_data=[1])), "got 1 values, expected 2")
    refused(add(model, TensorProto(name="w", dims=[2], data_type=TensorProto.STRING, string_data=[b"a"])), "got 1 strings, expected 2")
    refused(add(model, TensorProto(name="w", dims=[1], data_type=TensorProto.STRING, string_data=[b"\xff"])), "a string is not UTF-8")
    segmented = add(model, raw([4], b"\0" * 16))
    segmented.graph.initializer[0].segment.begin = 1
    with pytest.raises(UnsupportedError, match="tensor 'w' is stored in segments"):
        import_onnx(segmented)


@pytest.mark.parametrize("kind", sorted(set(tensors.ELEMENT_TYPES) - {8}))
@pytest.mark.parametrize("form", ["raw", "fields"])
def test_every_element_type_is_read(model, kind, form):
    values = np.array([0, 1, 2, 1, 0]).astype(helper.tensor_dtype_to_np_dtype(kind))
    tensor = numpy_helper.from_array(values, "w") if form == "raw" else helper.make_tensor("w", kind, values.shape, values)
    module = import_onnx(model([node("Identity", ["w"], ["y"])], {}, ["y"], {"w": tensor}))
    result = interpret(module, [])[0]
    assert result.dtype == tensors.ELEMENT_TYPES[kind].numpy
    np.testing.assert_array_equal(result.astype(np.complex128), numpy_helper.to_array(tensor).astype(np.complex128))


def sparse(model, values, indices, shape):
    proto = model([node("Identity", ["w"], ["y"])], {}, ["y"])
    given = proto.graph.sparse_initializer.add()
    given.values.CopyFrom(numpy_helper.from_array(np.asarray(values, np.float32), "w"))
    given.indices.CopyFrom(numpy_helper.from_array(np.asarray(indices, np.int64)))
    given.dims.extend(shape)
    return proto


def test_sparse_constants_are_dense_here(model):
    for indices in ([1, 5], [[0, 1], [1, 2]]):
        np.testing.assert_array_equal(interpret(import_onnx(sparse(model, [7, 9], indices, [2, 3])), [])[0], [[0, 7, 0], [0, 0, 9]])
    refused(sparse(model, [7, 9], [1, 6], [2, 3]), "sparse constant: an index is out of range")
    refused(sparse(model, [7, 9], [1], [2, 3]), "sparse constant: indices int64.* do not fit 2 values")
    with pytest.raises(UnsupportedError, match="is too large to be made dense"):
        import_onnx(sparse(model, [7], [1], [2**30]))


# --- external data ------------------------------------------------------------------------------------------------------


def external(model, folder, **entries):
    tensor = TensorProto(name="w", dims=[4], data_type=F, data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "w.bin"} | entries).items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "m.onnx"
    path.write_bytes(add(model, tensor).SerializeToString())
    return path


def test_external_weights_are_mapped(model, tmp_path):
    weights = np.arange(8, dtype=np.float32)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(weights.tobytes())
    path = external(model, tmp_path, location="./sub/w.bin", offset=16, length=16)
    module = import_onnx(path)
    constant = next(iter(module.constants.values())).constant
    assert constant._array is None and constant.origin == "./sub/w.bin"
    np.testing.assert_array_equal(interpret(module, [np.zeros(4, np.float32)])[0], weights[4:])
    assert not constant.array.flags.writeable


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"location": "../w.bin"}, "is not a path inside the model's folder"),
        ({"location": "a/../../w.bin"}, "is not a path inside the model's folder"),
        ({"location": "/etc/passwd"}, "is not a path inside the model's folder"),
        ({"location": "..\\w.bin"}, "is not a path inside the model's folder"),
        ({"location": "C:\\w.bin"}, "is not a path inside the model's folder"),
        ({"location": "a\0b"}, "is not a path inside the model's folder"),
        ({"location": ""}, "is not a path inside the model's folder"),
        ({"location": "."}, "is not a file"),
        ({"location": "absent.bin"}, "cannot be opened: No such file"),
        ({"location": "link.bin"}, "cannot be opened: "),
        ({"location": "linked/w.bin"}, "cannot be opened: "),
        ({"location": "hard.bin"}, "has more than one hard link"),
        ({"location": "pipe"}, "is not a regular file"),
        ({"location": "folder"}, "is not a regular file"),
        ({"offset": 1, "length": 16}, "lie outside 'w.bin', which has 16"),
        ({"offset": 2**63}, "is not a number of bytes"),
        ({"offset": 10**17}, "lie outside"),
        ({"offset": -4}, "offset '-4' is not a number of bytes"),
        ({"length": "1e9"}, "length '1e9' is not a number of bytes"),
        ({"length": 12}, "got a length of 12 bytes, expected 16"),
        ({"command": "rm"}, "has the unknown key 'command'"),
    ],
)
def test_external_data_stays_inside(model, tmp_path, entries, text):
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path / "w.bin", folder / "w.bin", folder / "twice.bin"):
        place.write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "folder").mkdir()
    os.link(folder / "twice.bin", folder / "hard.bin")
    os.mkfifo(folder / "pipe")
    refused(external(model, folder, **entries), text)


def test_external_data_needs_a_folder_and_numbers(model, tmp_path):
    path = external(model, tmp_path)
    assert "pass the path" in str(refused(path.read_bytes(), "the model was given without a folder"))
    proto = ModelProto.FromString(path.read_bytes())
    proto.graph.initializer[0].data_type = TensorProto.STRING
    path.write_bytes(proto.SerializeToString())
    refused(path, "tensor 'w' of strings cannot be external")
