"""Routines in C: native code chooses tokens as the op says, whatever is asked, and its draws follow the exact distribution; it puts
elements in order as the ops say, to the bit.
"""

from __future__ import annotations

import errno
import functools
import itertools
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c.abi import support_files
from ourcc.codegen.host.routines import LAUNCHES, routine
from ourcc.codegen.host.routines import asked as asked_of
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.errors import EngineError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.ops.table import OPS
from ourcc.ir.plan import Host, is_native
from ourcc.ir.plan.steps import IN_C
from ourcc.ir.types import DTYPES, DType, TensorType, boolean, f16, f32, f64, from_numpy, i64, type_of, u4, u8
from ourcc.runtime.arrays import packed
from ourcc.runtime.engine import Engine

Array = np.ndarray[Any, Any]
NAMES = ("logits", "temperature", "top_k", "top_p", "min_p", "seed", "place", "edited", "edits")
NO_EDITS = np.zeros((0, 2), np.int64), np.zeros((0, 2))
FIRST = np.array([0.31, 0.22, 0.17, 0.1, 0.08, 0.05, 0.03, 0.02, 0.015, 0.005])


@functools.cache
def engine(threads: int) -> Engine:
    """An engine that is the op `sample_token` alone, for any number of rows."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    rows, size, edits = (module.declare(name, low) for name, low in (("R", 0), ("V", 1), ("E", 0)))
    sizes: dict[str, tuple[dims.Dim, ...]] = {"logits": (rows, size), "edited": (edits, 2), "edits": (edits, 2)}
    types = [TensorType(type_of(each).dtype, sizes.get(name, (rows,))) for name, each in zip(NAMES, asked(np.zeros((1, 1))), strict=True)]
    inputs = [graph.add_input(name, type) for name, type in zip(NAMES, types, strict=True)]
    graph.set_outputs(list(Builder(module, graph).sample_token(*inputs)), ["token", "weights"])
    return Engine(compile_module(module, build_options({"targets": ["native"], "tune": "off"})), threads=threads)


def asked(
    logits: Array,
    temperature: Any = 0.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    seed: Any = 1,
    place: Any = 5,
    edits: tuple[Array, Array] = NO_EDITS,
) -> list[Array]:
    """The op's operands; a number stands for that number in every row."""
    rows = (temperature, np.float64), (top_k, np.int64), (top_p, np.float64), (min_p, np.float64), (seed, np.int64), (place, np.int64)
    spread = [np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype), len(logits))) for value, dtype in rows]
    return [np.asarray(logits, np.float32), *spread, *edits]


@pytest.mark.parametrize(("top_p", "min_p"), [(0.0, 0.0), (-1.0, 0.0), (1.0, 2.0), (0.5, 1e9), (5e-324, 0.0)])
def test_the_likeliest_always_stays(top_p: float, min_p: float) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    given = asked(logits, temperature=1.0, top_p=top_p, min_p=min_p)
    for token, weights in (engine(1)(*given), OPS["sample_token"].body(*given)):
        np.testing.assert_array_equal(token, logits.argmax(axis=1))
        np.testing.assert_array_equal(weights.argmax(axis=1), token)


def drawn(logits: Array, threads: int = 1, **options: Any) -> tuple[Array, Array]:
    """Tokens and weights."""
    token, weights = engine(threads)(*asked(logits, **options))
    return token, weights


def test_every_routine_in_c_is_an_op_with_a_file() -> None:
    folder = Path(__file__).parents[3] / "codegen" / "host"
    assert {path.stem for path in folder.glob("*.c")} - {LAUNCHES} == IN_C <= OPS.keys() - {LAUNCHES}
    for name in IN_C:
        assert f"{name}_descriptor" in routine(name)
    assert not is_native(Host("unique", {}, (), ()))
    (step,) = engine(1).contents.best.plans["main"].steps
    assert isinstance(step, Host) and is_native(step) and engine(1).contents.best.has_native_steps


