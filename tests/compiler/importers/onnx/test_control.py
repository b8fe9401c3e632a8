"""Control flow that only the data decide: branches, loops and scans run functions of the engine, as ONNX Runtime's do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.backends.built import pack
from ourcc.compiler.importers.onnx import import_onnx
from ourcc.compiler.importers.onnx.context import UnsupportedModelError
from ourcc.compiler.options import BuildOptions, build_options
from ourcc.compiler.pipeline import compile_module, lower, simplify
from ourcc.compiler.requests import parse_measuring
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import control
from ourcc.ir.errors import CompilerError, EngineError, InputError, UnsupportedError, VerifyError
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import verify
from ourcc.ir.plan.interpret import run_plan
from ourcc.runtime import Engine

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
N = helper.make_node
Ports = Sequence[tuple[str, int, Any]]


def graph(name: str, nodes: Sequence[Any], inputs: Ports, outputs: Ports) -> Any:
    ports = ([helper.make_tensor_value_info(*port) for port in each] for each in (inputs, outputs))
    return helper.make_graph(list(nodes), name, *ports)


def model(nodes: Sequence[Any], inputs: Ports, outputs: Sequence[str], constants: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    made = graph("g", nodes, inputs, [(name, FLOAT, None) for name in outputs])
    made.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items())
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    return proto


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def agrees(proto: onnx.ModelProto, calls: Sequence[Sequence[Any]], folder: Path) -> list[str]:
    """Engine, graph and plan give ONNX Runtime's answers; the functions of the engine."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    module = import_onnx(proto)
    verify(module)
    assert module_text(parse_module(module_text(module))) == module_text(module)
    Engine(compile_module(module, BuildOptions(targets=(TARGETS["native"],), tune=parse_measuring("off")))).save(folder / "m.ourcc")
    engine = Engine.load(folder / "m.ourcc", threads=1)
    assert list(engine.functions) == ["main"]
    plain = import_onnx(proto)
    simplify(plain, build_options({}))
    lowered = lower(plain, TARGETS["cpu"])
    constants = {key: pack(held, plain) for key, held in lowered.constants.items()}
    for given in calls:
        inputs = [np.asarray(value) for value in given]
        expected = session.run(None, dict(zip(names, inputs, strict=True)))
        answers = engine(*inputs)
        ours = list(answers) if isinstance(answers, tuple) else [answers]
        planned = run_plan(lowered.plan, lowered.kernels, constants, inputs, functions=lowered.plans)
        for got in (ours, interpret(module, inputs), interpret(module, inputs, wide=True), planned):
            for left, right in zip(got, expected, strict=True):
                assert left.shape == right.shape
                np.testing.assert_allclose(left, right, atol=1e-5, rtol=1e-5)
    return list(engine.contents.best.plans)


def choice() -> onnx.ModelProto:
    """x where its sum is above 0, else its first two rows: captured values, and a size that the branch decides."""
    then = graph("then", [N("Relu", ["x"], ["t"])], [], [("t", FLOAT, None)])
    other = graph("else", [N("Slice", ["x", "zero", "two"], ["e"])], [], [("e", FLOAT, None)])
    nodes = [
        N("ReduceSum", ["x"], ["s"], keepdims=0),
        N("Greater", ["s", "none"], ["c"]),
        N("If", ["c"], ["y"], then_branch=then, else_branch=other),
        N("Mul", ["y", "y"], ["w"]),
    ]
    return model(nodes, [("x", FLOAT, ["N", 3])], ["w"], {"none": np.float32(0), "zero": np.array([0]), "two": np.array([2])})


def test_a_branch(tmp_path: Path) -> None:
    calls = [[abs(drawn(5, 3))], [-abs(drawn(5, 3))], [abs(drawn(4, 3))]]
    assert agrees(choice(), calls, tmp_path) == ["main", "main.then0", "main.else0"]


