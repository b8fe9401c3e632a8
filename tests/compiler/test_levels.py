"""A level is a whole part of an engine: what one level fuses, plans and packs is nothing to the others; constants are shared."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ourcc
from ourcc.compiler.backends import cpu as target_cpu
from ourcc.compiler.backends.cpu import levels_for, levels_of
from ourcc.compiler.cli.main import run
from ourcc.compiler.commands import inspect as inspection
from ourcc.compiler.commands.bench import bench
from ourcc.compiler.commands.tune import tune
from ourcc.compiler.options import BenchOptions, InspectOptions, TuneOptions, build_options
from ourcc.compiler.pipeline import compile_again, compile_module
from ourcc.compiler.requests import parse_measuring
from ourcc.compiler.targets.registry import TARGETS, loaded_as
from ourcc.ir.errors import EngineError, InternalError, UnsupportedError, UsageError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.region import Reduce, Ref, Store
from ourcc.ir.target import (
    AVX2,
    AVX2_VNNI,
    AVX512,
    AVX512_AMX,
    AVX512_AMX_F16,
    AVX512_BF16,
    AVX512_VNNI,
    CPU_LEVELS,
    CpuLevel,
)
from ourcc.ir.types import DType, TensorType, bf16, f16, f32, u8
from ourcc.passes.tile.schedule import Match, Problem, Refusal, Strategy
from ourcc.runtime import Engine, EngineContents, native, read_engine, write_engine
from ourcc.runtime.contents import LIBRARY

V3, V4 = AVX2.name, AVX512.name
X = np.random.default_rng(1).standard_normal((7, 64), np.float32)
RUNS = pytest.mark.skipif(not native.cpu_flags().issuperset(AVX512.features), reason="needs a CPU that runs both levels")


@dataclass(frozen=True)
class Bare:
    """A strategy that on AVX2 computes nothing together with a sum, so that more is kept in memory there."""

    inner: Strategy[Any]

    @property
    def name(self) -> str:
        return self.inner.name

    def match(self, problem: Problem, target: Any) -> Match[Any] | Refusal:
        body = problem.region.body
        is_bare = all(isinstance(each.value, Ref) for each in body if isinstance(each, Store))
        if target is AVX2 and not is_bare and any(isinstance(each, Reduce) for each in body):
            return Refusal("nothing is computed with a sum here")
        return self.inner.match(problem, target)


class OnlyAbove(Bare):
    """A strategy that takes nothing on AVX2."""

    def match(self, problem: Problem, target: Any) -> Match[Any] | Refusal:
        return Refusal("not here") if target is AVX2 else self.inner.match(problem, target)


def model() -> Module:
    """Two products, each with a bias and tanh after it."""
    rng = np.random.default_rng(0)
    made, graph = Module("two_products"), Graph("main")
    made.functions["main"] = graph
    value, b = graph.add_input("x", TensorType(f32, (7, 64))), Builder(made, graph)
    for name, shape in (("w1", (64, 96)), ("w2", (96, 32))):
        weight = made.add_constant(name, rng.standard_normal(shape, np.float32) / 10)
        bias = made.add_constant(f"{name}_bias", rng.standard_normal(shape[1:], np.float32))
        value = b.tanh(b.add(b.matmul(value, weight), bias))
    graph.set_outputs([value], ["y"])
    return made


@pytest.fixture
def unlike(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX2 fuses nothing into products, and keeps constants as rows."""
    lower, layouts = target_cpu._lower_printed, target_cpu.constant_layouts

    def lower_unlike(module: Module, level: Any, *rest: Any) -> Any:
        monkeypatch.setattr(target_cpu, "constant_layouts", layouts if level is AVX512 else lambda region, constants, pairs: {})
        return lower(module, level, *rest)

    monkeypatch.setattr(target_cpu, "STRATEGIES", tuple(Bare(each) for each in target_cpu.STRATEGIES))
    monkeypatch.setattr(target_cpu, "_lower_printed", lower_unlike)


@pytest.fixture
def engine(unlike: None, tmp_path: Path) -> Path:
    """An engine whose two levels have other plans and other constants."""
    contents = compile_module(model(), build_options({"targets": ["cpu"], "tune": "off"}))
    write_engine(tmp_path / "m.ourcc", contents)
    return tmp_path / "m.ourcc"


