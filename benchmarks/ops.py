"""Single ops of ONNX beside ONNX Runtime, one thread: which of them have a loop that is not fast.

Each case is a file of one node at a size that caches hold, timed in interleaved rounds after the answers were compared. The
table is sorted, the slowest first: what stands at its head is where a model that consists of such an op waits.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from children import RESULTS, chosen, write_json
from machine_facts import machine_facts
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
OPSET = 20
DRAWN = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A node: its op, what a call gives it, what the file holds of it (a name of the inputs' order may be empty), its attributes."""

    op: str
    given: tuple[Array, ...]
    held: tuple[Array | None, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1
    opset: int = OPSET


def _floats(*shape: int, dtype: Any = np.float32) -> Array:
    return DRAWN.standard_normal(shape).astype(dtype)


def _integers(most: int, *shape: int, dtype: Any = np.int64) -> Array:
    return DRAWN.integers(0, most, shape).astype(dtype)


def _whole(*values: int) -> Array:
    return np.array(values, np.int64)


TABLE, IMAGE, ROWS = (513, 1001), (1, 32, 56, 56), (64, 768)
FUNCTIONS = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
    *("HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin"),
    *("Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh"),
)
PAIRS = ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "PRelu", "Less", "Equal")
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


def _positive(op: str, table: Array) -> Array:
    """Numbers that the function is made for."""
    low = {"Acosh": 1.0, "Log": 1e-3, "Sqrt": 0.0}.get(op)
    if op in ("Acos", "Asin", "Atanh"):
        return np.clip(table / 4, -1, 1).astype(table.dtype)
    return table if low is None else np.abs(table) + np.float32(low)


def cases() -> dict[str, Case]:
    """All cases by name."""
    found = {op: Case(op, (_positive(op, _floats(*TABLE)),)) for op in FUNCTIONS}
    for op in PAIRS:
        more = {"fmod": 1} if op == "Mod" else {}
        found[op] = Case(op, (np.abs(_floats(*TABLE)) if op == "Pow" else _floats(*TABLE), _floats(*TABLE)), (), more)
    for op in ("Add", "Div"):
        found[f"{op}.row"] = Case(op, (_floats(*TABLE), _floats(TABLE[1])))
        found[f"{op}.column"] = Case(op, (_floats(*TABLE), _floats(TABLE[0], 1)))
        found[f"{op}.i32"] = Case(op, (_integers(1000, *TABLE, dtype=np.int32), 1 + _integers(1000, *TABLE, dtype=np.int32)))
        found[f"{op}.i64"] = Case(op, (_integers(1000, *TABLE), 1 + _integers(1000, *TABLE)))
    for op in REDUCTIONS:
        for name, axes in (("last", (-1,)), ("first", (0,)), ("all", (0, 1))):
            table = np.abs(_floats(*TABLE)) if op == "LogSum" else _floats(*TABLE)
            found[f"Reduce{op}.{name}"] = Case(f"Reduce{op}", (table,), (_whole(*axes),))
    for op in ("ArgMax", "ArgMin", "Softmax", "LogSoftmax", "Hardmax"):
        for name, axis in (("last", -1), ("first", 0)):
            found[f"{op}.{name}"] = Case(op, (_floats(*TABLE),), (), {"axis": axis})
    for op in ("Softmax", "LogSoftmax"):
        found[f"{op}.long"] = Case(op, (_floats(3, 200_001),), (), {"axis": -1})
        found[f"{op}.short"] = Case(op, (_floats(20_000, 10),), (), {"axis": -1})
    for name, axis in (("last", 1), ("first", 0)):
        found[f"CumSum.{name}"] = Case("CumSum", (_floats(*TABLE),), (np.array(axis),))
    for name, count in (("few", 5), ("many", 200)):
        found[f"TopK.{name}"] = Case("TopK", (_floats(100, 1001),), (_whole(count),), {"axis": -1}, 2)
    found["TopK.whole"] = Case("TopK", (_floats(1001),), (_whole(1001),), {"axis": -1}, 2)
    found |= _movements() | _images() | _products() | _states()
    for op in ("Exp", "Tanh", "Sigmoid", "Gelu", "Add", "ReduceSum.last", "Softmax.last"):
        case = found[op]
        found[f"{op}.f16"] = Case(case.op, tuple(a.astype(np.float16) for a in case.given), case.held, case.more)
    return found