def body(nodes: Sequence[Any], carried: Ports, rows: Sequence[str] = ()) -> Any:
    """A loop's body: inputs i, go, a; outputs on, b and the rows."""
    outputs = [("on", BOOL, []), ("b", FLOAT, None), *((row, FLOAT, None) for row in rows)]
    return graph("body", nodes, [("i", INT, []), ("go", BOOL, []), *carried], outputs)


def looping(nodes: Sequence[Any], shape: Any, rows: Sequence[str] = (), constants: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    nested = body(nodes, [("a", FLOAT, None)], rows)
    loop = N("Loop", ["n", "", "x"], ["y", *(f"all_{row}" for row in rows)], body=nested)
    return model([loop], [("n", INT, []), ("x", FLOAT, shape)], ["y", *(f"all_{row}" for row in rows)], constants)


ON = N("Identity", ["go"], ["on"])
LOOPS: dict[str, tuple[onnx.ModelProto, Callable[[int], Sequence[Any]]]] = {
    "rows and an early end": (
        looping(
            [
                N("Add", ["a", "x"], ["b"]),
                N("ReduceSum", ["b"], ["q"], keepdims=0),
                N("Less", ["q", "most"], ["on"]),
                N("Mul", ["b", "x"], ["r"]),
            ],
            [3],
            ["r"],
            {"most": np.float32(20)},
        ),
        lambda k: [k, abs(drawn(3, seed=k))],
    ),
    "a carried value that grows": (
        looping([N("Concat", ["a", "x"], ["b"], axis=0), ON], ["K", 3]),
        lambda k: [k, drawn(1 + k % 3, 3)],
    ),
    "a size that is captured": (
        looping(
            [
                N("Shape", ["x"], ["s"]),
                N("Cast", ["s"], ["t"], to=FLOAT),
                N("ReduceSum", ["t"], ["u"], keepdims=0),
                N("Add", ["a", "u"], ["b"]),
                ON,
            ],
            ["K", 3],
        ),
        lambda k: [k, drawn(1 + k % 4, 3)],
    ),
    "the number of the round": (
        looping([N("Cast", ["i"], ["t"], to=FLOAT), N("Add", ["a", "t"], ["b"]), ON], [3]),
        lambda k: [k, drawn(3, seed=k)],
    ),
    "a branch inside": (
        looping(
            [
                N("ReduceSum", ["a"], ["q"], keepdims=0),
                N("Greater", ["q", "one"], ["c"]),
                N(
                    "If",
                    ["c"],
                    ["b"],
                    then_branch=graph("then", [N("Mul", ["a", "turn"], ["t"])], [], [("t", FLOAT, None)]),
                    else_branch=graph("else", [N("Add", ["a", "x"], ["e"])], [], [("e", FLOAT, None)]),
                ),
                ON,
            ],
            [3],
            (),
            {"one": np.float32(1), "turn": np.float32(-2)},
        ),
        lambda k: [k, drawn(3, seed=k)],
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str, tmp_path: Path) -> None:
    proto, inputs = LOOPS[name]
    # Without a single round ONNX Runtime does not know how long a row would be.
    agrees(proto, [inputs(k) for k in ((4, 1, 7) if len(proto.graph.output) > 1 else (4, 1, 7, 0))], tmp_path)


def test_a_loop_that_only_its_condition_ends(tmp_path: Path) -> None:
    nested = body([N("Add", ["a", "one"], ["b"]), N("Less", ["b", "most"], ["on"])], [("a", FLOAT, [])])
    nodes = [N("Less", ["x", "most"], ["c"]), N("Loop", ["", "c", "x"], ["y"], body=nested)]
    agrees(
        model(nodes, [("x", FLOAT, []), ("most", FLOAT, [])], ["y"], {"one": np.float32(1)}),
        [[np.float32(0), np.float32(5.5)], [np.float32(9), np.float32(5)]],
        tmp_path,
    )


def test_a_loop_longer_than_can_be_written_out(tmp_path: Path) -> None:
    nested = body([N("Add", ["a", "x"], ["b"]), ON], [("a", FLOAT, [3])])
    proto = model([N("Loop", ["n", "", "x"], ["y"], body=nested)], [("x", FLOAT, [3])], ["y"], {"n": np.int64(1500)})
    assert agrees(proto, [[np.ones(3, np.float32)]], tmp_path) == ["main", "main.loop0"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scan_input_directions": [1]},
        {"scan_output_directions": [1]},
        {"scan_output_axes": [1]},
        {"scan_output_axes": [-1], "scan_output_directions": [1]},
    ],
)
def test_scans_of_a_length_that_varies(options: dict[str, Any], tmp_path: Path) -> None:
    inputs = [("s", FLOAT, [3]), ("x", FLOAT, [3])]
    outputs = [("t", FLOAT, [3]), ("o", FLOAT, [3])]
    nested = graph("body", [N("Add", ["s", "x"], ["t"]), N("Mul", ["t", "x"], ["o"])], inputs, outputs)
    node = N("Scan", ["s0", "xs"], ["y", "rows"], body=nested, num_scan_inputs=1, **options)
    proto = model([node], [("s0", FLOAT, [3]), ("xs", FLOAT, ["T", 3])], ["y", "rows"])
    agrees(proto, [[drawn(3), drawn(length, 3)] for length in (5, 1, 3)], tmp_path)


def test_a_loop_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LIMIT", 50)
    proto, _ = LOOPS["the number of the round"]
    module = import_onnx(proto)
    engine = Engine(compile_module(module, BuildOptions(targets=(TARGETS["native"],), tune=parse_measuring("off"))), threads=1)
    for run in (lambda n: engine(n, drawn(3)), lambda n: interpret(module, [n, drawn(3)])):
        run(np.asarray(50))
        with pytest.raises(InputError, match="a loop has run 50 times without an end"):
            run(np.asarray(51))


def test_rows_of_a_loop_have_one_shape() -> None:
    nested = body([N("Concat", ["a", "x"], ["b"], axis=0), N("Identity", ["b"], ["r"]), ON], [("a", FLOAT, None)], ["r"])
    loop = N("Loop", ["n", "", "x"], ["y", "rows"], body=nested)
    module = import_onnx(model([loop], [("n", INT, []), ("x", FLOAT, ["K", 3])], ["y", "rows"]))
    engine = Engine(compile_module(module, BuildOptions(targets=(TARGETS["native"],), tune=parse_measuring("off"))))
    for run in (engine, lambda *inputs: interpret(module, list(inputs))):
        with pytest.raises(InputError, match=r"a loop collects rows of one shape: got \[6, 3\] in round 1, \[4, 3\] before"):
            run(np.asarray(3), drawn(2, 3))


def test_an_index_out_of_range_inside_is_an_error_that_names_it() -> None:
    nested = body([N("Gather", ["x", "i"], ["r"]), N("Add", ["a", "r"], ["b"]), ON], [("a", FLOAT, [3])])
    proto = model([N("Loop", ["n", "", "y0"], ["y"], body=nested)], [("n", INT, []), ("x", FLOAT, [4, 3]), ("y0", FLOAT, [3])], ["y"])
    engine = Engine(compile_module(import_onnx(proto), BuildOptions(targets=(TARGETS["native"],), tune=parse_measuring("off"))))
    x, start = drawn(4, 3), np.zeros(3, np.float32)
    np.testing.assert_allclose(engine(np.asarray(4), x, start), x.sum(0), atol=1e-5)
    with pytest.raises(CompilerError, match="4"):
        engine(np.asarray(5), x, start)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("func @main.then0(", "func @elsewhere(", "branch runs the function @main.then0, which the module does not hold"),
        ('then = "main.then0"', 'then = "main.else0"', None),
        ("branch(%c, %x)", "branch(%c, %s)", r"which takes \(f32\[N, 3\]\), expected \(f32\[\]\)"),
        ("branch(%c, %x)", "branch(%c)", r"which takes \(f32\[N, 3\]\), expected \(\)"),
    ],
)
def test_functions_that_do_not_fit_are_refused(old: str, new: str, message: str | None) -> None:
    text = module_text(import_onnx(choice()))
    assert old in text, text
    damaged = parse_module(text.replace(old, new))
    if message is None:
        verify(damaged)
        return
    with pytest.raises(VerifyError, match=message):
        verify(damaged)


