"""ONNX Runtime's own attention (`com.microsoft`) on drawn cases against ONNX Runtime itself."""

from __future__ import annotations

import numpy as np
import pytest
from generator import Case
from nodes import MICROSOFT, NodeCase, Operand, differences, faults_of_engines, node_model
from onnx import TensorProto, helper, numpy_helper
from quantizing import disagreement, theirs, wrong_engines

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir.errors import InputError, ModelError, UnsupportedError
from ourcc.ir.graph.reference import interpret
from ourcc.passes.fusion.partition import partition
from ourcc.passes.regions.compose import Group

from ....peers import needs_exact_sums

F16, F32, I32 = np.float16, np.float32, np.int32
SEEDS = 24


def floats(rng, *shape, dtype=F32):
    return rng.standard_normal(shape).astype(dtype)


def chance(rng, part=0.5):
    return bool(rng.random() < part)


def between(rng, low, high):
    return int(rng.integers(low, high + 1))


def mask_of(rng, batch, rows, columns, kinds, name="T"):
    """A mask in one of ONNX Runtime's forms, and the names of its sizes; every row of a causal attention keeps its first key."""
    kind = str(rng.choice(kinds))
    elements = rng.integers(0, 2, (batch, rows, columns)).astype(I32)
    elements[..., 0] = 1
    lengths = rng.integers(1, columns + 1, batch).astype(I32)
    if kind == "none":
        return None
    if kind == "dense":
        return Operand(elements, ("B", "S", name))
    if kind == "padding":
        return Operand(elements[:, 0], ("B", name))
    if kind == "dummy":
        return Operand(np.zeros((batch, 1), I32), ("B",))
    if kind == "lengths":
        return Operand(lengths, ("B",))
    if kind == "bounds":
        return np.concatenate([lengths, rng.integers(0, lengths)]).astype(I32)
    return np.concatenate([lengths, np.zeros(2 * batch + 2)]).astype(I32)


def self_attention(rng):
    batch, rows, heads, size, width = (between(rng, *bounds) for bounds in ((1, 3), (1, 5), (1, 3), (2, 8), (1, 12)))
    past, hidden = between(rng, 1, 4) if chance(rng, 0.4) else 0, heads * size
    other = heads * between(rng, 2, 9) if not past and chance(rng, 0.3) else hidden
    total = rows + past
    attributes = {"num_heads": heads, "unidirectional": int(chance(rng))}
    attributes |= {"qkv_hidden_sizes": [hidden, hidden, other]} if other != hidden or chance(rng, 0.2) else {}
    attributes |= {"scale": 0.3} if chance(rng, 0.3) else {}
    attributes |= {"mask_filter_value": float(rng.choice([-1.5, -3.4e38]))} if chance(rng, 0.3) else {}
    # ONNX Runtime reads a vector of bounds by its length: the batch is a number there.
    mask = mask_of(rng, batch, rows, total, ["none", "dense", "padding", "dummy", "lengths", "bounds", "packed"], "T" if past else "S")
    named = ("B", "S") if not isinstance(mask, np.ndarray) else (None, "S")
    bias = None
    if not past and chance(rng, 0.3):
        bias = Operand(floats(rng, batch if chance(rng) else 1, heads if chance(rng) else 1, rows, total), (None, None, "S", "S"))
    state = Operand(floats(rng, 2, batch, heads, past, size), (None, named[0], None, "P")) if past else None
    columns = 2 * hidden + other
    x, w, b = Operand(floats(rng, batch, rows, width), named), floats(rng, width, columns), floats(rng, columns)
    return NodeCase("Attention", [x, w, b, mask, state, bias], attributes, (True, bool(past) or (other == hidden and chance(rng))))


