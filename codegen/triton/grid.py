"""The grid of a launch: how many programs there are and which grid point each one computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...ir import dims
from ...ir.digits import is_whole, whole_number
from ...ir.dims import Dim
from ...ir.errors import UnsupportedError
from ...ir.tile.program import GridAxis, Launch
from ...ir.tile.scope import Scope
from . import indices
from .emitter import Emitter, check_extent


@dataclass(frozen=True)
class Grid:
    """`programs` is the size of the launch's grid, `points` how many grid points there are; they are taken in turn by so many
    programs at `most` if the launch is persistent.
    """

    launch: Launch
    scope: Scope
    programs: Dim
    points: Dim
    most: int | None

    @contextmanager
    def body(self, emitter: Emitter) -> Iterator[None]:
        """The code of one grid point: inside a loop if the launch is persistent."""
        if not self.launch.grid:
            yield
            return
        point = emitter.fresh("point")
        if self.most is None:
            emitter.line(f"{point} = tl.program_id(0)")
            _decode(emitter, self.scope, self.launch, point)
            yield
            return
        total = indices.scalar(emitter, self.scope, self.points)
        # One loop with the steps inside: what the next point reads is on its way while this one is written.
        words = "flatten=True, warp_specialize=True" if self.launch.hint("specialise", 0) else "flatten=True"
        with emitter.block(f"for {point} in tl.range(tl.program_id(0), {total}, {self.most}, {words})"):
            _decode(emitter, self.scope, self.launch, point)
            yield


def open_grid(emitter: Emitter, scope: Scope, launch: Launch, programs: int) -> Grid:
    """The grid of a launch; a persistent one (`handout`) has at most `programs` programs."""
    points = dims.product(steps(axis) for axis in launch.grid)
    handout = launch.hint("handout", "static")
    if handout not in ("static", "queue", "persistent"):
        raise UnsupportedError(f"launch {launch.name}: handout {handout!r} is not known, expected static, queue or persistent")
    for axis in launch.grid:
        if axis.step is not None:
            check_extent(launch, axis.name, axis.step)
        if any(name.startswith("%") for name in dims.symbols(axis.low) | dims.symbols(axis.high)):
            raise UnsupportedError(
                f"launch {launch.name}: the size of grid axis {axis.name} is a loaded value", hint="loop over it inside the kernel"
            )
    # The hardware hands blocks to free processors itself: a queue of our own would only repeat that.
    if handout == "persistent":
        return Grid(launch, scope, dims.minimum(points, programs), points, programs)
    return Grid(launch, scope, points, points, None)


def steps(axis: GridAxis) -> Dim:
    """The number of grid points along an axis."""
    return dims.ceil_div(axis.high - axis.low, axis.step or 1)


def _decode(emitter: Emitter, scope: Scope, launch: Launch, point: str) -> None:
    """Start of every axis from the number of the grid point."""
    axes = [axis for axis in launch.grid if steps(axis) != 1]
    for axis in launch.grid:
        if steps(axis) == 1:
            emitter.fixed[scope.axis(axis.name).first] = axis.low
    if not axes:
        return
    order = str(launch.hint("order", "plain"))
    group = _group(launch, order)
    if group is not None and len(axes) >= 2:
        places = _grouped(emitter, scope, axes, point, group)
    else:
        places = _row_major(emitter, scope, axes, point)
    last = launch.grid[-1]
    if order == "reversed" and last.name in places:
        end = indices.scalar(emitter, scope, steps(last) - 1)
        places[last.name] = emitter.assign(f"{last.name}_from_end", f"{end} - {places[last.name]}")
    for axis in axes:
        place, step = places[axis.name], axis.step or 1
        if not indices.fits(scope, axis.high + step):
            place = f"tl.cast({place}, tl.int64)"
        text = place if step == 1 else f"{place} * {step}"
        if axis.low != 0:
            text = f"{text} + {indices.scalar(emitter, scope, axis.low)}"
        if text.isidentifier():
            emitter.starts[axis.name] = text
        else:
            emitter.starts[axis.name] = emitter.assign(axis.name if axis.step is None else f"{axis.name}_first", text)


def _row_major(emitter: Emitter, scope: Scope, axes: list[GridAxis], point: str) -> dict[str, str]:
    places: dict[str, str] = {}
    rest = point
    for axis in reversed(axes[1:]):
        count = indices.scalar(emitter, scope, steps(axis))
        count = count if count.isidentifier() or is_whole(count) else f"({count})"
        places[axis.name] = emitter.assign(f"{axis.name}_place", f"{rest} % {count}")
        rest = emitter.assign("outer", f"{rest} // {count}")
    places[axes[0].name] = rest
    return places


def _grouped(emitter: Emitter, scope: Scope, axes: list[GridAxis], point: str, group: int) -> dict[str, str]:
    """The last two axes in groups of `group` rows, column by column within one: neighbours share operands in cache."""
    rows = emitter.assign("rows", indices.scalar(emitter, scope, steps(axes[-2])))
    columns = emitter.assign("columns", indices.scalar(emitter, scope, steps(axes[-1])))
    places: dict[str, str] = {}
    inner = point
    if len(axes) > 2:
        inner = emitter.assign("inner", f"{point} % ({rows} * {columns})")
        outer = emitter.assign("outer", f"{point} // ({rows} * {columns})")
        places = _row_major(emitter, scope, axes[:-2], outer)
    first = emitter.assign("group_first", f"{inner} // ({group} * {columns}) * {group}")
    height = emitter.assign("group_rows", f"tl.minimum({rows} - {first}, {group})")
    within = emitter.assign("within", f"{inner} % ({group} * {columns})")
    places[axes[-2].name] = emitter.assign(f"{axes[-2].name}_place", f"{first} + {within} % {height}")
    places[axes[-1].name] = emitter.assign(f"{axes[-1].name}_place", f"{within} // {height}")
    return places


def _group(launch: Launch, order: str) -> int | None:
    if order in ("plain", "reversed"):
        return None
    if order.startswith("grouped(") and order.endswith(")") and (count := whole_number(order[8:-1])):
        return count
    raise UnsupportedError(f"launch {launch.name}: grid order {order!r} is not known, expected plain, reversed or grouped(n)")
