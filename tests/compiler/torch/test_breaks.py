"""What torch runs outside of its graphs: its reasons in one line, breaks as they come, ops by the user's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ourcc.compiler.torch.breaks import CONDITION, LEFT_REST, Break, Breaks, EagerOps, break_of, broken_contract, in_words

HERE = Path(__file__).name


def test_a_reason_is_its_title_and_the_settings_that_it_names() -> None:
    text = "Attempted it\n  Explanation: no.\n  Hint: Set torch._dynamo.config.allow_rnn=True to enable it\n  Hint: report it"
    assert in_words(text) == "Attempted it; torch offers torch._dynamo.config.allow_rnn = True"
    assert in_words("title") == "title"


@pytest.mark.parametrize(
    ("reason", "expected"), [("step_unsupported", LEFT_REST), ("generic_jump TensorVariable()", CONDITION), ("a call\n  more", "a call")]
)
def test_a_graph_says_why_it_ended(reason: str, expected: str) -> None:
    frame = SimpleNamespace(filename="/home/me/model.py", lineno=7)
    ended = SimpleNamespace(reason=reason, graph_break=True, user_stack=[frame])
    assert break_of(SimpleNamespace(compile_subgraph_reason=ended)) == Break(expected, "model.py:7")
    assert break_of(SimpleNamespace(compile_subgraph_reason=SimpleNamespace(graph_break=False))) is None
    assert break_of(SimpleNamespace()) is None
    (row,) = broken_contract(Break(expected, "model.py:7"))
    assert row.source == "model.py:7" and row.realised == "left to torch" and expected in row.why


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).t() * 2


def broken(x: torch.Tensor) -> torch.Tensor:
    y = (x + 1) * 3
    z = torch.nn.functional.relu(y)
    torch._dynamo.graph_break()
    return z * 2


def skipped(x: torch.Tensor) -> torch.Tensor:
    try:
        torch._dynamo.graph_break()
    finally:
        x = x * 2
    return x.t()


@pytest.mark.parametrize(("function", "count", "ops"), [(plain, 0, []), (broken, 1, []), (skipped, 1, ["aten.mul"])])
def test_breaks_and_eager_ops_of_a_call(fresh: None, function: Callable[[torch.Tensor], torch.Tensor], count: int, ops: list[str]) -> None:
    breaks, eager = Breaks(), EagerOps()

    def backend(graph_module: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        breaks.note(graph_module)

        def call(*values: torch.Tensor) -> object:
            with eager.paused():
                return graph_module(*values)

        return call

    x = torch.randn(3, 4)
    with torch.no_grad(), eager.watched():
        answer = torch.compile(function, backend=backend)(x)
    assert torch.equal(answer, function(x))
    assert [each.reason for each in breaks.finish()] == ["Call to `torch._dynamo.graph_break()`"] * count
    assert [which for _, _, which in eager.lines()] == ops and eager.count == len(ops)
    assert all(line.startswith(f"{HERE}:") for line, _, _ in eager.lines())
