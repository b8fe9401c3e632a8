"""Optional libraries: which extra of ours brings each, and the one error for a library that is not installed."""

from __future__ import annotations

import importlib.util
import sys

from .errors import ToolchainError

EXTRAS = {
    "torch": "torch",
    "triton": "gpu",
    "onnxruntime": "compare",
    "redis": "redis",
    "ziglang": "clang",
    "tokenizers": "language",
    "jinja2": "language",
}
"""The extra that installs a library; tests/meta/test_packaging.py compares it with pyproject.toml."""


def is_installed(library: str) -> bool:
    """Whether a library is there; nothing of it is imported."""
    if library in sys.modules:
        return sys.modules[library] is not None
    return importlib.util.find_spec(library) is not None


def install_hint(library: str) -> str:
    """The command that installs a library: our extra where one names it, else the library itself."""
    return f"pip install 'ourcc[{EXTRAS[library]}]'" if library in EXTRAS else f"pip install {library}"


def need(library: str, purpose: str) -> None:
    """ToolchainError with the extra's name unless the library is there; `purpose` begins the sentence: '.pt2 files'."""
    if not is_installed(library):
        verb = "need" if purpose.endswith("s") else "needs"
        raise ToolchainError(f"{purpose} {verb} {library}, which is not installed", hint=install_hint(library))
