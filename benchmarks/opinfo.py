"""Torch's own op database through `torch.compile(backend="ourcc")`: right, wrong, failed, and how many ATen calls.

Every operator's first float32 sample (where it has none, the first of another dtype) runs compiled and eager with the
same seed, so that random operators draw the same numbers; the judge compares them, with eager in float64 as the wide
reference where the operator has it. Operators run in child processes, so that one that crashes or hangs costs only
itself.

    python benchmarks/opinfo.py [--only NAME ...] [--dtype float16] [--samples 100] [--jobs 2] [--output FILE]
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "opinfo.json"
BATCH = 24
SECONDS = 120.0  # one operator
UNDEFINED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")  # their values are nobody's
DTYPES = ("float32", "int64", "bool", "complex64", "uint8", "bfloat16", "float16", "float8_e4m3fn")  # the first that an operator has
UNORDERED = ("sort", "argsort", "msort", "topk", "kthvalue", "mode", "median", "nanmedian")  # equal elements come in any order
REASONS = {
    "undefined": "memory that nobody wrote: shapes and dtypes are compared",
    "eager raises": "eager itself refuses the sample",
    "no sample": "the database gives no sample on this machine",
}


def main() -> int:
    """Run the parent, or with --child one batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None, help="names of operators")
    parser.add_argument("--dtype", choices=DTYPES, default=None, help="this dtype and no other")
    parser.add_argument("--samples", type=int, default=1, help="how many of each operator's samples")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=None, help=f"default: {RESULT.relative_to(ROOT)} if everything runs")
    parser.add_argument("--child", nargs="*", type=int, default=None)
    arguments = parser.parse_args()
    what = Selection((arguments.dtype,) if arguments.dtype else DTYPES, arguments.samples)
    if arguments.child is not None:
        child(arguments.child, what)
        return 0
    whole = arguments.only is None and what == Selection()
    return parent(arguments.only, what, arguments.jobs, arguments.output or (RESULT if whole else None))


@dataclass(frozen=True)
class Selection:
    """Which samples of an operator run: of the first dtype that it has, so many."""

    dtypes: tuple[str, ...] = DTYPES
    samples: int = 1

    def flags(self) -> list[str]:
        """For a child."""
        return ["--samples", str(self.samples), *(["--dtype", *self.dtypes] if len(self.dtypes) == 1 else [])]


# --- the parent -------------------------------------------------------------------------------------------------------


