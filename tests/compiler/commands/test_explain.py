"""`ourcc.explain` of a torch model: graphs, symbols, kernels, calls back into torch and why, graph breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import ourcc as package
from ourcc.ir.errors import UsageError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graph of another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.Linear(40, 5)).eval()


def rare(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(x + 1) * 2


def test_explain_says_what_falls_back_and_why() -> None:
    report = package.explain(rare, torch.randn(4, 3)).to_data()
    assert (report["graphs"], report["aten calls"], report["graph breaks"]) == (1, 1, 0)
    assert report["compiled ops"] >= 2
    (row,) = report["fallbacks"]
    assert row["op"] == "aten._linalg_svd.default" and "has no rule" in row["why"] and Path(__file__).name in row["source"]


def test_explain_says_symbols_and_kernels() -> None:
    x = torch.randn(3, 12)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    with torch.no_grad():
        report = package.explain(mlp(), x)
    (graph,) = report.to_data()["each graph"]
    assert (graph["kind"], graph["launches"], graph["aten calls"]) == ("inference", 2, 0)
    # A launch has kernels of its own for few rows only where a level's prices say that they are faster.
    assert 2 <= graph["kernels"] <= 4
    assert graph["symbols"] != "" and "torch makes up to 2 such graphs" in report.tables[0].notes[0]


def test_explain_lists_backward_graphs() -> None:
    model = mlp()
    report = package.explain(model, torch.randn(3, 12)).to_data()
    assert [row["kind"] for row in report["each graph"]] == ["training", "training"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_explain_counts_graph_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    report = package.explain(broken, torch.randn(3)).to_data()
    assert report["graph breaks"] == 1
    line = broken.__code__.co_firstlineno + 2
    assert report["reasons of graph breaks"] == [
        {"line": f"{Path(__file__).name}:{line}", "reason": "Call to `torch._dynamo.graph_break()`"}
    ]


def test_explain_tells_breaks_of_conditions_and_of_whole_functions() -> None:
    def condition(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        return x * 2

    def whole(x: torch.Tensor) -> torch.Tensor:
        with Path(__file__).open():
            return x + 1

    (row,) = package.explain(condition, torch.randn(3)).to_data()["reasons of graph breaks"]
    assert row["reason"] == "a condition on a tensor's values" and row["line"].startswith(Path(__file__).name)
    report = package.explain(whole, torch.randn(3)).to_data()
    assert report["graph breaks"] >= 1


def test_explain_says_the_line_of_compiled_ops_and_of_calls() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) + 1
        return torch.linalg.svdvals(y)

    first = function.__code__.co_firstlineno + 1
    rows = package.explain(function, torch.randn(4, 3)).to_data()["each line"]
    assert [(row["line"], row["compiled ops"] > 0, row["aten calls"]) for row in rows] == [
        (f"{Path(__file__).name}:{first}", True, 0),
        (f"{Path(__file__).name}:{first + 1}", False, 1),
    ]


def test_explain_gives_the_users_line_and_not_torchs() -> None:
    rows = package.explain(mlp(), torch.randn(3, 12)).to_data()["each line"]
    assert not any(row["line"].startswith("linear.py") for row in rows)


def test_explain_says_what_gradients_cost() -> None:
    model, x = mlp(), torch.randn(3, 12)
    notes = " ".join(package.explain(model, x).tables[0].notes)
    assert "gradients are on and parameters require them" in notes and "under torch.no_grad()" in notes
    with torch.no_grad():
        assert "gradients" not in " ".join(package.explain(model, x).tables[0].notes)


def test_explain_sees_parameters_that_a_function_closes_over() -> None:
    layer, x = torch.nn.Linear(12, 3), torch.randn(3, 12)
    notes = " ".join(package.explain(lambda x: layer(x).sin(), x).tables[0].notes)
    assert "under torch.no_grad()" in notes
    assert "gradients" not in " ".join(package.explain(torch.sin, x).tables[0].notes)
    with torch.no_grad():
        assert "gradients" not in " ".join(package.explain(lambda x: layer(x).sin(), x).tables[0].notes)


def test_explain_says_that_sizes_are_fixed_and_that_nothing_was_compiled() -> None:
    def skipped(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            print(x.shape)
        return x

    assert "all sizes are fixed" in package.explain(rare, torch.randn(4, 3)).tables[0].notes[0]
    assert package.explain(skipped, torch.randn(4, 3)).tables[0].notes == ("torch made no graph of it: all of it stays Python",)


def test_explain_has_80_columns() -> None:
    text = str(package.explain(lambda x: (x + 1).to(torch.complex32).to(torch.complex64), torch.ones(3)))
    assert max(map(len, text.splitlines())) <= 80
    assert "torch dtype torch.complex32 has no element" in text


def test_explain_says_whose_engine_a_graph_runs() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) + 1
        torch._dynamo.graph_break()
        z = torch.tanh(y) + 1
        torch._dynamo.graph_break()
        return z * 2

    report = package.explain(broken, torch.randn(3)).to_data()
    assert [row["engine"] for row in report["each graph"]] == ["its own", "shared with graph 0", "its own"]
    assert [(row["kernels"], row["launches"]) for row in report["each graph"]] == [(1, 1), (0, 1), (1, 1)]
    assert report["kernels"] == 2


def test_explain_of_layers_with_weights_of_their_own_shares_nothing() -> None:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = first(x)
        torch._dynamo.graph_break()
        return second(y)

    with torch.no_grad():
        report = package.explain(broken, torch.randn(3, 6)).to_data()
    assert [row["engine"] for row in report["each graph"]] == ["its own", "its own"]


def test_explain_says_where_values_are_and_why() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    report = package.explain(attend, *torch.randn(3, 2, 4, 8, 16)).to_data()
    (counts,) = report["fusion"]
    assert counts["kept"] > 0 and set(counts) == {"graph", "kept", "beside", "view", "inlined"}
    first, *others = report["largest in memory"]
    assert all(first["bytes"] >= row["bytes"] for row in others) and all(len(row["why"].split()) > 2 for row in (first, *others))
    (missed,) = report["patterns not recognised"]
    assert (missed["pattern"], missed["why"]) == ("attention", "weights are also an output") and Path(__file__).name in missed["source"]


def test_explain_of_a_graph_where_all_is_well_has_no_table_of_patterns() -> None:
    report = package.explain(nn.functional.softmax, torch.randn(3, 4), 1).to_data()
    assert "patterns not recognised" not in report and report["fusion"]


def test_explain_wants_a_model() -> None:
    with pytest.raises(UsageError, match="got a int, expected a torch module, a function, or a path"):
        package.explain(3, torch.randn(3))


def test_explain_of_a_graph_that_is_left_to_torch() -> None:
    """A dtype without an element type here stands between two others."""
    report = package.explain(lambda x: (x + 1).to(torch.complex32).to(torch.complex64), torch.ones(3)).to_data()
    assert (report["graphs"], report["kernels"], report["aten calls"]) == (1, 0, 3)
    assert {row["why"] for row in report["fallbacks"]} == {
        "its graph is not compiled: torch dtype torch.complex32 has no element type here"
    }


def test_explain_of_a_model_that_changes_itself_changes_it_once() -> None:
    model = nn.BatchNorm1d(4)
    package.explain(model, torch.randn(3, 4))
    assert model.num_batches_tracked == 1


class Recurrent(nn.Module):
    """A layer that torch does not trace, between others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 16), nn.LSTM(16, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        y, _ = self.middle(y)
        return self.last(y).cumsum(1)


@pytest.mark.parametrize("is_first", [False, True])
def test_explain_says_what_ran_in_eager_and_the_setting_that_helps(is_first: bool) -> None:
    model, x = Recurrent().eval(), torch.randn(2, 3, 8)
    with torch.no_grad():
        report = package.explain(nn.Sequential(nn.LSTM(8, 8)) if is_first else model, x)
    data = report.to_data()
    assert data["eager ops"] > 0 and data["graph breaks"] == 1 and data["graphs"] == (0 if is_first else 1)
    assert "nothing falls back" not in str(report) and "ops ran in eager outside of every graph" in str(report)
    assert "torch._dynamo.config.allow_rnn = True" in data["reasons of graph breaks"][0]["reason"]
    rows = data["ran in eager, in no graph"]
    assert sum(row["ops"] for row in rows) == data["eager ops"]
    if not is_first:
        line = Recurrent.forward.__code__.co_firstlineno
        assert [row["line"] for row in rows] == [f"{Path(__file__).name}:{line + number}" for number in (2, 3)]
        assert "aten.cumsum" in rows[1]["which"] and "aten.transpose" not in rows[0]["which"]
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        torch._dynamo.reset()
        assert package.explain(model, x).to_data()["eager ops"] == 0


def test_explain_tells_a_break_that_only_python_fills() -> None:
    def printing(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    report = package.explain(printing, torch.randn(3))
    assert report.to_data()["eager ops"] == 0 and "without an op of torch in this call" in " ".join(str(report).split())
    whole = package.explain(lambda x: (x + 1).t() * 2, torch.randn(3, 4))
    assert whole.to_data()["eager ops"] == 0 and "(nothing falls back)" in str(whole)