def multi_head(rng):
    batch, rows, heads, size = (between(rng, *bounds) for bounds in ((1, 3), (1, 5), (1, 3), (2, 8)))
    form, past = str(rng.choice(["self", "cross", "cached"])), 0
    keys = rows if form == "self" else between(rng, 1, 6)
    if form == "self" and chance(rng):
        past = between(rng, 1, 4)
    hidden = heads * size
    other = hidden if past or chance(rng, 0.7) else heads * between(rng, 2, 9)
    total, length = keys + past, "S" if form == "self" else "L"
    x = Operand(floats(rng, batch, rows, hidden), ("B", "S"))
    if form == "cached":
        other = hidden
        k, v = (Operand(floats(rng, batch, heads, keys, size), ("B", None, "L")) for _ in range(2))
    else:
        k, v = (Operand(floats(rng, batch, keys, part), ("B", length)) for part in (hidden, other))
    bias = floats(rng, 2 * hidden + other) if chance(rng) else None
    mask = mask_of(rng, batch, rows, total, ["none", "dense", "padding", "lengths"], "T" if past else length)
    added = None
    if chance(rng, 0.3):
        added = Operand(floats(rng, batch if chance(rng) else 1, heads if chance(rng) else 1, rows, total), (None, None, "S"))
    state = [Operand(floats(rng, batch, heads, past, size), ("B", None, "P")) if past else None for _ in range(2)]
    attributes = {"num_heads": heads, "unidirectional": int(form == "self" and chance(rng))} | ({"scale": 0.3} if chance(rng, 0.3) else {})
    # ONNX Runtime reads what is past only where it writes what is present.
    present = bool(past) or chance(rng)
    return NodeCase("MultiHeadAttention", [x, k, v, bias, mask, added, *state], attributes, (True, present, present))


def quantized_attention(rng):
    batch, rows, heads, size, width = (between(rng, *bounds) for bounds in ((1, 3), (1, 5), (1, 3), (2, 8), (1, 12)))
    past, columns = between(rng, 1, 4) if chance(rng, 0.4) else 0, 3 * heads * size
    kind = rng.choice([np.uint8, np.int8])
    info = np.iinfo(kind)
    w = rng.integers(info.min, info.max + 1, (width, columns)).astype(kind)
    per_column = chance(rng)
    scales = rng.uniform(0.01, 0.02, (columns,) if per_column else ()).astype(F32)
    zeros = [rng.integers(100, 150, ()).astype(np.uint8), rng.integers(-9 if info.min else 1, 9, scales.shape).astype(kind)]
    zeros = zeros if chance(rng) else [None, None]
    mask = mask_of(rng, batch, rows, rows + past, ["none", "padding", "lengths"])
    mask = None if mask is None else Operand(mask.array, mask.sizes[:1])
    state = floats(rng, 2, batch, heads, past, size) if past else None
    x = Operand(rng.integers(0, 256, (batch, rows, width)).astype(np.uint8), ("B",) if not past else ())
    mask = mask if not past or mask is None else mask.array
    operands = [x, Operand(w, (), True), floats(rng, columns), np.float32(0.02), scales, mask, *zeros, state]
    attributes = {"num_heads": heads, "unidirectional": int(chance(rng))}
    return NodeCase("QAttention", operands, attributes, (True, bool(past)))


