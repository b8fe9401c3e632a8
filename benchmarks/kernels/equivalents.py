"""Triton kernels of our own at the tiles of published ones, to be judged where those were measured.

They compute what the named kernels compute, with the same tiles, warps, stages and order of tiles; none of their text is
taken over. Sizes are constants, as the published measurements fix them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    """A tile a program, operands by pointers; b lies transposed, as the published one passes it."""
    place = tl.program_id(0)
    rows = M // BM
    columns = N // BN
    first = place // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    row = first + place % (GROUP * columns) % height
    column = place % (GROUP * columns) // height
    lanes = tl.arange(0, BK)
    left = a + ((row * BM + tl.arange(0, BM))[:, None] * K + lanes[None, :])
    right = b + ((column * BN + tl.arange(0, BN))[None, :] * K + lanes[:, None])
    sums = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        sums = tl.dot(tl.load(left), tl.load(right), sums)
        left += BK
        right += BK
    places = (row * BM + tl.arange(0, BM))[:, None] * N + (column * BN + tl.arange(0, BN))[None, :]
    tl.store(c + places, sums.to(c.dtype.element_ty))


@triton.jit
def product_persistent(
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """As many programs as processors, which take tiles in turn; operands by pointers."""
    rows = M // BM
    columns = N // BN
    for place in tl.range(tl.program_id(0), rows * columns, PROGRAMS, flatten=True):
        first = place // (GROUP * columns) * GROUP
        height = min(rows - first, GROUP)
        row = first + place % (GROUP * columns) % height
        column = place % (GROUP * columns) // height
        tall = tl.max_contiguous(tl.multiple_of(row * BM + tl.arange(0, BM), BM), BM)
        wide = tl.max_contiguous(tl.multiple_of(column * BN + tl.arange(0, BN), BN), BN)
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            lanes = k + tl.arange(0, BK)
            x = tl.load(a + (tall[:, None] * K + lanes[None, :]))
            y = tl.load(b + (wide[None, :] * K + lanes[:, None]))
            sums = tl.dot(x, y, sums)
        tl.store(c + (tall[:, None] * N + wide[None, :]), sums.to(c.dtype.element_ty))


@triton.jit
def product_by_descriptors(
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """As many programs as processors; operands and result by descriptors, the result in two halves."""
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    result = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN // 2])
    rows = M // BM
    columns = N // BN
    for place in tl.range(tl.program_id(0), rows * columns, PROGRAMS, flatten=True):
        first = place // (GROUP * columns) * GROUP
        height = min(rows - first, GROUP)
        row = first + place % (GROUP * columns) % height
        column = place % (GROUP * columns) // height
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            sums = tl.dot(left.load([row * BM, k]), right.load([column * BN, k]).T, sums)
        halves = tl.permute(tl.reshape(sums, (BM, 2, BN // 2)), (0, 2, 1))
        low, high = tl.split(halves)
        result.store([row * BM, column * BN], low.to(c.dtype.element_ty))
        result.store([row * BM, column * BN + BN // 2], high.to(c.dtype.element_ty))


@triton.jit
def attention(
    q,
    k,
    v,
    y,
    largest,
    S: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SCALE: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """A block of queries a program over all keys, without a mask; the logarithm of the sums is stored too."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    rows = block * BM + tl.arange(0, BM)
    deep = tl.arange(0, D)
    base = head * S
    if DESCRIPTORS:
        keys = tl.make_tensor_descriptor(k, [S * tl.num_programs(1), D], [D, 1], [BN, D])
        values = tl.make_tensor_descriptor(v, [S * tl.num_programs(1), D], [D, 1], [BN, D])
    queries = tl.load(q + (base + rows)[:, None] * D + deep[None, :])
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.full((BM,), 1.0, tl.float32)
    sums = tl.zeros((BM, D), tl.float32)
    for first in tl.range(0, S, BN):
        if DESCRIPTORS:
            turned = keys.load([base + first, 0]).T
        else:
            turned = tl.load(k + (base + first + tl.arange(0, BN))[None, :] * D + deep[:, None])
        scores = tl.dot(queries, turned)
        new = tl.maximum(most, tl.max(scores, 1) * SCALE)
        weights = tl.math.exp2(scores * SCALE - new[:, None])
        shrink = tl.math.exp2(most - new)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None]
        if DESCRIPTORS:
            tile = values.load([base + first, 0])
        else:
            tile = tl.load(v + (base + first + tl.arange(0, BN))[:, None] * D + deep[None, :])
        sums = tl.dot(weights.to(v.dtype.element_ty), tile, sums)
        most = new
    tl.store(largest + base + rows, most + tl.math.log2(total))
    tl.store(y + (base + rows)[:, None] * D + deep[None, :], (sums / total[:, None]).to(y.dtype.element_ty))


