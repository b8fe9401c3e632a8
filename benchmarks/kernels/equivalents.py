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
    q,
    k,
    v,
    y,
    S: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SCALE: tl.constexpr,
    SHARED: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """A block of queries a program over the keys before them: without a mask below the diagonal, with one on it, and where a window of
    so many keys begins (0: there is none).

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
    begin = 0
    if WINDOW:
        begin = max(0, block * BM + BM - WINDOW)
        for first in tl.range(max(0, block * BM - WINDOW), begin, BN):
            scores = tl.dot(queries, tl.load(keys + (first + lanes)[None, :] * D + deep[:, None])) * SCALE
            scores = tl.where(rows[:, None] - (first + lanes)[None, :] < WINDOW, scores, -1.0e6)
            new = tl.maximum(most, tl.max(scores, 1))
            weights = tl.math.exp2(scores - new[:, None])
            shrink = tl.math.exp2(most - new)
            total = total * shrink + tl.sum(weights, 1)
            sums = tl.dot(
                weights.to(v.dtype.element_ty), tl.load(values + (first + lanes)[:, None] * D + deep[None, :]), sums * shrink[:, None]
            )
            most = new
    for first in tl.range(begin, block * BM, BN):
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


@triton.jit
def largest(x, result, BLOCK: tl.constexpr):
    """The largest magnitude of all elements, as the bits of a float32 that began as 0."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.max(tl.abs(tl.load(x + lanes).to(tl.float32)), 0)
    tl.atomic_max(result, found.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def small_floats(low, high):
    """Two float32 as a byte of two e2m1, the first one in its lower half."""
    text: tl.constexpr = "{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1; cvt.u32.u8 $0, pair; }"
    return tl.inline_asm_elementwise(text, "=r,f,f", [low, high], tl.int32, True, 1).to(tl.uint8)


@triton.jit
def rounded_blocks(x, most, codes, scales, M: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """NVFP4: 16 elements share an e4m3 scale beside one of all; scales lie in the order in which the matrix unit takes them."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    first = tl.program_id(1) * BK
    inside = rows < M
    tile = tl.load(x + rows[:, None] * K + (first + tl.arange(0, BK))[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    whole = tl.load(most).to(tl.float32, bitcast=True) * (1.0 / 2688.0)
    blocks = tl.reshape(tile, (BM, BK // 16, 16))
    scale = (tl.max(tl.abs(blocks), 2) * (1.0 / 6.0) / whole).to(tl.float8e4nv)
    inverse = 1.0 / (scale.to(tl.float32) * whole)
    low, high = tl.split(tl.reshape(blocks * inverse[:, :, None], (BM, BK // 2, 2)))
    places = rows[:, None] * (K // 2) + (first // 2 + tl.arange(0, BK // 2))[None, :]
    tl.store(codes + places, small_floats(low, high), mask=inside[:, None])
    each = first // 16 + tl.arange(0, BK // 16)
    tall = (rows // 128 * (K // 64) * 512 + rows % 32 * 16 + rows % 128 // 32 * 4)[:, None]
    tl.store(scales + tall + (each // 4 * 512 + each % 4)[None, :], scale, mask=inside[:, None])


@triton.jit
def product_of_blocks(
    a,
    b,
    scales_a,
    scales_b,
    most_a,
    most_b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A tile a program of two NVFP4 factors, all by descriptors; scales come in the order in which the matrix unit takes them."""
    left = tl.make_tensor_descriptor(a, [M, K // 2], [K // 2, 1], [BM, BK // 2])
    right = tl.make_tensor_descriptor(b, [N, K // 2], [K // 2, 1], [BN, BK // 2])
    tall = tl.make_tensor_descriptor(
        scales_a,
        [1, (M + 127) // 128, K // 64, 2, 256],
        [(M + 127) // 128 * (K // 64) * 512, K // 64 * 512, 512, 256, 1],
        [1, BM // 128, BK // 64, 2, 256],
    )
    wide = tl.make_tensor_descriptor(
        scales_b, [1, N // 128, K // 64, 2, 256], [N // 128 * (K // 64) * 512, K // 64 * 512, 512, 256, 1], [1, BN // 128, BK // 64, 2, 256]
    )
    result = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    rows = (M + BM - 1) // BM
    row = tl.program_id(0) % rows
    column = tl.program_id(0) // rows
    sums = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK):
        x = left.load([row * BM, k // 2])
        y = right.load([column * BN, k // 2])
        x_scale = tall.load([0, row * (BM // 128), k // 64, 0, 0])
        y_scale = wide.load([0, column * (BN // 128), k // 64, 0, 0])
        x_scale = tl.permute(tl.reshape(x_scale, (BM // 128, BK // 64, 32, 4, 4)), (0, 3, 2, 1, 4))
        y_scale = tl.permute(tl.reshape(y_scale, (BN // 128, BK // 64, 32, 4, 4)), (0, 3, 2, 1, 4))
        sums = tl.dot_scaled(x, tl.reshape(x_scale, (BM, BK // 16)), "e2m1", y.T, tl.reshape(y_scale, (BN, BK // 16)), "e2m1", sums)
    both = tl.load(most_a).to(tl.float32, bitcast=True) * tl.load(most_b) * (1.0 / 2688.0)
    result.store([row * BM, column * BN], (sums * both).to(c.dtype.element_ty))
