"""Engines on the CPU: calls, symbols, input errors, threads, host steps, saving and loading."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.errors import EngineError, InputError
from ourcc.ir.plan import Buffer, Call, Copy, Plan, Slot, StateDeclaration, storage
from ourcc.ir.types import TensorType, bf16, f32, i4, i64
from ourcc.runtime import Engine, EngineContents, PartContents, read_engine
from ourcc.runtime.contents import LIBRARY
from ourcc.runtime.file import write_engine
from ourcc.runtime.program import Program
from ourcc.runtime.states import HostStates


def test_positional_and_named_calls_give_fresh_numpy_arrays(engine, expected):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y, z = engine(x)
    want_y, want_z = expected(x)
    assert np.array_equal(y, want_y) and np.array_equal(z, want_z)
    out = engine.run({"x": x})
    assert list(out) == ["y", "z"] and np.array_equal(out["y"], want_y)
    again, _ = engine(x + 1)
    assert np.array_equal(y, want_y), "an earlier result was overwritten"
    assert not np.shares_memory(y, again) and y.flags.writeable


def test_shapes_at_the_ends_of_the_ranges(engine, expected):
    for rows, columns in ((1, 2), (32, 512), (1, 0), (7, 10)):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        for got, want in zip(engine(x), expected(x), strict=True):
            assert np.array_equal(got, want)


def test_inputs_that_are_not_dense_or_not_native_are_copied_first(engine, expected):
    x = np.arange(40, dtype=np.float32).reshape(4, 10)
    for view in (x.T[:, ::2], x[:, ::-1], x.astype(">f4"), np.asfortranarray(x), np.broadcast_to(x[0], (3, 10))):
        for got, want in zip(engine(view), expected(np.array(view, np.float32)), strict=True):
            assert np.array_equal(got, want)


def test_properties(engine, tiny):
    assert [str(p) for p in engine.inputs] == ["x: f32[B, N]"] and [str(p) for p in engine.outputs] == ["y: f32[B, N]", "z: f32[N]"]
    assert engine.targets == ("cpu",) and engine.target == "cpu" and engine.contents is tiny
    assert engine.parts == ("never", "baseline") and engine.part == "baseline"
    assert "fc1 (m.onnx)  mul  f32        f32" in str(engine.contract) and len(engine.contract) == 1
    assert next(iter(engine.contract)).why == ""
    assert repr(engine) == "Engine((x: f32[B, N]) -> (y: f32[B, N], z: f32[N]); never, baseline, running baseline)"


class Packed:
    """Another library's tensor, of which only DLPack is known."""

    def __init__(self, array: np.ndarray, device: int) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], r"input 'x' has rank 1 \[1\], expected 2"),
        ([[1, 2]], "input 'x' holds Python's int, expected f32"),
        ([[1.0, True]], "input 'x' holds Python's bool, float, expected f32"),
        ([[1.0, 2.0], [3.0]], "input 'x' is a list of lists of different lengths, expected 2 dimensions"),
        ("text", "input 'x' is a str, expected a numpy array, a torch tensor or a DLPack one"),
        (Packed(np.zeros((2, 2)), 1), "input 'x' has dtype f64, expected f32"),
        (Packed(np.zeros((2, 2)), 2), "input 'x' is on DLPack device 2, expected the CPU's memory"),
        (np.ma.masked_array(np.zeros((1, 2), np.float32)), "input 'x' is a MaskedArray, expected"),
        (np.zeros((2, 2)), "input 'x' has dtype f64, expected f32"),
        (np.zeros((2, 2), np.longdouble), "input 'x' has dtype float128, expected f32"),
        (np.zeros((2, 2), object), "input 'x' has dtype string, expected f32"),
        (np.zeros(2, np.float32), r"input 'x' has rank 1 \[2\], expected 2: f32\[B, N\]"),
        (np.zeros((33, 2), np.float32), "input 'x' has size 33 in dimension 0, so B = 33, expected B in 1..32"),
        (np.zeros((0, 2), np.float32), "so B = 0, expected B in 1..32"),
        (np.zeros((1, 3), np.float32), "so N = 3, expected a multiple of 2"),
    ],
)
def test_wrong_inputs(engine, value, message):
    with pytest.raises(InputError, match=message):
        engine(value)
    engine(np.zeros((1, 2), np.float32))