def _movements() -> dict[str, Case]:
    table, image = _floats(*TABLE), _floats(*IMAGE)
    found = {
        "Transpose.2": Case("Transpose", (table,), (), {"perm": [1, 0]}),
        "Transpose.last": Case("Transpose", (image,), (), {"perm": [0, 2, 3, 1]}),
        "Transpose.heads": Case("Transpose", (_floats(1, 128, 12, 64),), (), {"perm": [0, 2, 1, 3]}),
        "Transpose.bytes": Case("Transpose", (_integers(99, *TABLE, dtype=np.uint8),), (), {"perm": [1, 0]}),
        "Concat.last": Case("Concat", (table, table), (), {"axis": 1}),
        "Concat.first": Case("Concat", (table, table), (), {"axis": 0}),
        "Split.last": Case("Split", (table[:, :1000].copy(),), (), {"axis": 1, "num_outputs": 4}, 4),
        "Slice.step": Case("Slice", (table,), (_whole(0), _whole(1001), _whole(1), _whole(2))),
        "Slice.back": Case("Slice", (table,), (_whole(-1), _whole(-5000), _whole(1), _whole(-1))),
        "Slice.rows": Case("Slice", (table,), (_whole(3), _whole(500), _whole(0), _whole(1))),
        "Expand": Case("Expand", (_floats(1, 1001),), (_whole(513, 1001),)),
        "Expand.last": Case("Expand", (_floats(513, 1),), (_whole(513, 1001),)),
        "Tile": Case("Tile", (_floats(64, 100),), (_whole(8, 10),)),
        "Tile.heads": Case("Tile", (_floats(8, 1, 4096),), (_whole(1, 16, 1),)),
        "GatherElements.last": Case("GatherElements", (table, _integers(1001, *TABLE)), (), {"axis": 1}),
        "GatherElements.first": Case("GatherElements", (table, _integers(513, *TABLE)), (), {"axis": 0}),
        "GatherND": Case("GatherND", (table, np.stack([_integers(513, 9999), _integers(1001, 9999)], -1))),
        "ScatterElements": Case("ScatterElements", (table, _integers(513, 64, 1001), _floats(64, 1001)), (), {"axis": 0}),
        "ScatterND": Case("ScatterND", (table, _integers(513, 64, 1), _floats(64, 1001))),
        "Where": Case("Where", (table > 0, table, _floats(*TABLE))),
        "Where.row": Case("Where", (_floats(TABLE[1]) > 0, table, np.array([2.0], np.float32))),
        "Clip": Case("Clip", (table,), (np.array(-1, np.float32), np.array(1, np.float32))),
        "OneHot": Case("OneHot", (_integers(512, 600),), (np.array(512), np.array([0, 1], np.float32)), {"axis": -1}),
        "Trilu": Case("Trilu", (table,), (), {"upper": 0}),
        "NonZero": Case("NonZero", (table > 1,)),
        "Cast.f16": Case("Cast", (table,), (), {"to": onnx.TensorProto.FLOAT16}),
        "Cast.i8": Case("Cast", (table,), (), {"to": onnx.TensorProto.INT8}),
        "Cast.i64": Case("Cast", (table,), (), {"to": onnx.TensorProto.INT64}),
        "Cast.bool": Case("Cast", (table,), (), {"to": onnx.TensorProto.BOOL}),
        "SpaceToDepth": Case("SpaceToDepth", (image,), (), {"blocksize": 2}),
        "DepthToSpace": Case("DepthToSpace", (image,), (), {"blocksize": 2}),
        "DepthToSpace.crd": Case("DepthToSpace", (image,), (), {"blocksize": 2, "mode": "CRD"}),
        "ReverseSequence": Case("ReverseSequence", (_floats(64, 8, 256), _integers(64, 8) + 1)),
        "EyeLike": Case("EyeLike", (table,)),
    }
    for mode in ("constant", "reflect", "edge", "wrap"):
        found[f"Pad.{mode}"] = Case("Pad", (image,), (_whole(0, 0, 3, 3, 0, 0, 3, 3),), {"mode": mode})
    for name, axis in (("first", 0), ("last", 1)):
        found[f"Gather.{name}"] = Case("Gather", (table, _integers(TABLE[axis], 400)), (), {"axis": axis})
    return found


