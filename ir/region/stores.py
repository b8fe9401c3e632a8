"""The stores of a region: what each needs, along which axes they run in parallel, and which of them one kernel writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .region import Let, Reduce, Ref, Region, Scan, Statement, Store, values_of, walk

Fold = Let | Reduce | Scan
"""A statement that names a value."""


def stores_of(region: Region) -> tuple[Store, ...]:
    """The stores, in order."""
    return tuple(statement for statement in region.body if isinstance(statement, Store))


def references(statement: Statement) -> set[str]:
    """The named values that a statement reads."""
    return {part.name for value in values_of(statement) for part in walk(value) if isinstance(part, Ref)}


def needed(region: Region, *stores: Store) -> list[Fold]:
    """The statements that stores depend on, in order."""
    names = set[str]().union(*map(references, stores))
    kept: list[Fold] = []
    for statement in reversed(region.body):
        if not isinstance(statement, Store) and statement.name in names:
            kept.append(statement)
            names |= references(statement)
    return kept[::-1]


def parallel_axes(statements: Iterable[Fold], *stores: Store) -> set[str]:
    """Axes that every fold and every store varies over: points along them are independent."""
    shared = set.intersection(*(set(store.axes) for store in stores))
    for statement in statements:
        if not isinstance(statement, Let):
            shared &= set(statement.axes) - ({statement.along} if isinstance(statement, Scan) else set())
    return shared


def grouped(stores: Iterable[Store], rest: Callable[[Store], tuple[str, ...]]) -> dict[tuple[str, ...], list[Store]]:
    """Stores by the axes `rest` that are left to walk for them, in the order of the first of each group."""
    groups: dict[tuple[str, ...], list[Store]] = {}
    for store in stores:
        groups.setdefault(rest(store), []).append(store)
    return groups


def together(region: Region) -> tuple[tuple[Store, ...], ...]:
    """The stores of each kernel. One that runs along no more axes, and goes with what another needs, is written by its kernel.

    Of the stores of a kernel the last is its main one: it has the most axes, the fewest of them parallel. None takes
    from it an axis that it could run along in parallel: norm and residual, codes and scales, sine and cosine are one
    kernel; a sum over rows and one over columns are two.
    """

    def rank(store: Store) -> tuple[int, int, int]:
        return -len(store.axes), len(parallel_axes(needed(region, store), store)), -region.body.index(store)

    groups: list[list[Store]] = []
    for store in sorted(stores_of(region), key=rank):
        group = next((group for group in groups if _goes_with(region, group, store)), None)
        if group is None:
            groups.append([store])
        else:
            group.insert(0, store)
    return tuple(sorted(map(tuple, groups), key=lambda group: region.body.index(group[-1])))


def _goes_with(region: Region, group: list[Store], store: Store) -> bool:
    main = group[-1]
    if any(s.gathers or s.combine for s in (main, store)) or not set(store.axes) <= set(main.axes):
        return False
    statements = needed(region, *group, store)
    if any(isinstance(statement, Scan) for statement in statements):
        return False
    return parallel_axes(statements, *group, store) == parallel_axes(needed(region, main), main)
