"""The real thread pool under the runtime: one for the process, alive after a fork, results that do not depend on it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ourcc.codegen.c.abi import support_files
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.plan import Buffer, Guard, Launch, Plan, Variant, storage
from ourcc.ir.plan.digest import digest_of
from ourcc.ir.types import TensorType, f32
from ourcc.runtime import Engine, EngineContents, PartContents, write_engine
from ourcc.runtime.contents import LIBRARY

SOURCE = """
#include "ourcc.h"
static int32_t kernel_0(void *const *operands, const int64_t *symbols, int64_t first, int64_t last) {
    const float *x = operands[0];
    float *y = operands[1];
    for (int64_t i = first; i < last; i++) {
        float sum = 0;
        for (int64_t k = 0; k < 64; k++) sum += x[i * 64 + k] * (float)k;
        y[i] = sum;
    }
    return 0;
}
static const ourcc_kernel whole = {kernel_0, 0, 0};
OURCC_EXPORT int64_t ourcc_arena_0(const int64_t *symbols);
int64_t ourcc_arena_0(const int64_t *symbols) { return 0; }
OURCC_EXPORT int32_t ourcc_segment_0_0(void *const *buffers, const int64_t *symbols, char *arena, int32_t threads);
int32_t ourcc_segment_0_0(void *const *buffers, const int64_t *symbols, char *arena, int32_t threads) {
    return ourcc_launch(threads, symbols[0], &whole, buffers, symbols);
}
"""


@pytest.fixture(scope="module")
def contents(tmp_path_factory) -> EngineContents:
    folder = tmp_path_factory.mktemp("pool")
    plans = {"main": row_sums()}
    text = f'{SOURCE}OURCC_EXPORT extern const char ourcc_plans[65];\nconst char ourcc_plans[65] = "{digest_of(plans)}";\n'
    for name, content in {**support_files(), "engine.c": text}.items():
        (folder / name).write_text(content)
    sources = [name for name in ("engine.c", *support_files()) if name.endswith(".c")]
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-pthread", "-o", "e.so", *sources], check=True, cwd=folder)
    return EngineContents.of({"x86-64-v3": PartContents(plans, {LIBRARY: (folder / "e.so").read_bytes()})})


def row_sums() -> Plan:
    b = dims.symbol("B")
    kinds = TensorType(f32, (b, 64)), TensorType(f32, (b,))
    launch = Launch("k", (Variant("kernel_0", Guard(), (b,), ("x", "y")),), ("x",), ("y",))
    buffers = (Buffer("x", kinds[0], storage.Input()), Buffer("y", kinds[1], storage.Output()))
    return Plan("cpu", dims.Facts({"B": dims.Range(0, 4096)}), (("x", "x"),), (("y", "y"),), buffers, (), (launch,))


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)


def test_results_do_not_depend_on_the_number_of_threads(contents, x):
    results = [Engine(contents, threads=n)(x) for n in (1, 2, 3, 8)]
    assert all(np.array_equal(results[0], result) for result in results)
    assert np.allclose(results[0], x @ np.arange(64, dtype=np.float32), rtol=1e-4, atol=1e-3)


def test_callers_share_the_pool(contents, x):
    engine = Engine(contents, threads=2)
    want = engine(x)
    failures = []

    def work():
        for _ in range(50):
            if not np.array_equal(engine(x), want):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_runs_the_engine(contents, x):
    engine = Engine(contents, threads=2)
    want = engine(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(engine(x), want) else 3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert np.array_equal(engine(x), want)


def test_an_engine_that_is_gone_leaves_no_code_behind(contents, x):
    def mapped() -> int:
        with open("/proc/self/maps", encoding="ascii") as maps:
            return sum("memfd:x86-64-v3.so" in line for line in maps)

    keep = Engine(contents)
    keep(x)
    before = mapped()
    engine = Engine(contents)
    engine(x)
    assert mapped() > before
    del engine
    assert mapped() == before


SMALL_STACK = """
import sys, threading
import numpy as np
import ourcc

engine, outputs = ourcc.load(sys.argv[1], threads=1), []
inputs = [np.ones([int(size) for size in port.type.shape], np.float32) for port in engine.inputs]
threading.stack_size(64 * 1024)
thread = threading.Thread(target=lambda: outputs.append(engine(*inputs)))
thread.start()
thread.join()
assert len(outputs) == 1
"""


def large_tiles() -> Module:
    """A convolution whose tiles are filtered, attention, and a deep product of many rows: kernels with large arrays."""
    module = Module("large")
    graph = module.functions["main"] = Graph("main")
    b, numbers = Builder(module, graph), np.random.default_rng(0)
    x, q, rows = (graph.add_input(n, TensorType(f32, s)) for n, s in (("x", (1, 32, 40, 40)), ("q", (1, 4, 300, 64)), ("r", (200, 1500))))
    ways = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1)}
    first, second = (module.add_constant(n, numbers.standard_normal((64, c, 3, 3)).astype(np.float32)) for n, c in (("u", 32), ("w", 64)))
    graph.set_outputs(
        [
            b.conv(b.relu(b.conv(x, first, **ways)), second, **ways),
            b.attention(q, q, q, scale=0.125),
            b.matmul(rows, rows, transpose_b=True),
        ]
    )
    return module


def test_kernels_run_on_threads_of_little_stack(tmp_path: Path) -> None:
    contents = compile_module(large_tiles(), build_options({"target": "native", "tune": "off"}))
    strategies = {row["strategy"].partition("{")[0] for rows in contents.report["kernels"].values() for row in rows}
    assert {"winograd", "attention", "packed"} <= strategies
    write_engine(tmp_path / "large.ourcc", contents)
    done = subprocess.run([sys.executable, "-c", SMALL_STACK, str(tmp_path / "large.ourcc")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