def test_wrong_names_and_counts(engine):
    x = np.zeros((1, 2), np.float32)
    with pytest.raises(InputError, match=r"got 2 inputs, expected 1 \(x\)"):
        engine(x, x)
    with pytest.raises(InputError, match="input 'x' is missing, expected x"):
        engine.run({})
    with pytest.raises(InputError, match="unexpected input 'k', expected x"):
        engine.run({"x": x, "k": x})
    with pytest.raises(InputError, match="unexpected input 'k', expected x"):
        engine(k=x)
    with pytest.raises(InputError, match="input 'x' is given twice, by its place and by its name"):
        engine(x, x=x)
    with pytest.raises(InputError, match=r"got 3 inputs, expected 1 \(x\)"):
        engine(x, x, x=x)


def test_inputs_by_name_as_lists_and_through_dlpack(engine):
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    expected = [part.tolist() for part in engine(x)]
    for given in (engine(x=x), engine(x.tolist()), engine(Packed(x, 1))):
        assert [part.tolist() for part in given] == expected and all(isinstance(part, np.ndarray) for part in given)


def copies(pairs: list[tuple[TensorType, TensorType]], facts: dims.Facts = dims.NO_FACTS) -> Engine:
    """An engine with no native code: each output is its input, copied by the runtime."""
    inputs = tuple(Buffer(f"x{n}", a, storage.Input()) for n, (a, _) in enumerate(pairs))
    plan = Plan("cpu", facts, tuple((b.name, b.name) for b in inputs), tuple((f"y{b.name[1:]}", b.name) for b in inputs), inputs, (), ())
    return Engine(EngineContents.of({"cpu": PartContents({"main": plan})}))


def test_equal_symbols_across_inputs():
    b, s = dims.symbol("B"), dims.symbol("S")
    facts = dims.Facts({"B": dims.Range(1, 9), "S": dims.Range(0, None)})
    first, second = TensorType(f32, (b, 4)), TensorType(i64, (2 * b + 1, s, b * s))
    engine = copies([(first, first), (second, second)], facts)
    x, ids = np.ones((2, 4), np.float32), np.arange(5 * 3 * 6).reshape(5, 3, 6)
    y, copied = engine(x, ids)
    assert np.array_equal(y, x) and np.array_equal(copied, ids) and not np.shares_memory(y, x)
    with pytest.raises(InputError, match="input 'x1' has size 4 in dimension 0, expected 5") as error:
        engine(x, np.zeros((4, 3, 6), np.int64))
    assert "2*B + 1 is 5: B is 2 from input 'x0'" in str(error.value)
    with pytest.raises(InputError, match="size 5 in dimension 1, expected 4"):
        engine(np.ones((2, 5), np.float32), ids)


def test_sizes_that_broadcast_are_checked_at_a_call(tmp_path):
    a, b = TensorType(f32, (dims.symbol("A"),)), TensorType(f32, (dims.symbol("B"),))
    bounds = dims.Range(0, None)
    engine = copies([(a, a), (b, b)], dims.Facts({"A": bounds, "B": bounds}, broadcasts=((dims.symbol("A"), dims.symbol("B")),)))
    engine.save(tmp_path / "e.ourcc")
    for kept in (engine, Engine.load(tmp_path / "e.ourcc")):
        for sizes in ((1, 5), (4, 1), (3, 3), (0, 1), (0, 0)):
            kept(*(np.zeros(size, np.float32) for size in sizes))
        for sizes in ((2, 5), (0, 3)):
            with pytest.raises(InputError, match=f"sizes {sizes[0]} and {sizes[1]} do not broadcast, expected") as error:
                kept(*(np.zeros(size, np.float32) for size in sizes))
            assert f"A is {sizes[0]} from input 'x0', B is {sizes[1]} from input 'x1'" in str(error.value)


def test_a_symbol_is_solved_from_a_multiple():
    b = dims.symbol("B")
    kind = TensorType(f32, (2 * b + 4,))
    engine = copies([(kind, kind)], dims.Facts({"B": dims.Range(0, None)}))
    assert engine(np.zeros(10, np.float32)).shape == (10,)
    for size in (3, 9):
        with pytest.raises(InputError, match=rf"size {size} in dimension 0, expected 2\*B \+ 4"):
            engine(np.zeros(size, np.float32))


def test_a_symbol_no_input_gives_is_refused():
    kind = TensorType(f32, (dims.symbol("B") * dims.symbol("S"),))
    with pytest.raises(EngineError, match="symbol B of the engine is the size of no input"):
        copies([(kind, kind)], dims.Facts({"B": dims.Range(0, None), "S": dims.Range(0, None)}))


