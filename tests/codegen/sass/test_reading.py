"""Machine code read: kernels whose counts are known by construction, compiled for both architectures, and texts of every form."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from ourcc.codegen.sass.counts import CLASSES, bytes_in_flight, bytes_of, class_of, copied_in_flight, count, is_wide_integer, matrix_shape
from ourcc.codegen.sass.listing import read_listing
from ourcc.codegen.sass.loops import flow_of
from ourcc.codegen.sass.reading import Reading, read_kernel
from ourcc.codegen.triton import Argument, TritonKernel
from ourcc.codegen.triton.compile import compile_kernel, disassemble
from ourcc.ir.errors import ToolchainError
from ourcc.ir.target import gpu_target

TARGETS = ("sm_90a", "sm_100a")
OPENING = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"

COPY = (
    OPENING
    + "def copy(x_ptr, y_ptr):\n    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)\n    tl.store(y_ptr + at, tl.load(x_ptr + at))\n"
)

PRODUCT = (
    OPENING
    + """def product(x_ptr, y_ptr, z_ptr):
    row, deep = tl.arange(0, 64), tl.arange(0, 64)
    sums = tl.zeros((64, 64), tl.float32)
    for k in range(0, 4096, 64):
        x = tl.load(x_ptr + row[:, None] * 4096 + k + deep[None, :])
        y = tl.load(y_ptr + row[None, :] * 4096 + k + deep[:, None])
        sums = tl.dot(x, y, sums)
    tl.store(z_ptr + row[:, None] * 64 + row[None, :], sums)
"""
)

NESTED = (
    OPENING
    + """def nested(x_ptr, y_ptr, size_n):
    lane = tl.arange(0, 128)
    for i in range(size_n):
        total = tl.zeros((128,), tl.float32)
        for j in range(i):
            total = tl.sqrt(total + tl.load(x_ptr + j * 128 + lane))
            tl.debug_barrier()
        tl.store(y_ptr + i * 128 + lane, total)