def _images() -> dict[str, Case]:
    image, wide = _floats(*IMAGE), _floats(1, 16, 120, 120)
    size = _whole(1, 16, 240, 240)
    found = {
        "AveragePool": Case("AveragePool", (image,), (), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
        "MaxPool": Case("MaxPool", (image,), (), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
        "MaxPool.places": Case("MaxPool", (image,), (), {"kernel_shape": [2, 2], "strides": [2, 2]}, 2),
        "LpPool": Case("LpPool", (image,), (), {"kernel_shape": [3, 3], "p": 2}),
        "GlobalAveragePool": Case("GlobalAveragePool", (image,)),
        "GlobalMaxPool": Case("GlobalMaxPool", (image,)),
        "LRN": Case("LRN", (image,), (), {"size": 5}),
        "BatchNormalization": Case("BatchNormalization", (image,), (*(_floats(32) for _ in range(3)), np.abs(_floats(32)) + 1)),
        "InstanceNormalization": Case("InstanceNormalization", (image,), (_floats(32), _floats(32))),
        "GroupNormalization": Case("GroupNormalization", (image,), (_floats(32), _floats(32)), {"num_groups": 8}, opset=21),
        "LayerNormalization": Case("LayerNormalization", (_floats(*ROWS),), (_floats(768), _floats(768))),
        "LpNormalization": Case("LpNormalization", (_floats(*ROWS),), (), {"axis": -1}),
        "MeanVarianceNormalization": Case("MeanVarianceNormalization", (image,)),
        "Conv": Case("Conv", (image,), (_floats(32, 32, 3, 3),), {"pads": [1] * 4}),
        "Conv.depthwise": Case("Conv", (image,), (_floats(32, 1, 3, 3),), {"pads": [1] * 4, "group": 32}),
        "Conv.dilated": Case("Conv", (image,), (_floats(32, 32, 3, 3),), {"pads": [2] * 4, "dilations": [2, 2]}),
        "Conv.1d": Case("Conv", (_floats(1, 64, 1000),), (_floats(64, 64, 9),)),
        "Conv.3d": Case("Conv", (_floats(1, 8, 12, 24, 24),), (_floats(8, 8, 3, 3, 3),)),
        "ConvTranspose": Case("ConvTranspose", (image,), (_floats(32, 16, 4, 4),), {"strides": [2, 2], "pads": [1] * 4}),
        "GridSample": Case("GridSample", (image, np.tanh(_floats(1, 56, 56, 2))), (), {"align_corners": 0}),
        "GridSample.nearest": Case("GridSample", (image, np.tanh(_floats(1, 56, 56, 2))), (), {"mode": "nearest"}),
        "RoiAlign": Case(
            "RoiAlign",
            (image, np.array([[0, 0, 40, 40], [5, 9, 50, 30]] * 8, np.float32), _integers(1, 16)),
            (),
            {"output_height": 7, "output_width": 7, "sampling_ratio": 2},
        ),
        "Col2Im": Case("Col2Im", (_floats(1, 32 * 9, 54 * 54),), (_whole(56, 56), _whole(3, 3))),
        "DFT": Case("DFT", (_floats(16, 400, 1),), (None, np.array(-2)), {"onesided": 1}),
        "DFT.512": Case("DFT", (_floats(16, 512, 1),), (None, np.array(-2)), {"onesided": 1}),
        "STFT": Case("STFT", (_floats(1, 16_000, 1),), (np.array(160), np.hanning(400).astype(np.float32)), {"onesided": 1}),
    }
    for mode in ("nearest", "linear", "cubic"):
        found[f"Resize.{mode}"] = Case("Resize", (wide,), (None, None, size), {"mode": mode})
    found["Resize.corners"] = Case(
        "Resize", (wide,), (None, None, size), {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    )
    found["Resize.smaller"] = Case("Resize", (wide,), (None, None, _whole(1, 16, 50, 50)), {"mode": "linear", "antialias": 0})
    return found


def _products() -> dict[str, Case]:
    return {
        "MatMul": Case("MatMul", (_floats(*ROWS), _floats(768, 256))),
        "MatMul.weight": Case("MatMul", (_floats(*ROWS),), (_floats(768, 256),)),
        "MatMul.row": Case("MatMul", (_floats(1, 768),), (_floats(768, 768),)),
        "MatMul.column": Case("MatMul", (_floats(768, 768), _floats(768, 1))),
        "MatMul.many": Case("MatMul", (_floats(256, 16, 16), _floats(256, 16, 16))),
        "MatMul.f16": Case("MatMul", (_floats(*ROWS, dtype=np.float16),), (_floats(768, 256, dtype=np.float16),)),
        "MatMul.i32": Case("MatMul", (_integers(99, 64, 256, dtype=np.int32), _integers(99, 256, 64, dtype=np.int32))),
        "Gemm.turned": Case("Gemm", (_floats(*ROWS), _floats(256, 768), _floats(256)), (), {"transB": 1}),
        "MatMulInteger": Case("MatMulInteger", (_integers(99, 64, 768, dtype=np.uint8),), (_integers(99, 768, 256, dtype=np.int8),)),
        "Einsum.batch": Case("Einsum", (_floats(8, 64, 64), _floats(8, 64, 64)), (), {"equation": "bij,bkj->bik"}),
        "Einsum.outer": Case("Einsum", (_floats(512), _floats(512)), (), {"equation": "i,j->ij"}),
    }


def _states() -> dict[str, Case]:
    found = {}
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights = (_floats(1, gates * 64, 64) / 8, _floats(1, gates * 64, 64) / 8, _floats(1, 2 * gates * 64))
        found[op] = Case(op, (_floats(50, 4, 64),), weights, {"hidden_size": 64})
    return found


def model_of(case: Case) -> onnx.ModelProto:
    """The file of a case: inputs x0, x1, ..., results y0, ..., constants of their own names."""
    given = [f"x{n}" for n in range(len(case.given))]
    held = ["" if value is None else f"c{n}" for n, value in enumerate(case.held)]
    results = [f"y{n}" for n in range(case.results)]
    graph = helper.make_graph(
        [helper.make_node(case.op, given + held, results, **case.more)],
        "op",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in zip(given, case.given, strict=True)
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(value, f"c{n}") for n, value in enumerate(case.held) if value is not None],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=9)


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Both sides of a case: compared, then timed."""
    import onnxruntime

    from ourcc.compiler.commands.build import build
    from ourcc.compiler.commands.measure import compare, rows
    from ourcc.compiler.options import build_options

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "op.onnx")
        onnx.save(model_of(case), path)
        engine = build(str(path), build_options({"targets": ["native"], "threads": 1}))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    feeds = {f"x{n}": value for n, value in enumerate(case.given)}
    ours, theirs = _listed(engine(*case.given)), session.run(None, feeds)
    calls = {"ourcc": partial(engine, *case.given), "onnxruntime": partial(session.run, None, feeds)}
    (_, mine, my_median, *_), (_, other, other_median, *_) = rows(compare(calls, rounds, inner=0.002))
    return {
        "ourcc_us": {"minimum": round(1e3 * mine, 1), "median": round(1e3 * my_median, 1)},
        "onnxruntime_us": {"minimum": round(1e3 * other, 1), "median": round(1e3 * other_median, 1)},
        "ratio": round(mine / other, 2),
        "largest_difference": _difference(ours, theirs),
    }


def _listed(answer: Any) -> list[Array]:
    return list(answer) if isinstance(answer, tuple) else [answer]


def _difference(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """How far the answers lie apart, in parts of the largest of theirs."""
    found = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"the answers have shapes {a.shape} and {b.shape}")
        wide, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
        alike = (wide == other) | (np.isnan(wide) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            apart = np.where(alike, 0, np.abs(wide - other))
        largest = np.abs(other[np.isfinite(other)]).max(initial=0)
        found = max(found, float(np.nan_to_num(apart, nan=np.inf).max(initial=0) / max(largest, 1e-30)))
    return found


def main() -> int:
    known = cases()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default=",".join(known), help="which ones, separated by commas, each by its name or its op's")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of measuring")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "ops.json", help="file of the results")
    options = parser.parse_args()
    families = {name: [each for each in known if each.split(".")[0] == name] for name in {each.split(".")[0] for each in known}}
    asked = chosen(options.ops, [*known, *families])
    names = dict.fromkeys(
        name for each in asked for name in ([each] if each in known and "," in options.ops else families.get(each, [each]))
    )
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            found[name] = measure(known[name], options.rounds)
        except Exception as error:  # noqa: BLE001 - an op that one side refuses is a row
            found[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    for name, row in sorted(found.items(), key=lambda item: -item[1].get("ratio", np.inf)):
        if "error" in row:
            print(f"{name:24s} {row['error']}")
            continue
        ours, theirs = row["ourcc_us"]["minimum"], row["onnxruntime_us"]["minimum"]
        times = f"{ours:9.1f} us, ONNX Runtime {theirs:9.1f}"
        print(f"{name:24s} {row['ratio']:6.2f} times as long: {times}; {row['largest_difference']:.1e} apart")
    write_json(options.output, {"threads": 1, "machine": machine_facts(), "ops": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
