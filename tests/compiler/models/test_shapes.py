"""Shape requests against a model's inputs."""

from __future__ import annotations

import pytest

from ourcc.compiler.models.shapes import dimension_wishes, in_options, renamed
from ourcc.compiler.requests import parse_shape
from ourcc.ir.errors import UnsupportedError, UsageError

INPUTS = {"ids": ("batch", "S", 4), "x": (None,)}


def wishes(*texts: str) -> dict[str, object]:
    return dict(dimension_wishes([parse_shape(text) for text in texts], INPUTS))


def test_a_dimension_gets_a_range_or_a_size() -> None:
    assert wishes("batch=1..32", "S=128") == {"batch": (1, 32), "S": 128}


def test_an_input_names_and_bounds_its_dimensions() -> None:
    assert wishes("ids=B:1..32,S:1..512,4") == {"batch": "B", "B": (1, 32), "S": (1, 512)}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("nobody=4", UsageError, "got nobody, which is no input and no dimension"),
        ("ids=4,4", UsageError, "got 2 axes, expected 3"),
        ("batch=1,2", UsageError, "got 2 axes for the dimension batch, expected one"),
        ("ids=B,S,5", UsageError, "axis 2 of ids is 4 in the model, got 5"),
        ("x=7", UnsupportedError, "axis 0 of x has no name in the model"),
        ("batch=1|2|4", UnsupportedError, "buckets are not supported yet"),
        ("ids=2*B,S,4", UnsupportedError, "the expression 2*B is not supported yet"),
    ],
)
def test_what_cannot_be_met_is_said(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace("*", r"\*")):
        wishes(text)


def test_another_name_for_a_symbol_is_told() -> None:
    def told(*texts: str) -> list[str]:
        return list(renamed([parse_shape(text) for text in texts], INPUTS))

    assert told("batch=l") == ["shape 'batch=l': batch gets the name l; a size is a number, like batch=8 or 1..64"]
    assert len(told("batch=B:1..64", "S=T")) == 2
    assert told("batch=1..32", "S=128", "S=S", "S=S:1..8", "ids=B:1..32,S,4", "x=N") == []


def test_hints_of_importers_name_the_option() -> None:
    inputs = {"x": ("B", "S", 4), "y": ("S", None)}
    assert in_options("fix that size at import (shapes)", inputs) == "fix that size with --shape, like --shape B=1 --shape S=128"
    assert in_options("fix it at import (shapes)", {"x": (None,)}) == "fix it when exporting the model"
    assert in_options("they agree where S = 64; they agree where T = 3", inputs) == (
        "they agree where S = 64, as with --shape S=64; they agree where T = 3"
    )
    said = "make it a constant of the model, or fix that input's value at import (values)"
    assert in_options(said, inputs) == "make it a constant of the model before the export"


def test_sizes_that_torch_numbered_can_be_named() -> None:
    with pytest.raises(UsageError, match="got batch, which is no input and no dimension") as error:
        dimension_wishes([parse_shape("batch=1")], {"ids": ["s23", "s77", 64], "mask": ["s23"]})
    assert error.value.hint == "torch numbers sizes: name them by an input's axes, like --shape ids=B,S,64"
    with pytest.raises(UsageError) as error:
        dimension_wishes([parse_shape("quantity=1")], {"ids": ["B", 64]})
    assert error.value.hint is None