def test_scalars_small_floats_and_packed_integers():
    import ml_dtypes

    kinds = [TensorType(f32, ()), TensorType(bf16, (3,)), TensorType(i4, (5,)), TensorType(i64, ())]
    engine = copies([(kind, kind) for kind in kinds])
    small = np.array([1, -2, 3], ml_dtypes.bfloat16)
    nibbles = np.array([-8, 7, 0, -1, 3], ml_dtypes.int4)
    scalar, got_small, got_nibbles, integer = engine(2.5, small, nibbles, np.int64(7))
    assert scalar == 2.5 and scalar.shape == () and integer == 7
    assert np.array_equal(got_small, small) and np.array_equal(got_nibbles, nibbles) and got_nibbles.dtype == nibbles.dtype
    with pytest.raises(InputError, match="input 'x3' is 9223372036854775808, which does not fit i64"):
        engine(2.5, small, nibbles, 2**63)
    with pytest.raises(InputError, match="input 'x3' holds Python's float, expected i64"):
        engine(2.5, small, nibbles, 7.5)


def test_strings_pass_through():
    from ourcc.ir.types import string

    kind = TensorType(string, (2,))
    engine = copies([(kind, kind)])
    assert engine(np.array(["a", "bc"])).tolist() == ["a", "bc"]
    with pytest.raises(InputError, match="input 'x0' has dtype f32, expected string"):
        engine(np.zeros(2, np.float32))


def test_torch_tensors_in_torch_tensors_out(engine, expected):
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.float32, requires_grad=True).reshape(3, 4)
    y, z = engine(x)
    want_y, want_z = expected(x.detach().numpy())
    assert isinstance(y, torch.Tensor) and not y.requires_grad
    assert np.array_equal(y.numpy(), want_y) and np.array_equal(z.numpy(), want_z)
    view = x.detach()[:, ::2].t()
    assert np.array_equal(engine(view.t())[0].numpy(), expected(view.t().numpy().copy())[0])
    assert isinstance(engine.run({"x": x})["z"], torch.Tensor)
    with pytest.raises(InputError, match=r"input 'x' has dtype f64, expected f32\n  help: convert it with .to\(torch.float32\)"):
        engine(x.double())
    with pytest.raises(InputError, match=r"input 'x' has layout torch.sparse_coo, expected a dense tensor"):
        engine(x.detach().to_sparse())
    with pytest.raises(InputError, match="input 'x' is on meta, expected cpu"):
        engine(x.to("meta"))
    with pytest.raises(InputError, match=r"has dtype torch.complex32, expected f32"):
        engine(torch.zeros(1, 2, dtype=torch.complex32))


def test_torch_has_no_type_for_nibbles():
    torch = pytest.importorskip("torch")
    from ourcc.ir.errors import UnsupportedError
    from ourcc.runtime.arrays import torch_dtype

    assert torch_dtype(bf16) is torch.bfloat16
    with pytest.raises(UnsupportedError, match="torch has no dtype for i4"):
        torch_dtype(i4)


def test_concurrent_calls_do_not_mix(engine, expected):
    failures = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(60):
            x = generator.standard_normal((int(generator.integers(1, 33)), 2 * int(generator.integers(0, 40)))).astype(np.float32)
            if not all(np.array_equal(a, b) for a, b in zip(engine(x), expected(x), strict=True)):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert 1 <= len(engine._part.executor("main")._contexts) <= 8


