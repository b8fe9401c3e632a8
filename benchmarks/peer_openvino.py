"""OpenVINO GenAI as a model to time: its pipeline reads GGUF files itself, and keeps its cache in pages.

A cache in pages (ATTENTION_BACKEND "PA") is its default and was the faster of its two. Keys and values are int8 there, by default. The
cache of a text that was read before is kept, so who wants a prompt to be read begins it with another token each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PIECE = 512
"""Tokens of prompts that are read in one go; its own 256 is slower behind long ones."""

PLACE = 32 << 10
"""Bytes of keys and values of a token, more than the models here take."""


class OpenVino:
    """A GGUF file, with room for the keys and values of so many tokens."""

    def __init__(self, model: Path, threads: int, places: int) -> None:
        import openvino
        import openvino_genai

        self._openvino, self._genai = openvino, openvino_genai
        given = openvino_genai.SchedulerConfig()
        given.enable_prefix_caching = True
        given.max_num_batched_tokens = PIECE
        given.cache_size = max(1, math.ceil(places * PLACE / 2**30))
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "ATTENTION_BACKEND": "PA"}
        self._pipeline = openvino_genai.LLMPipeline(str(model), "CPU", scheduler_config=given, **options)

    def made(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """The likeliest tokens behind prompts of one length."""
        wanted = self._genai.GenerationConfig()
        wanted.max_new_tokens, wanted.ignore_eos, wanted.do_sample = count, True, False
        tokens = np.array(prompts, np.int64)
        given: Any = self._openvino.Tensor(tokens)
        if len(prompts) > 1:
            given = self._genai.TokenizedInputs(given, self._openvino.Tensor(np.ones_like(tokens)))
        return [list(each)[-count:] for each in self._pipeline.generate(given, wanted).tokens]
