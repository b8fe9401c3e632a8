"""The page docs/ops.md: written from the op table alone."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

from . import FAMILIES
from .rounding import rule_text
from .table import OPS, REQUIRED, OpDef

HEAD = """# Ops

Written from the op table by `python -m ourcc.ir.ops.document > docs/ops.md`; a test fails when this page is stale.

An op's operands stand before `/`, its attributes after it. *Pointwise* ops have one expression in scalar primitives
and broadcast their operands; *structured* ops have a numpy body and a declared region; *opaque* ops run as steps of
the host program, in Python but for those that are written in C too. The names that importers map one to one stand behind each op.
"""


def ops_page() -> str:
    """The whole page."""
    sections = [HEAD, rule_text([definition.name for definition in OPS.values() if definition.converts])]
    for family in FAMILIES:
        members = [definition for definition in OPS.values() if inspect.getmodule(definition.body) is family]
        sections.append(_section(family, members))
    return "\n".join(sections)


def _section(family: ModuleType, members: list[OpDef]) -> str:
    title = family.__name__.rsplit(".", 1)[-1].capitalize()
    about = (inspect.getdoc(family) or "").strip()
    return "\n".join([f"## {title}\n\n{about}\n", *(_entry(definition) for definition in members)])


def _entry(definition: OpDef) -> str:
    lines = [f"### `{signature(definition)}`", "", definition.doc, "", f"*{definition.kind}*{_claims(definition)}", ""]
    return "\n".join(lines)


def signature(definition: OpDef) -> str:
    """An op as it is called: operands, then attributes with their defaults."""
    operands = [f"*{o.name}" if o.variadic else f"{o.name}?" if o.optional else o.name for o in definition.operands]
    attributes = [a.name if a.default is REQUIRED else f"{a.name}={a.default!r}" for a in definition.attributes]
    separator = ["/"] if operands and attributes else []
    return f"{definition.name}({', '.join([*operands, *separator, *attributes])})"


def _claims(definition: OpDef) -> str:
    parts = [f"ONNX {', '.join(definition.onnx)}"] if definition.onnx else []
    parts += [f"torch {', '.join(definition.torch)}"] if definition.torch else []
    parts += [", ".join(sorted(definition.traits))] if definition.traits else []
    return "".join(f" · {part}" for part in parts)


if __name__ == "__main__":
    sys.stdout.write(ops_page())