@pytest.mark.parametrize("seed", range(8))
def test_native_code_keeps_and_draws_what_the_op_says(seed: int) -> None:
    """Small and large vocabularies, ties, tokens that are impossible, edits, parameters from one end of their range to the other."""
    random = np.random.default_rng(seed)
    rows, size = 40, int(random.choice([1, 2, 5, 64, 1023, 1024, 1025, 5000]))
    logits = (random.standard_normal((rows, size)) * random.choice([0.0, 1.0, 6.0, 50.0], (rows, 1))).astype(np.float32)
    logits[::3] = np.round(logits[::3])
    logits[::4, 1:][random.random((len(logits[::4]), size - 1)) < 0.3] = -np.inf
    edited = np.stack([random.integers(-1, rows + 1, 200), random.integers(-1, size + 1, 200)], axis=1)
    values = np.stack(
        [random.uniform(0.5, 2, 200), random.choice([0.0, 3.0, -7.5, -np.inf, 1e300], 200, p=(0.5, 0.2, 0.2, 0.05, 0.05))], axis=1
    )
    options = {
        "temperature": random.choice([0.0, 5e-324, 1e-30, 0.05, 0.8, 1.0, 3.0, 1e30, 1.7e308], rows),
        "top_k": random.choice([0, 1, 2, 7, 300, (1 << 63) - 1], rows),
        "top_p": random.choice([1.0, 0.95, 0.4, 1e-9, 5e-324, 1 - 2**-53], rows),
        "min_p": random.choice([0.0, 0.0, 0.02, 1.0], rows),
        "seed": random.integers(0, (1 << 63) - 1, rows),
        "place": random.integers(0, 1 << 40, rows),
        "edits": (edited, values),
    }
    token, weights = drawn(logits, **options)
    expected, exact = OPS["sample_token"].body(*asked(logits, **options))
    # What adds up to less than sums round away may be kept or not.
    apart = np.where((weights > 0) != (exact > 0), np.maximum(weights, exact), 0)
    assert (apart.sum(axis=1) <= 1e-14 * exact.sum(axis=1)).all()
    np.testing.assert_allclose(np.where(apart, 0, weights), np.where(apart, 0, exact), rtol=2e-7)
    np.testing.assert_array_equal(token, expected)


KNOBS: list[tuple[dict[str, float], Array]] = [
    ({"temperature": 1.0}, FIRST),
    ({"temperature": 0.5}, FIRST**2),
    ({"temperature": 2.0}, FIRST**0.5),
    ({"temperature": 1.0, "top_k": 3}, FIRST * (FIRST >= 0.17)),
    ({"temperature": 1.0, "top_p": 0.75}, FIRST * (FIRST >= 0.1)),
    ({"temperature": 1.0, "min_p": 0.2}, FIRST * (FIRST >= 0.08)),
    ({"temperature": 1.0, "top_k": 4, "top_p": 0.6}, FIRST * (FIRST >= 0.22)),
    ({"temperature": 2.0, "top_k": 6, "min_p": 0.6}, FIRST**0.5 * (FIRST >= 0.17)),
    ({"temperature": 1.0, "top_k": 8, "top_p": 0.97, "min_p": 0.3}, FIRST * (FIRST >= 0.1)),
    ({"temperature": 1e30}, np.ones(10)),
    ({"temperature": 1e-30}, np.eye(10)[0]),
    ({"temperature": 1.0, "top_k": 1}, np.eye(10)[0]),
    ({"temperature": 1.0, "top_p": 1e-12}, np.eye(10)[0]),
    ({"temperature": 1.0, "top_k": 10**12}, FIRST),
]
COUNT = 20000


@pytest.mark.parametrize(("options", "expected"), KNOBS, ids=[" ".join(f"{k}={v}" for k, v in options.items()) for options, _ in KNOBS])
@pytest.mark.parametrize("by", ["seed", "place"])
def test_draws_follow_the_exact_distribution(by: str, options: dict[str, float], expected: Array) -> None:
    """Over seeds, and over the places of one text: chi-squared below what one sample in a million exceeds."""
    token, _ = drawn(np.tile(np.log(FIRST), (COUNT, 1)), **options, **{by: np.arange(COUNT)})
    assert chi_squared(token, expected / expected.sum()) < 45


def chi_squared(token: Array, shares: Array) -> float:
    """How far counts lie from what is expected, of at most 10 kinds; infinite where an impossible one is there."""
    counts, kept = np.bincount(token, minlength=len(shares)), shares > 0
    return float("inf") if counts[~kept].any() else float(((counts - len(token) * shares)[kept] ** 2 / (len(token) * shares[kept])).sum())


