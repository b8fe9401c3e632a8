"""A plan as C: one function for each maximal run of steps that need no Python.

`ourcc_arena(symbols)` gives the arena's size; `ourcc_segment_N(buffers, symbols, arena, threads)` runs the Nth
segment. Buffers are indexed as in the plan; those in the arena are addressed from its start by closed forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir import dims
from ...ir.dims import Dim, Function, Symbol
from ...ir.plan import Copy, Launch, Plan, Slot, Step, Zero, segments


def print_plan(plan: Plan, kernels: Sequence[str]) -> str:
    """The C file of a plan; `kernels` are the names of the kernel functions it calls, defined in other files."""
    lines = ['#include "ourcc.h"', "#include <string.h>", ""]
    lines += [f"void {name}(void *const *operands, const int64_t *symbols, int64_t first, int64_t last);" for name in kernels]
    lines += [_HELPERS, *_arena_function(plan)]
    count = 0
    for is_native, steps in segments(plan.steps):
        if is_native:
            lines += _segment(plan, count, steps)
            count += 1
    return "\n".join(lines) + "\n"


_HELPERS = """
static inline int64_t floor_div(int64_t a, int64_t b) { int64_t q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); }
static inline int64_t floor_mod(int64_t a, int64_t b) { int64_t r = a % b; return r + (((r != 0) & ((r < 0) != (b < 0))) ? b : 0); }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t rounded(int64_t a) { return (a + 63) & ~(int64_t)63; }
"""


def c_dim(dim: Dim, names: Mapping[str, str]) -> str:
    """A dimension as a C expression of int64_t."""
    if isinstance(dim, int):
        return f"INT64_C({dim})"
    parts = []
    for monomial, factor in dim.terms:
        atoms = [names[a.name] if isinstance(a, Symbol) else _c_function(a, names) for a in monomial]
        parts.append(" * ".join(([f"INT64_C({factor})"] if factor != 1 or not atoms else []) + atoms))
    return f"({' + '.join(parts)})"


def _c_function(atom: Function, names: Mapping[str, str]) -> str:
    function = {"div": "floor_div", "mod": "floor_mod", "max": "larger", "min": "smaller"}[atom.kind]
    return f"{function}({c_dim(atom.left, names)}, {c_dim(atom.right, names)})"


def _symbol_names(plan: Plan) -> dict[str, str]:
    return {name: f"symbols[{n}]" for n, name in enumerate(plan.symbols.ranges)}


def _slot_size(slot: Slot, names: Mapping[str, str]) -> str:
    text = c_dim(slot.sizes[0], names)
    for size in slot.sizes[1:]:
        text = f"larger({text}, {c_dim(size, names)})"
    return f"rounded({text})"


def _arena_function(plan: Plan) -> list[str]:
    names = _symbol_names(plan)
    lines = ["OURCC_EXPORT int64_t ourcc_arena(const int64_t *symbols);", "int64_t ourcc_arena(const int64_t *symbols) {"]
    lines += ["    (void)symbols;", "    int64_t total = 0;"]
    lines += [f"    total += {_slot_size(slot, names)};" for slot in plan.slots]
    return [*lines, "    return total;", "}", ""]


def _segment(plan: Plan, number: int, steps: Sequence[Step]) -> list[str]:
    names = _symbol_names(plan)
    used = _used_buffers(steps)
    order = {buffer.name: n for n, buffer in enumerate(plan.buffers)}
    signature = f"int32_t ourcc_segment_{number}(void *const *buffers, const int64_t *symbols, char *arena, int32_t threads)"
    lines = [f"OURCC_EXPORT {signature};", f"{signature} {{", "    (void)buffers; (void)symbols; (void)arena; (void)threads;"]
    lines += ["    int64_t offset = 0;"]
    for slot in plan.slots:
        lines += [f"    char *{slot.name} = arena + offset; (void){slot.name};", f"    offset += {_slot_size(slot, names)};"]
    for name in sorted(used, key=order.__getitem__):
        buffer = plan.buffers[order[name]]
        lines.append(f"    void *b{order[name]} = {buffer.key if buffer.storage == 'arena' else f'buffers[{order[name]}]'};")
    for step in steps:
        lines += _step(plan, step, order, names)
    return [*lines, "    return 0;", "}", ""]


def _used_buffers(steps: Sequence[Step]) -> set[str]:
    used: set[str] = set()
    for step in steps:
        if isinstance(step, Launch):
            used |= {name for variant in step.variants for name in variant.arguments}
        elif isinstance(step, Copy):
            used |= {step.source, step.target}
        elif isinstance(step, Zero):
            used.add(step.target)
    return used


def _step(plan: Plan, step: Step, order: Mapping[str, int], names: Mapping[str, str]) -> list[str]:
    if isinstance(step, Launch):
        return _launch(step, order, names)
    if isinstance(step, Copy):
        size = c_dim(_bytes(plan, step.target), names)
        return [f"    memcpy(b{order[step.target]}, b{order[step.source]}, (size_t){size});"]
    if isinstance(step, Zero):
        return [f"    memset(b{order[step.target]}, 0, (size_t){c_dim(_bytes(plan, step.target), names)});"]
    raise ValueError(f"step {step} needs Python")


def _bytes(plan: Plan, name: str) -> Dim:
    return plan.buffer(name).type.nbytes


def _launch(step: Launch, order: Mapping[str, int], names: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for n, variant in enumerate(step.variants):
        guard = _guard(variant.guard.zero, variant.guard.positive, [f"b{order[b]}" for b in variant.guard.aligned], names)
        arguments = ", ".join(f"b{order[name]}" for name in variant.arguments)
        points = c_dim(dims.product(variant.grid), names)
        call = f"void *operands[] = {{{arguments}}}; ourcc_launch(threads, {points}, {variant.kernel}, operands, symbols);"
        if guard is None:
            lines.append(f"    {'else ' if n else ''}{{ {call} }}")
        else:
            lines.append(f"    {'else ' if n else ''}if ({guard}) {{ {call} }}")
    return lines


def _guard(zero: Sequence[Dim], positive: Sequence[Dim], aligned: Sequence[str], names: Mapping[str, str]) -> str | None:
    tests = [f"{c_dim(d, names)} == 0" for d in zero] + [f"{c_dim(d, names)} >= 0" for d in positive]
    tests += [f"((uintptr_t){pointer} & 15) == 0" for pointer in aligned]
    return " && ".join(tests) if tests else None