"""
)


@functools.cache
def compiled(
    source: str, target: str, types: tuple[str, ...], aligned: bool = True, sizes: tuple[str, ...] = (), stages: int = 3
) -> Reading:
    name = source.partition("def ")[2].partition("(")[0]
    letters = ("x", "y", "z")
    arguments = [Argument(letter, "operand", f"*{kind}", aligned) for letter, kind in zip(letters, types, strict=False)]
    arguments += [Argument(size, "size", "i32", False) for size in sizes]
    kernel = TritonKernel(name, source, tuple(arguments), 1, 4, stages)
    cubin = compile_kernel(kernel, gpu_target(target)).cubin
    return read_kernel(disassemble(cubin, name))


@pytest.mark.parametrize("target", TARGETS)
def test_a_copy_moves_16_bytes_a_thread_where_it_may(target: str) -> None:
    aligned = compiled(COPY, target, ("fp32", "fp32")).total()
    assert aligned.accesses == {("global load", 16): 2, ("global store", 16): 2}
    assert aligned.bytes("global load") * 4 * 32 == 1024 * 4
    assert aligned.classes["matrix"] == aligned.calls == aligned.local_loads == 0
    loose = compiled(COPY, target, ("fp32", "fp32"), aligned=False).total()
    assert loose.accesses == {("global load", 4): 8, ("global store", 4): 8}
    assert compiled(COPY, target, ("fp32", "fp32")).in_flight == 32


def test_a_product_on_hopper_has_its_instructions_and_bytes() -> None:
    reading = compiled(PRODUCT, "sm_90a", ("bf16", "bf16", "fp32"))
    (number,) = (n for n, loop in enumerate(reading.flow.loops) if not loop.waits)
    counts = reading.loop_counts(number)
    ((shape, times),) = counts.shapes.items()
    assert (shape.m, shape.n, shape.k, shape.warps, shape.kind, shape.left_is_shared) == (64, 64, 16, 4, "bf16", True)
    assert times * shape.operations == 2 * 64 * 64 * 64
    assert counts.bytes("asynchronous copy") * 4 * 32 == 2 * 64 * 64 * 2
    assert counts.bytes("global load") == 0
    assert reading.copied_in_flight * 4 * 32 == (3 - 1) * 2 * 64 * 64 * 2
    assert counts.classes["barrier"] >= 1


def test_a_product_on_blackwell_has_its_instructions_and_bytes() -> None:
    reading = compiled(PRODUCT, "sm_100a", ("bf16", "bf16", "fp32"))
    loops = [reading.loop_counts(n) for n, loop in enumerate(reading.flow.loops) if not loop.waits]
    counts = max(loops, key=lambda each: each.instructions)
    ((shape, times),) = counts.shapes.items()
    assert counts.unknown_matrix == 0
    assert (shape.m, shape.n, shape.k, shape.warps, shape.kind, shape.left_is_shared) == (64, 64, 16, 0, "bf16", True)
    assert times * shape.operations == 2 * 64 * 64 * 64
    assert counts.bytes("asynchronous copy") * 4 * 32 == 2 * 64 * 64 * 2


@pytest.mark.parametrize("target", TARGETS)
def test_loops_stand_in_loops(target: str) -> None:
    reading = compiled(NESTED, target, ("fp32", "fp32"), sizes=("n",))
    loops = reading.flow.loops
    assert loops[0].parent is None and any(loop.parent == 0 for loop in loops)
    own = [reading.loop_counts(n) for n in range(len(loops))]
    assert own[0].classes["global store"] >= 1 and own[0].classes["global load"] == 0
    assert sum(each.classes["global load"] for each in own[1:]) >= 1
    assert sum(each.classes["barrier"] for each in own[1:]) >= 1
    lines = {line for region in reading.regions for line in region.lines}
    assert 11 in lines or 12 in lines


def text(*rows: str) -> str:
    """A listing of rows: labels as they are, all else as an instruction each."""
    lines, at = [".text.kernel:"], 0
    for row in rows:
        if row.endswith(":"):
            lines.append(row)
            continue
        lines.append(f"        /*{at:04x}*/                   {row} ;")
        at += 16
    return "\n".join(lines)


NEST = text(
    "S2R R0, SR_TID.X",
    ".L_x_0:",
    "IADD3 R1, R1, 0x1, RZ",
    ".L_x_1:",
    "LDL R3, [R1]",
    "ISETP.GE.AND P0, PT, R2, 0x4, PT",
    "@!P0 BRA `(.L_x_1)",
    "STL [R1], R3",
    "@P1 BRA `(.L_x_0)",
    "EXIT",
    ".L_x_2:",
    "BRA `(.L_x_2)",
)


def test_nesting_and_the_trap_behind_the_end() -> None:
    flow = flow_of(read_listing(NEST))
    assert [(loop.parent, len(loop.own)) for loop in flow.loops] == [(None, 3), (0, 3)]
    assert flow.outside == (0, 7)
    reading = read_kernel(NEST)
    assert (reading.loop_counts(0).local_stores, reading.loop_counts(1).local_loads) == (1, 1)
    assert [region.loop for region in reading.regions] == [None, 0, 1, 0, None]


def test_a_branch_forward_makes_no_loop() -> None:
    flow = flow_of(read_listing(text("@P0 BRA `(.L_x_0)", "FADD R0, R1, R2", ".L_x_0:", "EXIT")))
    assert flow.loops == () and len(flow.outside) == 3


def test_two_entries_make_no_natural_loop() -> None:
    rows = ("@P0 BRA `(.L_x_1)", ".L_x_0:", "FADD R0, R1, R2", ".L_x_1:", "FADD R0, R1, R2", "@P1 BRA `(.L_x_0)", "EXIT")
    assert flow_of(read_listing(text(*rows))).loops == ()


def test_a_wait_is_told_from_a_loop() -> None:
    waiting = text(".L_x_0:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR8+0x2c000], R152", "@!P0 BRA `(.L_x_0)", "EXIT")
    assert [loop.waits for loop in flow_of(read_listing(waiting)).loops] == [True]


def drawn_flow(seed: int) -> tuple[str, list[tuple[int, int]]]:
    """Loops that nest or follow one another, each of two instructions and its branch; first and last position of each."""
    rng = np.random.default_rng(seed)
    rows: list[str] = []
    spans: list[tuple[int, int]] = []
    at, label = 0, itertools.count()

    def emit(depth: int) -> None:
        nonlocal at
        for _ in range(rng.integers(1, 3)):
            if depth < 4 and rng.random() < 0.6:
                name, first = f".L_x_{next(label)}", at
                rows.append(f"{name}:")
                rows.append("FADD R0, R1, R2")
                at += 1
                emit(depth + 1)
                rows.append(f"@P0 BRA `({name})")
                at += 1
                spans.append((first, at - 1))
            else:
                rows.append("FMUL R0, R1, R2")
                at += 1

    emit(0)
    rows.append("EXIT")
    return text(*rows), spans


@pytest.mark.parametrize("seed", range(40))
def test_drawn_nests_are_found(seed: int) -> None:
    listing, spans = drawn_flow(seed)
    flow = flow_of(read_listing(listing))
    found = {(flow.blocks[loop.blocks[0]].first, flow.blocks[loop.blocks[-1]].end - 1) for loop in flow.loops}
    assert found == set(spans)
    for loop in flow.loops:
        span = (flow.blocks[loop.blocks[0]].first, flow.blocks[loop.blocks[-1]].end - 1)
        around = [each for each in spans if each[0] <= span[0] and span[1] <= each[1] and each != span]
        assert (loop.parent is None) == (not around)
        inside = {at for each in spans if span[0] <= each[0] and each[1] <= span[1] and each != span for at in range(each[0], each[1] + 1)}
        assert set(loop.own) == set(range(span[0], span[1] + 1)) - inside


@pytest.mark.parametrize(
    ("row", "kind", "width"),
    [
        ("LDG.E.128 R4, desc[UR4][R2.64]", "global load", 16),
        ("LDG.E.U16 R4, desc[UR4][R2.64]", "global load", 2),
        ("LDG.E.S8 R4, desc[UR4][R2.64]", "global load", 1),
        ("LDG.E.ENL2.256 R4, R8, desc[UR4][R2.64]", "global load", 32),
        ("STG.E desc[UR4][R2.64], R4", "global store", 4),
        ("LDGSTS.E.BYPASS.128 [R13], desc[UR18][R14.64]", "asynchronous copy", 16),
        ("LDSM.16.M88.4 R4, [R3]", "shared load", 16),
        ("LDSM.16.MT88.2 R4, [R3]", "shared load", 8),
        ("LDS.64 R4, [R3]", "shared load", 8),
        ("STL.64 [R1], R4", "local", 8),
    ],
)
def test_widths(row: str, kind: str, width: int) -> None:
    (instruction,) = read_listing(text(row)).instructions
    assert (class_of(instruction), bytes_of(instruction)) == (kind, width)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24", (64, 256, 16, 4, "bf16", True)),
        ("HGMMA.64x128x16.F32 R24, R4, gdesc[UR8], R24", (64, 128, 16, 4, "bf16", False)),
        ("HGMMA.64x32x8.F32.TF32 R24, gdesc[UR8], R24", (64, 32, 8, 4, "tf32", True)),
        ("QGMMA.64x256x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24", (64, 256, 32, 4, "f8e4m3", True)),
        ("IGMMA.64x64x32.S8.S8 R24, gdesc[UR8], R24", (64, 64, 32, 4, "i8", True)),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", (16, 8, 16, 1, "bf16", False)),
        ("HMMA.1688.F32.TF32 R4, R8, R12, R4", (16, 8, 8, 1, "tf32", False)),
    ],
)
def test_shapes_of_matrix_instructions(row: str, expected: tuple[object, ...]) -> None:
    (instruction,) = read_listing(text(row)).instructions
    shape = matrix_shape(instruction)
    assert shape is not None and (shape.m, shape.n, shape.k, shape.warps, shape.kind, shape.left_is_shared) == expected


@pytest.mark.parametrize(
    ("name", "descriptor", "expected"),
    [
        ("UTCHMMA", 0x8400490, (128, 256, 16, 0, "bf16", True)),
        ("UTCHMMA", 0x8200910, (128, 128, 8, 0, "tf32", True)),
        ("UTCQMMA", 0x8400010, (128, 256, 32, 0, "f8e4m3", True)),
    ],
)
def test_descriptors_of_matrix_instructions(name: str, descriptor: int, expected: tuple[object, ...]) -> None:
    use = f"{name} gdesc[UR4], gdesc[UR16], tmem[UR11], tmem[UR32], idesc[UR33], UPT"
    *_, known = read_listing(text(f"UMOV UR33, {descriptor:#x}", "UMOV UR32, 0x1", use)).instructions
    shape = matrix_shape(known)
    assert shape is not None and (shape.m, shape.n, shape.k, shape.warps, shape.kind, shape.left_is_shared) == expected
    *_, unknown = read_listing(text("UIADD3 UR33, UR1, UR2, URZ", use)).instructions
    assert matrix_shape(unknown) is None


def test_what_stands_out() -> None:
    rows = (
        "@!PT LDS RZ, [RZ]",
        "@P0 LDG.E.128 R4, desc[UR4][R2.64]",
        "LDGSTS.E.BYPASS.128 [R13], desc[UR18][R14.64], !P0",
        "IMAD.WIDE R2, R3, 0x4, R4",
        "IADD3.X R2, R3, R4, RZ, P0, !PT",
        "ISETP.GE.U32.AND.EX P0, PT, R11, RZ, PT, P0",
        "CALL.REL.NOINC `($kernel$__slow_path)",
        "STL [R1], R4",
        "LDL R4, [R1]",
        "UTCHMMA gdesc[UR4], gdesc[UR16], tmem[UR11], tmem[UR32], idesc[UR33], !UPT",
    )
    found = count(read_listing(text(*rows)).instructions)
    assert (found.instructions, found.masked, found.wide_integers, found.comparisons, found.calls) == (9, 2, 3, 1, 1)
    assert (found.local_stores, found.local_loads, found.unknown_matrix) == (1, 1, 1)


def test_64_bit_arithmetic_is_told_from_32() -> None:
    narrow = read_listing(text("IMAD R2, R3, 0x4, R4", "IADD3 R2, R3, R4, RZ", "ISETP.GE.AND P0, PT, R11, RZ, PT")).instructions
    assert not any(is_wide_integer(each) for each in narrow)


def test_bytes_in_flight_end_where_a_value_is_read() -> None:
    load = "LDG.E.128 R{}, desc[UR4][R2.64]"
    together = read_listing(text(load.format(8), load.format(12), load.format(16), "FADD R20, R8, R12")).instructions
    assert bytes_in_flight(together) == 48
    apart = read_listing(text(load.format(8), "FADD R20, R9, RZ", load.format(12), "FADD R20, R12, RZ")).instructions
    assert bytes_in_flight(apart) == 16


def test_copies_are_under_way_until_their_group_is_waited_for() -> None:
    copy, end = "LDGSTS.E.BYPASS.128 [R13], desc[UR18][R14.64]", "LDGDEPBAR"
    instructions = read_listing(text(copy, copy, end, copy, end, "DEPBAR.LE SB0, 0x1", copy, copy, end)).instructions
    assert copied_in_flight(instructions) == 48
    waited = read_listing(text(copy, copy, end, "DEPBAR.LE SB0, 0x0", copy, end)).instructions
    assert copied_in_flight(waited) == 32
    assert copied_in_flight(read_listing(text("EXIT")).instructions) == 0


def test_bytes_that_descriptors_bring() -> None:
    rows = ("MOV R5, 0xc000", "SYNCS.ARRIVE.TRANS64 RZ, [UR16+0x2c000], R5", "UTMALDG.2D [UR12], [UR30]", "EXIT")
    assert [region.described for region in read_kernel(text(*rows)).regions] == [0xC000]


def test_draining_is_waiting_for_all() -> None:
    pending = read_kernel(text("WARPGROUP.DEPBAR.LE gsb0, 0x1", "EXIT"))
    drained = read_kernel(text("WARPGROUP.DEPBAR.LE gsb0, 0x0", "EXIT"))
    assert [pending.regions[0].drains, drained.regions[0].drains] == [False, True]


def test_no_opcode_is_of_two_classes() -> None:
    opcodes = [opcode for names in CLASSES.values() for opcode in names]
    assert len(opcodes) == len(set(opcodes))


@pytest.mark.parametrize("listing", ["", "nvdisasm fatal", "\x00" * 64, ".text.kernel:\n"])
def test_what_is_no_listing_is_refused(listing: str) -> None:
    with pytest.raises(ToolchainError, match="printed no instruction"):
        read_kernel(listing)


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(ToolchainError, match="the disassembler refused the cubin of broken"):
        disassemble(b"no cubin", "broken")


def test_blocks_that_each_pass_runs() -> None:
    rows = (".L_x_0:", "FADD R0, R1, R2", "@P0 BRA `(.L_x_1)", "FADD R3, R4, R5", ".L_x_1:", "FADD R6, R7, R8", "@P1 BRA `(.L_x_0)", "EXIT")
    flow = flow_of(read_listing(text(*rows)))
    assert flow.always(0) == {0, 3} and [block.first for block in flow.blocks] == [0, 2, 3, 5]