@triton.jit
def rms_norm(y, x, weight, inverse, N: tl.constexpr, WIDTH: tl.constexpr):
    """A row a program in one pass: the root of the mean square is stored, the weight is multiplied in the narrow type."""
    row = tl.program_id(0)
    lanes = tl.arange(0, WIDTH)
    inside = lanes < N
    values = tl.load(x + row * N + lanes, mask=inside, other=0.0)
    gains = tl.load(weight + lanes, mask=inside, other=0.0)
    wide = values.to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(wide * wide, 0) / N + 1e-6)
    tl.store(inverse + row, scale)
    tl.store(y + row * N + lanes, (wide * scale).to(values.dtype) * gains, mask=inside)


@triton.jit
def layer_norm(y, x, weight, bias, mean, inverse, N: tl.constexpr, WIDTH: tl.constexpr):
    """A row a program in one pass, in float32."""
    row = tl.program_id(0)
    lanes = tl.arange(0, WIDTH)
    inside = lanes < N
    values = tl.load(x + row * N + lanes, mask=inside, other=0.0)
    gains = tl.load(weight + lanes, mask=inside, other=0.0)
    shifts = tl.load(bias + lanes, mask=inside, other=0.0)
    middle = tl.sum(values, 0) / N
    centred = tl.where(inside, values - middle, 0.0)
    scale = tl.math.rsqrt(tl.sum(centred * centred, 0) / N + 1e-6)
    tl.store(mean + row, middle)
    tl.store(inverse + row, scale)
    tl.store(y + row * N + lanes, centred * scale * gains + shifts, mask=inside)


@triton.jit
def attention_causal(
    q, k, v, y, S: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SCALE: tl.constexpr, SHARED: tl.constexpr
):
    """A block of queries a program over the keys before them: without a mask below the diagonal, with one on it.

    `SHARED` heads of queries have the same keys and values.
    """
    block = tl.program_id(0)
    head = tl.program_id(1)
    rows = block * BM + tl.arange(0, BM)
    deep = tl.arange(0, D)
    lanes = tl.arange(0, BN)
    base = head * S
    keys = k + (head // SHARED * S) * D
    values = v + (head // SHARED * S) * D
    queries = tl.load(q + (base + rows)[:, None] * D + deep[None, :])
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.full((BM,), 1.0, tl.float32)
    sums = tl.zeros((BM, D), tl.float32)
    for first in tl.range(0, block * BM, BN):
        scores = tl.dot(queries, tl.load(keys + (first + lanes)[None, :] * D + deep[:, None]))
        new = tl.maximum(most, tl.max(scores, 1) * SCALE)
        weights = tl.math.exp2(scores * SCALE - new[:, None])
        shrink = tl.math.exp2(most - new)
        total = total * shrink + tl.sum(weights, 1)
        sums = tl.dot(
            weights.to(v.dtype.element_ty), tl.load(values + (first + lanes)[:, None] * D + deep[None, :]), sums * shrink[:, None]
        )
        most = new
    for first in tl.range(block * BM, block * BM + BM, BN):
        scores = tl.dot(queries, tl.load(keys + (first + lanes)[None, :] * D + deep[:, None])) * SCALE
        scores = tl.where(rows[:, None] >= (first + lanes)[None, :], scores, -1.0e6)
        new = tl.maximum(most, tl.max(scores, 1))
        weights = tl.math.exp2(scores - new[:, None])
        shrink = tl.math.exp2(most - new)
        total = total * shrink + tl.sum(weights, 1)
        sums = tl.dot(
            weights.to(v.dtype.element_ty), tl.load(values + (first + lanes)[:, None] * D + deep[None, :]), sums * shrink[:, None]
        )
        most = new
    tl.store(y + (base + rows)[:, None] * D + deep[None, :], (sums / total[:, None]).to(y.dtype.element_ty))
