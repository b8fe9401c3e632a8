"""The format that docs/howto/add-a-format.md shows: its file as a module beside those of the tree, which does not hold it."""

from __future__ import annotations

import importlib.util
from importlib.abc import InspectLoader
from pathlib import Path

from ourcc.ir.formats import Format

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "add-a-format.md"


class _Page(InspectLoader):
    def get_source(self, fullname: str) -> str:
        return PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def _made() -> Format:
    spec = importlib.util.spec_from_loader("ourcc.ir.formats.five", _Page())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (format,) = module.FORMATS
    assert isinstance(format, Format)
    return format


FIVE = _made()