def test_penalties_and_biases_change_the_distribution() -> None:
    logits = np.array([2.0, 1.0, -1.0, 0.5, 0.0])
    changed = np.array([2.0 / 1.5, 1.0 + 0.7, -1.0 * 1.5, -np.inf, 0.0 - 1.25])
    edited = np.stack([np.repeat(np.arange(COUNT), 5), np.tile([0, 1, 2, 3, 4], COUNT)], axis=1)
    edits = np.tile([[1.5, 0.0], [1.0, 0.7], [1.5, 0.0], [1.0, -np.inf], [3.0, -1.25]], (COUNT, 1))
    token, _ = drawn(np.tile(logits, (COUNT, 1)), temperature=1.0, seed=np.arange(COUNT), edits=(edited, edits), threads=2)
    assert chi_squared(token, np.exp(changed) / np.exp(changed).sum()) < 45


def test_draws_are_those_of_philox() -> None:
    """The weights before a token are at most as much of all as the number that numpy draws, and with it more."""
    random = np.random.default_rng(3)
    logits = (random.standard_normal((50, 3000)) * 2).astype(np.float32)
    seeds, places = random.integers(0, (1 << 63) - 1, 50), np.array([0, 1, (1 << 63) - 1, *range(100, 147)])
    token, weights = drawn(logits, temperature=0.9, top_p=0.9, seed=seeds, place=places)
    for row in range(50):
        share = np.random.Generator(np.random.Philox(key=int(seeds[row]), counter=int(places[row]))).random()
        sums = np.cumsum(weights[row], dtype=np.float64)
        assert weights[row, token[row]] > 0
        assert sums[token[row]] - weights[row, token[row]] <= share * sums[-1] * (1 + 1e-12)
        assert sums[token[row]] >= share * sums[-1] * (1 - 1e-12)


def test_a_row_is_told_the_same_whatever_stands_beside_it() -> None:
    random = np.random.default_rng(4)
    logits = random.standard_normal((16, 49152)).astype(np.float32) * 3
    options: dict[str, Any] = {
        "temperature": random.uniform(0, 2, 16),
        "top_k": random.integers(0, 99, 16),
        "top_p": random.uniform(0.5, 1, 16),
    }
    token, weights = drawn(logits, seed=np.arange(16), **options)
    both = drawn(logits, threads=2, seed=np.arange(16), **options)
    np.testing.assert_array_equal(both[0], token)
    np.testing.assert_array_equal(both[1], weights)
    for row in range(16):
        own = {name: values[row] for name, values in options.items()}
        alone = drawn(logits[row : row + 1], seed=row, **own)
        assert alone[0][0] == token[row]
        np.testing.assert_array_equal(alone[1][0], weights[row])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [[np.nan, 1.0], [1.0, np.nan], [-np.inf, -np.inf], [np.inf, 0.0], [1.0, -np.nan]])
def test_scores_that_are_no_numbers_choose_nothing(bad: list[float], temperature: float) -> None:
    token, weights = drawn(np.array([bad, [0.0, 1.0]]), temperature=temperature, top_k=1, top_p=0.5)
    assert token.tolist() == [-1, 1] and not weights[0].any()


def test_equals_and_zeros_of_both_signs() -> None:
    greedy, weights = drawn(np.array([[1, 3, 3, 2], [-0.0, 0.0, -0.0, -1.0]]))
    assert greedy.tolist() == [1, 0] and weights.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    _, weights = drawn(np.array([[-0.0, 0.0, 0.0, -0.0, -9.0]] * 2), temperature=1.0, top_k=[3, 0], top_p=[1.0, 0.7])
    assert (weights > 0).tolist() == [[True, True, True, False, False]] * 2


# --- order ------------------------------------------------------------------------------------------------------------

ORDERED = [dtype for dtype in DTYPES.values() if dtype.kind in ("float", "int", "uint", "bool")]


def compiled(module: Module, threads: int = 1) -> Engine:
    return Engine(compile_module(module, build_options({"targets": ["native"], "tune": "off"})), threads=threads)


