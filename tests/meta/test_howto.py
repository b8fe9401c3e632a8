"""What contributors are told to do can be done: CONTRIBUTING.md and docs/howto name paths, names, commands and code of the tree."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ourcc.passes.pipeline import parse_pipeline

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
ROOMS = ("ir", "passes", "codegen", "compiler", "autotune", "runtime", "tests")
IN_ENGINES = ("plan", "kernels", "weights")
"""Folders of an engine file, which stand nowhere in the tree."""
ON_PAPER = frozenset({"AARCH64_LEVELS", "Aarch64Target", "fmla", "sdot", "udot", "bfdot", "asimddp", "tbl"})
"""What add-a-target.md says of a target that is not there: it becomes a description of one once these are names of the tree."""
OF_OTHERS = frozenset({"sympify", "torch", "load", "eval", "exec", "assert", "transformers", "general", "model_type", "architecture"})
"""Words of Python, of other libraries and of model files."""

_FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"\.?[\w.-]*(?:/[\w.-]+)*/?")
_NAMED = re.compile(r"@?([A-Za-z_][\w.]*)(?:\([\w, ]*(?:\.\.\.)?\))?")


def spans(page: Path) -> list[str]:
    """What stands between backticks in the running text."""
    return _SPAN.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in _FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


@functools.cache
def trees() -> tuple[tuple[Path, ast.Module], ...]:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if path != Path(__file__))
    return tuple((path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


@functools.cache
def names() -> frozenset[str]:
    """Every name, attribute, parameter, keyword and word of text in the tree."""
    found: set[str] = set()
    for path, tree in trees():
        found.add(path.stem)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"[A-Za-z_]\w*", node.value)) if len(node.value) < 400 else set()
            for field in ("id", "attr", "arg", "name"):
                found.add(getattr(node, field, None) or "")
    return frozenset(found)


def is_path(span: str) -> bool:
    return _PATH.fullmatch(span) is not None and ("/" in span.strip("/") or span.endswith((".py", "/"))) and span.strip("/") != ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_are_there(page: Path) -> None:
    missing = []
    for span in filter(is_path, spans(page)):
        parts = Path(span).parts
        if parts[0] in IN_ENGINES:
            continue
        stands = [part for part in parts if not re.fullmatch(r"[A-Z]+(?:\.\w+)?", part)]  # NAME.py stands for any name
        found = (ROOT / Path(*stands)).exists() or (len(parts) == 1 and any(path.name == span for path, _ in trees()))
        missing += [] if found else [span]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_are_those_of_the_tree(page: Path) -> None:
    found = (_NAMED.fullmatch(span) for span in spans(page) if not is_path(span))
    words = {word for match in found if match is not None for word in match[1].split(".")}
    assert sorted(words - names() - OF_OTHERS - ON_PAPER) == []


def test_what_is_on_paper_is_not_there() -> None:
    text = (ROOT / "docs" / "howto" / "add-a-target.md").read_text(encoding="utf-8")
    assert sorted(word for word in ON_PAPER if word not in text) == []
    assert ON_PAPER.isdisjoint(names())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_there(page: Path) -> None:
    lines = [*spans(page), *(line for block in blocks(page, "") for line in block.splitlines())]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert [line for line in lines if line.startswith("make ") and line.split()[1] not in targets] == []
    options = {span for span in lines if re.fullmatch(r"--[a-z-]+", span)}
    known = {word for path, tree in trees() if path.is_relative_to(ROOT / "compiler" / "cli") for word in _texts(tree)}
    assert sorted(options - known) == []
    for span in lines:
        if re.fullmatch(r"\w+\{\w+=[^{}]*\}", span):
            parse_pipeline(span)


def _texts(tree: ast.Module) -> Iterator[str]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


# --- examples: excerpts of the tree, where tests run them ---------------------------------------------------------------

ADDED = {"add-a-format.md": "*five.FORMATS, "}
"""What the reader of a page adds to an excerpt."""
FILES = {"add-a-format.md": "tests/ir/formats/shown.py"}
"""Pages that show a whole file, which begins with its sentence, and the test that runs it."""
EXAMPLES = [
    (page, block.replace(ADDED.get(page.name, "nothing"), ""))
    for page in PAGES
    for block in blocks(page, "python")
    if not block.startswith('"""')
]


def test_whole_files_are_run() -> None:
    shown = {page.name: [block for block in blocks(page, "python") if block.startswith('"""')] for page in PAGES}
    assert {name for name, found in shown.items() if found} == FILES.keys()
    for name, test in FILES.items():
        assert name in (ROOT / test).read_text(encoding="utf-8") and len(shown[name]) == 1
        assert blocks(ROOT / "docs" / "howto" / name, "python")[0] == shown[name][0]


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=lambda value: value.name if isinstance(value, Path) else "")
def test_examples_are_excerpts(page: Path, block: str) -> None:
    for example in ast.parse(block).body:
        found = [node for _, tree in trees() for node in tree.body if _name(node) == _name(example)]
        assert _name(example) is not None and any(_is_excerpt(example, node) for node in found), f"{_name(example)} is another in the tree"


def test_an_example_that_differs_is_found() -> None:
    real = ast.parse(
        'class A(B):\n    """It does. More."""\n    x: int = 1\n\n    def run(self, y: int) -> bool:\n        return y == self.x\n'
    ).body[0]
    for text, expected in (
        ("class A(B):\n    x: int = 1\n", True),
        ("class A(B):\n    def run(self, y: int) -> bool: ...\n", True),
        ("class A(B):\n    def run(self, y: int) -> bool:\n        return y == self.x\n", True),
        ('class A(B):\n    """It does. More."""\n', True),
        ('class A(B):\n    """It did."""\n', False),
        ("class A(B):\n    x: int = 2\n", False),
        ("class A(C):\n    x: int = 1\n", False),
        ("class A(B):\n    def run(self) -> bool: ...\n", False),
        ("class A(B):\n    def runs(self, y: int) -> bool: ...\n", False),
        ("class A(B):\n    def run(self, y: int) -> bool:\n        return y != self.x\n", False),
    ):
        assert _is_excerpt(ast.parse(text).body[0], real) is expected, text


def _name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return node.name if isinstance(node, ast.ClassDef | ast.FunctionDef) else None


def _is_excerpt(example: ast.stmt, real: ast.stmt) -> bool:
    """Whether the example says what the tree says, but for bodies `...` and for what it leaves out of a class and its text."""
    if isinstance(example, ast.ClassDef) and isinstance(real, ast.ClassDef):
        heads = [(ast.dump(ast.Tuple(node.bases)), [ast.dump(each) for each in node.decorator_list]) for node in (example, real)]
        said, full = ast.get_docstring(example), ast.get_docstring(real) or ""
        parts = example.body if said is None else example.body[1:]
        is_said = said is None or full.startswith(said)
        return heads[0] == heads[1] and is_said and all(any(_is_excerpt(part, other) for other in real.body) for part in parts)
    if isinstance(example, ast.FunctionDef) and isinstance(real, ast.FunctionDef) and ast.dump(example.body[0]) == _LEFT_OUT:
        heads = [(node.name, ast.dump(node.args), ast.dump(node.returns or ast.Pass())) for node in (example, real)]
        return heads[0] == heads[1]
    return ast.dump(example) == ast.dump(real)


_LEFT_OUT = ast.dump(ast.parse("...").body[0])
