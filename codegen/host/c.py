"""Plans as C: the steps between two host steps are one entry, made of functions of bounded size.

For the plan of function F `ourcc_arena_F(symbols)` gives the arena's size, `ourcc_segment_F_N(buffers, symbols, arena, threads)`
runs the Nth segment. `ourcc_plans` is the digest of all plans, by which an engine knows that the code is made for them.
Buffers are indexed as in the plan; those in the arena lie in slots, whose places are closed forms, and an alias lies in its
root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir import dims
from ...ir.dims import Dim, Function, Symbol
from ...ir.errors import UnsupportedError
from ...ir.plan import Check, CheckPlace, Copy, Host, Launch, Plan, Slot, Step, Zero, is_native, segments, storage, touched
from ...ir.plan.digest import digest_of
from ...ir.plan.places import is_dense
from ..c.abi import declaration, descriptor
from .routines import asked, routine

PIECE = 64
"""Steps in one C function: compilers take more than twice as long for a function of twice the length."""

PIECES = 16
"""Such functions in one file: the files of a long plan compile in parallel."""

_PIECE = "(void *const *buffers, const int64_t *symbols, char *const *slots, int32_t threads)"


def print_plans(plans: Mapping[str, Plan]) -> dict[str, str]:
    """The C files of the plans of an engine's functions, by name."""
    files = {name: text for number, plan in enumerate(plans.values()) for name, text in _print_plan(plan, number).items()}
    digest = f'OURCC_EXPORT extern const char ourcc_plans[65];\nconst char ourcc_plans[65] = "{digest_of(plans)}";\n'
    routines = {step.routine for plan in plans.values() for step in plan.steps if isinstance(step, Host) and is_native(step)}
    files |= {f"{name}.c": routine(name) for name in sorted(routines)}
    return {**files, "plans.c": f'#include "ourcc.h"\n{digest}'}


def _print_plan(plan: Plan, function: int) -> dict[str, str]:
    """The C files of one plan: `plan_F.c` has the entries, `plan_F_N.c` the pieces that do not fit in beside them."""
    pieces: dict[str, Sequence[Step]] = {}
    entries: list[list[str]] = []
    for number, steps in enumerate(steps for in_c, steps in segments(plan.steps) if in_c):
        cut = {f"ourcc_piece_{function}_{number}_{first // PIECE}": steps[first : first + PIECE] for first in range(0, len(steps), PIECE)}
        entries.append(list(cut))
        pieces |= cut
    here, *others = [list(pieces)[first : first + PIECES] for first in range(0, max(len(pieces), 1), PIECES)]
    files = {f"plan_{function}_{count}.c": _file(_pieces(plan, pieces, names)) for count, names in enumerate(others)}
    lines = [f"int32_t {name}{_PIECE};" for names in others for name in names]
    lines += [*_slots_function(plan, function), *_pieces(plan, pieces, here)]
    for number, names in enumerate(entries):
        lines += _segment(plan, f"{function}_{number}", names)
    return {**files, f"plan_{function}.c": _file(lines)}


def _file(lines: Sequence[str]) -> str:
    return "\n".join(['#include "ourcc.h"', "#include <string.h>", _HELPERS, *lines]) + "\n"


def _declarations(pieces: Mapping[str, Sequence[Step]], names: Sequence[str]) -> list[str]:
    """The kernels that some pieces launch, and the routines; they are defined in other files."""
    launches = [step for name in names for step in pieces[name] if isinstance(step, Launch)]
    kernels = dict.fromkeys(variant.kernel for launch in launches for variant in launch.variants)
    kernels |= dict.fromkeys(step.routine for name in names for step in pieces[name] if isinstance(step, Host))
    return [*map(declaration, kernels), ""]


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


def _slots_function(plan: Plan, function: int) -> list[str]:
    """Where the slots of the arena begin, and its size."""
    names, numbers = _symbol_names(plan), {slot.name: n for n, slot in enumerate(plan.slots)}
    lines = ["static int64_t ourcc_slots(const int64_t *symbols, char *arena, char **slots) {"]
    lines += [
        "    (void)symbols; (void)arena; (void)slots;",
        f"    int64_t first, size = 0, ends[{len(plan.slots) + 1}];",
        "    (void)first; (void)ends;",
    ]
    for number, slot in enumerate(plan.slots):
        lines += ["    first = 0;", *(f"    first = larger(first, ends[{numbers[below]}]);" for below in slot.above)]
        lines.append(f"    slots[{number}] = arena + first;")
        lines += [f"    ends[{number}] = first + {_slot_size(slot, names)};", f"    size = larger(size, ends[{number}]);"]
    lines += ["    return size;", "}", ""]
    lines += [f"OURCC_EXPORT int64_t ourcc_arena_{function}(const int64_t *symbols);"]
    lines += [f"int64_t ourcc_arena_{function}(const int64_t *symbols) {{"]
    return [*lines, f"    char *slots[{len(plan.slots) + 1}];", "    return ourcc_slots(symbols, 0, slots);", "}", ""]


def _segment(plan: Plan, number: str, pieces: Sequence[str]) -> list[str]:
    """The entry of a segment: it places the slots and runs the pieces until one fails; it gives a status.

    That is 0, 1 + the number of the check of the plan that failed, or minus what a kernel gave that failed.
    """
    signature = f"int32_t ourcc_segment_{number}(void *const *buffers, const int64_t *symbols, char *arena, int32_t threads)"
    lines = [f"OURCC_EXPORT {signature};", f"{signature} {{", f"    char *slots[{len(plan.slots) + 1}];"]
    lines += ["    ourcc_slots(symbols, arena, slots);", "    int32_t status = 0;"]
    lines += [f"    if ((status = {name}(buffers, symbols, slots, threads)) != 0) return status;" for name in pieces]
    return [*lines, "    return 0;", "}", ""]


