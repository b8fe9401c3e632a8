"""What a kernel costs the C compiler: counted alike every time, bounded, and small where wide vectors are compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import ourcc
from ourcc.codegen.c import printer
from ourcc.codegen.c.library import Library
from ourcc.codegen.c.printer import SourceFile, library_functions
from ourcc.codegen.c.weight import CALLING, HEAVIEST, LIGHT, check_weight, functions_called, weigh
from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.graph import Builder, ConstantData, Graph, Module, Value
from ourcc.ir.target import AVX2, AVX512, CPU_LEVELS, CpuLevel
from ourcc.ir.types import DType, TensorType, bf16, f32, f64, i32, i64
from ourcc.passes.lower.build_plan import Lowered
from ourcc.passes.lower.schedule import cheapest

Body = Callable[[Builder, Callable[[int], Value], Value], Value]


def module_of(dtype: DType, body: Body) -> Module:
    """One function of one vector; the body is given a builder, numbers and the vector."""
    module = Module("case")
    graph = module.functions["main"] = Graph("main")
    builder = Builder(module, graph)

    def number(value: int) -> Value:
        return module.add_constant(f"c{len(module.constants)}", ConstantData(np.asarray(value, dtype.numpy)))

    x = graph.add_input("x", TensorType(dtype, (module.declare("B"),)))
    graph.set_outputs([body(builder, number, x)], ["y"])
    return module


def clipped(b: Builder, number: Callable[[int], Value], x: Value) -> Value:
    """The largest of many differences, as the drawn joined modules have it."""
    branches = [b.minimum(b.abs(b.sub(x, number(place))), number(30 - place)) for place in range(30)]
    while len(branches) > 1:
        branches[:2] = [b.maximum(*branches[:2])]
    return branches[0]


def waves(b: Builder, number: Callable[[int], Value], x: Value) -> Value:
    for _ in range(40):
        x = b.tanh(b.sin(b.erf(x)))
    return x


def weights(lowered: Lowered, level: CpuLevel) -> Iterator[tuple[str, int, int]]:
    """The kernels' names, weights and ops."""
    for name, launch in lowered.kernels.items():
        file, scheduled = SourceFile(level), lowered.scheduled[name]
        kernel = file.add(launch, name, tuple(scheduled.problem.symbols.ranges), scheduled.problem.symbols)
        yield name, weigh([kernel.source], file.library), len(scheduled.group.ops)


@pytest.mark.parametrize("machine", CPU_LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize(("body", "dtypes"), [(clipped, (i64, i32, f64, bf16)), (waves, (f32, f64, bf16))], ids=["clipped", "waves"])
def test_what_is_printed_for_many_ops_is_bounded(machine: CpuLevel, body: Body, dtypes: tuple[DType, ...]) -> None:
    for dtype in dtypes:
        lowered = lower_cpu(module_of(dtype, body), machine, cheapest(machine))
        found = list(weights(lowered, machine))
        assert all(weight <= HEAVIEST for _, weight, ops in found if ops > 1), dtype
        assert len(found) == 1 or any("a c compiler is given at once" in kept.why for kept in lowered.kept), dtype


def test_the_weight_is_what_is_written_out() -> None:
    library = Library(AVX512, library_functions())
    one, called = "const f32x16 t1 = t0 + t0;", library.scan("const f32x16 t1 = exp_f32_16(t0);")
    assert weigh([one], library) == 1
    assert weigh(["const i64x16 t1 = t0 + t0;"], library) == 2
    assert weigh([called], library) == weigh([called], library) > 10
    assert weigh([f"{called}\n{called}\n{one}"], library) == 2 * weigh([called], library) + 1
    rare = library.scan("const f32x16 t1 = far_sin_f32_16(t0, t0, t0);")
    assert weigh([rare], library) == 1


def test_functions_are_called_in_heavy_files_alone() -> None:
    library = Library(AVX512, library_functions())
    call = library.scan("const f32x16 t1 = exp_f32_16(add_rounded);")
    weight = weigh([call], library)
    light, heavy = [call] * (LIGHT // weight), [call] * (LIGHT // weight + 1)
    assert functions_called(light, library) == frozenset()
    assert "exp_f32_16" in functions_called(heavy, library)
    assert weigh(light, library) == len(light) * weight
    assert weigh(heavy, library) < CALLING + 2 * weight
    assert "noinline)) f32x16 exp_f32_16(" in library.text(functions_called(heavy, library))
    assert "noinline)) f32x16 exp_f32_16(" not in library.text()


def test_calls_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = [helper.make_node(op, [f"x{n}"], [f"x{n + 1}"]) for n, op in enumerate(("Erf", "Sin", "Tanh", "Softplus") * 12)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1003]) for name in ("x0", f"x{len(nodes)}")]
    model = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:]), opset_imports=[helper.make_opsetid("", 17)])
    x = {"x0": np.random.default_rng(0).standard_normal(1003, dtype=np.float32) * 40}

    def answer() -> bytes:
        (result,) = ourcc.build(model, targets=["x86-64-v3"]).run(x).values()
        return np.asarray(result).tobytes()

    chosen: list[frozenset[str]] = []

    def spy(sources: Sequence[str], library: Library) -> frozenset[str]:
        chosen.append(functions_called(sources, library))
        return chosen[-1]

    # A printer that is not the one in the sources keeps its texts to itself.
    monkeypatch.setenv("OURCC_CACHE_DIR", str(tmp_path / "called"))
    monkeypatch.setattr(printer, "functions_called", spy)
    called = answer()
    assert any("sin_f32" in name for names in chosen for name in names)
    monkeypatch.setenv("OURCC_CACHE_DIR", str(tmp_path / "written out"))
    monkeypatch.setattr(printer, "functions_called", lambda sources, library: frozenset())
    assert answer() == called


def test_a_heavy_kernel_is_refused_with_what_to_do() -> None:
    library = Library(AVX2, library_functions())
    check_weight(weigh(["x = y;\n" * HEAVIEST], library))
    with pytest.raises(UnsupportedError, match="weighs 8,001 vector statements") as refused:
        check_weight(weigh(["x = y;\n" * (HEAVIEST + 1)], library))
    assert "fewer ops" in str(refused.value)


def test_kernels_of_wide_numbers_have_as_many_lanes_as_a_register() -> None:
    for level in (AVX2, AVX512):
        lowered = lower_cpu(module_of(i64, clipped), level, cheapest(level))
        (name, launch), *_ = lowered.kernels.items()
        kernel = SourceFile(level).add(launch, name, tuple(lowered.scheduled[name].problem.symbols.ranges))
        # Numbers that the program says are written as such: none is loaded into a vector of one lane.
        assert {int(lanes) for lanes in re.findall(r"\bi64x(\d+) ", kernel.source)} == {level.vector_bits // 64}


def test_vectors_wider_than_a_register_are_compared_in_halves() -> None:
    library = Library(AVX512, library_functions())
    library.need("lt_i64", 16)
    library.need("lt_i32", 16)
    written = dict(library.written())
    assert written["lt_i64_16"].count("lt_i64_8(__builtin_shufflevector") == 2
    assert "shufflevector" not in written["lt_i64_8"] + written["lt_i32_16"]
