"""Torch's own op database through `torch.compile(backend="ourcc")`: right, wrong, failed, and how many ATen calls.

Every operator's first float32 sample runs compiled and eager with the same seed; the judge compares them, with eager in
float64 as the wide reference where the operator has it. Operators run in child processes, so that one that crashes or
hangs costs only itself.

    python benchmarks/opinfo.py [--only NAME ...] [--jobs 2] [--output FILE]
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "opinfo.json"
BATCH = 24
SECONDS = 120.0  # one operator
UNDEFINED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")  # their values are nobody's


def main() -> int:
    """Run the parent, or with --child one batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None, help="names of operators")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--child", nargs="*", type=int, default=None)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child)
        return 0
    return parent(arguments.only, arguments.jobs, arguments.output)


# --- the parent -------------------------------------------------------------------------------------------------------


def parent(only: Sequence[str] | None, jobs: int, output: Path) -> int:
    """Run all batches, print the counts, write the file."""
    entries = database()
    numbers = [n for n, op in enumerate(entries) if only is None or op.name in only]
    batches = [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        rows = [row for batch in pool.map(run_batch, batches) for row in batch]
    rows.sort(key=lambda row: row["number"])
    for row in rows:
        row["name"] = full_name(entries[row["number"]])
    summary = summarize(rows)
    summary["seconds"] = round(time.monotonic() - start)
    for row in rows:
        if row["status"] in ("wrong", "failed"):
            print(f"{row['status']:7} {row['name']}: {row.get('reason', '')[:200]}")
    print(", ".join(f"{value} {key}" for key, value in summary.items() if not isinstance(value, dict)))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"summary": summary, "operators": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if summary["wrong"] or summary["failed"] else 0


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts."""
    status = collections.Counter(row["status"] for row in rows)
    calls = collections.Counter(call for row in rows for call in row.get("calls", ()))
    return {
        "operators": len(rows),
        **{key: status.get(key, 0) for key in ("right", "wrong", "failed", "no sample", "eager raises")},
        "right without ATen calls": sum(row["status"] == "right" and not row["calls"] and row["graphs"] > 0 for row in rows),
        "right without a graph": sum(row["status"] == "right" and not row["graphs"] for row in rows),
        "ATen calls": sum(calls.values()),
        "called": dict(calls.most_common()),
    }


def run_batch(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """One batch in children; an operator that ends its child is marked, and a new child takes the rest."""
    rows: list[dict[str, Any]] = []
    left = list(numbers)
    while left:
        found, how = run_child(left)
        rows += found
        done = {row["number"] for row in found}
        left = [n for n in left if n not in done]
        if left and how:
            rows.append({"number": left.pop(0), "status": "failed", "reason": how, "calls": [], "graphs": 0})
    return rows


def run_child(numbers: Sequence[int]) -> tuple[list[dict[str, Any]], str]:
    """What a child reported before it ended, and how it ended if badly."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *map(str, numbers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    how = ""
    try:
        text, _ = process.communicate(timeout=SECONDS * 2 + 15 * len(numbers))
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
    from torch.testing._internal.opinfo.definitions import signal

    def plain_call(operator: Any, *arguments: Any, **keywords: Any) -> Any:
        return operator(*arguments, **keywords)

    for module in (common_methods_invocations, signal):
        if hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = plain_call
    return list(common_methods_invocations.op_db)


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


# --- the child --------------------------------------------------------------------------------------------------------


def child(numbers: Sequence[int]) -> None:
    """Run operators one after another and print one line each."""
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    entries = database()
    for number in numbers:
        torch._dynamo.reset()
        print("ROW " + json.dumps({"number": number, **run_operator(entries[number])}), flush=True)


def run_operator(op: Any) -> dict[str, Any]:
    """One operator's first sample, compiled and eager."""
    import torch

    from ourcc.compiler import backend

    recorded: list[Any] = []

    class Recording(backend.CompiledGraph):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            recorded.append(self)

    row: dict[str, Any] = {"calls": [], "graphs": 0}
    if torch.float32 not in op.supported_dtypes("cpu"):
        return {**row, "status": "no sample"}
    try:
        eager, wide = expected(op)
    except Exception as error:  # noqa: BLE001 - the operator itself refuses its sample
        return {**row, "status": "eager raises", "reason": f"{type(error).__name__}: {error}"}
    original, backend.CompiledGraph = backend.CompiledGraph, Recording
    try:
        got = call(torch.compile(op.op, backend="ourcc", dynamic=False), sample(op, torch.float32))
        reason = compare(op, got, eager, wide)
        row |= {"status": "wrong" if reason else "right", "reason": reason}
    except Exception as error:  # noqa: BLE001 - every failure is a row of the table
        row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:600]}
    finally:
        backend.CompiledGraph = original
    graphs = [graph.imported for graph in recorded if graph.imported is not None]
    return {**row, "graphs": len(graphs), "calls": [fallback.operator for graph in graphs for fallback in graph.fallbacks]}


def sample(op: Any, dtype: Any) -> Any:
    import torch

    torch.manual_seed(0)
    return next(iter(op.sample_inputs("cpu", dtype, requires_grad=False)))


def call(function: Any, given: Any) -> list[Any]:
    """The flat results of one call, with the generator at the same place each time."""
    import torch
    from torch.utils._pytree import tree_leaves

    torch.manual_seed(1)
    with torch.no_grad():
        return list(tree_leaves(function(given.input, *given.args, **given.kwargs)))


def expected(op: Any) -> tuple[list[Any], list[Any]]:
    """Eager's results in float32, and of the same numbers in float64 where the operator takes them."""
    import torch
    from torch.utils._pytree import tree_map

    eager = call(op.op, sample(op, torch.float32))
    given = sample(op, torch.float32)

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            return (
                value.double() if value.dtype == torch.float32 else value.to(torch.complex128) if value.dtype == torch.complex64 else value
            )
        return torch.float64 if value is torch.float32 else value

    given.input, given.args, given.kwargs = tree_map(widen, (given.input, given.args, given.kwargs))
    try:
        wide = call(op.op, given)
    except Exception:  # noqa: BLE001 - no float64: eager judges itself
        return eager, eager
    alike = len(wide) == len(eager) and all(
        getattr(a, "shape", None) == getattr(b, "shape", None) for a, b in zip(eager, wide, strict=True)
    )
    return eager, wide if alike else eager


def compare(op: Any, got: Sequence[Any], eager: Sequence[Any], wide: Sequence[Any]) -> str:
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
        if reason:
            return f"result {number}: {reason}"
    return ""


def compare_tensors(one: Any, other: Any, exact: Any, shape_only: bool) -> str:
    import torch

    from ourcc.compiler.importers.torch.tensors import array_of
    from ourcc.ir.reference import judge

    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return f"got {one.dtype}{list(one.shape)} {one.layout}, expected {other.dtype}{list(other.shape)} {other.layout}"
    if shape_only:
        return ""
    if other.layout is not torch.strided or other.dtype.is_complex:
        return "" if torch.allclose(one.to_dense(), other.to_dense(), rtol=1e-5, atol=1e-6, equal_nan=True) else "values differ"
    verdict = judge(array_of(one), array_of(other), array_of(exact), factor=4.0)
    return "" if verdict.passed else verdict.reason


if __name__ == "__main__":
    sys.exit(main())
