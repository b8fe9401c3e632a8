"""What a call must give: shapes bind symbols, and each wrong input is refused by its name and the rule that it breaks."""

from __future__ import annotations

import pytest

from ourcc.ir import dims
from ourcc.ir.errors import EngineError, InputError
from ourcc.ir.types import TensorType, f32
from ourcc.runtime.contents import Port
from ourcc.runtime.signature import Signature

B, S = dims.symbol("B"), dims.symbol("S")
FACTS = dims.Facts().with_range("B", 1, 8).with_range("S", 2, 64, 2)
PORTS = (Port("x", TensorType(f32, (B, 2 * S + 1))), Port("y", TensorType(f32, (S, 3))))


def test_shapes_give_symbols_their_values() -> None:
    assert Signature(PORTS, FACTS).bind([[3, 9], [4, 3]]) == {"B": 3, "S": 4}


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ([[3, 8], [4, 3]], "input 'x' has size 8 in dimension 1, expected 2\\*S \\+ 1"),
        ([[3, 9], [6, 3]], "input 'y' has size 6 in dimension 0, expected 4"),
        ([[3, 9], [4, 5]], "input 'y' has size 5 in dimension 1, expected 3"),
        ([[9, 9], [4, 3]], "so B = 9, expected B in 1..8"),
        ([[3, 7], [3, 3]], "so S = 3, expected a multiple of 2"),
        ([[3], [4, 3]], "input 'x' has rank 1"),
    ],
)
def test_a_wrong_shape_is_refused(shapes: list[list[int]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Signature(PORTS, FACTS).bind(shapes)


def test_a_refused_call_says_what_is_allowed() -> None:
    signature = Signature(PORTS, FACTS)
    with pytest.raises(InputError) as error:
        signature.bind([[3], [4, 3]])
    assert error.value.note is not None and "B is in 1..8" in error.value.note
    with pytest.raises(InputError) as error:
        signature.bind([[3, 8], [4, 3]])
    assert error.value.note is not None and "S is in" in error.value.note and "and a multiple of 2" in error.value.note
    with pytest.raises(InputError, match="inputs 'x', 'y' are missing, expected x, y") as error:
        signature.order({})
    assert error.value.note is not None and error.value.note.startswith("x is f32[B, 2*S + 1], where B is in 1..8 and S is in")
    with pytest.raises(InputError, match=r"unexpected input 'X', expected x, y\n  help: did you mean 'x'\?"):
        signature.order({"X": 1})


def test_inputs_come_in_order_or_by_name() -> None:
    signature = Signature(PORTS, FACTS)
    assert signature.fill(["x"], {"y": "y"}) == signature.order({"y": "y", "x": "x"}) == ["x", "y"]
    for given, named, said in (
        (["x"], {"x": "x", "y": "y"}, "given twice"),
        (["x"], {}, "input 'y' is missing"),
        ([], {"x": 1, "y": 2, "z": 3}, "unexpected input 'z'"),
        (["x", "y", "z"], {}, "got 3 inputs, expected 2"),
    ):
        with pytest.raises(InputError, match=said):
            signature.fill(given, named)


def test_a_symbol_that_nothing_tells_is_an_error_of_the_engine() -> None:
    with pytest.raises(EngineError, match="symbol T of the engine is the size of no input"):
        Signature(PORTS, FACTS.with_range("T", 1, 9), used=["T"])
    assert Signature(PORTS, FACTS.with_range("T", 1, 9), used=["T"], later=["T"]).later == {"T"}
