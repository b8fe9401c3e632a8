"""The rate that `ourcc plan` reckons with is that of the instructions of an engine that is built for the same layer."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.compiler.commands.products import product_rate
from ourcc.compiler.importers.checkpoints.stored import Checkpoint
from ourcc.compiler.language.outline import Outline, outline_of
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import lower, simplify
from ourcc.compiler.targets.registry import parse_target
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.target import gpu_target
from ourcc.ir.types import TensorType, f32
from ourcc.passes.tile.gpu.rates import Rate, rate_of


def outlined(width: int, inner: int) -> Outline:
    config = {
        **{"model_type": "llama", "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 4},
        **{"num_key_value_heads": 4, "vocab_size": 97, "max_position_embeddings": 512, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5},
        **{"rope_theta": 1e4, "tie_word_embeddings": False},
    }
    return outline_of(Checkpoint("m", "folder", config, {}))


def built(target: str, rows: int, width: int, inner: int, quantize: str | None, precision: str | None) -> set[Rate]:
    """The rates of what the build of a layer with real weights takes."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (rows, width)))
    builder = Builder(module, graph)
    weight = module.add_constant("w", np.random.default_rng(0).standard_normal((inner, width), dtype=np.float32))
    graph.set_outputs([builder.matmul(x, weight, transpose_b=True)], ["y"])
    options = build_options({"targets": [target], "quantize": quantize, "precision": precision})
    simplify(module, options)
    machine = gpu_target(target)
    units = lower(module, parse_target(target), None, precision).scheduled.values()
    return {rate_of(unit.problem, unit.schedule, machine) for unit in units}


@pytest.mark.parametrize("target", ["h100", "b200", "b300"])
@pytest.mark.parametrize("quantize", [None, "fp8", "fp8-block", "mxfp8", "nvfp4", "mxfp4", "int8", "int4-a8", "fp8-weight"])
def test_it_is_that_of_a_build(target: str, quantize: str | None) -> None:
    rows, width, inner = 384, 512, 1536
    found = product_rate(parse_target(target), outlined(width, inner), rows, quantize, "bf16", None)
    assert found in built(target, rows, width, inner, quantize, "bf16") and found is not None and found.instruction is not None


@pytest.mark.parametrize(
    ("target", "quantize", "products", "instruction", "kind"),
    [
        ("b200", "nvfp4", "f4e2m1", "tcgen05 with scales of blocks", "f4"),
        ("b300", "nvfp4", "f4e2m1", "tcgen05 with scales of blocks", "f4"),
        ("b200", "mxfp8", "f8e4m3", "tcgen05 with scales of blocks", "f8e4m3"),
        ("h100", "fp8", "f8e4m3", "wgmma", "f8e4m3"),
        ("h100", "int8", "i8", "wgmma", "i8"),
        ("sm_120a", None, "bf16", "mma.sync", "bf16"),
    ],
)
def test_known_ones(target: str, quantize: str | None, products: str, instruction: str, kind: str) -> None:
    found = product_rate(parse_target(target), outlined(4096, 14336), 512, quantize, "bf16", None)
    assert found is not None and (found.products_in, found.instruction) == (products, instruction)
    assert found.per_second == pytest.approx(gpu_target(target).rates[kind])


def test_one_row_is_plain_arithmetic_and_rows_in_no_whole_groups_stay_floats() -> None:
    one = product_rate(parse_target("h100"), outlined(512, 1536), 1, None, "fp32", None)
    assert one == Rate(gpu_target("h100").rates["f32"], "f32")
    odd = product_rate(parse_target("b200"), outlined(520, 104), 64, "nvfp4", "bf16", None)
    assert odd is not None and odd.products_in in ("bf16", "tf32x3")


def test_a_cpu_has_one_rate() -> None:
    assert product_rate(parse_target("x86-64-v3"), outlined(128, 256), 8, "int8", "fp32", None) is None


def test_weights_may_come_coded() -> None:
    found = product_rate(parse_target("h100"), outlined(512, 1536), 384, "a8", "fp32", "q4_0")
    assert found is not None and found.products_in == "i8"
