"""Kernels that fail, and what threads do before and after a kernel: hand-written ones, and those of a made-up instruction."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c.abi import KERNEL, descriptor
from ourcc.codegen.c.compile import compile_shared
from ourcc.codegen.c.printer import SourceFile
from ourcc.codegen.c.toolchain import Compiler
from ourcc.ir.target import AVX2, CpuInstruction, CpuLevel
from ourcc.ir.tile.parse import parse
from ourcc.runtime.native import cpu_flags

from .conftest import load_library

pytestmark = pytest.mark.skipif(not cpu_flags().issuperset(AVX2.features), reason="needs a CPU with AVX2")

SOURCE = """
#define _GNU_SOURCE
#include "ourcc.h"
#include <sched.h>
#include <time.h>
typedef struct { int64_t entered, left, bare, done, refused, fails_at, status, delay, waits; } counts;
static counts seen;
static _Thread_local int depth, caller;
static int64_t next(int64_t *count) { return __atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST); }

static int32_t enter(void) { next(&seen.entered); ++depth; return 0; }
static void leave(void) { next(&seen.left); --depth; }
static void only_leave(void) { next(&seen.left); }
static int32_t enter_caller(void) { if (caller) return enter(); next(&seen.refused); return 7; }
static int32_t enter_nobody(void) { next(&seen.refused); return 11; }

