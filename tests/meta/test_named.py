"""Every module that decides something has a test that names it: imports it, stands at its place, or speaks of what it registers."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("passes", "codegen", "compiler", "autotune", "runtime")
MODULES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py") if path.name != "__init__.py")
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))

# Parts of a printer, an importer or a strategy that no test takes by themselves: the test that goes through them.
THROUGH: dict[str, tuple[str, ...]] = {
    "tests/codegen/c/test_printer.py": (
        "codegen/c/access.py",
        "codegen/c/basics.py",
        "codegen/c/conversions.py",
        "codegen/c/elementary.py",
        "codegen/c/folds.py",
        "codegen/c/lanes.py",
        "codegen/c/pieces.py",
        "codegen/c/placement.py",
        "codegen/c/tiles.py",
        "codegen/c/values.py",
    ),
    "tests/codegen/triton/test_compile.py": ("codegen/triton/worker.py",),
    "tests/codegen/triton/test_printer.py": (
        "codegen/triton/dots.py",
        "codegen/triton/emitter.py",
        "codegen/triton/grid.py",
        "codegen/triton/helpers.py",
        "codegen/triton/indices.py",
        "codegen/triton/values.py",
        "codegen/triton/words.py",
    ),
    "tests/compiler/cli/test_main.py": ("compiler/cli/reproducer.py",),
    "tests/compiler/cli/test_users.py": ("compiler/cli/frame.py",),
    "tests/compiler/commands/test_verify.py": ("compiler/models/inputs.py",),
    "tests/compiler/engines/test_kinds.py": ("compiler/commands/optimize.py",),
    "tests/compiler/engines/test_trust.py": (
        "compiler/cli/trust.py",
        "compiler/commands/cache.py",
    ),
    "tests/compiler/importers/onnx/test_control.py": ("compiler/importers/bodies.py",),
    "tests/compiler/importers/onnx/test_found_sizes.py": ("compiler/importers/onnx/symbolic.py",),
    "tests/compiler/importers/torch/test_export.py": ("compiler/importers/torch/arguments.py", "compiler/importers/torch/calls.py"),
    "tests/compiler/importers/onnx/test_hostile.py": ("compiler/importers/onnx/faults.py",),
    "tests/compiler/importers/onnx/test_import.py": (
        "compiler/importers/onnx/broadcasting.py",
        "compiler/importers/onnx/external.py",
        "compiler/importers/onnx/functions.py",
        "compiler/importers/onnx/model.py",
    ),
    "tests/compiler/importers/onnx/test_rules.py": (
        "compiler/importers/onnx/attributes.py",
        "compiler/importers/onnx/rules/grids.py",
        "compiler/importers/onnx/rules/reduction.py",
        "compiler/importers/onnx/rules/resize_symbolic.py",
    ),
    "tests/compiler/importers/torch/test_pt2.py": (
        "compiler/importers/torch/pt2/archive.py",
        "compiler/importers/torch/pt2/entries.py",
        "compiler/importers/torch/pt2/graph.py",
        "compiler/importers/torch/pt2/sizes.py",
        "compiler/importers/torch/pt2/tensors.py",
    ),
    "tests/compiler/importers/torch/test_rules.py": (
        "compiler/importers/torch/rules/attention.py",
        "compiler/importers/torch/rules/normalization.py",
        "compiler/importers/torch/rules/window.py",
    ),
    "tests/compiler/importers/torch/test_rules_more.py": (
        "compiler/importers/torch/nodes.py",
        "compiler/importers/torch/returned.py",
        "compiler/importers/torch/symbols.py",
        "compiler/importers/torch/views.py",
    ),
    "tests/compiler/test_control.py": ("compiler/importers/torch/control.py",),
    "tests/compiler/test_gpu_kernels.py": ("codegen/triton/descriptors.py",),
    "tests/compiler/test_sessions.py": ("runtime/session.py",),
    "tests/compiler/torch/test_backend.py": ("compiler/torch/mutations.py",),
    "tests/passes/fusion/test_partition.py": (
        "passes/fusion/decision.py",
        "passes/lower/in_place.py",
        "passes/regions/shadows.py",
    ),
    "tests/passes/lower/test_refusals.py": ("passes/lower/symbols.py",),
    "tests/passes/lower/test_build_plan.py": (
        "passes/quantize/words.py",
        "passes/recognize/absorb_scales.py",
        "passes/rules/empty.py",
        "passes/tidy/sink_broadcasts.py",
        "runtime/cpu.py",
        "runtime/families.py",
        "runtime/function.py",
        "runtime/sizes.py",
    ),
    "tests/compiler/language/test_architectures.py": (
        "compiler/language/blocks.py",
        "compiler/language/gpt2.py",
        "compiler/language/llama.py",
    ),
    "tests/compiler/language/test_generation.py": (
        "compiler/cli/generation.py",
        "compiler/commands/language.py",
    ),
    "tests/compiler/test_sparse_formats.py": ("passes/tile/expand.py",),
    "tests/runtime/language/test_template.py": ("runtime/language/template_worker.py",),
    "tests/passes/quantize/test_activations.py": ("passes/regions/affine.py",),
    "tests/passes/quantize/test_activation_products.py": ("passes/quantize/coded_factors.py",),
    "tests/passes/test_indexing.py": ("passes/rules/indexing.py",),
    "tests/passes/tile/gpu/test_every_op.py": (
        "passes/tile/gpu/matrix.py",
        "passes/tile/gpu/scatter.py",
        "passes/tile/gpu/sequence.py",
        "passes/tile/gpu/sweep.py",
    ),
    "tests/passes/tile/cpu/test_attention.py": ("passes/tile/cpu/attention_factors.py",),
    "tests/passes/tile/cpu/test_windows.py": ("passes/tile/cpu/windows_launch.py", "passes/tile/cpu/windows_sides.py"),
    "tests/passes/tile/cpu/test_winograd.py": ("passes/tile/cpu/winograd_launch.py",),
    "tests/passes/tile/test_strategies.py": ("passes/tile/cpu/nest_launch.py",),
    "tests/property/test_float8.py": ("compiler/importers/saturate.py",),
}


@functools.cache
def imported() -> frozenset[str]:
    """The modules that tests import, or name in the text that they hand to another Python."""
    found: set[str] = set()
    for path in TESTS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"ourcc(?:\.[a-z_0-9]+)+", node.value))
    return frozenset(found)


@functools.cache
def words() -> frozenset[str]:
    """The words in the texts of tests."""
    texts = (
        node.value for path in TESTS for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    )
    return frozenset(word for text in texts if isinstance(text, str) for word in re.findall(r"[A-Za-z_][A-Za-z_0-9.-]*", text))


def registered(text: str) -> Iterator[str]:
    """What a module adds to a table: words that decorators are given, and the names of classes that have one."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            calls = (each for each in node.decorator_list if isinstance(each, ast.Call))
            yield from (arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
            targets = [statement.target] if isinstance(statement, ast.AnnAssign) else getattr(statement, "targets", [])
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and any(getattr(t, "id", "") == "name" for t in targets):
                yield value.value


def is_named(path: Path) -> bool:
    mirror = ROOT / "tests" / path.parent / f"test_{path.name}"
    if ".".join(("ourcc", *path.with_suffix("").parts)) in imported() or mirror.exists():
        return True
    return not words().isdisjoint(registered((ROOT / path).read_text(encoding="utf-8")))


def test_every_module_is_named() -> None:
    through = {module for modules in THROUGH.values() for module in modules}
    assert sorted(str(path) for path in MODULES if not is_named(path)) == sorted(through)


@pytest.mark.parametrize("test", THROUGH)
def test_the_tests_that_go_through_others_are_there(test: str) -> None:
    assert (ROOT / test).is_file() and THROUGH[test] == tuple(sorted(set(THROUGH[test])))


def test_what_a_module_registers_is_found() -> None:
    text = '@rule("Conv", "Pool")\ndef f(): ...\n@plain\nclass P:\n    name: ClassVar[str] = "tidy"\n    other = "x"\n'
    assert list(registered(text)) == ["Conv", "Pool", "tidy"]
