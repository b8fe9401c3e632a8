"""Tile programs printed to Triton: run in its interpreter against the tile interpreter, and compiled without a GPU."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import TritonKernel, print_program
from ourcc.codegen.triton.compile import CompiledKernel, compile_kernels
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.graph.reference import judge
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import Param, Store, TileProgram

Array = np.ndarray[Any, Any]
OWN = Path(__file__).parent / "programs"
SHARED = Path(__file__).parents[2] / "ir" / "tile" / "programs"
SHARED_NAMES = (
    *("amx_gemm", "convolution", "gqa_attention", "int4_dequantize", "paged_decode", "persistent_grouped"),
    *("ragged_grouped", "sparse_2to4", "split_k", "stream_k"),
)
PROGRAMS = [*sorted(OWN.glob("*.tile")), *(SHARED / f"{name}.tile" for name in SHARED_NAMES)]
SIZES = {"B": 70, "S": 37, "T": 13, "N": 3, "K": 150, "M": 21, "H": 7, "W": 6, "P": 9}
FACTS = dims.Facts({name: dims.Range(1, 1024) for name in SIZES})

# Programs whose products must run on the matrix instruction of the target (tiles of 64 rows or more).
ON_TENSOR_CORES = ("linear_gelu", "linear_bf16", "attention", "int4_linear", "persistent")


def load(path: Path, wide: bool = False) -> TileProgram:
    """A program, with every float type made f64 if `wide`."""
    text = path.read_text()
    for name in ("bf16", "f16", "f32") if wide else ():
        text = text.replace(f"{name}[", "f64[").replace(f": {name}", ": f64").replace(f" {name} ", " f64 ")
    return parse(text.replace(", precision = tf32x3", "") if wide else text)


def sizes_of(path: Path, program: TileProgram) -> dict[str, int]:
    # A few shared programs fix other operands' sizes by their batch.
    sizes = SIZES | ({"B": 3} if path.parent == SHARED else {}) | ({"N": 37} if path.stem == "persistent_grouped" else {})
    return {name: sizes[name] for name in program.symbols}


def params_of(program: TileProgram) -> dict[str, Param]:
    return {param.name: param for launch in program.launches for param in launch.params}


def positions(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Bytes of four 2-bit places: two different ones for each four weights, twice."""
    pairs = np.array([(a, b) for a in range(4) for b in range(a + 1, 4)])
    low, high = (pairs[random.integers(0, len(pairs), shape)] for _ in range(2))
    return (low[..., 0] | low[..., 1] << 2 | high[..., 0] << 4 | high[..., 1] << 6).astype(np.uint8)


def inputs_of(path: Path, program: TileProgram, sizes: dict[str, int]) -> dict[str, Array]:
    random = np.random.default_rng(3)
    arrays: dict[str, Array] = {}
    for name, param in params_of(program).items():
        shape = tuple(dims.evaluate(extent, sizes) for extent in param.shape)
        if param.role != "in" or name in {workspace.name for workspace in program.workspaces}:
            continue
        special = {"ids": random.integers(-50, 50, shape), "table": random.integers(0, SIZES["P"], shape)}
        special |= {"lengths": np.array([37, 5, 16]), "starts": np.array([0, 3, 3, 9, 13])}
        if name in special:
            arrays[name] = special[name].astype(param.dtype.numpy)
        elif name in ("places", "positions"):
            arrays[name] = positions(random, shape)
        elif param.dtype.is_float:
            arrays[name] = random.standard_normal(shape).astype(np.float32).astype(param.dtype.numpy)
        else:
            arrays[name] = random.integers(0, 256, shape).astype(param.dtype.numpy)
    return arrays


def packed(program: TileProgram, arrays: dict[str, Array]) -> dict[str, Array]:
    layouts = {name: param.layout for name, param in params_of(program).items()}
    return {name: array if layouts[name] is None else layouts[name].pack(array) for name, array in arrays.items()}


@functools.cache
def printed(path: Path) -> tuple[TritonKernel, ...]:
    return print_program(load(path), FACTS, programs=3)


