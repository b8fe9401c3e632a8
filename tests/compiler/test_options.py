"""Options: every spelling that is read, every one that is refused, and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ourcc.compiler.environment import Environment, environment, parse_threads
from ourcc.compiler.options import BuildOptions, build_options
from ourcc.compiler.requests import AxisSize, Measuring, Requirement, parse_duration, parse_measuring, parse_requirement, parse_shape
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir.dims import symbol
from ourcc.ir.errors import UsageError


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("x=128", (AxisSize(128),)),
        ("x=1..64,128", (AxisSize(None, 1, 64), AxisSize(128))),
        ("x=B:1..32,S:1..512", (AxisSize(symbol("B"), 1, 32), AxisSize(symbol("S"), 1, 512))),
        ("x=B, 2*B+1", (AxisSize(symbol("B")), AxisSize(2 * symbol("B") + 1))),
        ("batch=32|8|1|8", (AxisSize(buckets=(1, 8, 32)),)),
        ("x=4..", (AxisSize(None, 4, None),)),
    ],
)
def test_shapes_are_read(text: str, axes: tuple[AxisSize, ...]) -> None:
    assert parse_shape(text).axes == axes


def test_a_comma_inside_parentheses_belongs_to_the_expression() -> None:
    first, second = parse_shape("x=max(A, 4),8").axes
    assert str(first.size) == "max(4, A)"
    assert second.size == 8


@pytest.mark.parametrize("text", ["ids=B:1..32,S:1..512", "x=1..64,128", "n=1|8|32", "x=2*B,4.."])
def test_shapes_print_as_they_are_read(text: str) -> None:
    assert str(parse_shape(text)) == text
    assert parse_shape(str(parse_shape(text))) == parse_shape(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "shape: got 'x', expected NAME=AXIS,AXIS..."),
        ("=4", "shape: got '=4', expected NAME=AXIS,AXIS..."),
        ("x=8..4", "shape 'x=8..4': got the range 8..4, expected its end to be at least 8"),
        ("x=B:9", "shape 'x=B:9': got axis 'B:9', expected SYMBOL:LOW..HIGH"),
        ("x=__import__('os')", "cannot read dimension"),
        ("x=%B", "shape 'x=%B': got axis '%B', expected symbols of letters, digits and underscores"),
        ("x=-1", "shape 'x=-1': got size -1, expected at least 0"),
        ("B=8,S=64", "shape 'B=8,S=64': got 'S=64' for an axis\n  help: one input or symbol in each: --shape B=8 --shape S=64"),
        ("x=1-8", "shape 'x=1-8': got size -7, expected at least 0\n  help: a range is 1..8"),
        ("x=4//0", "division of 4 by zero"),
        ("x=" + "(" * 100 + "1" + ")" * 100, "dimension is nested more than 64 deep"),
        ("x=" + "9" * 40, "out of range"),
    ],
)
def test_hostile_and_wrong_shapes_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shape(text)
    assert message in str(caught.value)


def test_requirements_are_read() -> None:
    assert parse_requirement("no-fallback") == Requirement("no-fallback")
    assert parse_requirement("target:sm_90a") == Requirement("target", "sm_90a")
    assert parse_requirement("linear:2:4") == Requirement("linear", "2:4")
    assert str(parse_requirement("linear:int8")) == "linear:int8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nofallback", "require: got 'nofallback', expected no-fallback, no-host, target:NAME or OP:FORMAT\n  help: did you mean"),
        ("linear:int9", "require 'linear:int9': unknown format: got 'int9'"),
        ("target:sm_90", "require 'target:sm_90': unknown target: got 'sm_90'"),
        (":int8", "require: got ':int8'"),
    ],
)
def test_wrong_requirements_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_requirement(text)
    assert message in str(caught.value)


def test_tuning_is_read() -> None:
    assert parse_measuring("off") == Measuring("off")
    assert parse_measuring("cached") == Measuring("cached")
    assert parse_measuring(8) == Measuring("count", count=8)
    assert parse_measuring("5m") == Measuring("budget", seconds=300.0)
    assert [str(parse_measuring(text)) for text in ("off", "16", "90s")] == ["off", "16", "90s"]
    assert [parse_duration(text) for text in ("500ms", "1.5s", "1h")] == [0.5, 1.5, 3600.0]


@pytest.mark.parametrize("text", ["", "0", "-3", "fast", "5d", "1e9", "9" * 12])
def test_wrong_tuning_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected off, cached, a number of schedules, or a duration like 5m"):
        parse_measuring(text)


@pytest.mark.parametrize("text", ["0s", "m", "5", "-1s"])
def test_wrong_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a positive number with ms, s, m or h"):
        parse_duration(text)


def test_both_spellings_and_none_are_read() -> None:
    options = build_options({"target": "cpu", "shapes": {"ids": ["B:1..32", 128]}, "quantize": None, "require": "no-fallback"})
    assert [target.name for target in options.targets] == ["cpu"]
    assert str(options.shapes[0]) == "ids=B:1..32,128"
    assert options.quantize is None
    assert options.require == (Requirement("no-fallback"),)
    assert build_options({}).targets[0].name == "native"
    assert build_options({"targets": ["cpu", "sm_90a", "cpu"]}).targets == build_options({"targets": ("cpu", "sm_90a")}).targets


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quantise": "int8"}, "unknown option: got 'quantise'"),
        ({"quantize": "int7"}, "unknown quantize format: got 'int7'"),
        ({"precision": "bf61"}, "did you mean 'bf16'?"),
        ({"precision": "float32"}, "did you mean 'fp32'?"),
        ({"precision": "bfloat16"}, "did you mean 'bf16'?"),
        ({"quantize": "Q4_K_M"}, "weights of a .gguf file stay as they are in it; of other models, int4-a8 comes nearest"),
        ({"quantize": "iq1_s"}, "int2-a8 comes nearest"),
        ({"quantize": "q8_0"}, "int8-weight comes nearest"),
        ({"quantize": "q4x"}, "unknown quantize format: got 'q4x'"),
        ({"cache": "q8_0"}, "did you mean 'int8'?"),
        ({"cache": "fp16"}, "did you mean 'f16'?"),
        ({"cache": "torch.bfloat16"}, "did you mean 'bf16'?"),
        ({"cache": "fp32"}, "did you mean 'f32'?"),
        ({"precision": "int8"}, "that is a number format: --quantize int8"),
        ({"target": "avx2"}, "did you mean 'x86-64-v3'?"),
        ({"target": "x86-64-v2"}, "did you mean 'x86-64'?"),
        ({"target": "a100"}, "GPUs before Hopper are not supported (Ampere, Ada and older); architectures are named in ir/target.py"),
        ({"target": "sm_86"}, "GPUs before Hopper are not supported"),
        ({"target": "RTX 4090"}, "GPUs before Hopper are not supported"),
        ({"target": "NVIDIA L40S"}, "GPUs before Hopper are not supported"),
        ({"target": "rtx5090"}, "did you mean 'sm_120a'?"),
        ({"target": "h800"}, "did you mean 'sm_90a'?"),
        ({"target": "h100,b200"}, "repeat --target for several\n  help: each by itself: --target h100 --target b200"),
        ({"quantize": "w4a16"}, "did you mean 'int4-weight'?"),
        ({"quantize": "W8A8"}, "did you mean 'int8'?"),
        ({"quantize": "w4a8"}, "did you mean 'int4-a8'?"),
        ({"quantize": "w3a16"}, "did you mean 'int3-weight'?"),
        ({"quantize": "w4a4"}, "did you mean 'nvfp4'?"),
        ({"quantize": "w7a16"}, "unknown quantize format: got 'w7a16'"),
        ({"sparsity": "1:4"}, "unknown sparsity: got '1:4', expected one of 2:4"),
        ({"target": "sm_90"}, "did you mean 'sm_90a'?"),
        ({"freeze": 1}, "got 1 for a flag, expected True or False"),
        ({"report": 3}, "got int for a path, expected text or a path"),
        ({"max_accuracy_drop": 0.1}, "unknown option: got 'max_accuracy_drop'"),
        ({"calibrate": "x.npz"}, "unknown option: got 'calibrate'"),
        ({"threads": 0}, "threads: got 0, expected a whole number from 1 to 4096"),
        ({"environment": None}, "unknown option: got 'environment'"),
    ],
)
def test_wrong_options_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_options(values)
    assert message in str(caught.value)


def test_precisions_are_named_as_dtypes_too() -> None:
    assert [build_options({"precision": name}).precision for name in ("f32", "f16", "bf16")] == ["fp32", "fp16", "bf16"]


def test_no_target_is_taken_for_an_older_gpu() -> None:
    for name in (*TARGETS, "l4a", "gb200", "h20", "b100", "zen4", "v4"):
        try:
            hint = build_options({"target": name}) and None
        except UsageError as error:
            hint = error.hint
        assert "Ampere" not in (hint or "")


def test_the_environment_is_read_in_one_place() -> None:
    variables = {"OURCC_CACHE": "/a, redis://b,", "OURCC_CACHE_DIR": "/c", "OURCC_NUM_THREADS": "3", "CC": "clang", "OTHER": "x"}
    found = environment(variables)
    assert found == Environment(("/a", "redis://b"), "/c", 3, "clang")
    assert [environment({"OURCC_CUDA_GRAPHS": text}).graphs for text in ("", "1", "0")] == [True, True, False]
    with pytest.raises(UsageError, match="OURCC_CUDA_GRAPHS: got 'no', expected 0 or 1"):
        environment({"OURCC_CUDA_GRAPHS": "no"})
    assert found.stores == ("/a", "redis://b")
    assert found.directory == Path("/c")
    assert environment({"CC": "", "OURCC_NUM_THREADS": ""}) == Environment()
    for text in (",", ",b", " ", "a,,b"):
        with pytest.raises(UsageError, match=f"OURCC_CACHE: got {text!r}, expected names of stores"):
            environment({"OURCC_CACHE": text})
    assert environment({"OURCC_CACHE_DIR": "/c"}).stores == ("/c/records",)


@pytest.mark.parametrize("text", ["two", "-1", "0", "5000", "1.5", "²"])
def test_wrong_thread_counts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="OURCC_NUM_THREADS: got"):
        environment({"OURCC_NUM_THREADS": text})
    assert parse_threads("8") == 8


def test_defaults_are_plain() -> None:
    assert BuildOptions(environment=Environment()) == build_options({}).__class__(environment=Environment())