def right(answer: Any) -> bool:
    """Whether an answer to X is right."""
    (exact,), (plain,) = interpret(model(), [X], wide=True), interpret(model(), [X])
    return judge(np.asarray(answer), plain, exact).passed


def test_levels_share_nothing_but_constants(engine: Path) -> None:
    contents = read_engine(engine)
    high, low = contents.parts[V4], contents.parts[V3]
    assert list(contents.parts) == [V4, V3] and contents.targets == ("cpu",) and contents.named("cpu") == (V4, V3)
    assert len(low.plan.buffers) > len(high.plan.buffers) and low.plan.slots != high.plan.slots
    assert low.plan.target == V3 and high.plan.target == V4
    assert len(contents.report["kernels"][V3]) > len(contents.report["kernels"][V4])
    assert contents.report["kept"][V3] and not contents.report["kept"][V4]
    assert contents.provenance["targets"] == ["cpu"] and contents.provenance["parts"] == {V4: "cpu", V3: "cpu"}
    held = {file: set(group) for file, group in contents.weights.items()}
    assert held["shared"] == {"w1_bias", "w2_bias"} and held[V3] == {"w1", "w2"} and len(held[V4]) == 2 and not held[V4] & held[V3]
    with zipfile.ZipFile(engine) as archive:
        names = archive.namelist()
    assert {f"{kind}/{level}" for kind in ("plan", "kernels") for level in (V3, V4)} == {
        "/".join(name.split("/")[:2]) for name in names if name.startswith(("plan/", "kernels/"))
    }


def test_constants_alike_are_held_once(tmp_path: Path) -> None:
    contents = compile_module(model(), build_options({"targets": ["cpu"], "tune": "off"}))
    assert set(contents.weights) == {"shared"}
    assert contents.parts[V3].constants.keys() == contents.parts[V4].constants.keys() == contents.weights["shared"].keys()
    write_engine(tmp_path / "m.ourcc", contents)
    with zipfile.ZipFile(tmp_path / "m.ourcc") as archive:
        assert [name for name in archive.namelist() if name.startswith("weights/")] == ["weights/shared.safetensors"]


@RUNS
def test_each_level_runs_by_name(engine: Path, tmp_path: Path) -> None:
    answers = {}
    for target, part in ((None, V4), ("cpu", V4), ("native", V4), (V4, V4), (V3, V3)):
        loaded = ourcc.load(engine, target=target)
        assert (loaded.part, loaded.target, loaded.targets, loaded.parts) == (part, "cpu", ("cpu",), (V4, V3))
        answers[part] = loaded(X)
        assert right(answers[part])
    loaded = ourcc.load(engine, target=V3)
    loaded.save(tmp_path / "again.ourcc")
    assert (tmp_path / "again.ourcc").read_bytes() == engine.read_bytes()
    np.save(tmp_path / "x.npy", X)
    for target, part in (("cpu", V4), (V3, V3)):
        assert run(["run", str(engine), "--input", f"x={tmp_path / 'x.npy'}", "--target", target, "-o", str(tmp_path / "y.npz")]) == 0
        assert np.array_equal(np.load(tmp_path / "y.npz")["y"], answers[part])


def test_a_level_that_is_not_there_is_refused(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="engine holds no target x86-64, it holds x86-64-v4, x86-64-v3"):
        ourcc.load(engine, target="x86-64")
    with pytest.raises(UsageError, match="unknown target: got 'x86-64-v5'"):
        ourcc.load(engine, target="x86-64-v5")
    monkeypatch.setattr(native, "cpu_flags", lambda: frozenset(AVX2.features))
    assert ourcc.load(engine).part == ourcc.load(engine, target="cpu").part == V3
    with pytest.raises(EngineError, match=r"target x86-64-v4 of the engine does not run on this machine\n.*it needs avx512f"):
        ourcc.load(engine, target=V4)
    monkeypatch.setattr(native, "cpu_flags", lambda: frozenset({"sse2"}))
    with pytest.raises(EngineError, match="engine holds no target for this machine") as refused:
        ourcc.load(engine)
    assert "x86-64-v4: it needs avx, " in str(refused.value) and "x86-64-v3: it needs avx, " in str(refused.value)