@functools.cache
def compiled(path: Path, target: str) -> tuple[CompiledKernel, ...]:
    return compile_kernels(printed(path), gpu_target(target), is_read=False)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_interpreted_equals_the_tile_interpreter(path: Path) -> None:
    program, wide = load(path), load(path, wide=True)
    sizes = sizes_of(path, program)
    inputs = inputs_of(path, program, sizes)
    expected = run(program, packed(program, inputs) | zeros(program, sizes, "inout"), sizes, FACTS)
    floats = params_of(wide)
    widened = {name: array.astype(floats[name].dtype.numpy) for name, array in inputs.items()}
    exact = run(wide, packed(wide, widened) | zeros(wide, sizes, "inout"), sizes, FACTS)

    memory = zeros(program, sizes, "in") | zeros(program, sizes, "inout") | zeros(program, sizes, "out") | packed(program, inputs)
    for launch, kernel in zip(program.launches, printed(path), strict=True):
        counters = {counter.name: np.zeros(dims.evaluate(counter.extent, sizes), np.int32) for counter in launch.counters}
        memory |= interpret(kernel, memory | counters, sizes)
    assert expected
    for name, array in expected.items():
        verdict = judge(memory[name], array, exact[name])
        assert verdict.passed, f"{name}: {verdict}\n{printed(path)[0].source}"


def zeros(program: TileProgram, sizes: dict[str, int], role: str) -> dict[str, Array]:
    found = {name: param for name, param in params_of(program).items() if param.role == role}
    return {name: np.zeros([dims.evaluate(e, sizes) for e in param.shape], param.dtype.numpy) for name, param in found.items()}


@pytest.mark.parametrize(
    ("name", "removed", "replacement"),
    [
        ("linear_gelu", r" & \(k_first \+ lane_32\[[^]]*\] < 56\)", ""),
        ("softmax_rows", r'other=float\("-inf"\)', "other=0.0"),
        ("softmax_rows", r" & \(lane_64\[None, :\] < size_S\), other", ", other"),
        ("layer_norm", r"tl\.where\(inside, \(v - mean\), 0\.0\)", "v - mean"),
        ("convolution", r"lane_32\[None, :\]\), mask=.*, other=0\.0\)$", "lane_32[None, :]))"),
    ],
)
def test_a_mask_dropped_on_purpose_is_caught(name: str, removed: str, replacement: str) -> None:
    path = OWN / f"{name}.tile"
    program = load(path)
    sizes = sizes_of(path, program)
    # Rows before and behind the operands keep what the broken kernel reads inside the memory it was given.
    inputs = {n: np.concatenate([a, a[::-1]]) for n, a in inputs_of(path, program, sizes).items()} | zeros(program, sizes, "out")
    (kernel,) = printed(path)
    broken = dataclasses.replace(kernel, source=re.sub(removed, replacement, kernel.source, flags=re.MULTILINE))
    assert broken.source != kernel.source
    right, wrong = interpret(kernel, inputs, sizes)["y"], interpret(broken, inputs, sizes)["y"]
    assert not judge(wrong, right, right).passed


BUILDS = [(path, target) for path in PROGRAMS for target in ("sm_90a", "sm_100a") if path.parent == OWN or target == "sm_90a"]


@pytest.mark.parametrize(("path", "target"), BUILDS, ids=[f"{path.parent.parent.name}-{path.stem}-{target}" for path, target in BUILDS])
def test_compiles_without_spills(path: Path, target: str) -> None:
    for kernel in compiled(path, target):
        used = kernel.resources
        assert (used.spill_stores, used.spill_loads) == (0, 0), kernel.kernel.name
        assert 0 < used.registers <= 255
        assert kernel.cubin.startswith(b"\x7fELF")
        isa = max(86 if kernel.kernel.descriptors else 0, gpu_target(target).ptx_isa)
        assert f".version {isa // 10}.{isa % 10}\n" in kernel.ptx
        assert f".target {target}" in kernel.ptx


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", [*ON_TENSOR_CORES, "convolution"])
def test_products_run_on_tensor_cores(name: str, target: str) -> None:
    (kernel,) = compiled(OWN / f"{name}.tile", target)
    assert kernel.resources.instructions.get(gpu_target(target).matrix_instruction, 0) > 0, kernel.resources
    assert "mma.sync" not in kernel.resources.instructions
    assert not kernel.kernel.notes


def test_three_tf32_products_for_one() -> None:
    one, three = (compiled(OWN / f"{name}.tile", "sm_90a")[0].resources.instructions["wgmma"] for name in ("linear_bf16", "linear_gelu"))
    assert three % 3 == 0 and one % 3 != 0


def test_descriptors_become_bulk_copies_and_need_scratch() -> None:
    (kernel,) = compiled(OWN / "persistent.tile", "sm_90a")
    assert kernel.kernel.descriptors and kernel.resources.scratch > 0
    assert kernel.resources.instructions["tma"] > 0
    (plain,) = compiled(OWN / "linear_bf16.tile", "sm_90a")
    assert not plain.kernel.descriptors and plain.resources.scratch == 0


WRITTEN = """program @p symbols { B, N } {
  launch @p(%x: f16[i B, j N], %y: out TYPE[SHAPE]) {
    grid (i: 0..B step 32, j: 0..N step 64) warps 4 {
      %t = load %x[i, j] else 0.0 : f16[i, j]
      store %y[PLACE] {descriptor} = cast(%t) : TYPE[i, j]
    }
  }
}"""