def test_the_process_has_one_pool(tmp_path, engine):
    path = tmp_path / "e.ourcc"
    engine.save(path)
    # In a child, so that the first library of the process is known.
    code = """
import ctypes, sys
import numpy as np
from ourcc.runtime import Engine
engines = [Engine.load(sys.argv[1]) for _ in range(3)]
for engine in engines:
    engine(np.zeros((2, 2), np.float32))
print([engine._part.library.function("ourcc_runs", ctypes.c_int64, ())() for engine in engines])
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[3, 0, 0]"


def test_failing_native_code_is_reported(tiny):
    with pytest.raises(EngineError, match="native code of the engine failed with status 5 in part 0"):
        Engine(tiny, threads=77)(np.zeros((1, 2), np.float32))
    with pytest.raises(EngineError, match="got -1 threads, expected 0"):
        Engine(tiny, threads=-1)


def test_round_trip_through_a_file(tmp_path, engine, expected):
    path = tmp_path / "m.ourcc"
    engine.save(path)
    loaded = Engine.load(path, verify=True)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(loaded(x)[0], expected(x)[0])
    assert loaded.contract == engine.contract and loaded.inputs == engine.inputs
    loaded.save(tmp_path / "again.ourcc")
    assert (tmp_path / "again.ourcc").read_bytes() == path.read_bytes()
    loaded.save(path)
    assert np.array_equal(loaded(x)[1], expected(x)[1]), "the engine that replaced its own file must go on"


def test_no_target_for_this_machine(tiny):
    part = tiny.parts["baseline"]
    foreign = {"a": replace(part, machine="riscv64"), "b": replace(part, requires=("avx1024", "amx-fp4"))}
    with pytest.raises(EngineError, match="engine holds no target for this machine, it holds a, b") as error:
        Engine(replace(tiny, parts=foreign))
    text = str(error.value)
    assert "a: it is for riscv64" in text and "b: it needs avx1024, amx-fp4, which this cpu lacks" in text
    assert "ourcc build --rebuild ENGINE --target native" in text
    with pytest.raises(EngineError, match="engine holds no target sm_90a, it holds never, baseline"):
        Engine(tiny, target="sm_90a")
    with pytest.raises(EngineError, match="target cpu of the engine does not run on this machine") as error:
        Engine(replace(tiny, parts=foreign), target="cpu")
    assert "a: it is for" in str(error.value) and "b: it needs" in str(error.value)
    with pytest.raises(EngineError, match="target a of the engine does not run on this machine") as error:
        Engine(replace(tiny, parts={**foreign, "baseline": part}), target="a")
    assert error.value.hint == "baseline of the engine runs here: leave the target out"
    with pytest.raises(EngineError, match="this version runs parts of the families cpu and cuda, got npu"):
        Engine(replace(tiny, parts={"npu": replace(part, family="npu")}))
    with pytest.raises(EngineError, match="engine holds no native code for its part baseline"):
        Engine(replace(tiny, parts={"baseline": replace(part, files={})}))
    with pytest.raises(EngineError, match="an engine needs a plan for at least one target"):
        EngineContents.of({})


def test_damaged_plans_are_refused(tiny, planned):
    def build(**change):
        return Engine(planned({"main": replace(tiny.parts["baseline"].plan, **change)}))

    plan = tiny.parts["baseline"].plan
    with pytest.raises(EngineError, match="has two buffers of one name, x"):
        build(buffers=(*plan.buffers, plan.buffers[0]))
    with pytest.raises(EngineError, match="buffer %q of the plan lies in slot 'gone', which the arena lacks"):
        build(buffers=(*plan.buffers, Buffer("q", plan.buffers[0].type, storage.Arena("gone"))))
    with pytest.raises(EngineError, match="names the buffer 'q', and the plan does not hold it"):
        build(steps=(*plan.steps, Copy("x", "q")))
    with pytest.raises(EngineError, match="engine holds no constant 'gone' for baseline"):
        build(buffers=(*plan.buffers, Buffer("q", TensorType(f32, (1,)), storage.Constant("gone"))))
    with pytest.raises(EngineError, match=r"constant 'fc1.weight' has 4 bytes, expected f32\[2\]"):
        build(buffers=(*plan.buffers, Buffer("q", TensorType(f32, (2,)), storage.Constant("fc1.weight"))))
    with pytest.raises(EngineError, match="inputs of the plan of main for baseline are not those of the engine"):
        build(inputs=(("renamed", "x"),))
    with pytest.raises(EngineError, match="output 'y' of the plan is %y, which no step writes"):
        build(steps=())
    with pytest.raises(EngineError, match=r"buffer %t: f32\[B, N\] needs 4.B.N bytes, and its slot s0 has 64"):
        build(slots=(Slot("s0", (64,)),))


def with_larger_slot(plan: Plan) -> Plan:
    return replace(plan, slots=(Slot("s0", (dims.symbol("B") * dims.symbol("N") * 8,)),))


def with_output_in_arena(plan: Plan) -> Plan:
    """The second result lies in the arena, and is no output any more: nobody gives the code the memory that it writes."""
    moved = (replace(buffer, storage=storage.Arena("s0")) if buffer.name == "z" else buffer for buffer in plan.buffers)
    return replace(plan, outputs=plan.outputs[:1], buffers=tuple(moved), slots=(Slot("s0", (*plan.slots[0].sizes, 4096)),))


def with_symbols_in_other_order(plan: Plan) -> Plan:
    return replace(plan, symbols=dims.Facts(dict(reversed(plan.symbols.ranges.items())), plan.symbols.divisors))


@pytest.mark.parametrize("change", [with_larger_slot, with_output_in_arena, with_symbols_in_other_order])
def test_native_code_runs_with_the_plans_that_it_was_made_for_alone(tiny, tmp_path, change):
    part = tiny.parts["baseline"]
    contents = EngineContents.of({"baseline": replace(part, plans={"main": change(part.plan)})}, tiny.weights)
    message = "native code baseline.so was made for other plans than the engine holds"
    with pytest.raises(EngineError, match=message) as refused:
        Engine(contents)
    assert "ourcc build --rebuild ENGINE" in str(refused.value)
    write_engine(tmp_path / "edited.ourcc", contents)
    with pytest.raises(EngineError, match=message):
        Engine(read_engine(tmp_path / "edited.ourcc"))


def test_code_that_names_no_plans_is_never_called(tiny, compiled):
    part = replace(
        tiny.parts["baseline"], files={LIBRARY: compiled("#include <stdint.h>\nint32_t ourcc_abi(void) { return *(volatile int32_t *)0; }")}
    )
    with pytest.raises(EngineError, match=r"native code baseline\.so was made for plans that it does not name"):
        Engine(replace(tiny, parts={"baseline": part}))


@pytest.mark.parametrize("initial", [np.ones(3, np.float32), np.ones(1, np.int8), np.ones(16, np.float32), np.ones(8, np.int32)])
def test_a_state_begins_as_a_constant_of_its_type_or_not_at_all(initial):
    state = StateDeclaration("k", TensorType(f32, (8,)), "begin")
    buffers = (Buffer("k", state.type, storage.State("k")), Buffer("y", state.type, storage.Output()))
    plan = Plan("cpu", dims.NO_FACTS, (), (("y", "y"),), buffers, (), (Copy("k", "y"),), (), (state,), (("k", "k"),))
    parts = {"baseline": PartContents({"main": plan})}
    begin = np.arange(8, dtype=np.float32)
    assert HostStates(EngineContents.of(parts, {"shared": {"begin": begin}}), "baseline").read("k").tolist() == begin.tolist()
    with pytest.raises(EngineError, match=r"state 'k' begins as the constant 'begin', which is .* expected f32\[8\] in 32 bytes"):
        HostStates(EngineContents.of(parts, {"shared": {"begin": initial}}), "baseline")


def test_a_strided_alias_is_refused_until_executors_run_one(tiny, planned):
    plan = tiny.parts["baseline"].plan
    alias = Buffer("q", TensorType(f32, (0, 2)), storage.Alias("w", 0, (4, 2)))
    damaged = {"main": replace(plan, buffers=(*plan.buffers, alias))}
    with pytest.raises(EngineError, match="plan for cpu has the strided alias q, and this version runs dense ones"):
        Engine(planned(damaged))


def dynamic_plan(steps, extra=()) -> Plan:
    """x: f32[B] -> rows: i64[1, K] where K is known only after a step; twice = rows in an arena-free buffer."""
    b, k = dims.symbol("B"), dims.symbol("K")
    found = TensorType(i64, (1, k))
    buffers = (
        Buffer("x", TensorType(f32, (b,)), storage.Input()),
        Buffer("d", found, storage.Dynamic()),
        Buffer("y", found, storage.Output()),
        *extra,
    )
    facts = dims.Facts({"B": dims.Range(0, 100), "K": dims.Range(0, 50)})
    return Plan("cpu", facts, (("x", "x"),), (("y", "y"), ("d", "d")), buffers, (), steps)


def test_a_call_binds_a_new_symbol(compiled):
    source = """