def test_a_damaged_part_is_one_clear_error(engine: Path, tmp_path: Path) -> None:
    contents = read_engine(engine)
    low = contents.parts[V3]
    for files, message in (
        ({**low.files, LIBRARY: b"\x7fELF nonsense"}, f"cannot load native code {V3}.so"),
        ({name: data for name, data in low.files.items() if name != LIBRARY}, f"engine holds no native code for its part {V3}"),
    ):
        write_engine(tmp_path / "bad.ourcc", replace(contents, parts={**contents.parts, V3: replace(low, files=files)}))
        with pytest.raises(EngineError, match=message):
            ourcc.load(tmp_path / "bad.ourcc", target=V3)
    bare = {file: group for file, group in contents.weights.items() if file != V3}
    write_engine(tmp_path / "bare.ourcc", replace(contents, weights=bare))
    with pytest.raises(EngineError, match=f"engine holds no constant 'w1' for {V3}"):
        ourcc.load(tmp_path / "bare.ourcc", target=V3)


def test_a_plan_of_another_level_is_not_this_ones(engine: Path) -> None:
    contents = read_engine(engine)
    plan = contents.parts[V3].plan
    foreign = replace(contents.parts[V3], plans={"main": replace(plan, outputs=(("z", plan.outputs[0][1]),))})
    with pytest.raises(EngineError, match=rf"native code {V3}\.so was made for other plans than the engine holds"):
        Engine(replace(contents, parts={V3: foreign}))


def test_a_level_that_cannot_be_lowered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_cpu, "STRATEGIES", tuple(OnlyAbove(each) for each in target_cpu.STRATEGIES))
    with pytest.raises(InternalError) as failed:
        compile_module(model(), build_options({"targets": ["cpu"], "tune": "off"}))
    assert "while compiling for x86-64-v3" in str(failed.value)


@RUNS
def test_commands_work_on_one_part(engine: Path) -> None:
    for target, part, other in ((None, V4, V3), ("cpu", V4, V3), (V3, V3, V4)):
        report = inspection.inspect(InspectOptions(engine, kernels=True, memory=True, target=target))
        assert (report.facts["part"], report.facts["other_parts"]) == (part, other)
        assert report.tables[0].name == f"kernels of {part}"
        assert len(report.tables[0].rows) == len(read_engine(engine).report["kernels"][part])
        text = inspection.inspect(InspectOptions(engine, ir="plan", target=target)).text
        assert text is not None and text.startswith(f'plan "{part}" ')
        launches = next(t for t in bench(BenchOptions(engine, rounds=2, kernels=True, target=target)).tables if t.name == "launches")
        assert len(launches.rows) == len(read_engine(engine).report["kernels"][part])
    assert run(["bench", str(engine), "--target", V3, "--rounds", "1"]) == 0
    summary = inspection.inspect(InspectOptions(engine))
    assert (summary.facts["targets"], summary.facts["parts"], summary.facts["runs_here"]) == ("cpu", f"{V4}, {V3}", V4)