@functools.cache
def in_order(dtype: DType, threads: int) -> Engine:
    """An engine that sorts and selects along each axis of three, all of whose sizes a call tells."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(dtype, tuple(module.declare(name, 0) for name in "ABC")))
    for axis in range(3):
        graph.add_input(f"wanted{axis}", TensorType(boolean, (module.declare(f"K{axis}", 0),)))
    b = Builder(module, graph)
    results = [
        result
        for name, attrs in asked_in_order(dtype, [dims.symbol(f"K{axis}") for axis in range(3)])
        for result in getattr(b, name)(x, **attrs)
    ]
    graph.set_outputs(results, [f"y{n}" for n in range(len(results))])
    return compiled(module, threads)


def asked_in_order(dtype: DType, kept: Sequence[dims.Dim]) -> Iterator[tuple[str, dict[str, Any]]]:
    for axis, reverse in itertools.product(range(3), (False, True)):
        yield "sort", {"axis": axis - 3 if reverse else axis, "descending": reverse}
        if dtype != boolean:
            yield "top_k", {"k": kept[axis], "axis": axis, "largest": reverse, "sorted": axis == 0}


def drawn_of(dtype: DType, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Any bits at all, NaN of every kind among them, and many equals: zeros of both signs, and the numbers before."""
    count = int(np.prod(shape))
    if dtype.bits < 8 or dtype == boolean:
        found = random.integers(0, 1 << (1 if dtype == boolean else dtype.bits), count).astype(np.uint8)
        return (found.view(dtype.numpy) if dtype.is_float or dtype == boolean else found.astype(dtype.numpy)).reshape(shape)
    bits = random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(f"u{dtype.itemsize}")
    chosen = random.choice(4, count, p=(0.5, 0.1, 0.1, 0.3))
    bits[chosen == 1], bits[chosen == 2] = 0, 1 << (dtype.bits - 1)
    if count:
        bits = np.where(chosen == 3, random.choice(bits[:9], count), bits)
    return bits.view(dtype.numpy).reshape(shape)


def bits_of(array: Array) -> Array:
    """What two arrays of the same bits have in common: elements narrower than a byte as numbers."""
    found = np.ascontiguousarray(array)
    return found.astype(np.float32) if from_numpy(array.dtype).bits < 8 else found.view(np.uint8)


SHAPES = [(2, 3, 4), (1, 700, 2), (3, 1, 41), (0, 4, 5), (2, 0, 3), (1100, 1, 1), (1, 2, 530), (40, 41, 3)]