@pytest.mark.parametrize(
    ("kind", "shape", "place", "why"),
    [
        ("f16", "i B, j N", "i, j", None),
        ("f32", "j N, i B", "j, i", "its rows are not known to start at multiples of 16 bytes"),
        ("bf16", "g 2, i B, j N", "1, i, j", None),
        ("f16", "i B, h 3, j N", "i, 2, j", None),
        ("f16", "i 2*B, j N", "i + B, j", "it is masked by more than the operand's own bounds"),
        ("f16", "i B, j 2*N", "i, j", "it is masked by more than the operand's own bounds"),
        ("f16", "i B, j 2*N", "i, 2*j", "a subscript is neither a tile axis nor a number"),
        ("f64", "i B, j N", "i, j", "a descriptor is for numbers of 8, 16 or 32 bits, got f64"),
    ],
)
def test_results_go_by_a_descriptor_where_one_serves(kind: str, shape: str, place: str, why: str | None) -> None:
    program = parse(WRITTEN.replace("TYPE", kind).replace("SHAPE", shape).replace("PLACE", place))
    facts = FACTS.with_range("B", 1, 200, 1).with_range("N", 16, 400, 16)
    (kernel,) = print_program(program, facts)
    assert (".store([" in kernel.source) == (why is None) and kernel.descriptors == (why is None)
    assert kernel.notes == (() if why is None else (f"store to y goes by pointers, not by descriptor: {why}",))
    param, stored = program.launches[0].params[1], program.launches[0].body[-1]
    assert isinstance(stored, Store)
    for sizes in ({"B": 70, "N": 80}, {"B": 32, "N": 64}, {"B": 1, "N": 16}):
        x = np.random.default_rng(0).integers(0, 9, (sizes["B"], sizes["N"])).astype(np.float16)
        expected = np.full([dims.evaluate(size, sizes) for size in param.shape], 77, param.dtype.numpy)
        found = interpret(kernel, {"x": x, "y": expected.copy()}, sizes)["y"]
        for (i, j), value in np.ndenumerate(x):
            expected[tuple(dims.evaluate(subscript, {**sizes, "i": i, "j": j}) for subscript in stored.subscripts)] = value
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)
    if why is None:
        (built,) = compile_kernels((kernel,), gpu_target("sm_90a"))
        assert built.resources.instructions["tma"]


def test_rows_that_lie_as_blocks_have_one_descriptor() -> None:
    (kernel,) = printed(OWN / "rows_of_blocks.tile")
    assert kernel.notes == () and "tl.make_tensor_descriptor(x_ptr, [size_B, 64], [64, 1], [32, 32])" in kernel.source
    text = (OWN / "rows_of_blocks.tile").read_text()
    for before, after, why in (
        ("else 0.0 : f16[i, k], load %w", "else 1.0 : f16[i, k], load %w", "load of x goes by pointers"),
        ("n 4*B, e 16", "n 4*B + 1, e 16", "load of x goes by pointers"),
        ("(k // 16) + 4*i, (k % 16)", "(k // 16) + 4*i, 15 - (k % 16)", "a subscript is neither a tile axis nor a number"),
    ):
        assert before in text
        (other,) = print_program(parse(text.replace(before, after)), FACTS)
        assert [note for note in other.notes if why in note], other.notes


def test_a_vector_matrix_product_says_that_it_has_no_tensor_cores() -> None:
    (kernel,) = printed(OWN / "matrix_vector.tile")
    assert kernel.notes == (
        "dot over k is a sum of products, not on tensor cores: one operand has no axis of its own (a vector-matrix product)",
    )


@pytest.mark.parametrize(("name", "axis", "extent"), [("packed_gemm", "i", 24), ("absmax_quantize", "c", 75)])
def test_extents_that_are_no_power_of_two_are_refused(name: str, axis: str, extent: int) -> None:
    with pytest.raises(UnsupportedError, match=f"axis {axis} has extent {extent}, expected a power of two"):
        print_program(load(SHARED / f"{name}.tile"))


def test_grids_and_arguments() -> None:
    (kernel,) = printed(OWN / "persistent.tile")
    assert dims.evaluate(kernel.grid, {"B": 1}) == 2
    assert dims.evaluate(kernel.grid, {"B": 1000}) == 3
    assert kernel.operands == ("x", "w", "y")
    assert kernel.sizes == ("B",)
    (counted,) = printed(OWN / "counted_sum.tile")
    assert counted.operands == ("x", "part", "y", "done")
    assert counted.signature["done_ptr"] == "*i32"