@RUNS
def test_tuning_and_rebuilding_keep_the_parts_apart(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_engine(engine)
    with zipfile.ZipFile(engine) as archive:
        low = {name: archive.read(name) for name in archive.namelist() if V3 in name}
    again = compile_again(before, build_options({"targets": [V4], "tune": "off"}))
    assert list(again.parts) == [V4, V3] and again.provenance["parts"] == {V4: V4, V3: "cpu"}
    write_engine(engine, again)
    with zipfile.ZipFile(engine) as archive:
        assert {name: archive.read(name) for name in archive.namelist() if V3 in name} == low
    assert right(ourcc.load(engine, target=V3)(X)) and right(ourcc.load(engine)(X))
    monkeypatch.setattr("ourcc.compiler.commands.tune.cpu_flags", lambda: frozenset(AVX2.features))
    report = tune(TuneOptions(engine, parse_measuring("1")))
    assert {row[1] for row in report.tables[0].rows} == {V3}
    tuned = read_engine(engine)
    assert list(tuned.parts) == [V4, V3] and set(json.loads(tuned.lock)["targets"]) == {V4, V3}
    assert tuned.parts[V4].plan == again.parts[V4].plan
    assert right(ourcc.load(engine, target=V3)(X)) and right(ourcc.load(engine)(X))


@pytest.mark.parametrize("level", CPU_LEVELS, ids=lambda level: level.name)
def test_every_level_is_a_target_by_its_name(level: CpuLevel) -> None:
    assert levels_of(TARGETS[level.name]) == [level] and loaded_as(level.name) == level.name
    contents = compile_module(model(), build_options({"target": level.name, "tune": "off"}))
    ((name, part),) = contents.parts.items()
    assert (name, part.family, part.requires) == (level.name, "cpu", level.features)
    if native.cpu_flags().issuperset(level.features) and native.withheld(level.features) is None:
        assert right(Engine(contents)(X))


def test_targets_that_mean_one_level_make_one_part() -> None:
    contents: EngineContents = compile_module(model(), build_options({"targets": ["native", "cpu", V3], "tune": "off"}))
    assert list(contents.parts) == [V4, V3]


def test_dot_products_of_bytes_are_for_those_who_have_such() -> None:
    """A model in floats has no part for them; one of codes has, and each part gives the same integers."""
    assert [level.name for level in levels_for(TARGETS["cpu"], model())] == [V3, V4]
    module, given, expected = of_codes()
    contents = compile_module(module, build_options({"target": "cpu", "tune": "off"}))
    assert list(contents.parts) == [AVX512_AMX.name, AVX512_VNNI.name, V4, AVX2_VNNI.name, V3]
    for name, part in contents.parts.items():
        if native.cpu_flags().issuperset(part.requires) and native.withheld(part.requires) is None:
            np.testing.assert_array_equal(Engine(contents, target=name)(given), expected)


@pytest.mark.parametrize(("dtype", "own"), [(bf16, [AVX512_AMX.name, AVX512_BF16.name]), (f16, [AVX512_AMX_F16.name])])
def test_products_of_16_bits_have_levels_of_their_own(dtype: DType, own: list[str]) -> None:
    """Sums differ in their order from level to level, and are as good as eager's at each."""
    module, random = Module("m"), np.random.default_rng(6)
    module.functions["main"] = graph = Graph("main")
    x = graph.add_input("x", TensorType(dtype, (21, 70)))
    graph.set_outputs([Builder(module, graph).matmul(x, random.standard_normal((70, 50)).astype(dtype.numpy))], ["y"])
    contents = compile_module(module, build_options({"target": "cpu", "tune": "off"}))
    assert list(contents.parts) == [*own, V4, V3]
    given = random.standard_normal((21, 70)).astype(dtype.numpy)
    stepwise, wide = interpret(module, [given])[0], interpret(module, [given], wide=True)[0]
    for name, part in contents.parts.items():
        if native.cpu_flags().issuperset(part.requires) and native.withheld(part.requires) is None:
            verdict = judge(Engine(contents, target=name)(given), stepwise, wide)
            assert verdict.passed, f"{name}: {verdict.reason}"


@pytest.mark.parametrize("level", CPU_LEVELS[1:], ids=lambda level: level.name)
def test_a_row_of_bf16_has_the_same_bits_whatever_stands_beside_it(level: CpuLevel) -> None:
    is_here = native.cpu_flags().issuperset(level.features) and native.withheld(level.features) is None
    module, random = Module("m"), np.random.default_rng(7)
    module.functions["main"] = graph = Graph("main")
    x = graph.add_input("x", TensorType(bf16, (module.declare("N", 1, 4096), 1540)))
    graph.set_outputs([Builder(module, graph).matmul(x, random.standard_normal((1540, 40)).astype(bf16.numpy))], ["y"])
    engine = Engine(compile_module(module, build_options({"target" if is_here else "emulate": level.name, "tune": "off"})))
    given = random.standard_normal((90, 1540)).astype(bf16.numpy)
    whole = engine(given)
    for first, last in ((0, 1), (3, 8), (10, 26), (50, 90)):
        np.testing.assert_array_equal(engine(given[first:last]).view(np.uint16), whole[first:last].view(np.uint16))


def of_codes() -> tuple[Module, Any, Any]:
    """A product of bytes, an input and what it gives."""
    module, random = Module("m"), np.random.default_rng(5)
    module.functions["main"] = graph = Graph("main")
    x = graph.add_input("x", TensorType(u8, (9, 64)))
    weight = random.integers(-128, 128, (64, 40)).astype(np.int8)
    graph.set_outputs([Builder(module, graph).matmul(x, weight)], ["y"])
    given = random.integers(0, 256, (9, 64)).astype(np.uint8)
    return module, given, given.astype(np.int32) @ weight.astype(np.int32)


@pytest.mark.parametrize("level", CPU_LEVELS, ids=lambda level: level.name)
def test_every_machine_runs_the_programs_of_every_level(level: CpuLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with AVX2 alone, models of all other instructions give the same integers."""
    monkeypatch.setattr(target_cpu, "cpu_flags", lambda: frozenset(AVX2.features))
    module, given, expected = of_codes()
    contents = compile_module(module, build_options({"emulate": level.name, "tune": "off"}))
    ((name, part),) = contents.parts.items()
    assert name == f"{level.name}-emulated" and set(part.requires) == {*level.features} & {*AVX2.features}
    if native.cpu_flags().issuperset(part.requires):
        np.testing.assert_array_equal(Engine(contents)(given), expected)


@RUNS
@pytest.mark.parametrize("level", CPU_LEVELS[2:], ids=lambda level: level.name)
def test_models_have_the_bits_of_instructions(level: CpuLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of bf16 and a softmax of it, on a machine without anything of the level and on one that has it."""
    if not native.cpu_flags().issuperset(level.features) or native.withheld(level.features) is not None:
        pytest.skip("this machine does not run the level")
    module, random = Module("m"), np.random.default_rng(8)
    module.functions["main"] = graph = Graph("main")
    x, b = graph.add_input("x", TensorType(bf16, (37, 70))), Builder(module, graph)
    graph.set_outputs([b.softmax(b.matmul(x, random.standard_normal((70, 50)).astype(bf16.numpy)), axis=1)], ["y"])
    given = random.standard_normal((37, 70)).astype(bf16.numpy)
    here = Engine(compile_module(module, build_options({"target": level.name, "tune": "off"})))(given)
    monkeypatch.setattr(target_cpu, "cpu_flags", lambda: frozenset(AVX2.features))
    there = Engine(compile_module(module, build_options({"emulate": level.name, "tune": "off"})))(given)
    np.testing.assert_array_equal(here.view(np.uint16), there.view(np.uint16))


def test_what_is_emulated_is_a_level_on_this_machine() -> None:
    with pytest.raises(UsageError, match="unknown cpu level: got 'amx', expected one of x86-64, ") as found:
        build_options({"emulate": "amx"})
    with pytest.raises(UsageError, match="got emulate with target sm_90a, expected native alone"):
        build_options({"emulate": V4, "targets": ["sm_90a"]})
    assert found.value.hint is None or "x86-64-v4-amx" in found.value.hint
    with pytest.raises(UsageError, match="got tune with emulate, expected one of them"):
        build_options({"emulate": V4, "tune": "3"})


def test_what_is_emulated_is_not_tuned(tmp_path: Path) -> None:
    write_engine(tmp_path / "m.ourcc", compile_module(model(), build_options({"emulate": V4, "tune": "off"})))
    with pytest.raises(UnsupportedError) as found:
        tune(TuneOptions(tmp_path / "m.ourcc", parse_measuring("1")))
    assert f"{V4}-emulated: it is emulated, and its times say nothing" in str(found.value.note)


TILES = pytest.mark.skipif(not native.cpu_flags().issuperset(AVX512_AMX.features), reason="needs a CPU with AMX")


@TILES
def test_where_tiles_are_refused_the_next_level_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module, given, expected = of_codes()
    contents = compile_module(module, build_options({"target": "cpu", "tune": "off"}))
    monkeypatch.setattr(native, "_may_use_tiles", lambda: False)
    engine = Engine(contents)
    assert engine.part == AVX512_VNNI.name
    np.testing.assert_array_equal(engine(given), expected)
    with pytest.raises(EngineError, match="needs amx_tile, which the system does not let this process use"):
        Engine(contents, target=AVX512_AMX.name)
    assert [level.name for level in levels_for(TARGETS["native"], module)] == [AVX512_VNNI.name]


SMALL_STACK = """
import ctypes, sys
class Stack(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 4096)), None) == 0
import ourcc
print(ourcc.load(sys.argv[1]).part)
"""


@TILES
def test_linux_refuses_tiles_to_those_whose_signal_stack_is_too_small(tmp_path: Path) -> None:
    path = tmp_path / "codes.ourcc"
    write_engine(path, compile_module(of_codes()[0], build_options({"target": "cpu", "tune": "off"})))
    found = subprocess.run([sys.executable, "-c", SMALL_STACK, str(path)], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == AVX512_VNNI.name