def grouped(rng):
    """Prompts (padded or not, into a cache or without one), one token a sequence, and several tokens of one sequence."""
    dtype = F16 if chance(rng, 0.3) else F32
    form = str(rng.choice(["prompt", "prompt-cache", "token", "chunk"]))
    batch = 1 if form == "chunk" else between(rng, 1, 3)
    rows = 1 if form == "token" else between(rng, 1 + (form == "chunk"), 6)
    groups, size = between(rng, 1, 2), 16 * between(rng, 1, 2)
    heads = groups * between(rng, 1, 3)
    static = form == "prompt-cache" or (form != "prompt" and chance(rng))
    past = 0 if form == "prompt" else rows + between(rng, 0, 4) if static else between(rng, 1, 5)
    longest = rows if form.startswith("prompt") else between(rng, rows + 1, past) if static and past > rows else past + rows
    longest = longest if form != "chunk" or longest > rows else past + rows
    total = np.full(batch, longest, I32) if form == "chunk" else rng.integers(1, longest + 1, batch).astype(I32)
    total[0] = longest
    names = ("B", "S") if chance(rng) else ()
    packed = chance(rng, 0.4)
    widths = [(heads + 2 * groups) * size] if packed else [heads * size, groups * size, groups * size]
    new = [Operand(floats(rng, batch, rows, width, dtype=dtype), names) for width in widths] + [None] * (3 - len(widths))
    cache = [Operand(floats(rng, batch, groups, past, size, dtype=dtype), names and ("B", None, "P")) if past else None for _ in range(2)]
    rotary, attributes = chance(rng), {"num_heads": heads, "kv_num_heads": groups}
    turned = 8 * between(rng, 1, size // 16)
    tables = [function(floats(rng, 16, turned)).astype(dtype) for function in (np.cos, np.sin)] if rotary else [None, None]
    ids = Operand(rng.integers(0, 9, (batch, rows)).astype(np.int64), names) if rotary and chance(rng) else None
    bias = None
    if chance(rng, 0.3):
        bias = floats(rng, batch if chance(rng) else 1, heads if chance(rng) else 1, rows, longest, dtype=dtype)
        bias = Operand(bias, (None, None, names and "S", names and "T"))
    sink = floats(rng, heads, dtype=dtype) if chance(rng, 0.3) else None
    attributes |= {"do_rotary": int(rotary), "rotary_interleaved": int(chance(rng))}
    attributes |= {"softcap": 0.7} if chance(rng, 0.3) else {}
    attributes |= {"scale": 0.3} if chance(rng, 0.3) else {}
    attributes |= {"smooth_softmax": 1} if chance(rng, 0.3) else {}
    attributes |= ({"causal": 0} if chance(rng, 0.3) else {"local_window_size": between(rng, 1, 5)}) if chance(rng, 0.5) else {}
    if "local_window_size" in attributes and form.startswith("prompt"):
        # What ONNX Runtime's window shows behind the end of a padded prompt is nothing that was computed.
        total[:] = longest
    number = Operand(np.array(longest, I32), (), chance(rng) and not names)
    lengths = Operand((total - 1).astype(I32), names and ("B",))
    operands = [*new, *cache, lengths, number, *tables, ids, bias, sink]
    return NodeCase("GroupQueryAttention", operands, attributes, (True, True, True))


def rotary(rng):
    dtype = F16 if chance(rng, 0.3) else F32
    batch, rows, heads, size = between(rng, 1, 3), between(rng, 1, 5), between(rng, 1, 3), 2 * between(rng, 2, 8)
    flat, part = chance(rng), chance(rng, 0.4)
    turned = 2 * between(rng, 1, size // 2) if part else size
    tables = [function(floats(rng, 9, turned // 2)).astype(dtype) for function in (np.cos, np.sin)]
    x = Operand(floats(rng, batch, rows, heads * size, dtype=dtype), ("B", "S"))
    x = x if flat else Operand(floats(rng, batch, heads, rows, size, dtype=dtype), ("B", None, "S"))
    ids = Operand(rng.integers(0, 9, (batch, rows)), ("B", "S")) if chance(rng, 0.7) else np.array([between(rng, 0, 9 - rows)])
    attributes = {"interleaved": int(chance(rng))} | (
        {"num_heads": heads, "rotary_embedding_dim": turned} if part or chance(rng, 0.3) else {}
    )
    return NodeCase("RotaryEmbedding", [x, ids, *tables], attributes | ({"scale": 2.0} if chance(rng, 0.2) else {}))


DRAWS = [self_attention, multi_head, quantized_attention, grouped, rotary]


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_drawn_attention_computes_what_onnxruntime_computes(draw):
    if draw is quantized_attention:
        needs_exact_sums()
    wrong = differences(draw, SEEDS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(600)
def test_engines_compute_what_the_reference_computes():
    assert not faults_of_engines(DRAWS, 3)


def decoder(rng):
    """GroupQueryAttention as exporters of language models write it: its lengths come of a mask of all keys."""
    node = helper.make_node
    nodes = [
        node("ReduceSum", ["mask", "one"], ["sums"], keepdims=0),
        node("Sub", ["sums", "one"], ["less"]),
        node("Cast", ["less"], ["lengths"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "second"], ["size"]),
        node("Cast", ["size"], ["longest"], to=TensorProto.INT32),
        node(
            "GroupQueryAttention",
            ["x", "", "", "pk", "pv", "lengths", "longest", "cos", "sin"],
            ["y", "k", "v"],
            domain=MICROSOFT,
            num_heads=4,
            kv_num_heads=2,
            do_rotary=1,
        ),
    ]
    constants = {"one": np.array([1]), "second": np.array(1), "cos": np.cos(floats(rng, 32, 8)), "sin": np.sin(floats(rng, 32, 8))}
    cache = ["B", 2, "P", 16]
    inputs = {"x": ["B", "S", 128], "mask": ["B", "T"], "pk": cache, "pv": cache}
    infos = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "mask" else TensorProto.FLOAT, shape)
        for name, shape in inputs.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in "ykv"],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)], ir_version=10)


@pytest.mark.timeout(600)
def test_a_decoder_whose_lengths_come_of_a_mask():
    rng = np.random.default_rng(0)
    model, feeds = decoder(rng), []
    # A prompt, a prompt into a cache with room, tokens behind a full cache and in one with room, a chunk of one sequence.
    for batch, rows, past, total in ((2, 5, 0, 5), (2, 5, 9, 5), (3, 1, 6, 7), (3, 1, 9, 4), (1, 3, 4, 7), (1, 3, 9, 7)):
        # Tokens stand behind keys of which each sequence has some; other new rows behind all of them.
        kept = np.arange(total) < rng.integers(1 if rows == 1 else total, total + 1, (batch, 1))
        cache = {name: floats(rng, batch, 2, past, 16) for name in ("pk", "pv")}
        feeds.append({"x": floats(rng, batch, rows, 128), "mask": kept.astype(np.int64), **cache})
    module = import_onnx(model, shapes={"P": "0.."})
    assert not any(op.name == "nonzero" for op in module.main)
    wrong = [why for feed in feeds if (why := disagreement(module, feed, theirs(model, feed)))]
    assert not wrong, wrong
    empty = {name: array[:0] for name, array in feeds[2].items()}
    case = Case(module, tuple(tuple(feed[value.name] for value in module.main.inputs) for feed in (*feeds, empty)))
    assert not wrong_engines([case], ["decoder"])
    with pytest.raises(InputError, match="out of range"):
        interpret(module, [feeds[2][value.name] if value.name != "mask" else np.ones((3, 8), np.int64) for value in module.main.inputs])


# --- forms that ONNX Runtime's CPU kernels do not have ------------------------------------------------------------------


def answers(case):
    model, given = node_model(case)
    module = import_onnx(model)
    return interpret(module, [given[value.name] for value in module.main.inputs])


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_operands_are_their_parts_side_by_side(parts, biased):
    """Keys and values as [batch, rows, heads, 2, size], or all three: ONNX Runtime runs these on GPUs only."""
    rng = np.random.default_rng(parts)
    packed = floats(rng, 2, 4, 3, parts, 5)
    apart = [np.ascontiguousarray(packed[:, :, :, part]).reshape(2, 4, 15) for part in range(parts)]
    query = [] if parts == 3 else [floats(rng, 2, 6, 15)]
    bias = floats(rng, 45) if biased else None
    spelled = NodeCase("MultiHeadAttention", [*query, *apart, bias], {"num_heads": 3})
    given = NodeCase("MultiHeadAttention", [*query, packed, *(None,) * (parts - 1), bias], {"num_heads": 3})
    assert np.array_equal(answers(given)[0], answers(spelled)[0])


# --- one kernel -------------------------------------------------------------------------------------------------------


def padded_past(rng):
    shape, names = (2, 6, 64), ("B", "S")
    mask, past = Operand(np.ones((2, 9), I32), ("B", "T")), Operand(floats(rng, 2, 2, 4, 3, 16), (None, "B", None, "P"))
    operands = [Operand(floats(rng, *shape), names), Operand(floats(rng, 64, 192), (), True), floats(rng, 192), mask, past]
    return NodeCase("Attention", operands, {"num_heads": 4, "unidirectional": 1}, (True, True))


def cached(rng, **attributes):
    cache = [Operand(floats(rng, 2, 2, 7, 16), ("B", None, "P")) for _ in range(2)]
    new = [Operand(floats(rng, 2, 1, width), ("B",)) for width in (64, 32, 32)]
    operands = [*new, *cache, Operand(np.array([7, 4], I32), ("B",)), np.array(8, I32)]
    return NodeCase("GroupQueryAttention", operands, {"num_heads": 4, "kv_num_heads": 2} | attributes, (True, True, True))


KERNELS = {"past": padded_past, "cache": cached, "smooth": lambda rng: cached(rng, smooth_softmax=1, local_window_size=3)}


@pytest.mark.parametrize("name", KERNELS)
def test_scores_and_masks_are_computed_where_they_are_read(name):
    module = import_onnx(node_model(KERNELS[name](np.random.default_rng(0)))[0])
    simplify(module, build_options({}))
    groups = [unit for unit in partition(module, module.main) if isinstance(unit, Group)]
    (group,) = (group for group in groups if any(op.name == "attention" for op in group.ops))
    (op,) = (op for op in group.ops if op.name == "attention")
    assert op.operands[3].op in group.ops and op.operands[3] not in group.outputs


# --- what a call is refused for ---------------------------------------------------------------------------------------


def test_a_mask_that_is_shorter_than_the_keys_is_refused_when_it_is_called():
    model, given = node_model(padded_past(np.random.default_rng(0)))
    module = import_onnx(model)
    inputs = [given[value.name][:, :8] if value.name == "x3" else given[value.name] for value in module.main.inputs]
    with pytest.raises(InputError, match="do not broadcast"):
        interpret(module, inputs)


@pytest.mark.parametrize(("position", "number"), [(5, [8, 4]), (5, [-1, 4]), (6, 9)])
def test_lengths_outside_of_the_cache_are_refused_when_they_are_read(position, number):
    case = cached(np.random.default_rng(0))
    model, given = node_model(case)
    given[f"x{position}"] = np.array(number, I32)
    module = import_onnx(model)
    with pytest.raises(InputError, match="out of range"):
        interpret(module, [given[value.name] for value in module.main.inputs])


# --- what an import is refused for ------------------------------------------------------------------------------------


def q(*shape):
    return np.zeros(shape, F32)


ONE, GROUPED = {"num_heads": 2}, {"num_heads": 2, "kv_num_heads": 1}
LENGTHS = [np.array([2], I32), np.array(3, I32)]
NEW = [q(1, 3, 32), q(1, 3, 16), q(1, 3, 16), None, None, *LENGTHS]
PAST = [q(1, 1, 2, 16)] * 2
REFUSED = [
    ("Attention", [q(1, 3, 4), q(4, 24), q(24)], ONE | {"do_rotary": 1}, (True,), "attribute 'do_rotary' is 1"),
    (
        "Attention",
        [q(1, 3, 4), q(4, 24), q(24)],
        ONE | {"past_present_share_buffer": 1},
        (True,),
        "attribute 'past_present_share_buffer' is 1",
    ),
    ("Attention", [q(1, 3, 4), q(4, 24), q(24), np.ones((1, 1, 9, 9), I32)], ONE, (True,), "the mask is i32[1, 1, 9, 9]"),
    ("Attention", [q(1, 3, 4), q(4, 24), q(24), np.ones((1, 5), I32)], ONE, (True,), "the mask is i32[1, 5], expected [1, 3]"),
    ("Attention", [q(2, 3, 4), q(4, 24), q(24), np.ones(3, I32)], ONE, (True,), "the mask has 3 elements, expected 2, 4 or 8"),
    ("Attention", [q(1, 3, 4), q(4, 25), q(25)], ONE, (True,), "got f32[1, 3, 25] for 2 heads of sizes [8, 8, 8]"),
    (
        "Attention",
        [q(1, 3, 4), q(4, 24), q(24)],
        ONE | {"qkv_hidden_sizes": [4, 4, 16]},
        (True, True),
        "output 'present' holds keys and values of different sizes",
    ),
    ("MultiHeadAttention", [q(1, 3, 24)], ONE, (True,), "got f32[1, 3, 24] for 2 heads, expected rank 3 with keys and values, or rank 5"),
    (
        "MultiHeadAttention",
        [q(1, 3, 8), q(1, 5, 8), q(1, 5, 8)],
        ONE | {"unidirectional": 1},
        (True,),
        "attribute 'unidirectional' is 1 for 3 queries and 5 new keys",
    ),
    ("MultiHeadAttention", [q(1, 3, 8)] * 3, ONE, (True, True, True, True), "output 'qk' is read"),
    (
        "MultiHeadAttention",
        [*[q(1, 3, 8)] * 3, None, None, None, *[q(1, 2, 4, 4)] * 2, np.array(2, I32)],
        ONE,
        (True,),
        "input 'past_sequence_length' is given",
    ),
    ("MultiHeadAttention", [*[q(1, 3, 8)] * 3, None, None, q(1, 2, 3, 4)], ONE, (True,), "attention_bias is f32[1, 2, 3, 4], expected"),
    ("GroupQueryAttention", [*NEW, *(None,) * 5, np.ones(1, F32)], GROUPED, (True,) * 3, "input 'k_scale' is given"),
    ("GroupQueryAttention", [*NEW, *(None,) * 7, q(16), q(16)], GROUPED, (True,) * 3, "input 'q_norm_weight' is given"),
    ("GroupQueryAttention", NEW, GROUPED | {"sliding_window_cache": 1}, (True,) * 3, "attribute 'sliding_window_cache' is 1"),
    ("GroupQueryAttention", NEW, GROUPED | {"qk_output": 1}, (True,) * 4, "output 'output_qk' is read"),
    ("GroupQueryAttention", NEW, GROUPED | {"local_window_size": 0}, (True,) * 3, "local_window_size is 0"),
    ("GroupQueryAttention", NEW, GROUPED | {"causal": 0, "local_window_size": 2}, (True,) * 3, "local_window_size is 2 without causality"),
    ("GroupQueryAttention", NEW, {"num_heads": 2, "kv_num_heads": 3}, (True,) * 3, "got f32[1, 3, 32] for 2 heads and 3 key heads"),
    (
        "GroupQueryAttention",
        [*NEW[:3], *(x.astype(np.int8) for x in PAST), *LENGTHS],
        GROUPED,
        (True,) * 3,
        "the cache is i8[1, 1, 2, 16] for rows f32[1, 1, 3, 16]",
    ),
    ("GroupQueryAttention", [*NEW[:3], PAST[0], None, *LENGTHS], GROUPED, (True,) * 3, "keys are given without values"),
    (
        "GroupQueryAttention",
        [*NEW[:5], np.zeros(2, I32), LENGTHS[1]],
        GROUPED,
        (True,) * 3,
        "seqlens_k is i64[2], expected one number for each",
    ),
    ("GroupQueryAttention", [*NEW[:6], np.zeros(2, I32)], GROUPED, (True,) * 3, "total_sequence_length is i32[2], expected one number"),
    (
        "RotaryEmbedding",
        [q(1, 3, 32), np.zeros((1, 3), np.int64), q(8, 8), q(8, 8)],
        {"is_packed_batching": 1},
        (True,),
        "attribute 'is_packed_batching' is 1",
    ),
    ("RotaryEmbedding", [q(3, 32), np.zeros((1, 3), np.int64), q(8, 8), q(8, 8)], {}, (True,), "expected rank 3 or 4 and a matrix"),
]


@pytest.mark.parametrize(
    ("op_type", "operands", "attributes", "outputs", "message"), REFUSED, ids=lambda part: part if isinstance(part, str) else ""
)
def test_what_is_not_supported_is_refused_in_a_sentence(op_type, operands, attributes, outputs, message):
    model, _ = node_model(NodeCase(op_type, operands, attributes, outputs))
    with pytest.raises((ModelError, UnsupportedError)) as raised:
        import_onnx(model)
    text = f"{raised.value} {raised.value.note}"
    assert message in text and (f"{op_type} 'n'" in text or "at n" in text)


def first_calls(op_type: str, past: int) -> dict[str, np.ndarray]:
    """Inputs of an attention of three rows behind so many that calls before it wrote."""
    rng, rows = np.random.default_rng(past), 3
    cache = {name: floats(rng, 1, 2, past, 16) for name in ("past_k", "past_v")}
    if op_type == "GroupQueryAttention":
        lengths = {"seqlens_k": np.array([past + rows - 1], I32), "total": np.array([past + rows], I32)}
        return {"q": floats(rng, 1, rows, 64), "k": floats(rng, 1, rows, 32), "v": floats(rng, 1, rows, 32), **cache, **lengths}
    return {"q": floats(rng, 1, rows, 32), "k": floats(rng, 1, rows, 32), "v": floats(rng, 1, rows, 32), **cache}


@pytest.mark.parametrize(
    ("op_type", "attributes", "before", "behind"),
    [
        ("GroupQueryAttention", {"num_heads": 4, "kv_num_heads": 2}, 0, ["seqlens_k", "total"]),
        ("MultiHeadAttention", {"num_heads": 2}, 3, []),
    ],
)
def test_nothing_is_past_before_the_first_call(op_type, attributes, before, behind):
    """Who generates text calls a model with caches of no tokens first: engines take them without being told."""
    import onnxruntime

    import ourcc

    given = first_calls(op_type, 2)
    named = ["q", "k", "v", *[""] * before, "past_k", "past_v", *behind]
    node = helper.make_node(op_type, named, ["y", "present_k", "present_v"], domain=MICROSOFT, **attributes)
    symbolic = {"q": [1, "S"], "k": [1, "S"], "v": [1, "S"], "past_k": [1, 2, "P"], "past_v": [1, 2, "P"]}
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), [*symbolic.get(name, []), *array.shape[len(symbolic.get(name, [])) :]]
        )
        for name, array in given.items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "present_k", "present_v")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=imports, ir_version=8)
    engine = ourcc.build(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for past in (0, 2):
        feeds = first_calls(op_type, past)
        for got, expected in zip(engine(**feeds), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
