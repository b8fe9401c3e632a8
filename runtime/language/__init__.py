"""Language models at run time: text to tokens and back, sequences with a cache, sampling, conversations."""

from __future__ import annotations

from ..contents import EngineContents
from ..engine import Engine
from .facts import FACTS, SAMPLE, STEP


def engine_class(contents: EngineContents) -> type[Engine]:
    """What an engine with these contents is to its caller."""
    if FACTS not in contents.assets or not {STEP, SAMPLE} <= contents.functions.keys():
        return Engine
    from .model import LanguageModel

    return LanguageModel


__all__ = ["engine_class"]