@pytest.mark.parametrize("dtype", ORDERED, ids=str)
def test_native_code_selects_and_sorts_as_the_ops_say(dtype: DType) -> None:
    random = np.random.default_rng(1)
    for number, shape in enumerate(SHAPES):
        x = drawn_of(dtype, shape, random)
        kept = [(0, min(size, 1), size // 3, size, min(size, 5))[int(random.integers(5))] for size in shape]
        results = in_order(dtype, 1 + number % 2)(x, *(np.zeros(count, np.bool_) for count in kept))
        expected = [each for name, attrs in asked_in_order(dtype, kept) for each in OPS[name].body(x, **OPS[name].complete(attrs))]
        assert len(results) == len(expected)
        for left, right in zip(results, expected, strict=True):
            assert left.shape == right.shape and left.dtype == right.dtype
            np.testing.assert_array_equal(bits_of(left), bits_of(right), err_msg=f"{shape} {kept}")


@pytest.mark.parametrize("kind", ["rising", "falling", "equal", "two", "end", "nan"])
@pytest.mark.parametrize("kept", [1, 5, 40, 41, 300, 2999, 3000])
def test_few_and_many_of_lines_of_every_kind(kind: str, kept: int) -> None:
    line = np.arange(3000, dtype=np.float32)
    given = {
        "rising": line,
        "falling": -line,
        "equal": 0 * line,
        "two": line % 2,
        "end": np.where(line < 2950, -np.inf, line),
        "nan": np.where(line % 3 == 0, np.nan, line),
    }
    x = given[kind][None, :, None].astype(np.float32)
    results = in_order(f32, 1)(x, *(np.zeros(count, np.bool_) for count in (1, kept, 1)))
    expected = [each for name, attrs in asked_in_order(f32, [1, kept, 1]) for each in OPS[name].body(x, **OPS[name].complete(attrs))]
    for left, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(bits_of(left), bits_of(right))


@pytest.mark.parametrize("dtype", [dtype for dtype in ORDERED if dtype != boolean], ids=str)
def test_native_code_searches_as_the_op_says(dtype: DType) -> None:
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    boundaries, x = (graph.add_input(name, TensorType(dtype, (module.declare(f"{name}s", 0),))) for name in "bx")
    b = Builder(module, graph)
    graph.set_outputs([b.search_sorted(boundaries, x, right=right) for right in (False, True)], ["left", "right"])
    for threads, sizes in ((1, (0, 3)), (2, (1, 40)), (2, (300, 200)), (1, (7, 0))):
        random = np.random.default_rng(threads)
        given, wanted = (drawn_of(dtype, (size,), random) for size in sizes)
        # A vector that does not ascend has an answer as well: that of a bisection.
        for vector in (OPS["sort"].body(given, axis=0, descending=False)[0], given):
            for found, right in zip(compiled(module, threads)(vector, wanted), (False, True), strict=True):
                np.testing.assert_array_equal(found, OPS["search_sorted"].body(vector, wanted, right=right))


def test_how_many_is_data() -> None:
    """A number that a call's data hold; more than there are is an error, and the engine runs on."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    count = module.declare("K", 0)
    x, wanted = graph.add_input("x", TensorType(f32, (3, 7))), graph.add_input("wanted", TensorType(i64, ()))
    b = Builder(module, graph)
    b.item(wanted, symbol=count)
    graph.set_outputs(list(b.top_k(x, k=count)), ["values", "places"])
    run = compiled(module)
    given = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    for number in (3, 0, 7):
        for left, right in zip(run(given, np.asarray(number)), OPS["top_k"].body(given, k=number), strict=True):
            np.testing.assert_array_equal(left, right)
        with pytest.raises(EngineError):
            run(given, np.asarray(8))


PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
void *given(size_t alignment, size_t size);
#include "ROUTINE.c"
#undef aligned_alloc
static int is_empty;
void *given(size_t alignment, size_t size) { return is_empty ? 0 : aligned_alloc(alignment, size); }
static void *filled(size_t size) { void *made = malloc(size); if (fread(made, 1, size, stdin) != size) exit(9); return made; }
int main(int count, char **words) {
    int64_t *numbers = filled(8 * sizeof *numbers), bytes[3], points = atoll(words[1]);
    is_empty = count > 5;
    for (int n = 0; n < 3; ++n) bytes[n] = atoll(words[2 + n]);
    void *operands[] = {filled(bytes[0]), malloc(bytes[1]), malloc(bytes[2])};
    int32_t status = points ? ROUTINE_descriptor.body(operands, numbers, 0, points) : 0;
    for (int n = 1; n < 3 && !status; ++n) fwrite(operands[n], 1, bytes[n], stdout);
    for (int n = 0; n < 3; ++n) free(operands[n]);
    free(numbers);
    return status;
}
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The routine `top_k` as a program of its own with checks of addresses and of undefined behaviour."""
    folder = tmp_path_factory.mktemp("checked")
    for name, text in ({"top_k.c": routine("top_k"), "main.c": PROGRAM.replace("ROUTINE", "top_k")} | support_files()).items():
        (folder / name).write_text(text)
    flags = ("-O1", "-g", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Daligned_alloc=given")
    done = subprocess.run(["gcc", *flags, "-o", "program", "main.c"], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the compiler has no sanitizers: {done.stderr}")
    return folder / "program"


def run_checked(program: Path, x: Array, kept: int, axis: int, *words: str) -> subprocess.CompletedProcess[bytes]:
    type = type_of(x)
    shape = (*x.shape[:axis], kept, *x.shape[axis + 1 :])
    result = TensorType(type.dtype, shape)
    points, numbers = asked_of("top_k", [type, result, result.with_dtype(i64)], {"k": kept, "axis": axis})
    sizes = [str(each.nbytes) for each in (type, result, result.with_dtype(i64))]
    given = np.asarray(numbers, np.int64).tobytes() + (packed(x, type.dtype) if type.dtype.bits < 8 else x).tobytes()
    return subprocess.run([str(program), str(points), *sizes, *words], input=given, capture_output=True, check=False)


@pytest.mark.parametrize("dtype", [f64, f32, f16, u8, u4], ids=str)
def test_routines_touch_their_own_memory_alone(checked: Path, dtype: DType) -> None:
    random = np.random.default_rng(2)
    for shape in ((2, 3, 3), (1, 513, 1), (1, 1040, 2), (3, 127, 1), (1, 16, 1), (2, 1, 2)):
        x = drawn_of(dtype, shape, random)
        for kept in {0, 1, min(shape[1], 7), shape[1] // 2, shape[1]}:
            done = run_checked(checked, x, kept, 1)
            assert done.returncode == 0, done.stderr.decode()
            _, places = OPS["top_k"].body(x, k=kept, axis=1)
            assert done.stdout.endswith(places.tobytes())


def test_no_memory_is_an_error(checked: Path) -> None:
    assert run_checked(checked, np.ones((2, 9, 1), np.float32), 3, 1, "none").returncode == errno.ENOMEM