def test_an_engine_without_the_function_that_it_runs_is_damaged() -> None:
    from dataclasses import replace

    contents = compile_module(import_onnx(choice()), BuildOptions(targets=(TARGETS["native"],), tune=parse_measuring("off")))
    ((name, part),) = contents.parts.items()
    lacking = replace(part, plans={function: plan for function, plan in part.plans.items() if function != "main.else0"})
    with pytest.raises(EngineError, match=rf"the plan of main for {name} runs the function main.else0, which the engine does not hold"):
        Engine(replace(contents, parts={name: lacking}))


def test_what_is_refused() -> None:
    ranks = {
        "then": graph("then", [N("Identity", ["x"], ["t"])], [], [("t", FLOAT, None)]),
        "else": graph("else", [N("ReduceSum", ["x"], ["e"], keepdims=0)], [], [("e", FLOAT, None)]),
    }
    nodes = [N("If", ["c"], ["y"], then_branch=ranks["then"], else_branch=ranks["else"])]
    with pytest.raises(UnsupportedError, match=r"1 node is not supported: If") as error:
        import_onnx(model(nodes, [("c", BOOL, []), ("x", FLOAT, [3])], ["y"]))
    assert "give both the same number of dimensions" in str(error.value)


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_recurrent_ops_over_a_length_that_varies(op: str, direction: str, lengths: bool, tmp_path: Path) -> None:
    count, hidden, width = 1 + (direction == "bidirectional"), 3, 2
    rows = GATES[op] * hidden
    constants = {
        "w": drawn(count, rows, width, seed=1),
        "r": drawn(count, rows, hidden, seed=2),
        "b": drawn(count, 2 * rows, seed=3),
    }
    results = ["y", "h", "c"] if op == "LSTM" else ["y", "h"]
    node = N(op, ["x", "w", "r", "b", "s" if lengths else ""], results, hidden_size=hidden, direction=direction)
    inputs: list[tuple[str, int, Any]] = [("x", FLOAT, ["T", "B", width])]
    proto = model([node], [*inputs, ("s", TensorProto.INT32, ["B"])] if lengths else inputs, results, constants)
    calls: list[list[Any]] = []
    for time, batch in ((5, 2), (1, 1), (7, 3)):
        given: list[Any] = [drawn(time, batch, width)]
        calls.append([*given, np.arange(batch, dtype=np.int32) % time + 1] if lengths else given)
    assert "main.loop0" in agrees(proto, calls, tmp_path)


