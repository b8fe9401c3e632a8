"""ONNX Runtime's own ops (`com.microsoft`) that are no attention, on drawn cases against ONNX Runtime itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from nodes import NodeCase, Operand, differences, faults_of_engines, node_model

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.ir.errors import ModelError, UnsupportedError

from ....peers import needs_exact_sums

F16, F32 = np.float16, np.float32
SEEDS = 12


def floats(rng, *shape, dtype=F32):
    return rng.standard_normal(shape).astype(dtype)


def sometimes(rng, make):
    return make() if rng.random() < 0.5 else None


def rows(rng, dtype):
    """[batch, sequence, hidden] or [tokens, hidden], its leading sizes symbolic or not."""
    batch, length, hidden = (int(size) for size in rng.integers(1, (4, 6, 40)))
    shape, names = ((batch, length, hidden), ("B", "S")) if rng.random() < 0.7 else ((length, hidden), ("S",))
    return Operand(floats(rng, *shape, dtype=dtype), names if rng.random() < 0.7 else ())


def skip_norm(rng):
    dtype = rng.choice([F32, F16])
    x = rows(rng, dtype)
    hidden, rank = x.array.shape[-1], x.array.ndim
    skips = [x.array.shape] if rank == 2 else [x.array.shape, x.array.shape[1:], (1, *x.array.shape[1:])]
    skip = skips[rng.integers(len(skips))]
    names = x.sizes if len(skip) == rank and skip[0] == x.array.shape[0] else (None,) * (len(skip) - 2) + x.sizes[1:]
    simplified = rng.random() < 0.5
    vector = [floats(rng, hidden, dtype=dtype) for _ in range(3)]
    optional = [sometimes(rng, lambda: vector[1]), sometimes(rng, lambda: vector[2])][simplified:]
    operands = [x, Operand(floats(rng, *skip, dtype=dtype), names), vector[0], *optional]
    attributes = {"epsilon": float(rng.choice([1e-12, 1e-5, 0.1]))}
    kind = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    return NodeCase(kind, operands, attributes, (True, False, False, bool(rng.random() < 0.6)))


def simplified_norm(rng):
    dtype = rng.choice([F32, F16])
    x = rows(rng, dtype)
    axis = int(rng.integers(1, x.array.ndim))
    axis -= x.array.ndim * (rng.random() < 0.5)
    # A symbolic size is not normalized over here: the scale has it too.
    x = Operand(x.array, x.sizes[: axis % x.array.ndim])
    scale = floats(rng, *x.array.shape[axis % x.array.ndim :], dtype=dtype)
    outputs = (True, bool(rng.random() < 0.5))
    return NodeCase("SimplifiedLayerNormalization", [x, scale], {"axis": axis, "epsilon": float(rng.choice([1e-6, 0.1]))}, outputs, "")


def embedding(rng):
    batch, length, hidden = (int(size) for size in rng.integers(1, (4, 6, 40)))
    names = ("B", "S")

    def ids(high):
        return Operand(rng.integers(0, high, (batch, length)).astype(np.int32), names)

    segments, masked = rng.random() < 0.6, rng.random() < 0.5
    places = sometimes(rng, lambda: ids(7) if rng.random() < 0.5 else rng.integers(0, 7, (1, length)).astype(np.int32))
    if isinstance(places, np.ndarray):
        places = Operand(places, (None, "S"))
    operands = [
        *(
            ids(9),
            ids(2) if segments else None,
            floats(rng, 9, hidden),
            floats(rng, 7, hidden),
            floats(rng, 2, hidden) if segments else None,
        ),
        *(floats(rng, hidden), floats(rng, hidden), ids(3) if masked else None, places),
    ]
    return NodeCase("EmbedLayerNormalization", operands, {"epsilon": 1e-5}, (True, True, bool(rng.random() < 0.5)))


def gelu(rng):
    kind = str(rng.choice(["Gelu", "BiasGelu", "FastGelu", "QuickGelu"]))
    x = rows(rng, F32)
    bias = [floats(rng, x.array.shape[-1])] if kind == "BiasGelu" or (kind == "FastGelu" and rng.random() < 0.5) else []
    attributes = {"alpha": float(rng.choice([1.0, 1.7]))} if kind == "QuickGelu" and rng.random() < 0.6 else {}
    return NodeCase(kind, [x, *bias], attributes)


def fused_matmul(rng):
    rank = int(rng.integers(2, 5))
    batch = [int(size) for size in rng.integers(1, 4, rank - 2)]
    m, k, n = (int(size) for size in rng.integers(1, 7, 3))
    flags = {name: int(rng.random() < 0.4) for name in ("transA", "transB", *(("transBatchA", "transBatchB") if rank > 3 else ()))}

    def arranged(rows, columns, letter):
        if flags[f"trans{letter}"]:
            rows, columns = columns, rows
        shape = [rows, *batch, columns] if flags.get(f"transBatch{letter}") else [*batch, rows, columns]
        return floats(rng, *shape)

    a, b = arranged(m, k, "A"), arranged(k, n, "B")
    if rng.random() < 0.3 and not flags.get("transBatchA") and not flags.get("transBatchB"):
        b = b.reshape(-1, *b.shape[-2:])[0]
    return NodeCase(
        "FusedMatMul", [Operand(a, ("M",) if rank > 2 else ()), b] if rng.random() < 0.5 and not batch else [a, b], flags | alpha(rng)
    )


def alpha(rng):
    return {"alpha": float(rng.choice([0.5, 2.0]))} if rng.random() < 0.5 else {}


GEMM = ["Relu", "Tanh", "Sigmoid", "Softplus", "Softsign", "LeakyRelu", "Elu", "ThresholdedRelu", "HardSigmoid"]
CONV = {"Relu": [], "Tanh": [], "Sigmoid": [], "LeakyRelu": [0.3], "Clip": [-0.5, 0.7], "HardSigmoid": [0.3, 0.4], "HardSwish": []}


def fused_gemm(rng):
    m, k, n = (int(size) for size in rng.integers(1, 7, 3))
    flags = {name: int(rng.random() < 0.5) for name in ("transA", "transB")}
    a, b = floats(rng, *((k, m) if flags["transA"] else (m, k))), floats(rng, *((n, k) if flags["transB"] else (k, n)))
    numbers = {"activation_alpha": 0.3, "activation_beta": 0.4, "activation_gamma": 1.0}
    return NodeCase(
        "FusedGemm", [a, b, sometimes(rng, lambda: floats(rng, n))], flags | numbers | alpha(rng) | {"activation": str(rng.choice(GEMM))}
    )


def fused_conv(rng):
    name = str(rng.choice(list(CONV)))
    bias = sometimes(rng, lambda: floats(rng, 4))
    added = sometimes(rng, lambda: floats(rng, 2, 4, 6, 6))
    attributes = {"activation": name, "pads": [1, 1, 1, 1], "group": 2} | ({"activation_params": CONV[name]} if CONV[name] else {})
    return NodeCase("FusedConv", [floats(rng, 2, 6, 6, 6), floats(rng, 4, 3, 3, 3), bias, added], attributes)


def blocks(rng):
    """A table in blocks, its codes plain or packed in bytes along the last axis; some indices are out of range."""
    shape = [between(rng, 1, 5), between(rng, 1, 3), 16 * between(rng, 1, 3)][rng.integers(2) :]
    rank, block, dtype = len(shape), int(rng.choice([16, 32])), rng.choice([F32, F16])
    kind, bits = str(rng.choice(["u4", "i4", "bytes"])), int(rng.choice([2, 4, 8]))
    along = rank - 1 if kind == "bytes" or rng.random() < 0.5 else between(rng, 0, rank - 1)
    gathered = 0 if kind == "bytes" else between(rng, 0, rank - 1)
    if gathered == along:
        gathered = (along + 1) % rank
    scales = [-(-size // block) if axis == along else size for axis, size in enumerate(shape)]
    if kind == "bytes":
        data = rng.integers(0, 256, [*shape[:-1], shape[-1] * bits // 8]).astype(np.uint8)
        zeros = rng.integers(0, 256, [*scales[:-1], -(-scales[-1] * bits // 8)]).astype(np.uint8)
    else:
        low, code = (0, ml_dtypes.uint4) if kind == "u4" else (-8, ml_dtypes.int4)
        data, zeros = (rng.integers(low, low + 16, sizes).astype(code) for sizes in (shape, scales))
    size = shape[gathered]
    indices = rng.integers(-size - 1, size + 1, [between(rng, 1, 4)] * between(rng, 1, 2)).astype(rng.choice([np.int32, np.int64]))
    zero = sometimes(rng, lambda: Operand(zeros, (), True))
    scale = Operand(rng.uniform(0.1, 2, scales).astype(dtype), (), True)
    attributes = {"bits": bits if kind == "bytes" else 4, "block_size": block, "quantize_axis": along - rank * (rng.random() < 0.5)}
    return NodeCase(
        "GatherBlockQuantized", [Operand(data, (), True), Operand(indices, ("N",)), scale, zero], attributes | {"gather_axis": gathered}
    )


def float_blocks(rng):
    """A table of fp8 or fp4 in blocks, or of one block for each row; its scales may be the same for every row."""
    rows, columns, block = between(rng, 2, 5), 16 * between(rng, 1, 3), int(rng.choice([0, 16]))
    code = rng.choice([ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn])
    data = floats(rng, rows, columns).astype(code)
    scale = rng.uniform(0.1, 2, (rows if rng.random() < 0.5 else 1, columns // block if block else 1)).astype(F32)
    indices = Operand(rng.integers(-rows, rows, between(rng, 1, 4)), ("N",))
    return NodeCase("GatherBlockQuantized", [Operand(data, (), True), indices, Operand(scale, (), True)], {"block_size": block})


def last_channels(rng):
    """Codes whose channels stand last: a convolution, or a pool."""
    x = rng.integers(0, 256, (2, 6, 5, 4)).astype(np.uint8)
    attributes = {"pads": [1, 0, 1, 1], "strides": [1, 2]}
    if rng.random() < 0.3:
        return NodeCase("NhwcMaxPool", [Operand(x, ("B",))], attributes | {"kernel_shape": [3, 2], "ceil_mode": int(rng.random() < 0.5)})
    last, groups = int(rng.random() < 0.7), int(rng.choice([1, 2]))
    w = Operand(rng.integers(-128, 128, (6, (4 if last else 6) // groups, 3, 3)).astype(np.int8), (), True)
    each = 6 if rng.random() < 0.5 else 1
    scales = rng.uniform(0.01, 0.02, each).astype(F32)
    bias = sometimes(rng, lambda: Operand(rng.integers(-900, 900, 6).astype(np.int32), (), True))
    operands = [Operand(x, ("B",)), F32(0.02), np.uint8(120), w, scales, np.zeros(each, np.int8), F32(1.7), np.uint8(117), bias]
    return NodeCase("QLinearConv", operands, attributes | {"channels_last": last, "group": groups})


def weight_bits(rng):
    """A product with a weight of few bits; its zero points are left out, packed, or floats."""
    bits, block, dtype = int(rng.choice([2, 4, 8])), int(rng.choice([16, 32])), rng.choice([F32, F16])
    n, k = between(rng, 1, 6), between(rng, 1, 70)
    each = -(-k // block)
    weight = rng.integers(0, 256, (n, each, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.1, 2, n * each).astype(dtype)
    packed, whole = rng.integers(0, 256, n * -(-each * bits // 8)).astype(np.uint8), rng.uniform(0, 2**bits, n * each).astype(dtype)
    zero = (None, packed, whole)[rng.integers(3 if bits == 4 else 2)]
    bias = sometimes(rng, lambda: floats(rng, n, dtype=dtype))
    constants = [None if x is None else Operand(x, (), True) for x in (weight, scales, zero, None, bias)]
    x = Operand(floats(rng, 2, between(rng, 1, 4), k, dtype=dtype), ("B", "S"))
    return NodeCase("MatMulNBits", [x, *constants], {"K": k, "N": n, "bits": bits, "block_size": block})


def between(rng, low, high):
    return int(rng.integers(low, high + 1))


DRAWS = [
    weight_bits,
    blocks,
    float_blocks,
    last_channels,
    skip_norm,
    simplified_norm,
    embedding,
    gelu,
    fused_matmul,
    fused_gemm,
    fused_conv,
]


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_drawn_nodes_compute_what_onnxruntime_computes(draw):
    if draw is last_channels:
        needs_exact_sums()
    wrong = differences(draw, SEEDS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("bits", "format"), [(2, "uint2.g32.f32.offset"), (4, "uint4.g32.f32.offset"), (8, "uint8.g32.f32.offset")])
def test_codes_with_zero_points_that_are_floats_stay_codes(bits, format):
    rng = np.random.default_rng(bits)
    held = (
        rng.integers(0, 256, (64, 8, 4 * bits)).astype(np.uint8),
        rng.uniform(0.1, 2, 512).astype(F32),
        rng.uniform(0, 9, 512).astype(F32),
    )
    operands = [np.zeros((2, 256), F32), *(Operand(array, (), True) for array in held)]
    module, _ = node_model(NodeCase("MatMulNBits", operands, {"K": 256, "N": 64, "bits": bits, "block_size": 32}))
    ops = [op for op in import_onnx(module).main if op.name == "decode"]
    assert [op.attrs["format"] for op in ops] == [format]


@pytest.mark.timeout(600)
def test_engines_compute_what_the_reference_computes():
    assert not faults_of_engines(DRAWS, 2)


def table(position, array):
    """Operands of GatherBlockQuantized with another one at a position."""
    operands = [np.zeros((3, 8), np.uint8), np.zeros(1, np.int64), np.ones((3, 1), F32)]
    return [Operand(array if place == position else operand, (), True) for place, operand in enumerate(operands)]


BITS = [np.zeros((2, 16), F32), Operand(np.zeros((3, 1, 8), np.uint8), (), True), Operand(np.ones(3, F32), (), True)]
ROWS = [np.zeros((2, 3, 4), F32)]
REFUSED = [
    ("FusedGemm", [np.zeros((2, 2), F32)] * 2, {"activation": "ScaledTanh"}, "attribute 'activation' is 'ScaledTanh'"),
    ("MatMulNBits", BITS, {"K": 16, "N": 3, "block_size": 16, "weight_prepacked": 1}, "attribute 'weight_prepacked' is 1"),
    ("BiasGelu", [*ROWS, np.zeros((3, 4), F32)], {}, "bias has rank 2, expected 1"),
    ("SkipLayerNormalization", [*ROWS, np.zeros(4, F32), np.zeros(4, F32)], {}, "got f32[2, 3, 4] and skip f32[4], expected rank 2 or 3"),
    ("SkipLayerNormalization", [*ROWS, np.zeros((2, 1, 4), F32), np.zeros(4, F32)], {}, "expected the same last two sizes"),
    ("GatherBlockQuantized", table(2, np.ones(3, F32)), {"block_size": 16}, "got blocks of 16 with scales f32[3]"),
    ("GatherBlockQuantized", table(0, np.zeros((3, 8), np.uint8)), {"block_size": 16, "bits": 3}, "got 3 bits, expected 2, 4 or 8"),
    (
        "EmbedLayerNormalization",
        [np.zeros(3, np.int32), None, *[np.zeros((4, 4), F32)] * 2, None, *[np.zeros(4, F32)] * 2],
        {},
        "got i32[3], expected",
    ),
]


@pytest.mark.parametrize(("op_type", "operands", "attributes", "message"), REFUSED)
def test_what_is_not_supported_is_refused_in_a_sentence(op_type, operands, attributes, message):
    with pytest.raises((ModelError, UnsupportedError)) as raised:
        import_onnx(node_model(NodeCase(op_type, operands, attributes))[0])
    assert message in f"{raised.value} {raised.value.note}"
