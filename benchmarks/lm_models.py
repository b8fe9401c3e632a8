"""The GGUF files that `make bench-lm` reads: SmolLM2 as its package has it and requantized, and a seeded Llama of 1.1 billion parameters.

The seeded one has TinyLlama's shape; its weights are normal numbers, a generator for each tensor, so that a tensor does not depend on
the others. A file of another encoding holds the same numbers, quantized by the package `gguf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from lm_engines import model_file

Array = np.ndarray[Any, Any]
KINDS = gguf.GGMLQuantizationType


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama."""

    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    vocabulary: int
    context: int = 8192

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each tensor's name in a GGUF file and its sizes, one of a product: outputs and terms."""
        narrow = self.width // self.heads * self.groups
        yield "token_embd.weight", (self.vocabulary, self.width)
        for layer in range(self.layers):
            for part in ("attn_norm", "ffn_norm"):
                yield f"blk.{layer}.{part}.weight", (self.width,)
            for part, outputs in (("attn_q", self.width), ("attn_k", narrow), ("attn_v", narrow), ("attn_output", self.width)):
                yield f"blk.{layer}.{part}.weight", (outputs, self.width)
            for part in ("ffn_gate", "ffn_up"):
                yield f"blk.{layer}.{part}.weight", (self.inner, self.width)
            yield f"blk.{layer}.ffn_down.weight", (self.width, self.inner)
        yield "output_norm.weight", (self.width,)
        yield "output.weight", (self.vocabulary, self.width)


BILLION = Shape(layers=22, width=2048, inner=5632, heads=32, groups=4, vocabulary=32000)
"""TinyLlama 1.1B's: Zhang et al., TinyLlama (2024)."""


def seeded(path: Path, shape: Shape, kind: gguf.GGMLQuantizationType) -> Path:
    """Write a Llama of drawn weights."""
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.groups)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])
    _add_words(writer, shape.vocabulary)
    tensors = list(shape.tensors())
    for name, sizes in tensors:
        stored = np.dtype(np.float32) if len(sizes) == 1 else np.dtype(np.uint8)
        held = sizes if len(sizes) == 1 else gguf.quant_shape_to_byte_shape(sizes, kind)
        writer.add_tensor_info(name, held, stored, int(np.prod(held)) * stored.itemsize, None if len(sizes) == 1 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (_, sizes) in enumerate(tensors):
        writer.write_tensor_data(np.ones(sizes, np.float32) if len(sizes) == 1 else quantized(drawn(number, sizes), kind))
    writer.close()
    return path


def drawn(seed: int, sizes: tuple[int, ...]) -> Array:
    """f32: normal numbers that keep the length of what they are multiplied by."""
    found: Array = np.random.default_rng(seed).standard_normal(sizes, np.float32)
    found *= np.float32(sizes[-1] ** -0.5)
    return found


def quantized(array: Array, kind: gguf.GGMLQuantizationType) -> Array:
    """The bytes of an encoding, some rows at a time: the package makes several copies of what it is given."""
    rows = max(1, (1 << 22) // array.shape[-1])
    return np.concatenate([gguf.quantize(array[first : first + rows], kind) for first in range(0, len(array), rows)])


def _add_words(writer: gguf.GGUFWriter, count: int) -> None:
    """A vocabulary of bytes, one pair of them and numbers: the texts do not matter, but every reader wants some."""
    words = ["<s>", "</s>", *_byte_letters(), "ab"][:count]
    words += [f"<{number}>" for number in range(count - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (count - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)


def _byte_letters() -> list[str]:
    """A letter for each byte, as GPT-2's vocabulary has them: printable ones stand for themselves, others lie behind them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + hidden.index(byte)) for byte in range(256)]


def requantized(source: Path, path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """The same model with every quantized matrix but the embedding in another encoding; what the file says of the model is kept."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])
    for tensor in reader.tensors:
        is_kept = tensor.tensor_type in (KINDS.F32, KINDS.F16, KINDS.BF16) or tensor.name == "token_embd.weight"
        if is_kept:
            writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
        else:
            numbers = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
            writer.add_tensor(tensor.name, quantized(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True)
class Model:
    """A file to be measured: its model, the format of its weights, how it is written into a folder, prompts and contexts to measure."""

    name: str
    format: str
    written: Callable[[Path, Path | None], Path]
    prompts: tuple[int, ...] = (32, 512)
    contexts: tuple[int, ...] = (128,)

    @property
    def title(self) -> str:
        return f"{self.name}, {self.format}"


def _smollm2(kind: gguf.GGMLQuantizationType) -> Callable[[Path, Path | None], Path]:
    return lambda folder, given: requantized(model_file(given), folder / f"smollm2-{kind.name}.gguf", kind)


def _billion(kind: gguf.GGMLQuantizationType) -> Callable[[Path, Path | None], Path]:
    return lambda folder, given: seeded(folder / f"1b-{kind.name}.gguf", BILLION, kind)


MODELS = (
    Model("smollm2", "Q4_1", lambda folder, given: model_file(given), (32, 512, 2048), (128, 4096)),
    Model("smollm2", "Q4_0", _smollm2(KINDS.Q4_0)),
    Model("smollm2", "Q5_0", _smollm2(KINDS.Q5_0)),
    Model("1b", "bf16", _billion(KINDS.BF16)),
    Model("1b", "int8", _billion(KINDS.Q8_0)),
    Model("1b", "int4", _billion(KINDS.Q4_0)),
)
"""int8 is Q8_0 and int4 Q4_0, both with a scale for each 32. Long texts are read once: they take attention, not weights."""