@pytest.mark.parametrize("time", [4, "T"])
@pytest.mark.parametrize("op", GATES)
def test_a_sequence_is_no_longer_than_the_times_there_are(op: str, time: int | str) -> None:
    rows = GATES[op] * 3
    constants = {"w": drawn(1, rows, 2, seed=1), "r": drawn(1, rows, 3, seed=2)}
    node = N(op, ["x", "w", "r", "", "s"], ["y"], hidden_size=3)
    module = import_onnx(model([node], [("x", FLOAT, [time, 2, 2]), ("s", TensorProto.INT32, [2])], ["y"], constants))
    engine = Engine(compile_module(module, build_options({"target": "native"})))
    for wrong in (5, -1):
        with pytest.raises(InputError, match=f"index {wrong} of input 's' is out of range, expected 0..4"):
            engine(drawn(4, 2, 2), np.array([1, wrong], np.int32))
    assert np.array_equal(np.asarray(engine(drawn(4, 2, 2), np.array([4, 0], np.int32)))[:, 0, 1], np.zeros((4, 3)))


def appending(after: Sequence[Any], results: Sequence[str], row: Sequence[Any], begun: bool = False) -> onnx.ModelProto:
    """A loop that appends `row` of x, n times, to a sequence that is empty or begun; `after` reads the sequence q."""
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    made = helper.make_tensor_sequence_value_info("t", FLOAT, None)
    nodes = [*row, N("SequenceInsert", ["s", "r"], ["t"]), ON]
    inside = helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info("i", INT, []), helper.make_tensor_value_info("go", BOOL, []), sequence],
        [helper.make_tensor_value_info("on", BOOL, []), made],
    )
    start = N("SequenceConstruct", ["x"], ["e"]) if begun else N("SequenceEmpty", [], ["e"], dtype=FLOAT)
    loop = N("Loop", ["n", "", "e"], ["q"], body=inside)
    ports: Ports = [("n", INT, []), ("x", FLOAT, ["N", 3])]
    return model([start, loop, *after], ports, results, {"last": np.asarray(-1), "first": np.asarray(0)})