static int32_t body(void *const *operands, const int64_t *symbols, int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
        volatile double x = 1;
        for (int64_t n = 0; n < seen.delay; ++n) x = x * 1.000001;
        if (p == seen.fails_at) return (int32_t)seen.status;
        if (depth <= 0) next(&seen.bare);
        if (operands) next(&((int64_t *)operands[0])[p]);
        next(&seen.done);
    }
    return 0;
}
/* Waits for what another thread would signal, as kernels with counters do; a minute is given up. */
static int32_t waiting(void *const *operands, const int64_t *symbols, int64_t first, int64_t last) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    next(&seen.waits);
    do {
        if (ourcc_ended() != 0) return 0;
        sched_yield();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec < 60);
    return 99;
}
static int32_t outer(void *const *operands, const int64_t *symbols, int64_t first, int64_t last) {
    static const ourcc_kernel inner = {body, enter, leave};
    for (int64_t p = first; p < last; ++p) {
        int32_t status = ourcc_launch(2, 5, &inner, 0, 0);
        if (status != 0) return -status;
        if (depth <= 0) next(&seen.bare);
        next(&((int64_t *)operands[0])[p]);
    }
    return 0;
}
static const ourcc_kernel kernels[] = {
    {body, enter, leave}, {outer, enter, leave}, {waiting, enter_caller, leave}, {body, enter_nobody, leave}, {body, 0, only_leave},
};
OURCC_EXPORT int32_t launch(int threads, int64_t points, int kernel, int64_t *each) {
    void *operands[] = {each};
    caller = 1;
    return ourcc_launch(threads, points, &kernels[kernel], operands, 0);
}
OURCC_EXPORT counts *counted(void) { return &seen; }
OURCC_EXPORT int depth_here(void) { return depth; }
"""
HOOKED, NESTED, WAITING, REFUSING, LEAVING = range(5)


class Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in "entered left bare done refused fails_at status delay waits".split())


@pytest.fixture(scope="module")
def library(compiler: Compiler) -> ctypes.CDLL:
    made = load_library(compile_shared({"work.c": SOURCE}, AVX2, compiler).data)
    made.counted.restype = ctypes.POINTER(Counts)
    return made


def launch(library: ctypes.CDLL, threads: int, points: int, kernel: int, **said: int) -> tuple[int, list[int], Any]:
    """The status, how often each point was run, and what was counted."""
    counts = library.counted().contents
    for name, _ in Counts._fields_:
        setattr(counts, name, {"fails_at": -1, **said}.get(name, 0))
    each = (ctypes.c_int64 * max(1, points))()
    status = library.launch(threads, ctypes.c_int64(points), kernel, each)
    assert library.depth_here() == 0
    return status, list(each)[:points], counts


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("points", [0, 1, 2, 300])
def test_each_body_runs_between_enter_and_leave(library: ctypes.CDLL, threads: int, points: int) -> None:
    for _ in range(10):
        status, each, counts = launch(library, threads, points, HOOKED, delay=20)
        assert status == 0 and each == [1] * points
        assert (counts.entered, counts.bare) == (counts.left, 0) and (counts.entered > 0) == (points > 0)


@pytest.mark.parametrize("threads", [1, 4])
def test_hooks_nest(library: ctypes.CDLL, threads: int) -> None:
    status, each, counts = launch(library, threads, 40, NESTED)
    assert status == 0 and each == [1] * 40 and counts.done == 200
    assert (counts.entered, counts.bare) == (counts.left, 0) and counts.entered > 40
    status, each, counts = launch(library, threads, 40, NESTED, fails_at=3, status=12)
    assert status == -12 and sum(each) == 0 and counts.entered == counts.left


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("said", [5, -5])
def test_a_body_that_fails_ends_the_launch(library: ctypes.CDLL, threads: int, said: int) -> None:
    status, each, counts = launch(library, threads, 1000, HOOKED, fails_at=0, status=said, delay=2000)
    assert status == -5 and each[0] == 0 and sum(each) < 1000
    assert counts.entered == counts.left > 0
    status, each, _ = launch(library, threads, 1000, HOOKED)
    assert status == 0 and each == [1] * 1000, "the next launch is a new one"


@pytest.mark.parametrize("threads", [1, 3])
def test_where_enter_fails_nothing_runs(library: ctypes.CDLL, threads: int) -> None:
    status, each, counts = launch(library, threads, 100, REFUSING)
    assert status == -11 and sum(each) == 0 and counts.refused > 0
    assert (counts.entered, counts.left, counts.done) == (0, 0, 0)


def test_one_thread_that_cannot_be_set_up_ends_the_others(library: ctypes.CDLL) -> None:
    """The caller waits inside the body for a thread of the pool whose `enter` fails."""
    for _ in range(5):
        status, _, counts = launch(library, 2, 32, WAITING)
        assert status == -7 and counts.refused == 1 and counts.waits <= 1
        assert counts.entered == counts.left == counts.waits
    status, each, _ = launch(library, 2, 64, HOOKED)
    assert status == 0 and each == [1] * 64


def test_one_hook_alone_is_enough(library: ctypes.CDLL) -> None:
    status, each, counts = launch(library, 1, 6, LEAVING)
    assert status == 0 and each == [1] * 6 and (counts.entered, counts.left) == (0, 1)


# --- instructions -----------------------------------------------------------------------------------------------------

PROGRAM = """
program @p symbols {{ N }} {{
  launch @p(%x: f32[i N], %y: out f32[i N]) {{
    grid (i: 0..N step 8) {{
      store %y[i] = {value} : f32[i]
    }}
  }}
}}
"""
HOOKS = """
#include "ourcc.h"
int64_t hooked[3];
int32_t made_up_enter(void) { __atomic_fetch_add(&hooked[0], 1, __ATOMIC_SEQ_CST); return (int32_t)hooked[2]; }
void made_up_leave(void) { __atomic_fetch_add(&hooked[1], 1, __ATOMIC_SEQ_CST); }
OURCC_EXPORT int64_t *hooks(void) { return hooked; }
"""
DRIVER = """
#include "ourcc.h"
extern const ourcc_kernel {described};
OURCC_EXPORT int32_t run_{name}(int threads, int64_t n, int64_t points, void *const *operands) {{
    return ourcc_launch(threads, points, &{described}, operands, &n);
}}
"""
ENTER = "extern int32_t made_up_enter(void);\nint32_t status = made_up_enter();\nif (status != 0) return status;"
LEAVE = "extern void made_up_leave(void);\nmade_up_leave();"


def made_up(name: str, feature: str, enter: str = ENTER, leave: str = LEAVE) -> CpuInstruction:
    return CpuInstruction(name, 8, 1, "f32", "f32", "f32", feature, enter, leave)


def level_with(*instructions: CpuInstruction) -> CpuLevel:
    return replace(AVX2, instructions=instructions)


def printed(level: CpuLevel, *values: str) -> SourceFile:
    """A file with one kernel for each of the values."""
    file = SourceFile(level)
    for number, value in enumerate(values):
        file.add(parse(PROGRAM.format(value=value)).launches[0], f"kernel_{number}", ("N",))
    return file


COPY, EXP = "load %x[i]", "exp(load %x[i] : f32[i])"


def test_kernels_that_use_an_instruction_have_its_hooks() -> None:
    # The second kernel that calls a function finds it written, and uses its instructions as the first one does.
    for feature, hooked in (("fma", {"kernel_1", "kernel_2"}), ("avx512f", set())):
        text = printed(level_with(made_up("made-up", feature)), COPY, EXP, EXP).text()
        for name in ("kernel_0", "kernel_1", "kernel_2"):
            hooks = f"{name}_enter, {name}_leave" if name in hooked else "0, 0"
            assert f"const ourcc_kernel {descriptor(name)} = {{{name}, {hooks}}};" in text
    assert "_enter" not in printed(AVX2, COPY, EXP).text()


def test_hooks_of_one_text_are_called_once() -> None:
    same = printed(level_with(made_up("a", "fma"), made_up("b", "fma")), EXP).text()
    assert same.count("made_up_enter();") == same.count("made_up_leave();") == 1


@pytest.mark.parametrize("names", [(), ("kernel_0", "kernel_1")], ids=["one file", "renamed"])
def test_the_hooks_of_an_instruction_run(compiler: Compiler, names: tuple[str, ...]) -> None:
    level = level_with(made_up("made-up", "fma"))
    files = {f"kernel_{n}.c": printed_as(level, KERNEL if names else f"kernel_{n}", value) for n, value in enumerate((EXP, COPY))}
    drivers = "".join(DRIVER.format(name=name, described=descriptor(name)) for name in ("kernel_0", "kernel_1"))
    data = compile_shared({**files, "hooks.c": HOOKS, "drivers.c": drivers}, level, compiler, kernels=names).data
    library = load_library(data)
    library.hooks.restype = ctypes.POINTER(ctypes.c_int64)
    hooks = library.hooks()
    x = np.linspace(-3, 3, 800, dtype=np.float32)
    for threads in (1, 2):
        for name, expected, is_hooked in (("kernel_0", np.exp(x), True), ("kernel_1", x, False)):
            y = np.zeros_like(x)
            hooks[0] = hooks[1] = hooks[2] = 0
            operands = (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data)
            call = getattr(library, f"run_{name}")
            assert call(threads, ctypes.c_int64(800), ctypes.c_int64(100), operands) == 0
            np.testing.assert_allclose(y, expected, rtol=1e-6)
            assert hooks[0] == hooks[1] and (hooks[0] > 0) == is_hooked
            y[:] = 0
            hooks[2] = 33
            assert call(threads, ctypes.c_int64(800), ctypes.c_int64(100), operands) == (-33 if is_hooked else 0)
            assert y.any() == (not is_hooked)


def printed_as(level: CpuLevel, name: str, value: str) -> str:
    file = SourceFile(level)
    file.add(parse(PROGRAM.format(value=value)).launches[0], name, ("N",))
    return file.text()


def test_where_a_second_instruction_cannot_be_used_the_first_is_left(compiler: Compiler) -> None:
    level = level_with(made_up("a", "fma"), made_up("b", "fma", "return 21;", ""))
    driver = DRIVER.format(name="kernel_0", described=descriptor("kernel_0"))
    files = {"kernel_0.c": printed_as(level, "kernel_0", EXP), "hooks.c": HOOKS, "driver.c": driver}
    library = load_library(compile_shared(files, level, compiler).data)
    library.hooks.restype = ctypes.POINTER(ctypes.c_int64)
    assert library.run_kernel_0(1, ctypes.c_int64(8), ctypes.c_int64(1), None) == -21
    assert (library.hooks()[0], library.hooks()[1]) == (1, 1)
