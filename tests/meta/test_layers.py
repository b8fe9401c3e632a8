"""Imports point down: compiler > autotune > {codegen, passes, runtime} > ir, and heavy libraries stay at their edge."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("ir", "runtime", "passes", "codegen", "autotune", "compiler")
RANK = {"ir": 0, "runtime": 1, "passes": 1, "codegen": 1, "autotune": 2, "compiler": 3}
MODULES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))

# Where a heavy library may be imported at all (even inside a function).
EDGES = {
    "torch": ("compiler/", "runtime/", "codegen/triton/"),
    "onnx": ("compiler/",),
    "onnxruntime": ("compiler/",),
    "triton": ("codegen/triton/", "compiler/"),
    "sympy": ("ir/dims/", "compiler/importers/"),
    "transformers": (),
    "networkx": ("ir/", "passes/", "autotune/", "compiler/report/graph/"),
    "redis": ("autotune/",),
    "fsspec": ("autotune/",),
    "rich": ("compiler/",),
    "click": ("compiler/cli/",),
}
# Modules that are themselves imported only when their library is in use, and so may import it at the top.
OPEN_EDGES = {
    "torch": ("compiler/importers/torch", "compiler/backend"),
    "onnx": ("compiler/importers/onnx", "compiler/onnx_backend"),
    "triton": ("codegen/triton/",),
    "click": ("compiler/cli/",),
}


def imports(path: Path) -> tuple[tuple[int, str, bool], ...]:
    """Line, absolute name and whether it is at the top level, of every import; type checking blocks are left out."""
    return _imports_in((ROOT / path).read_text(encoding="utf-8"), path)


@functools.cache
def _imports_in(text: str, path: Path) -> tuple[tuple[int, str, bool], ...]:
    return tuple(_imports(ast.parse(text), path, top=True))


def _imports(node: ast.AST, path: Path, top: bool) -> Iterator[tuple[int, str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name, top) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from ((child.lineno, name, top) for name in _targets(child, path))
        else:
            yield from _imports(child, path, top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def _targets(node: ast.ImportFrom, path: Path) -> list[str]:
    if not node.level:
        return [node.module or ""]
    base = ["ourcc", *path.parent.parts]
    base = base[: len(base) - (node.level - 1)]
    if node.module:
        base += node.module.split(".")
        modules = [alias.name for alias in node.names if ROOT.joinpath(*base[1:], f"{alias.name}.py").exists()]
        return [".".join([*base, name]) for name in modules] or [".".join(base)]
    return [".".join([*base, alias.name]) for alias in node.names]


def breaches(path: Path) -> list[str]:
    """Imports of `path` that point up or sideways, or name the package absolutely."""
    room, found = path.parts[0], []
    for line, name, _ in imports(path):
        words = name.split(".")
        if words[0] in ROOMS or (words[0] == "ourcc" and not _is_relative(path, line)):
            found.append(f"{path}:{line} imports {name} absolutely, expected a relative import")
        elif words[0] == "ourcc" and len(words) > 1 and words[1] in RANK:
            other = words[1]
            if other != room and RANK[other] >= RANK[room]:
                found.append(f"{path}:{line} imports {name}: {room} may not know {other}")
    return found


def _is_relative(path: Path, line: int) -> bool:
    return (ROOT / path).read_text(encoding="utf-8").splitlines()[line - 1].lstrip().startswith("from .")


@pytest.mark.parametrize("room", ROOMS)
def test_imports_are_relative_and_point_down(room: str) -> None:
    assert [breach for path in MODULES if path.parts[0] == room for breach in breaches(path)] == []


@pytest.mark.parametrize("library", EDGES)
def test_heavy_libraries_stay_at_their_edge(library: str) -> None:
    found = []
    for path in MODULES:
        for line, name, top in imports(path):
            if name.partition(".")[0] != library:
                continue
            if not str(path).startswith(EDGES[library]):
                found.append(f"{path}:{line} imports {name}, which is allowed in {EDGES[library]} only")
            elif top and not str(path).startswith(OPEN_EDGES.get(library, ())):
                found.append(f"{path}:{line} imports {name} at its top, expected inside a function")
    assert found == []


def test_the_front_door_imports_nothing_of_ours() -> None:
    assert [name for _, name, top in imports(Path("__init__.py")) if top and name != "__future__"] == ["typing"]


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("ir/x.py", "from ..passes import y", "ir may not know passes"),
        ("passes/tile/x.py", "from ...codegen.c import y", "passes may not know codegen"),
        ("codegen/c/x.py", "def f():\n    from ...passes import y", "codegen may not know passes"),
        ("runtime/x.py", "from .. import autotune", "runtime may not know autotune"),
        ("passes/x.py", "import ourcc.ir", "expected a relative import"),
        ("passes/x.py", "from ir import types", "expected a relative import"),
    ],
)
def test_the_check_itself_finds_breaches(path: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    assert any(message in breach for breach in breaches(Path(path)))


def needs() -> dict[str, set[str]]:
    """The modules that each module imports, at its top or inside of functions."""
    names = {_module(path) for path in MODULES}
    found = {_module(path): {_nearest(name, names) for _, name, _ in imports(path)} for path in MODULES}
    return {name: {other for other in others if other not in (None, name)} for name, others in found.items()}


def circles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """What imports each other, by one or several steps."""
    return sorted(sorted(circle) for circle in networkx.strongly_connected_components(networkx.DiGraph(edges)) if len(circle) > 1)


def beside(imported: Mapping[str, Collection[str]], folder: str) -> set[tuple[str, str]]:
    """Which of what lies in a folder, a module or a whole room, imports which other."""
    pairs = [(name, other) for name, others in imported.items() for other in others]
    inside = [pair for pair in pairs if all(name.startswith(f"{folder}.") for name in pair)]
    depth = folder.count(".") + 2
    found = {tuple(".".join(name.split(".")[:depth]) for name in pair) for pair in inside}
    return {(a, b) for a, b in found if a != b}


def test_no_modules_import_each_other() -> None:
    """Not even inside functions: what two modules need of each other belongs into a third, or is handed over."""
    assert circles((name, other) for name, others in needs().items() for other in others) == []


@pytest.mark.parametrize("folder", sorted({".".join(("ourcc", *path.parent.parts)) for path in MODULES}))
def test_no_rooms_import_each_other(folder: str) -> None:
    """In each folder the modules and the rooms, each with all that is in it, have an order in which they can be read."""
    assert circles(beside(needs(), folder)) == []


def test_rooms_that_lean_on_each_other_are_found() -> None:
    imported = {"ourcc.passes.a.x": ["ourcc.passes.b.x"], "ourcc.passes.b.y": ["ourcc.passes.c"], "ourcc.passes.c": ["ourcc.passes.a.y"]}
    assert circles(beside(imported, "ourcc.passes")) == [["ourcc.passes.a", "ourcc.passes.b", "ourcc.passes.c"]]
    assert circles(beside(imported, "ourcc.passes.a")) == []


def _module(path: Path) -> str:
    return ".".join(["ourcc", *path.with_suffix("").parts]).removesuffix(".__init__")


def _nearest(name: str, modules: set[str]) -> str | None:
    """The module that an imported name stands in."""
    return next((found for found in (name, name.rpartition(".")[0]) if found in modules), None)


ASKS = re.compile(r"\.family\s*[!=]=|startswith\(\"sm_|==\s*\"cuda\"")
KNOWS = ("compiler/backends/backend.py", "compiler/targets/registry.py", "runtime/contents.py")


def test_nobody_asks_what_family_a_target_is_of() -> None:
    """What differs between targets is said where they are declared; a compiler's own family (gcc, clang) is another thing."""
    places = [path for path in MODULES if not str(path).startswith(("codegen/c/", *KNOWS))]
    devices = re.compile(r"\.(device|place|type)\b.*\"cuda\"")  # torch's word for where a tensor lies
    found = [
        f"{path}: {line.strip()}"
        for path in places
        for line in (ROOT / path).read_text(encoding="utf-8").splitlines()
        if ASKS.search(line) and not devices.search(line)
    ]
    assert found == []