SCALED = [N("Cast", ["i"], ["f"], to=FLOAT), N("Mul", ["x", "f"], ["r"])]


@pytest.mark.parametrize("begun", [False, True])
def test_a_loop_appends_to_a_sequence(begun: bool, tmp_path: Path) -> None:
    after = [
        *(N("ConcatFromSequence", ["q"], [f"y{axis}"], axis=axis) for axis in (0, 1)),
        *(N("ConcatFromSequence", ["q"], [f"z{axis}"], axis=axis, new_axis=1) for axis in (0, 1, -1)),
        N("SequenceLength", ["q"], ["length"]),
        N("Cast", ["length"], ["count"], to=FLOAT),
        N("SequenceAt", ["q", "last"], ["end"]),
        N("SequenceAt", ["q", "first"], ["start"]),
    ]
    results = ["y0", "y1", "z0", "z1", "z-1", "count", "end", "start"]
    proto = appending(after, results, SCALED, begun)
    assert agrees(proto, [(4, drawn(2, 3)), (1, drawn(5, 3)), (7, drawn(1, 3))], tmp_path) == ["main", "main.loop0"]


def test_a_sequence_of_elements_whose_sizes_differ_is_refused() -> None:
    grows = [N("Cast", ["i"], ["f"], to=FLOAT), N("Sub", ["x", "f"], ["d"]), N("NonZero", ["d"], ["p"]), N("Cast", ["p"], ["r"], to=FLOAT)]
    proto = appending([N("ConcatFromSequence", ["q"], ["y"], axis=1)], ["y"], grows)
    with pytest.raises(CompilerError, match="whose elements are f32") as refused:
        import_onnx(proto)
    assert "append tensors of one dtype and shape" in str(refused.value)


def test_what_a_round_cannot_do_is_told_by_the_inputs_of_the_model() -> None:
    """The number of rounds is what makes the start of the slice known."""
    nodes = [N("Slice", ["x", "i0", "four"], ["s"]), N("ReduceSum", ["s"], ["q"], keepdims=0), N("Add", ["a", "q"], ["b"]), ON]
    proto = looping([N("Unsqueeze", ["i", "zero"], ["i0"]), *nodes], [4], (), {"zero": np.array([0]), "four": np.array([4])})
    with pytest.raises(UnsupportedModelError) as refused:
        import_onnx(proto)
    (problem,) = refused.value.problems
    assert problem.op_type == "Slice"
    assert problem.inputs == {"n", "x"}
    import_onnx(proto, values={"n": np.asarray(3)})
