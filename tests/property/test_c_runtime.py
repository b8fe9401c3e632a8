"""Drawn programs in C's runtime: modules from the op table and programs with state, the same bits as Python's, call by call."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from generator import Case
from harness import built, drawn, joined
from test_states import draw

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime" / "c"))

from library import CError, Library, compile_c, same_bits, write_sources

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.plan import is_native
from ourcc.runtime import Engine

SHARE = 4
"""One module for so many that the other drawn tests compile."""
BATCH = 10

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("c")
    return Library(compile_c(folder / "libourcc.so", write_sources(folder / "runtime"), "-shared", "-fPIC", "-fvisibility=hidden"))


def runs_in_c(engine: Engine) -> bool:
    """Whether no step of any function needs Python, and nothing is a text."""
    plans = engine.contents.best.plans.values()
    needs = any(not is_native(step) for plan in plans for step in plan.steps)
    return not needs and not any(buffer.type.dtype.name == "string" for plan in plans for buffer in plan.buffers)


def compare(library: Library, engine: Engine, inputs: list[list[np.ndarray]], path: Path) -> list[str] | None:
    """Which answers differ; None where C refuses the engine, as it must where a step needs Python."""
    engine.save(path)
    if not runs_in_c(engine):
        with pytest.raises(CError, match=r"^UNSUPPORTED: .*(needs Python|texts)"):
            library.open(path)
        return None
    wrong = []
    for threads in (1, 3):
        session = library.open(path, threads=threads).session()
        for given in inputs:
            expected = engine(*given)
            expected = expected if isinstance(expected, tuple) else (expected,)
            found = session(*given)
            wrong += [
                f"{port.name} with {threads} threads"
                for port, a, b in zip(engine.outputs, found, expected, strict=True)
                if not same_bits(a, b)
            ]
    return wrong


def test_drawn_modules_have_pythons_bits(library: Library, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    count, number = max(request.config.getoption("--cases") // SHARE, 20), request.config.getoption("--seed", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        cases: list[Case] = drawn(count, number)
    plain = [case for case in cases if not any(op.definition.kind == "opaque" for op in case.module.main)]
    ran = 0
    for group in [plain[first : first + BATCH] for first in range(0, len(plain), BATCH)]:
        inputs = [[array for case in group for array in case.inputs[run]] for run in range(2)]
        found = compare(library, built(joined(group)), [*inputs, inputs[0]], tmp_path / "engine")
        assert not found
        ran += found is not None
    for case in [case for case in cases if case not in plain][:5]:
        assert not compare(library, built(case.module), [list(inputs) for inputs in case.inputs], tmp_path / "engine")
    assert ran > len(plain) // BATCH // 2


def test_drawn_states_are_kept_as_in_python(library: Library, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    count, first = max(request.config.getoption("--cases") // 40, 5), 900_000 * (request.config.getoption("--seed", 0) + 1)
    for number in range(first, first + count):
        case = draw(number)
        engine = Engine(compile_module(case.module, build_options({"targets": ["native"], "tune": "off"})))
        engine.save(tmp_path / "engine")
        opened = library.open(tmp_path / "engine")
        expected, found = engine.session(), opened.session()
        for function, inputs in case.calls:
            made = expected.functions[function](*inputs)
            outputs = made if isinstance(made, tuple) else (made,)
            assert all(same_bits(a, b) for a, b in zip(found(*inputs, function=function), outputs, strict=True)), number
            for name in expected.states:
                held = expected.state(name)
                assert found.read(name, held.nbytes) == held.tobytes(), (number, name)
