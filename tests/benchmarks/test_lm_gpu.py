"""Language models built for GPUs without weights: the program has every tensor of the config, and no pass reads one."""

from __future__ import annotations

from typing import Any

import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir import dims

from .scripts import script

SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 128}


@pytest.mark.parametrize("tied", [False, True])
def test_every_tensor_is_there_and_none_is_read(tied: bool) -> None:
    benchmark = script("lm_gpu")
    module = benchmark.outline({**benchmark.LLAMA_8B, **SMALL, "tie_word_embeddings": tied}, 32).module
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    expected = 2 * layer + 128 * 64 * (1 if tied else 2) + 64
    weights = [value for value in module.constants.values() if value.constant is not None and not value.constant.available]
    assert sum(dims.number(value.type.elements) for value in weights) == expected
    # What is there are the frequencies of the rotation.
    assert [value.type.shape for value in module.constants.values() if value not in weights] == [(8,)]
    simplify(module, build_options({"targets": ["sm_90a"], "precision": "bf16", "tune": "off"}))
    assert {str(value.dtype) for value in module.constants.values() if value.type.rank == 2} == {"bf16"}
