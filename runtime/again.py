"""What to do about an engine that has to be built again: the command, and for the file that it was read from."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from ..ir.errors import CompilerError

_ENGINE, _OUT = "ENGINE", "OUT.ourcc"


def again(target: str | None = None) -> str:
    """The command that builds an engine again, for a target that it lacks or for those that it has; what there is stays."""
    return f"ourcc build --rebuild {_ENGINE}{'' if target is None else f' --target {target}'} -o {_OUT}"


@contextmanager
def read_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors inside are those of the engine in this file: what to do about them names it."""
    try:
        yield
    except CompilerError as error:
        if error.hint is not None:
            root, end = os.path.splitext(os.fsdecode(path))
            said = {f"--rebuild {_ENGINE}": f"--rebuild {shlex.quote(root + end)}", f"-o {_OUT}": f"-o {shlex.quote(f'{root}.new{end}')}"}
            for word, name in said.items():
                error.hint = error.hint.replace(word, name)
        raise