def _pieces(plan: Plan, pieces: Mapping[str, Sequence[Step]], names: Sequence[str]) -> list[str]:
    order = {buffer.name: n for n, buffer in enumerate(plan.buffers)}
    slots = {slot.name: n for n, slot in enumerate(plan.slots)}
    symbols = _symbol_names(plan)
    checks = {id(step): n for n, step in enumerate(plan.steps) if isinstance(step, Check | CheckPlace)}
    lines = _declarations(pieces, names)
    for name in names:
        lines += [f"int32_t {name}{_PIECE} {{", "    (void)buffers; (void)symbols; (void)slots; (void)threads;", "    int32_t status = 0;"]
        for used in sorted({buffer for step in pieces[name] for buffer in touched(step)}, key=order.__getitem__):
            lines.append(f"    void *b{order[used]} = {_place(plan, used, order, slots, symbols)};")
        for step in pieces[name]:
            if isinstance(step, Check):
                # INT64_MIN is what `worst_index` gives where no index is out of range.
                lines.append(f"    if (*(const int64_t *)b{order[step.worst]} != INT64_MIN) return {checks[id(step)] + 1};")
            elif isinstance(step, CheckPlace):
                lines.append(f"    if ({_is_outside(step, symbols)}) return {checks[id(step)] + 1};")
            else:
                lines += _step(plan, step, order, symbols)
        lines += ["    return status;", "}", ""]
    return lines


def _is_outside(step: CheckPlace, names: Mapping[str, str]) -> str:
    # Products of two numbers that data give have 128 bits: a place that wrapped might be one inside.
    wide = {name: f"(__int128){text}" for name, text in names.items()}
    place, size, low = (c_dim(each, wide) for each in (step.place, step.size, -step.size if step.negative else 0))
    return f"{place} < {low} || {place} >= {size}"


def _place(plan: Plan, name: str, order: Mapping[str, int], slots: Mapping[str, int], symbols: Mapping[str, str]) -> str:
    """Where a buffer begins, as a C expression."""
    held = plan.named[name].storage
    if isinstance(held, storage.Alias):
        if not is_dense(plan.named[name].type, held.strides):
            raise UnsupportedError(f"alias {name} of the plan has strides {list(held.strides)}, and kernels take what is dense")
        return f"(char *){_place(plan, held.root, order, slots, symbols)} + {c_dim(held.offset, symbols)}"
    return f"slots[{slots[held.slot]}]" if isinstance(held, storage.Arena) else f"buffers[{order[name]}]"


def _step(plan: Plan, step: Step, order: Mapping[str, int], names: Mapping[str, str]) -> list[str]:
    if isinstance(step, Launch):
        return _launch(step, order, names)
    if isinstance(step, Host):
        return [_routine(plan, step, order, names)]
    if isinstance(step, Copy) and not plan.moves(step):
        return []
    if isinstance(step, Copy):
        size = c_dim(_bytes(plan, order[step.target]), names)
        return [f"    memcpy(b{order[step.target]}, b{order[step.source]}, (size_t){size});"]
    if isinstance(step, Zero):
        return [f"    memset(b{order[step.target]}, 0, (size_t){c_dim(_bytes(plan, order[step.target]), names)});"]
    raise ValueError(f"step {step} needs Python")


def _bytes(plan: Plan, buffer: int) -> Dim:
    return plan.buffers[buffer].type.nbytes


def _launch(step: Launch, order: Mapping[str, int], names: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for n, variant in enumerate(step.variants):
        guard = _guard(variant.guard.zero, variant.guard.positive, [f"b{order[b]}" for b in variant.guard.aligned], names)
        arguments = ", ".join(f"b{order[name]}" for name in variant.arguments)
        points = c_dim(dims.product(variant.grid), names)
        sizes = ", ".join(c_dim(size, names) for _, size in step.symbols) or "0"
        own = f"const int64_t sizes[] = {{{sizes}}}; void *operands[] = {{{arguments}}};"
        launch = f"ourcc_launch(threads, {points}, &{descriptor(variant.kernel)}, operands, sizes)"
        call = f"{own} if ((status = {launch}) != 0) return status;"
        if guard is None:
            # It takes every call: what comes behind it, such as the one for all sizes behind a class of all sizes, is never run.
            return [*lines, f"    {'else ' if n else ''}{{ {call} }}"]
        lines.append(f"    {'else ' if n else ''}if ({guard}) {{ {call} }}")
    return lines


def _routine(plan: Plan, step: Host, order: Mapping[str, int], names: Mapping[str, str]) -> str:
    """A routine runs as a kernel does, on numbers that say what it is asked for."""
    buffers = [plan.named[name] for name in (*step.reads, *step.writes)]
    points, numbers = asked(step.routine, [buffer.type for buffer in buffers], step.attrs)
    operands, given = ", ".join(f"b{order[buffer.name]}" for buffer in buffers), ", ".join(c_dim(number, names) for number in numbers)
    own = f"const int64_t numbers[] = {{{given}}}; void *operands[] = {{{operands}}};"
    launch = f"ourcc_launch(threads, {c_dim(points, names)}, &{descriptor(step.routine)}, operands, numbers)"
    return f"    {{ {own} if ((status = {launch}) != 0) return status; }}"


def _guard(zero: Sequence[Dim], positive: Sequence[Dim], aligned: Sequence[str], names: Mapping[str, str]) -> str | None:
    tests = [f"{c_dim(d, names)} == 0" for d in zero] + [f"{c_dim(d, names)} >= 0" for d in positive]
    tests += [f"((uintptr_t){pointer} & 15) == 0" for pointer in aligned]
    return " && ".join(tests) if tests else None