def parent(only: Sequence[str] | None, what: Selection, jobs: int, output: Path | None) -> int:
    """Run all batches, print the counts, write the file."""
    entries = database()
    numbers = [n for n, op in enumerate(entries) if only is None or op.name in only]
    batches = [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        rows = [row for batch in pool.map(functools.partial(run_batch, what), batches) for row in batch]
    rows.sort(key=lambda row: row["number"])
    for row in rows:
        row["name"] = full_name(entries[row["number"]])
    summary = summarize(rows)
    summary["seconds"] = round(time.monotonic() - start)
    report(rows, summary)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps({"summary": summary, "operators": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if summary["wrong"] or summary["failed"] else 0


def report(rows: Sequence[dict[str, Any]], summary: Mapping[str, Any]) -> None:
    """Print what is not right with its reason, what was called, and the counts."""
    for row in rows:
        if row["status"] in ("wrong", "failed"):
            print(f"{row['status']:7} {row['name']}: {row.get('reason', '')[:200]}")
    for status, reason in REASONS.items():
        names = [row["name"] for row in rows if row["status"] == status]
        if names:
            print(f"{len(names)} {status} ({reason}): {', '.join(names)}")
    unseen = [row["name"] for row in rows if row["status"] == "right" and not row["graphs"]]
    if unseen:
        print(
            f"{len(unseen)} right without a graph (torch traces none, its results are no tensors or of a size that data decide): "
            f"{', '.join(unseen)}"
        )
    most = list(summary["called"].items())[:20]
    if most:
        print(f"called most: {', '.join(f'{name} {count}' for name, count in most)}")
    print(", ".join(f"{value} {key}" for key, value in summary.items() if not isinstance(value, dict)))


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts."""
    status = collections.Counter(row["status"] for row in rows)
    calls = collections.Counter(call for row in rows for call in row.get("calls", ()))
    return {
        "operators": len(rows),
        **{key: status.get(key, 0) for key in ("right", "wrong", "failed", *REASONS)},
        "right without ATen calls": sum(row["status"] == "right" and not row["calls"] and row["graphs"] > 0 for row in rows),
        "right without a graph": sum(row["status"] == "right" and not row["graphs"] for row in rows),
        "ATen calls": sum(calls.values()),
        "called": dict(calls.most_common()),
    }


def run_batch(what: Selection, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """One batch in children; an operator that ends its child is marked, and a new child takes the rest."""
    rows: list[dict[str, Any]] = []
    left = list(numbers)
    while left:
        found, how = run_child(left, what)
        rows += found
        done = {row["number"] for row in found}
        left = [n for n in left if n not in done]
        if left and how:
            rows.append({"number": left.pop(0), "status": "failed", "reason": how, "calls": [], "graphs": 0})
    return rows


def run_child(numbers: Sequence[int], what: Selection) -> tuple[list[dict[str, Any]], str]:
    """What a child reported before it ended, and how it ended if badly."""
    command = [sys.executable, str(Path(__file__).resolve()), *what.flags(), "--child", *map(str, numbers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    how = ""
    try:
        text, _ = process.communicate(timeout=SECONDS * 2 + 15 * len(numbers) * what.samples)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        how = "it took too long"
    if process.returncode and not how:
        how = f"its process ended with status {process.returncode}"
    rows = [json.loads(line.removeprefix("ROW ")) for line in text.splitlines() if line.startswith("ROW ")]
    return rows, how or "its process reported nothing"


def database() -> list[Any]:
    """All entries; random operators draw from torch's own generator, which `call` seeds, not through a helper that no graph can hold."""
    from torch.testing._internal import common_methods_invocations

    def plain_call(operator: Any, *arguments: Any, **keywords: Any) -> Any:
        return operator(*arguments, **keywords)

    common_methods_invocations.wrapper_set_seed = plain_call
    return list(common_methods_invocations.op_db)


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


# --- the child --------------------------------------------------------------------------------------------------------


def child(numbers: Sequence[int], what: Selection) -> None:
    """Run operators one after another and print one line each."""
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    entries = database()
    for number in numbers:
        print("ROW " + json.dumps({"number": number, **run_operator(entries[number], what)}), flush=True)


def run_operator(op: Any, what: Selection) -> dict[str, Any]:
    """One operator's samples, compiled and eager: the first that is not right decides, else the first."""
    row: dict[str, Any] = {"calls": [], "graphs": 0}
    count = 0
    for dtype in what.dtypes:
        try:
            count = min(what.samples, sum(1 for _ in samples(op, dtype)))
        except Exception as error:  # noqa: BLE001 - the database itself cannot make a sample
            return {**row, "status": "no sample", "reason": first_line(error)}
        if count:
            break
    if not count:
        return {**row, "status": "no sample"}
    rows = [run_sample(op, dtype, number) for number in range(count)]
    worst = next((row for row in rows if row["status"] in ("wrong", "failed")), rows[0])
    calls = [call for row in rows for call in row["calls"]] if len(rows) > 1 else worst["calls"]
    return {**worst, "dtype": dtype, "calls": calls, "graphs": sum(row["graphs"] for row in rows), "samples": count}


def run_sample(op: Any, dtype: str, number: int) -> dict[str, Any]:
    """One sample, compiled and eager."""
    import torch

    from ourcc.compiler.torch import backend

    recorded: list[Any] = []

    class Recording(backend.CompiledGraph):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            recorded.append(self)

    row: dict[str, Any] = {"calls": [], "graphs": 0}
    try:
        eager, wide = expected(op, dtype, number)
    except Exception as error:  # noqa: BLE001 - the operator itself refuses its sample
        return {**row, "status": "eager raises", "reason": first_line(error)}
    torch._dynamo.reset()
    original, backend.CompiledGraph = backend.CompiledGraph, Recording
    try:
        got = call(torch.compile(op.op, backend="ourcc", dynamic=False), sample(op, dtype, number))
        reason = compare(op, sample(op, dtype, number).input, got, eager, wide)
        row |= {"status": "wrong" if reason else "undefined" if op.name in UNDEFINED else "right", "reason": reason}
    except Exception as error:  # noqa: BLE001 - every failure is a row of the table
        row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:600]}
    finally:
        backend.CompiledGraph = original
    if row["reason"]:
        row["reason"] = f"{dtype} sample {number}: {row['reason']}"
    graphs = [graph.build.imported for graph in recorded if graph.build is not None]
    return {**row, "graphs": len(graphs), "calls": [fallback.operator for graph in graphs for fallback in graph.fallbacks]}


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def samples(op: Any, dtype: str) -> Iterator[Any]:
    """An operator's samples of a dtype, the same at every call; none where it has none."""
    import torch

    if getattr(torch, dtype) not in op.supported_dtypes("cpu"):
        return iter(())
    torch.manual_seed(0)
    return iter(op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False))


