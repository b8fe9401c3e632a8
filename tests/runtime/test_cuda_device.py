"""The CUDA executor on a real device, with a kernel in PTX that the driver itself compiles."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.errors import EngineError
from ourcc.ir.plan import Buffer, Copy, Guard, Launch, Plan, Slot, Variant, Zero, storage
from ourcc.ir.plan.digest import digest_of
from ourcc.ir.types import TensorType, f32
from ourcc.runtime import Engine, EngineContents, PartContents
from ourcc.runtime import cuda as cuda_module
from ourcc.runtime.contents import PLANS

pytestmark = pytest.mark.gpu

# One block per row: y[row, k] = x[row, k] * w + t for k = thread, thread + 128, ...
PTX = """
.version 7.8
.target sm_70
.address_size 64
.visible .entry NAME(.param .u64 px, .param .u64 pw, .param .u64 pt, .param .u64 py,
                     .param .u32 pb, .param .u32 pn, .param .u64 ps, .param .u64 pq) {
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %d<8>;
    .reg .f32 %f<4>;
    ld.param.u64 %d0, [px];
    ld.param.u64 %d1, [pw];
    ld.param.u64 %d2, [pt];
    ld.param.u64 %d3, [py];
    ld.param.u32 %r0, [pn];
    cvta.to.global.u64 %d0, %d0;
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;
    ld.global.f32 %f0, [%d1];
    ld.global.f32 %f1, [%d2];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mul.lo.u32 %r3, %r1, %r0;
LOOP:
    setp.ge.u32 %p, %r2, %r0;
    @%p bra DONE;
    add.u32 %r4, %r3, %r2;
    mul.wide.u32 %d4, %r4, 4;
    add.u64 %d5, %d0, %d4;
    add.u64 %d6, %d3, %d4;
    ld.global.f32 %f2, [%d5];
    mul.rn.f32 %f3, %f2, %f0;
    add.rn.f32 %f3, %f3, %f1;
    st.global.f32 [%d6], %f3;
    add.u32 %r2, %r2, 128;
    bra LOOP;
DONE:
    ret;
}
"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        major, minor = cuda_module._device(0).capability
    except EngineError as error:
        pytest.skip(error.message)
    target = f"sm_{major}{minor}"
    rows, columns = dims.symbol("B"), dims.symbol("N")
    matrix, names = TensorType(f32, (rows, columns)), ("x", "w", "t", "y")
    variants = (
        Variant("even", Guard(zero=(columns % 4,), aligned=("x",)), (rows,), names, (rows, columns), 4, 100_000, 64),
        Variant("any", Guard(), (rows,), names, (rows, columns), 4, 0),
    )
    buffers = (
        Buffer("x", matrix, storage.Input()),
        Buffer("w", TensorType(f32, (1,)), storage.Constant("w")),
        Buffer("t", TensorType(f32, (1,)), storage.Arena("s0")),
        Buffer("y", matrix, storage.Output()),
        Buffer("z", matrix, storage.Output()),
    )
    steps = (Zero("t"), Launch("l0", variants, ("x", "w", "t"), ("y",)), Copy("y", "z"))
    facts = dims.Facts({"B": dims.Range(0, 4096), "N": dims.Range(0, 4096)})
    plan = Plan(target, facts, (("x", "x"),), (("y", "y"), ("z", "z")), buffers, (Slot("s0", (4,)),), steps)
    # The driver wants PTX text to end with a zero byte.
    files = {f"{name}.cubin": PTX.replace("NAME", name).encode() + b"\0" for name in ("even", "any")}
    plans = {"main": plan}
    part = PartContents(plans, files | {PLANS: digest_of(plans).encode()}, family="cuda")
    return Engine(EngineContents.of({target: part}, {target: {"w": np.array([3.0], np.float32)}}))


@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (0, 4), (17, 129), (513, 1000)])
def test_numpy(engine, shape):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    y, z = engine(x)
    assert np.array_equal(y, x * np.float32(3)) and np.array_equal(z, y)


def test_torch_on_its_own_stream(engine):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.randn(64, 1028, device="cuda")
        for view in (x, x.reshape(-1)[1:].reshape(-1)[: 64 * 1024].reshape(64, 1024), x[:, 1:]):
            y, z = engine(view)
            assert y.is_cuda and torch.equal(y, view * 3) and torch.equal(z, y)
    host = torch.randn(5, 7)
    assert torch.equal(engine(host)[0], host * 3)
