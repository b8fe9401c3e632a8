"""The Python front: options by name reach the commands as one value, and wrong ones are refused before anything is imported."""

from __future__ import annotations

from typing import Any

import pytest

import ourcc
import ourcc.compiler


def test_build_hands_over_one_value(commands: Any) -> None:
    commands.build = lambda model, options, progress, example_inputs: (model, options, example_inputs)
    model, options, inputs = ourcc.build("m.onnx", [1], targets=["cpu", "sm_90a"], quantize="int8", shapes={"x": "B:1..4"})
    assert (model, inputs) == ("m.onnx", [1])
    assert [target.name for target in options.targets] == ["cpu", "sm_90a"]
    assert (options.quantize, str(options.shapes[0])) == ("int8", "x=B:1..4")


def test_load_hands_over_its_arguments(commands: Any) -> None:
    commands.load = lambda path, **given: (path, given)
    given = {"target": "cpu", "threads": 1, "verify": True, "trusted_keys": None, "copy_weights": False, "graphs": True}
    assert ourcc.load("m.ourcc", target="cpu", threads=1, verify=True) == ("m.ourcc", given)
    # An empty list trusts nobody, which is not the same as asking for no signature.
    asked = {"target": None, "threads": None, "verify": False, "trusted_keys": [], "copy_weights": False, "graphs": True}
    assert ourcc.load("m.ourcc", trusted_keys=[]) == ("m.ourcc", asked)


def test_explain_hands_over_model_and_inputs(commands: Any) -> None:
    commands.explain = lambda model, inputs, options: (model, inputs, options.precision)
    assert ourcc.explain("model", 1, 2, precision="bf16") == ("model", (1, 2), "bf16")


def test_wrong_options_are_refused_before_the_driver_is_asked(commands: Any) -> None:
    for function in (ourcc.build, ourcc.explain):
        with pytest.raises(ourcc.UsageError, match="unknown option: got 'quantise'"):
            function("m.onnx", quantise="int8")
