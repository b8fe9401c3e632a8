"""What an fx node is: its name, its line in the user's program, which parts of its result are read, whether it is needed."""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Sequence
from typing import Any

from ....ir.errors import Source
from .views import Shared, output_nodes


def needed(graph: Any, shared: Shared) -> set[Any]:
    """The nodes that the engine computes: what outputs and side effects rest on, and not views that torch makes."""
    import torch

    found: set[Any] = set()
    waiting = [*(node for node in output_nodes(graph) if node not in shared.roots), *shared.computed]
    # Numbers cost nothing and may be sizes of a view; random numbers must be drawn though nobody reads them.
    called = [node for node in graph.nodes if node.op == "call_function"]
    waiting += [node for node in called if not _is_tensor(node.meta.get("val"), torch) or node.is_impure()]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def describe(graph: Any) -> None:
    """Work out what nodes give where torch does not say it: it traces operators that keep random states without."""
    import torch

    for node in graph.nodes:
        if node.op != "call_function" or "val" in node.meta:
            continue
        if isinstance(node.target, torch._ops.HigherOrderOperator) or node.target is operator.getitem:
            arguments, keywords = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
            mode = torch._guards.detect_fake_mode([argument.meta.get("val") for argument in node.all_input_nodes])
            with mode if mode is not None else contextlib.nullcontext():
                node.meta["val"] = node.target(*arguments, **keywords)


def _is_tensor(fake: Any, torch: Any) -> bool:
    return isinstance(fake, torch.Tensor) or (isinstance(fake, (tuple, list)) and any(isinstance(part, torch.Tensor) for part in fake))


def parts_of(node: Any) -> list[tuple[tuple[int, ...], Any]]:
    """The tensors of a node's result that somebody reads, with their paths into its tuples (`()`: the node itself)."""
    if hasattr(node.meta.get("val"), "layout"):
        return [((), node)]
    users = [user for user in node.users if user.target is operator.getitem and isinstance(user.args[1], int)]
    return [((user.args[1], *path), part) for user in users for path, part in parts_of(user)]


REQUIREMENTS = ("aten._assert_scalar", "aten._assert_async", "aten.sym_constrain_range")
"""What a traced program requires of its data and numbers when it runs."""


def is_requirement(node: Any) -> bool:
    """Whether a node checks what a call brings and raises."""
    return operator_name(node.target).startswith(REQUIREMENTS)


def is_overwriting(node: Any) -> bool:
    """Whether a node gives an argument of the graph a new value, as the last steps of a functional graph do."""
    return str(node.target) == "aten.copy_.default" and node.args[0].op == "placeholder"


def is_effect(node: Any) -> bool:
    """Whether a node calls an operator for its side effect."""
    return getattr(node.target, "__name__", "") == "with_effects"


def used(node: Any, several: bool) -> frozenset[int]:
    """The results of a node that somebody reads."""
    if not several:
        return frozenset((0,))
    return frozenset(int(user.args[1]) for user in node.users if user.users and len(user.args) == 2 and isinstance(user.args[1], int))


def is_whole_memory(fake: Any) -> bool:
    """Whether a tensor covers its memory from the first byte to the last."""
    last = sum((size - 1) * stride for size, stride in zip(fake.shape, fake.stride(), strict=True))
    return bool(fake.storage_offset() == 0 and fake.untyped_storage().nbytes() <= (last + 1) * fake.dtype.itemsize)


def operator_name(target: Any) -> str:
    """`aten.add.Tensor` of an operator overload."""
    text = str(target)
    return text if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.:]*", text) else getattr(target, "__name__", text)


def plain(text: str) -> str:
    """A name of letters, digits, dots and underscores."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", text)


_FRAME = re.compile(r'File "([^"]*)", line ([0-9]+)')


def source_of(node: Any) -> Source:
    """The Python line of a node and the module path in the user's model; the file without its folder."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(list(stack.values())), ("",))[0] if stack else ""
    text = re.sub(r"^(L\['?self'?\]|L__self__)\.?_*", "", str(path)).replace("[", ".").replace("]", "").replace("'", "")
    label = ".".join(part for part in (re.sub(r"\._modules\.?", ".", text).strip("."), str(node.name)) if part)
    place = user_line([(file, int(line)) for file, line in frames])
    return Source(label) if place is None else Source(label, *place)


def user_line(frames: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    """The innermost line of a stack that is not torch's own: its file without the folder, and its number."""
    import torch

    inside = os.path.dirname(torch.__file__) + os.sep
    own = [frame for frame in frames if not frame[0].startswith(inside)] or list(frames)
    return (os.path.basename(own[-1][0]), own[-1][1]) if own else None
