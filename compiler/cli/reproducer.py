"""The file that a bug of ours leaves behind: the command line, the versions and the traceback, as JSON."""

from __future__ import annotations

import hashlib
import json
import platform
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from ...ir.errors import CompilerError
from ..environment import environment

_PACKAGES = ("ourcc", "numpy", "onnx", "onnxruntime", "torch", "triton", "networkx", "sympy", "ml_dtypes", "msgspec")


def write_reproducer(error: Exception, arguments: Sequence[str]) -> str | None:
    """Write what reruns the failing command and return its path, None where no folder can be written."""
    content = {
        "command": ["ourcc", *arguments],
        "error": f"{type(error).__name__}: {error}",
        "traceback": traceback.format_exception(error),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
    }
    text = json.dumps(content, indent=2, sort_keys=True)
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    # The current folder is the second choice: the cache may be what failed (a full disk, a read-only home).
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / (name if folder.name == "reproducers" else f"ourcc-reproducer-{name}")
            path.write_text(text + "\n", encoding="utf-8")
        except OSError:
            continue
        return str(path)
    return None


def _folders() -> tuple[Path, ...]:
    try:
        return (environment().directory / "reproducers", Path.cwd())
    except CompilerError:
        return (Path.cwd(),)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
