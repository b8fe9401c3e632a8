"""ourcc: a deep-learning graph compiler for inference. The front door: public names only, imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiler.api import build, explain, load
    from .compiler.options import Options
    from .ir.errors import (
        CompilerError,
        ContractError,
        EngineError,
        InputError,
        InternalError,
        ModelError,
        ToolchainError,
        UnsupportedError,
        UsageError,
    )
    from .runtime.engine import Engine
    from .runtime.language.model import LanguageModel

__version__ = "0.1.0"

__all__ = [
    "CompilerError",
    "ContractError",
    "Engine",
    "EngineError",
    "InputError",
    "InternalError",
    "LanguageModel",
    "ModelError",
    "Options",
    "ToolchainError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "build",
    "explain",
    "load",
]

_HOMES = {
    **dict.fromkeys(("build", "explain", "load"), "compiler.api"),
    **{"Engine": "runtime.engine", "LanguageModel": "runtime.language.model", "Options": "compiler.options"},
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ourcc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES.get(name, 'ir.errors')}", __name__), name)


def __dir__() -> list[str]:
    return list(__all__)
