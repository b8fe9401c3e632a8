"""The text of plans, one statement a line; `parse` reads it back without loss.

    plan cpu (x: %b0) -> (y: %b1) symbols { B in 0.. } {
      input    %b0: f32[B, 16]
      output   %b1: f32[B, 64]
      constant %b2: f32[4, 16, 16] = @fc1.weight as d1/16 d0 d1%16 of [16, 64]
      arena    %b3: f32[B, 64] in s0
      slot     s0 >= 256*B
      launch kernel_0 (%b0, %b2) -> (%b3) where (n0 = B) over ((B + 95) // 96, 1)   loc("fc1 (mlp.onnx)")
      copy %b1 = %b3
    }

Buffers, slots, states and steps each stand in their own order, inputs and outputs in that of the first line. A state is
declared by `session kv: f32[8]`, `= @c` if it begins as that constant, and tied at the end by `tie kv = %b9`. A launch says
what the symbols of its kernel are (`where`); a variant names its kernel where that is not the launch, and its arguments
where they are not what the launch reads and then what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..graph.text import attribute_text, facts_text, name_text, string_text
from ..layout import Layout
from . import storage
from .plan import Plan
from .steps import VALUE, Call, Check, CheckPlace, Copy, Guard, Host, Launch, Step, Variant, Zero
from .storage import Buffer, Slot, StateDeclaration


def print_plan(plan: Plan) -> str:
    """The text of a plan; ends with a newline."""
    ports = (", ".join(f"{name_text(user)}: {buffer_name(name)}" for user, name in pairs) for pairs in (plan.inputs, plan.outputs))
    inputs, outputs = ports
    lines = [f"plan {name_text(plan.target)} ({inputs}) -> ({outputs}){facts_text(plan.symbols)} {{"]
    lines += [f"  number {symbol} = {buffer_name(name)}" for symbol, name in plan.numbers]
    lines += [f"  {buffer_text(buffer)}" for buffer in plan.buffers]
    lines += [f"  {slot_text(slot)}" for slot in plan.slots]
    lines += [f"  {_session_text(state)}" for state in plan.states]
    lines += [f"  {line}" for step in plan.steps for line in step_lines(step)]
    lines += [f"  tie {name_text(state)} = {buffer_name(name)}" for state, name in plan.ties]
    return "\n".join([*lines, "}"]) + "\n"


def _session_text(state: StateDeclaration) -> str:
    return f"session  {name_text(state.name)}: {state.type}" + (f" = @{name_text(state.initial)}" if state.initial else "")


def buffer_name(name: str) -> str:
    """How a buffer is referred to; `_` is an absent operand."""
    return f"%{name_text(name)}" if name else "_"


def buffer_text(buffer: Buffer) -> str:
    """The declaration of a buffer: the kind of its storage first."""
    word, rest = _STORAGE[type(buffer.storage)]
    return f"{word:8} {buffer_name(buffer.name)}: {buffer.type}{rest(buffer.storage)}"


def _constant(held: storage.Constant) -> str:
    text = f" = @{name_text(held.value)}"
    text += "" if held.layout is None else f" as {_layout(held.layout)}"
    text += f" of [{', '.join(map(str, held.shape))}]" if held.shape or held.layout is not None else ""
    return text if held.making is None else f"{text} {held.making.word} {held.making}"


def _layout(layout: Layout) -> str:
    """The factors; the axes too where they are not d0, d1, ..."""
    plain = layout.axes == tuple(f"d{n}" for n in range(len(layout.axes)))
    return str(layout) if plain else f"{layout} over ({', '.join(layout.axes)})"


def _alias(held: storage.Alias) -> str:
    return f" of {buffer_name(held.root)} at ({held.offset}) strides ({', '.join(map(str, held.strides))})"


_STORAGE: Mapping[type, tuple[str, Callable[[Any], str]]] = {
    storage.Input: ("input", lambda _: ""),
    storage.Output: ("output", lambda _: ""),
    storage.Constant: ("constant", _constant),
    storage.Arena: ("arena", lambda held: f" in {name_text(held.slot)}"),
    storage.Dynamic: ("dynamic", lambda _: ""),
    storage.State: ("state", lambda held: f" of {name_text(held.name)}"),
    storage.Alias: ("alias", _alias),
    storage.Verdict: ("verdict", lambda _: ""),
}


def slot_text(slot: Slot) -> str:
    """The declaration of a slot: it is as large as each of its sizes, and begins where those below it end."""
    above = f" above {', '.join(map(name_text, slot.above))}" if slot.above else ""
    return f"slot     {name_text(slot.name)}{above} >= {', '.join(map(str, slot.sizes))}".rstrip()


def step_lines(step: Step) -> list[str]:
    """One step; a launch with several variants has a line for each."""
    return _STEPS[type(step)](step)


def _operands(names: Iterable[str]) -> str:
    return f"({', '.join(map(buffer_name, names))})"


def _sources(sources: tuple[str, ...]) -> str:
    return f"   loc({', '.join(map(string_text, sources))})" if sources else ""


def _launch(step: Launch) -> list[str]:
    head = f"launch {name_text(step.name)} {_operands(step.reads)} -> {_operands(step.writes)}"
    head += f" where ({', '.join(f'{name} = {size}' for name, size in step.symbols)})" if step.symbols else ""
    variants = [_variant(step, variant) for variant in step.variants]
    if len(variants) == 1:
        return [f"{head} {variants[0]}{_sources(step.sources)}"]
    return [f"{head} {{", *(f"  {text}" for text in variants), f"}}{_sources(step.sources)}"]


def _variant(step: Launch, variant: Variant) -> str:
    parts = [f"kernel {name_text(variant.kernel)}"] if variant.kernel != step.name else []
    parts.append(f"over ({', '.join(map(str, variant.grid))})")
    parts += [f"with {_operands(variant.arguments)}"] if variant.arguments != (*step.reads, *step.writes) else []
    parts += [f"sizes ({', '.join(map(str, variant.scalars))})"] if variant.scalars else []
    for word in ("warps", "shared", "scratch"):
        parts += [f"{word} {getattr(variant, word)}"] if getattr(variant, word) else []
    conditions = " and ".join(_conditions(variant.guard))
    return " ".join(parts) + (f" if {conditions}" if conditions else "")


def _conditions(guard: Guard) -> list[str]:
    return [
        *(f"{size} == 0" for size in guard.zero),
        *(f"{size} >= 0" for size in guard.positive),
        *(f"aligned {buffer_name(name)}" for name in guard.aligned),
        *(f"contiguous {buffer_name(name)}" for name in guard.contiguous),
    ]


def _python(title: str, step: Host | Call, attrs: str = "") -> list[str]:
    """A step that needs Python: operands, results, attributes, the symbols that it binds."""
    text = f"{title} {_operands(step.reads)} -> {_operands(step.writes)}{attrs}"
    places = (f"{symbol} = {'value' if axis == VALUE else f'size {axis}'} of {result}" for symbol, result, axis in step.binds)
    return [text + (f" binds ({', '.join(places)})" if step.binds else "") + _sources(step.sources)]


def _host(step: Host) -> list[str]:
    attrs = ", ".join(f"{name_text(name)} = {attribute_text(value)}" for name, value in step.attrs.items())
    return _python(f"host {name_text(step.routine)}", step, f" {{{attrs}}}" if attrs else "")


def _check(step: Check) -> list[str]:
    size = f" size ({step.size})" if step.size is not None else ""
    negative = " negative" if step.negative else ""
    return [f"check {buffer_name(step.worst)} of {string_text(step.subject)}{size}{negative}{_sources(step.sources)}"]


def _check_place(step: CheckPlace) -> list[str]:
    negative = " negative" if step.negative else ""
    return [f"check_place ({step.place}) of {string_text(step.subject)} size ({step.size}){negative}{_sources(step.sources)}"]


_STEPS: Mapping[type, Callable[[Any], list[str]]] = {
    Launch: _launch,
    Host: _host,
    Call: lambda step: _python(f"call {name_text(step.target)} key {step.key}", step),
    Copy: lambda step: [f"copy {buffer_name(step.target)} = {buffer_name(step.source)}"],
    Zero: lambda step: [f"zero {buffer_name(step.target)}"],
    Check: _check,
    CheckPlace: _check_place,
}
