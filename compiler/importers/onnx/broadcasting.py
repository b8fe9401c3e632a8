"""Broadcasting of sizes that only the run knows: either may be 1, and the smaller operand is repeated along its edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....ir import dims
from ....ir.dims import Dim, Facts
from ....ir.graph import Builder, Module, Value
from .symbols import implied_limit


def common_size(left: Dim, right: Dim, facts: Facts) -> Dim | None:
    """What two different sizes broadcast to, wherever they do; None where they never can, or need not."""
    if isinstance(left, int) and isinstance(right, int):
        return None
    if implied_limit(left, right, facts) is not None:
        return None  # They are equal within a limit that the import finds by itself.
    ones = [dims.equal(size, 1, facts) is not False for size in (left, right)]
    if not any(ones):
        return None
    if not all(ones):
        # The size that cannot be 1 is the result's.
        return right if ones[0] else left
    # Equal, or one of them 1; beside a 1, an empty dimension stays empty.
    return dims.simplify(dims.maximum(left, right) * dims.minimum(dims.minimum(left, right), 1), facts)


def aligned(builder: Builder, operands: Sequence[Value | None], skipped: int = 0) -> list[Value | None]:
    """Operands whose trailing dimensions (all but the last `skipped`) have one size each, or the size 1."""
    values = [value for value in operands if value is not None]
    rank = max((value.type.rank for value in values), default=0)
    target: list[Dim] = []
    for place in range(rank, skipped, -1):
        sizes = [value.shape[-place] for value in values if value.type.rank >= place]
        size = _result(builder.module, sizes)
        if size is None:
            return list(operands)
        target.append(size)
    return [None if value is None else repeated(builder, value, target, skipped) for value in operands]


def _result(module: Module, sizes: Sequence[Dim]) -> Dim | None:
    """The size that dimensions broadcast to, None if they may not; pairs that only a call decides are noted for it to check."""
    result: Dim = 1
    for size in sizes:
        if size == 1 or dims.equal(size, result) is True:
            continue
        common = size if result == 1 else common_size(result, size, module.facts)
        if common is None or not _is_known_at_call(module, common):
            return None
        if result != 1:
            note(module, result, size)
        result = common
    return result


def stretched(builder: Builder, value: Value, target: Sequence[Dim]) -> Value | None:
    """The value at the sizes of `target`, where its own are those, or 1, or only a call tells, which is then checked; else None."""
    if value.type.rank != len(target):
        return None
    for have, want in zip(value.shape, target, strict=True):
        if have == 1 or dims.equal(have, want, builder.module.facts) is True:
            continue
        if (isinstance(have, int) and isinstance(want, int)) or not _is_known_at_call(builder.module, have - want):
            return None
        note(builder.module, have, want)
    return repeated(builder, value, target)


def note(module: Module, left: Dim, right: Dim) -> None:
    """Have a call checked for two sizes that broadcast."""
    known = module.facts.broadcasts
    if (left, right) not in known and (right, left) not in known:
        module.facts = replace(module.facts, broadcasts=(*known, (left, right)))


def _is_known_at_call(module: Module, size: Dim) -> bool:
    """Whether the inputs' sizes decide it: what is found while a model runs is not checked when it is called."""
    given = {name for value in module.main.inputs for part in value.shape for name in dims.symbols(part)}
    return dims.symbols(size) <= given


def repeated(builder: Builder, value: Value, target: Sequence[Dim], skipped: int = 0) -> Value:
    """The value with its leading sizes at those of `target`, where they differ and are not 1."""
    lead = value.type.rank - skipped
    wanted = target[len(target) - lead :] if lead > 0 else ()
    after = [
        want - have if have != 1 and isinstance(want - have, dims.Expr) and dims.equal(have, want) is not True else 0
        for have, want in zip(value.shape, wanted, strict=False)
    ]
    if not any(amount != 0 for amount in after):
        return value
    # A dimension of size 1 is its own edge.
    full = (*after, *(0,) * skipped)
    result: Value = builder.pad(value, before=(0,) * value.type.rank, after=full, mode="edge")
    return result
