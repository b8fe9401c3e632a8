"""A plan as C: functions and files of bounded size, every step in its place, whatever the length."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ourcc.codegen.host.c import PIECE, PIECES, print_plans
from ourcc.compiler.backends.cpu import lower_cpu, print_cpu
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.requests import parse_measuring
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.plan import Launch
from ourcc.ir.scan import parse_type
from ourcc.ir.target import cpu_level
from ourcc.passes.lower.schedule import cheapest
from ourcc.runtime.engine import Engine


def products(count: int, widths: tuple[int, ...] = (8,)) -> Module:
    """`count` products in a row, each a kernel launch; widths vary from one to the next."""
    module = Module("m")
    graph = Graph("main")
    module.functions["main"] = graph
    x = graph.add_input("x", parse_type(f"f32[3, {widths[0]}]"))
    builder = Builder(module, graph)
    for n in range(count):
        before, after = widths[n % len(widths)], widths[(n + 1) % len(widths)]
        name = f"w{before}_{after}"
        weight = module.constants.get(name) or module.add_constant(name, np.full((before, after), 1 / before, np.float32))
        x = builder.tanh(builder.matmul(x, weight))
    graph.set_outputs([x])
    return module


@pytest.mark.parametrize("count", [0, 1, PIECE, PIECE + 1, 5 * PIECE, PIECE * PIECES * 2 + 1])
def test_functions_and_files_hold_a_bounded_number_of_steps_in_order(count: int) -> None:
    level = cpu_level("x86-64-v3")
    lowered = lower_cpu(products(count), level, cheapest(level))
    assert sum(isinstance(step, Launch) for step in lowered.plan.steps) == count
    files = print_plans(lowered.plans)
    defined: dict[str, list[str]] = {}
    for text in files.values():
        functions = re.findall(r"^int32_t (ourcc_piece_\w+)\([^;]*?\{$(.*?)^\}$", text, re.DOTALL | re.MULTILINE)
        assert len(functions) <= PIECES
        for name, body in functions:
            defined[name] = re.findall(r"ourcc_launch\(.*?(kernel_\d+)", body)
            assert len(defined[name]) <= PIECE
    entry = files["plan_0.c"].split("int32_t ourcc_segment_0_0", 2)[-1]
    called = re.findall(r"^    if \(\(status = (ourcc_piece_\w+)\(", entry, re.MULTILINE)
    assert sorted(called) == sorted(defined)
    assert [kernel for name in called for kernel in defined[name]] == [s.name for s in lowered.plan.steps if isinstance(s, Launch)]


def test_equal_kernels_are_printed_once_and_each_has_a_file_of_its_own() -> None:
    level = cpu_level("x86-64-v3")
    few, many = (lower_cpu(products(count), level, cheapest(level)) for count in (3, 400))
    assert len(few.kernels) == len(many.kernels) == 1
    varied = lower_cpu(products(200, tuple(range(4, 104))), level, cheapest(level))
    files = print_cpu(varied, level)
    kernels = {
        name: re.findall(r"^int32_t (kernel\w*)\(.*\{$", text, re.MULTILINE) for name, text in files.items() if name.startswith("kernel")
    }
    assert len(varied.kernels) == 100 and kernels == {f"{name}.c": ["kernel"] for name in varied.kernels}


def test_a_plan_of_many_files_runs() -> None:
    module = products(PIECE * PIECES + 5, (8, 9, 10))
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    (stepwise,), (wide,) = interpret(module, [x]), interpret(module, [x], wide=True)
    engine = Engine(compile_module(module, BuildOptions(targets=(TARGETS["native"],), tune=parse_measuring("off"))), threads=1)
    assert {"plan_0.c", "plan_0_0.c"} <= {name.split("/")[-1] for name in engine.contents.best.files}
    verdict = judge(engine(x), stepwise, wide)
    assert verdict.passed, verdict.reason


def test_what_stands_behind_a_variant_for_all_calls_is_never_run() -> None:
    level = cpu_level("x86-64-v3")
    plan = lower_cpu(products(1), level, cheapest(level)).plan
    (launch,) = (step for step in plan.steps if isinstance(step, Launch))
    (usual,) = launch.variants
    twice = replace(launch, variants=(replace(usual, kernel="kernel_0_from_0"), usual))
    text = "".join(print_plans({"main": replace(plan, steps=(twice,))}).values())
    assert re.findall(r"ourcc_launch\(threads.*(kernel_\w*from_0|kernel_0)", text) and "else" not in text
    assert len(re.findall(r"ourcc_launch\(threads", text)) == 1