def sample(op: Any, dtype: str, number: int) -> Any:
    return next(itertools.islice(samples(op, dtype), number, None))


def call(function: Any, given: Any) -> list[Any]:
    """The flat results of one call, with the generator at the same place each time."""
    import torch
    from torch.utils._pytree import tree_leaves

    torch.manual_seed(1)
    with torch.no_grad():
        return list(tree_leaves(function(given.input, *given.args, **given.kwargs)))


def expected(op: Any, dtype: str, number: int) -> tuple[list[Any], list[Any]]:
    """Eager's results, and of the same numbers in float64 where the operator takes them and draws none of its own."""
    import torch
    from torch.utils._pytree import tree_map

    eager = call(op.op, sample(op, dtype, number))
    drawn = torch.get_rng_state()
    torch.manual_seed(1)
    if not torch.equal(drawn, torch.get_rng_state()):
        return eager, eager
    given = sample(op, dtype, number)
    narrow = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.complex64: torch.complex128}

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(narrow.get(value.dtype, value.dtype)) if value.layout is torch.strided else value
        return narrow.get(value, value) if isinstance(value, torch.dtype) else value

    given.input, given.args, given.kwargs = tree_map(widen, (given.input, given.args, given.kwargs))
    try:
        wide = call(op.op, given)
    except Exception:  # noqa: BLE001 - no float64: eager judges itself
        return eager, eager
    return eager, [b if is_wide(a, b) else a for a, b in zip(eager, wide, strict=True)] if len(wide) == len(eager) else eager


def is_wide(eager: Any, wide: Any) -> bool:
    """Whether a float64 result is the float32 one, more exactly; an eigenvector may come with its sign turned."""
    import torch

    if not isinstance(eager, torch.Tensor) or not isinstance(wide, torch.Tensor) or eager.shape != wide.shape:
        return False
    if not (eager.dtype.is_floating_point or eager.dtype.is_complex) or eager.layout is not torch.strided:
        return False
    narrow, exact = eager.to(wide.dtype), wide
    finite = torch.isfinite(narrow) & torch.isfinite(exact)
    distance = torch.where(finite, (narrow - exact).abs(), 0.0)
    size = torch.where(finite, exact.abs(), 0.0)
    share = 0.02 if eager.dtype.itemsize > 2 else 0.25
    return not eager.numel() or bool(distance.max() <= share * size.max())


def compare(op: Any, given: Any, got: Sequence[Any], eager: Sequence[Any], wide: Sequence[Any]) -> str:
    """Why the results differ; empty if they do not."""
    import torch

    if len(got) != len(eager):
        return f"got {len(got)} results, expected {len(eager)}"
    for number, (one, other, exact) in enumerate(zip(got, eager, wide, strict=True)):
        if not isinstance(other, torch.Tensor):
            if one != other and not (one != one and other != other):
                return f"result {number} is {one!r}, expected {other!r}"
            continue
        reason = compare_tensors(one, other, exact, op.name in UNDEFINED)
        if reason and not (op.name in UNORDERED and find_equals(given, one, other)):
            return f"result {number}: {reason}"
    return ""


def find_equals(x: Any, one: Any, other: Any) -> bool:
    """Whether two tensors of indices, along some axis, find the same elements."""
    import torch

    if one.dtype is not torch.int64 or one.shape != other.shape or one.dim() != x.dim():
        return False
    for axis in range(x.dim()):
        if all(one.shape[k] == x.shape[k] for k in range(x.dim()) if k != axis) and int(max(one.max(), other.max())) < x.shape[axis]:
            found, expected = (torch.take_along_dim(x, indices, axis) for indices in (one, other))
            if torch.equal(found, expected):
                return True
    return False


def compare_tensors(one: Any, other: Any, exact: Any, shape_only: bool) -> str:
    from ourcc.compiler.importers.torch.tensors import array_of
    from ourcc.ir.graph.reference import judge

    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return f"got {one.dtype}{list(one.shape)} {one.layout}, expected {other.dtype}{list(other.shape)} {other.layout}"
    if shape_only:
        return ""
    verdict = judge(*(array_of(plain(tensor)) for tensor in (one, other, exact)), factor=2.0 if other.dtype.itemsize == 2 else 4.0)
    return "" if verdict.passed else verdict.reason


def plain(tensor: Any) -> Any:
    """A tensor that the judge can read: dense, complex numbers as pairs."""
    import torch

    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    if not dense.dtype.is_complex:
        return dense
    wide = dense.to(torch.complex64) if dense.dtype is torch.complex32 else dense
    return torch.view_as_real(wide.resolve_conj())


if __name__ == "__main__":
    sys.exit(main())