int64_t ourcc_arena_0(const int64_t *s) { return 0; }
int32_t ourcc_segment_0_0(void *const *b, const int64_t *s, char *arena, int32_t threads) {
    for (int64_t i = 0; i < s[1]; i++) ((int64_t *)b[2])[i] = ((int64_t *)b[1])[i] * 10;
    return 0;
}
"""
    nonzero = Call("aten.nonzero", 3, ("x",), ("d",), (("K", 0, 1),))
    plan = dynamic_plan((nonzero, Copy("d", "y")))
    parts = PartContents({"main": plan}, {LIBRARY: compiled(source, {"main": plan})})
    contents = EngineContents.of({"cpu": parts})

    def callback(step, operands):
        assert step.key == 3
        return [np.stack(np.nonzero(operands[0]))]

    engine = Engine(contents, call=callback)
    for x in ([0, 1, 0, 5], [], [0], [2, 2, 2]):
        y, d = engine(np.array(x, np.float32))
        assert np.array_equal(d, np.stack(np.nonzero(x))) and np.array_equal(y, d * 10)
    with pytest.raises(EngineError, match=r"call aten.nonzero gives K = 51, expected K in 0..50"):
        engine(np.ones(51, np.float32))
    with pytest.raises(EngineError, match=r"engine calls aten.nonzero of its framework, and no callback was given"):
        Engine(contents)
    with pytest.raises(EngineError, match=r"call aten.nonzero gave 2 results, expected 1"):
        Engine(contents, call=lambda step, operands: [operands[0], operands[0]])(np.ones(3, np.float32))
    with pytest.raises(EngineError, match=r"call aten.nonzero gave f32\[1, 2\] for d, expected i64\[1, 2\]"):
        Engine(contents, call=lambda step, operands: [np.zeros((1, 2), np.float32)])(np.ones(3, np.float32))


def test_a_call_may_give_torch_tensors():
    torch = pytest.importorskip("torch")
    plan = dynamic_plan((Call("aten.nonzero", 0, ("x",), ("d",), (("K", 0, 1),)), Call("aten.mul", 1, ("d",), ("y",))))
    steps = {0: lambda x: torch.from_numpy(np.array(x)).nonzero().t(), 1: lambda d: torch.from_numpy(np.array(d)) * 2}
    engine = Engine(EngineContents.of({"cpu": PartContents({"main": plan})}), call=lambda step, operands: [steps[step.key](*operands)])
    y, d = engine(torch.tensor([0.0, 3.0, 4.0]))
    assert torch.equal(d, torch.tensor([[1, 2]])) and torch.equal(y, d * 2)
    quantized = Engine(EngineContents.of({"cpu": PartContents({"main": plan})}), call=lambda *_: [torch.zeros(1, 2, dtype=torch.complex32)])
    with pytest.raises(EngineError, match=r"a call gave the torch dtype torch.complex32, which has no element type here"):
        quantized(torch.ones(2))


def test_what_a_plan_must_not_do_with_late_symbols():
    found = Call("c", 0, ("x",), ("d",), (("K", 0, 1),))
    with pytest.raises(EngineError, match=r"step 0 \(call c\) uses %d: i64\[1, K\], where K has no value yet"):
        Program(dynamic_plan((replace(found, binds=()), Copy("d", "y"))))
    late = replace(dynamic_plan((found, Copy("d", "y"))), slots=(Slot("s", (dims.symbol("K") * 8,)),))
    with pytest.raises(EngineError, match="slot s of the arena depends on K, which is known only during a call"):
        Program(late)
    with pytest.raises(EngineError, match=r"step 0 \(call a\) reads %d before any step has written it"):
        Program(dynamic_plan((Call("a", 0, ("d",), ()), found, Copy("d", "y"))))


def test_a_call_costs_few_function_calls(engine):
    x = np.ones((1, 2), np.float32)
    engine(x)
    seen: list[str] = []

    def watch(frame, event, argument):
        if event in ("call", "c_call"):
            seen.append(frame.f_code.co_name if event == "call" else argument.__name__)

    sys.setprofile(watch)
    try:
        engine(x)
    finally:
        sys.setprofile(None)
    # A call takes some ten microseconds: nothing in it may depend on the size of the program.
    assert len(seen) < 60, seen


def test_import_is_light():
    code = (
        "import sys, ourcc.runtime; print([m for m in ('torch', 'sympy', 'onnx', 'triton', 'cryptography', 'msgspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_engine_for_other_machines_is_saved_and_only_refuses_to_run(tiny, tmp_path):
    elsewhere = replace(tiny, parts={"baseline": replace(tiny.parts["baseline"], machine="riscv64")})
    engine = Engine(elsewhere, must_run=False)
    assert engine.target is None and engine.targets == ("cpu",) and engine.inputs == tiny.inputs
    assert repr(engine).endswith("baseline, running elsewhere)")
    engine.save(tmp_path / "m.ourcc")
    for call in (lambda: engine(*[np.zeros(1, np.float32)] * len(tiny.inputs)), lambda: engine(), lambda: engine.run({})):
        with pytest.raises(EngineError, match="engine holds no target for this machine, it holds baseline"):
            call()
    with pytest.raises(EngineError, match="baseline: it is for riscv64"):
        Engine.load(tmp_path / "m.ourcc")
