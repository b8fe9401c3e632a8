"""Generated modules through text, passes, C and the engine, against the reference."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from generator import Case
from harness import compared, drawn, failing, optimized, report
from recipes import COVERED, NAMES, RECIPES, REFUSED

from ourcc.compiler.pipeline import GRAPH_PIPELINE
from ourcc.ir.graph.compare import difference
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import verify
from ourcc.ir.ops.table import OPS

BATCH = 20
SHOWN = 3
"""So many failing modules are reduced and printed."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def drawn_cases(request: pytest.FixtureRequest) -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return drawn(request.config.getoption("--cases"), request.config.getoption("--seed", 0))


def batches(cases: list[Case]) -> Iterator[list[Case]]:
    for start in range(0, len(cases), BATCH):
        yield cases[start : start + BATCH]


def digest(cases: list[Case]) -> str:
    """Of the text and the inputs of cases."""
    found = hashlib.sha256()
    for case in cases:
        found.update(module_text(case.module).encode())
        for array in (array for run in case.inputs for array in run):
            found.update(array.tobytes())
    return found.hexdigest()


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    """A failure that a long run reports is drawn again by its one test, where fewer modules are loaded."""
    program = "from test_pipeline import digest, drawn; print(digest(drawn(60, 3)))"
    command = [sys.executable, "-W", "ignore", "-c", program]
    alone = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        here = drawn(70, 3)
    assert alone.stdout.strip() == digest(here[:60]) != digest(here[10:])


def test_every_op_is_drawn(drawn_cases: list[Case]) -> None:
    assert set(OPS) == set(NAMES) | set(RECIPES) | COVERED | REFUSED
    drawn_ops = Counter(op.name for case in drawn_cases for op in case.module.main)
    assert len(drawn_ops) > 0.8 * len(OPS)
    assert sum(drawn_ops.values()) > 6 * len(drawn_cases)
    assert any(case.module.symbols for case in drawn_cases)
    assert any(0 in array.shape for case in drawn_cases for array in case.inputs[0])


def test_text_is_read_back(drawn_cases: list[Case]) -> None:
    for case in drawn_cases:
        verify(case.module)
        arrays = {value.constant.digest: value.constant.array for value in case.module.constants.values() if value.constant is not None}
        again = parse_module(module_text(case.module), arrays)
        assert difference(case.module, again) is None, module_text(case.module)
        assert module_text(again) == module_text(case.module)


def test_passes_keep_the_meaning(drawn_cases: list[Case]) -> None:
    for case in drawn_cases:
        arrays = {value.constant.digest: value.constant.array for value in case.module.constants.values() if value.constant is not None}
        module = optimized(parse_module(module_text(case.module), arrays), f"{GRAPH_PIPELINE}, join_products")
        for run in range(len(case.inputs)):
            wrong = compared(case, run, interpret(module, case.inputs[run]))
            assert wrong is None, f"{wrong}\nbefore:\n{module_text(case.module)}\nafter:\n{module_text(module)}"


@pytest.mark.timeout(3600)
def test_engines_compute_what_the_reference_computes(drawn_cases: list[Case]) -> None:
    found = [pair for batch in batches(drawn_cases) for pair in failing(batch)]
    shown = "\n\n".join(report(case, why) for case, why in found[:SHOWN])
    assert not found, f"{len(found)} of {len(drawn_cases)} modules fail; the first ones:\n{shown}"
