"""Language models built for GPUs with none at hand: SmolLM2 from its file, and Llama-3.1-8B from its config alone.

Of the second every kernel is scheduled, compiled and held against the plan, as for any engine, but its weights are only shapes:
nothing of 16 GB is made or written. Each row says what a token takes: launches, bytes that must be read, the time that is predicted at
`--context` tokens, and how much of it reading the weights and the cache once would take. Nothing here runs on a device.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from children import RESULTS, chosen, run_child, write_json
from lm_engines import model_file

ARCHITECTURES = ("sm_90a", "sm_100a")
LLAMA_8B: dict[str, Any] = {
    **{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5},
    **{"rope_theta": 500000.0, "tie_word_embeddings": False},
    "rope_scaling": {
        **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"},
        "original_max_position_embeddings": 8192,
    },
}
"""Source: config.json of meta-llama/Llama-3.1-8B."""
CACHE = "bf16"
MODELS: dict[str, dict[str, Any]] = {
    "smollm2": {},
    "smollm2, bf16": {"precision": "bf16"},
    "llama-8b, bf16": {"precision": "bf16"},
}


def outline(config: dict[str, Any], length: int) -> Any:
    """The program of a model by its config alone, over a session of so many tokens, its weights in the dtype that it says."""
    from ourcc.compiler.importers.checkpoints import read_config
    from ourcc.compiler.language.outline import outline_of, stored_dtype
    from ourcc.ir.types import DTYPES

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        checkpoint = read_config(Path(folder))
    return outline_of(checkpoint, length, CACHE, DTYPES[stored_dtype(checkpoint)])


def module_of(name: str, length: int) -> Any:
    """The program of a model: its function `step`."""
    if name.startswith("llama"):
        return outline(LLAMA_8B, length).module
    from ourcc.compiler.importers.checkpoints import read_checkpoint
    from ourcc.compiler.language.module import language_module

    module = language_module(read_checkpoint(model_file(None)), length, CACHE)
    sample = module.functions.pop("sample")
    sample.set_outputs([])
    for op in reversed(list(sample)):
        sample.remove(op)
    return module


def built(name: str, architecture: str, length: int) -> dict[str, Any]:
    """What a build takes and gives, its weights left where they are."""
    from ourcc.compiler.backends.backend import backend_of
    from ourcc.compiler.backends.built import PackedConstants
    from ourcc.compiler.backends.tuning import Tuning
    from ourcc.compiler.options import build_options
    from ourcc.compiler.pipeline import simplify
    from ourcc.compiler.progress import SILENT
    from ourcc.ir import dims
    from ourcc.ir.plan import Launch

    class Elsewhere(PackedConstants):
        """Constants that are not packed: their bytes are counted."""

        def of(self, constants: Any) -> Any:
            return {}

    start = time.perf_counter()
    module = module_of(name, length)
    workload = {"workload": [f"S=1,T={length},R=1"]}
    options = build_options({"targets": [architecture], "tune": "off", **MODELS[name], **workload})
    simplify(module, options)
    (target,) = options.targets
    backend = backend_of(target)
    (machine,) = backend.machines(target, module, options.precision)
    part = backend.compile(module, target, machine, options, SILENT, Tuning(options, SILENT), Elsewhere(module))
    seconds = time.perf_counter() - start
    step = part.contents.plans["step"]
    launches = sum(isinstance(each, Launch) for each in step.steps)
    rows = [row for row in part.rows if row["when"] is None]
    predicted = sum(row["calls"] * row["predicted_us"] for row in rows if row["predicted_us"] is not None)
    weights = sum(dims.number(value.type.nbytes) for value in module.constants.values())
    cache = sum(dims.number(state.type.nbytes) for state in step.states)
    floor = (weights + cache) / machine.memory_rate * 1e6
    found = {"model": name, "architecture": architecture, "context": length, "build_seconds": round(seconds, 1), "kernels": len(rows)}
    found |= {"launches_of_a_token": launches, "weight_bytes": weights, "cache_bytes": cache}
    return found | {"predicted_us": round(predicted, 1), "floor_us": round(floor, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES))
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "lm_gpu.json")
    given = parser.parse_args()
    if given.child is not None:
        write_json(given.child, built(given.models, given.architectures, given.context))
        return
    rows = []
    for name in given.models.split(";") if given.models else MODELS:
        for architecture in chosen(given.architectures, ARCHITECTURES):
            words = ["--models", name, "--architectures", architecture, "--context", str(given.context)]
            rows.append(run_child(__file__, words) | {"model": name, "architecture": architecture})
            print(rows[-1], flush=True)
    write_json(given.output, {"rows": rows})


if __name__ == "__main__":
    main()
