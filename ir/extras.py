"""Libraries that not everything needs: which extra of ours brings each, and the one error for a library that is missing or broken."""

from __future__ import annotations

import importlib
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


def fault_of(library: str) -> str | None:
    """What is wrong with a library, None if nothing is: it is imported, since nothing else tells."""
    if not is_installed(library):
        return "is not installed"
    try:
        importlib.import_module(library)
    # A library's own code runs: whatever it raises says that the library is broken, and nothing of us.
    except Exception as error:  # noqa: BLE001
        return f"is installed and cannot be imported: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def need(library: str, purpose: str) -> None:
    """ToolchainError with the extra's name unless the library can be used; `purpose` begins the sentence: '.pt2 files'."""
    if (fault := fault_of(library)) is not None:
        verb = "need" if purpose.partition(" (")[0].endswith("s") else "needs"
        raise ToolchainError(f"{purpose} {verb} {library}, which {fault}", hint=install_hint(library))
