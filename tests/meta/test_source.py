"""House rules that a parser can check: no code from files, the environment in one place, an opening sentence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("ir", "runtime", "passes", "codegen", "autotune", "compiler")
MODULES = sorted([path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")] + [Path("__init__.py")])
MAXIMUM_LINES = 700  # near 400 is home; only a table may come this far

# What is banned, and the one place (if any) that may.
BANNED_CALLS = {
    "eval": (),
    "exec": ("codegen/triton/",),
    "__import__": (),
    "sympify": (),
    "parse_expr": (),
    "torch.load": ("compiler/importers/torch/pt2/tensors.py",),  # for --trust-pickle
    "torch.jit.load": (),
    "torch.export.load": (),
    "yaml.load": (),
    "os.system": (),
    "os.popen": (),
    "os.getenv": ("compiler/environment.py",),
    "breakpoint": (),
}
BANNED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
# The second place reads nothing of ours: it hands a cleaned environment on to Triton's child processes.
BANNED_NAMES = {"os.environ": ("compiler/environment.py", "codegen/triton/")}


def breaches(path: Path, text: str) -> Iterator[str]:
    """What a module does that none may."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield from _call_breaches(path, node)
        elif isinstance(node, ast.Attribute) and (name := _dotted(node)) in BANNED_NAMES and not _allowed(path, BANNED_NAMES[name]):
            yield f"{path}:{node.lineno} reads {name}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{path}:{node.lineno} imports {name}" for name in names if name.partition(".")[0] in BANNED_MODULES)
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{path}:{node.lineno} has a bare except"


DIGITS = "ir/digits.py"
"""The one place that asks whether a text is digits: Python's words for it let other scripts' digits pass."""


def loose_digits(path: Path, text: str) -> Iterator[str]:
    """Where a module would take digits of other scripts for a number."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in ("isdigit", "isdecimal", "isnumeric") and str(path) != DIGITS:
            yield f"{path}:{node.lineno} calls {node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\\d" in node.value:
            yield f"{path}:{node.lineno} has \\d in a pattern, expected [0-9]"


def test_numbers_are_ascii_digits() -> None:
    assert [breach for path in MODULES for breach in loose_digits(path, (ROOT / path).read_text(encoding="utf-8"))] == []
    found = sorted(loose_digits(Path("a.py"), 're.compile(r"\\d+").match(x)\nx.isdigit()'))
    assert found == ["a.py:1 has \\d in a pattern, expected [0-9]", "a.py:2 calls isdigit"]


def _call_breaches(path: Path, node: ast.Call) -> Iterator[str]:
    name = _dotted(node.func)
    for banned, places in BANNED_CALLS.items():
        same = name == banned or (banned in ("sympify", "parse_expr") and name.endswith(f".{banned}"))
        if same and not _allowed(path, places):
            yield f"{path}:{node.lineno} calls {name}"
    for keyword in node.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if keyword.arg in ("shell", "allow_pickle") and value is not False:
            yield f"{path}:{node.lineno} passes {keyword.arg}"


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _allowed(path: Path, places: tuple[str, ...]) -> bool:
    return str(path).startswith(places) if places else False


def test_nothing_runs_what_a_file_says_or_reads_the_environment() -> None:
    assert [breach for path in MODULES for breach in breaches(path, (ROOT / path).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "exec('1')",
        "import sympy\nsympy.sympify('x')",
        "torch.load('x')",
        "subprocess.run('ls', shell=True)",
        "numpy.load('x', allow_pickle=flag)",
        "os.environ['HOME']",
        "os.getenv('HOME')",
        "try:\n    pass\nexcept:\n    pass",
    ],
)
def test_the_check_itself_finds_breaches(text: str) -> None:
    assert len(list(breaches(Path("ir/x.py"), text))) == 1


def test_exec_is_allowed_in_one_folder_and_once() -> None:
    assert list(breaches(Path("codegen/triton/x.py"), "exec('1')")) == []
    calls = [
        f"{path}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _dotted(node.func) == "exec"
    ]
    assert len(calls) <= 1, calls


def test_every_module_opens_with_a_sentence() -> None:
    found = []
    for path in MODULES:
        text = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or ""
        first = text.split("\n\n")[0].replace("\n", " ").rstrip()
        if not re.match(r"\S.{15,}[.:?]$", first):
            found.append(f"{path}: {first!r}")
    assert found == []


def test_files_stay_readable() -> None:
    sizes = {str(path): (ROOT / path).read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert {path: lines for path, lines in sizes.items() if lines > MAXIMUM_LINES} == {}


def test_nothing_is_left_to_do() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{path}:{number}"
        for path in MODULES
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    assert not (ROOT / "conftest.py").exists()


CLOCKS = {"perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "thread_time", "time_ns", "default_timer"}
# What may read a clock: tools that report seconds, file times that are set, and a deadline that is handed to the code under test.
CLOCK_READERS = {"runtime/test_file.py", "suites/fuzz.py", "suites/onnx_suite.py", "autotune/test_choose.py"}


def reads_a_clock(text: str) -> bool:
    """Whether a module asks what time it is, by whatever name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "timeit"):
            return any(alias.name in (*CLOCKS, "time", "timeit") for alias in node.names)
        if isinstance(node, ast.Attribute) and (node.attr in CLOCKS or _dotted(node) in ("time.time", "timeit.timeit")):
            return True
    return False


def test_no_test_compares_times() -> None:
    """A busy machine fails such a test: tests count modules, calls and rewrites, benchmarks measure."""
    folder = ROOT / "tests"
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if reads_a_clock(path.read_text(encoding="utf-8"))}
    assert found == CLOCK_READERS


@pytest.mark.parametrize("text", ["import time\ntime.perf_counter()", "from time import monotonic", "import time as t\nt.monotonic()"])
def test_the_check_itself_finds_clocks(text: str) -> None:
    assert reads_a_clock(text) and not reads_a_clock("import time\ntime.sleep(1)")
