"""ONNX Runtime's own attention (`com.microsoft`) on drawn cases against ONNX Runtime itself."""

from __future__ import annotations

import numpy as np
import pytest
from nodes import NodeCase, Operand, difference

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
    other = heads * between(rng, 1, 9) if not past and chance(rng, 0.3) else hidden
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
    other = hidden if past or chance(rng, 0.7) else heads * between(rng, 1, 9)
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


DRAWS = [self_attention, multi_head, quantized_attention, grouped]


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_drawn_attention_computes_what_onnxruntime_computes(draw):
    rng = np.random.default_rng(0)
    wrong = [why for _, _, why in (difference(draw(rng)) for _ in range(SEEDS)) if why]
    assert not wrong, "\n".join(wrong)
