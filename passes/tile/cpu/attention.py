"""The strategy `attention`: softmax between two products, with scores that never leave the cache.

A grid point owns `m` rows of one head. Columns go in steps of `t`: the keys are transposed once into a cache tile,
then each row block makes its scores, rescales what it has by the new maximum, and adds its product with the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Apply, Constant
from ....ir.region import Load, Scalar
from ....ir.target import CpuLevel
from ....ir.tile.program import Dot, GridAxis, Launch, Reduce, TileProgram, TileType, Value
from ....ir.types import DType
from ..lower import Block, parameters, upper_bound
from ..schedule import Match, Order, Problem, Refusal, Schedule
from ..softmax import Attention, read_attention
from .price import Priced

LANES = 16
"""Columns and elements of keys that are turned at once."""
WIDEST = 512
"""The largest head size whose transposed keys stay in the second-level cache."""


@dataclass(frozen=True)
class CpuAttention(Priced):
    """Online softmax over column steps of `t`, row blocks of `mr` x `nr` in registers, `m` rows a grid point."""

    name: str = "attention"

    def match(self, problem: Problem, target: CpuLevel) -> Match[Attention] | Refusal:
        found = read_attention(problem.region)
        if isinstance(found, str):
            return Refusal(found)
        if found.product.dtype.name != "f32":
            return Refusal(f"scores are in {found.product.dtype}, expected f32")
        if len(found.inner) != 1:
            return Refusal(f"scores fold {len(found.inner)} axes, expected one")
        for name in (*found.inner, found.feature):
            extent = problem.region.axis(name).extent
            if not isinstance(extent, int) or not 1 <= extent <= WIDEST:
                return Refusal(f"head size {extent} is not a number from 1 to {WIDEST}")
        if any(extent == 0 for extent in problem.region.extents.values()):
            return Refusal("an axis has no elements")
        return Match(self, problem, found)

    def space(self, match: Match[Attention], target: CpuLevel) -> Iterator[Schedule]:
        """Row blocks by registers, steps by cache size."""
        mr, nr = (12, 32) if target.registers >= 32 else (6, 16)
        for blocks, t in ((16, 128), (8, 128), (16, 64)):
            yield Schedule(self.name, (("m", blocks * mr), ("t", t), ("mr", mr), ("nr", nr)))

    def order(self, match: Match[Attention], schedule: Schedule, target: CpuLevel) -> Order:
        """By steps of columns; below the diagonal by blocks of rows as well, which look at columns that weigh nothing."""
        rows = _Launch(match.problem, schedule, match.found).rows if match.found.is_causal else 0
        return self.name, schedule["t"], rows

    def tile(self, match: Match[Attention], schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch."""
        problem = match.problem
        return TileProgram(problem.region.name, (_Launch(problem, schedule, match.found).launch(),), symbols=tuple(problem.symbols.ranges))


def _is_at_hand(query: Scalar) -> bool:
    """Whether a query is read as it lies, or widened at most, and not computed."""
    while isinstance(query, Apply) and query.primitive == "cast":
        (query,) = query.args
    return isinstance(query, Load)


class _Launch:
    """Builds the launch; `first` and `lane` give subscripts into the cache tiles."""

    def __init__(self, problem: Problem, schedule: Schedule, found: Attention) -> None:
        self.problem, self.schedule, self.found = problem, schedule, found
        self.extents = problem.region.extents
        self.dtype: DType = found.product.dtype
        self.mr, self.nr, self.step = schedule["mr"], schedule["nr"], schedule["t"]
        self.depth = dims.number(self.extents[found.inner[0]])
        self.features = dims.number(self.extents[found.feature])
        self.high = self.extents[found.column]
        self.rows = 1
        if found.row is not None:
            bound = upper_bound(self.extents[found.row], problem.symbols)
            self.rows = schedule["m"] if bound is None else min(schedule["m"], max(1, -(-bound // self.mr)) * self.mr)

    def launch(self) -> Launch:
        found, problem = self.found, self.problem
        block = Block(problem, names={axis.name: 1 for axis in problem.region.axes})
        grid = []
        for name in found.batch:
            block.index[name] = dims.symbol(name)
            grid.append(GridAxis(name, 0, self.extents[name], None))
        if found.row is not None:
            grid.append(GridAxis(found.row, 0, self.extents[found.row], self.rows))
            block.axes.append(found.row)
        self._locals(block)
        self._start(block)
        if found.is_causal:
            self.high = dims.minimum(self.high, dims.symbol(f"{found.row}.first") + self.rows)
        with block.loop(found.column, "tile", 0, self.high, self.step) as columns:
            self.columns = columns
            self._transpose(block)
            self._row_blocks(block, self._step)
        self._row_blocks(block, self._finish)
        return Launch(f"{problem.region.name}.attention", parameters(problem), tuple(grid), tuple(block.body))

    def _locals(self, block: Block) -> None:
        self.queries = None if _is_at_hand(self.found.query) else block.local("queries", self.dtype, (("r", self.rows), ("d", self.depth)))
        width = -(-self.features // self.nr) * self.nr
        self.keys = block.local("keys", self.found.key.dtype, (("d", self.depth), ("t", self.step)))
        self.scores = block.local("scores", self.dtype, (("r", self.mr), ("t", self.step)))
        self.sums = block.local("sums", self.dtype, (("r", self.rows), ("e", width)))
        self.highest = block.local("highest", self.dtype, (("r", self.rows),))
        self.totals = block.local("totals", self.dtype, (("r", self.rows),))

    def _start(self, block: Block) -> None:
        with self._each_row(block) as place:
            block.store(self.highest, (place,), block.full(float("-inf"), self.dtype))
            block.store(self.totals, (place,), block.full(0.0, self.dtype))
            with self._features(block) as feature:
                block.store(self.sums, (place, self._lanes(feature)), block.full(0.0, self.dtype, (feature,)))
            if self.queries is not None:
                self._compute_query(block, self.queries, place)

    @contextmanager
    def _each_row(self, block: Block) -> Iterator[Dim]:
        """A loop over the rows of a grid point; yields the place of a row in cache tiles."""
        if self.found.row is None:
            yield 0
            return
        with block.loop(self.found.row, "walk", 0, 0, 1, parent=self.found.row) as row:
            block.index[self.found.row] = dims.symbol(f"{row}.first")
            yield dims.symbol(f"{row}.first") - dims.symbol(f"{self.found.row}.first")

    def _compute_query(self, block: Block, queries: str, place: Dim) -> None:
        """queries[r, d]: what is computed for a query is computed once for all columns."""
        with block.loop("d", "tile", 0, self.depth, LANES) as inner:
            block.index[self.found.inner[0]] = dims.symbol(inner)
            self._named(block)
            block.outside = True
            query = block.lower(self._wide(self.found.query))
            block.outside = False
            block.store_all(queries, (place, dims.symbol(inner)), query)

    def _features(self, block: Block) -> AbstractContextManager[str]:
        """A loop over the value's features in register blocks."""
        return block.loop(self.found.feature, "tile", 0, self.features, self.nr)

    def _lanes(self, axis: str) -> Dim:
        """The subscript of every lane of an axis, inside its domain or not."""
        return dims.symbol(f"{axis}.first") + dims.symbol(f"{axis}.lane")

    def _inside(self, axis: str, parent: str) -> Dim:
        """The subscript of every lane of an axis in a cache tile that begins where `parent` does."""
        return self._lanes(axis) - dims.symbol(f"{parent}.first")

    def _transpose(self, block: Block) -> None:
        """keys[d, t] = key[t, d] for the columns of this step: squares are read along d and turned in registers."""
        with (
            block.loop(self.found.column, "walk", 0, 0, LANES, parent=self.columns, tail=(1,)) as columns,
            block.loop("d", "tile", 0, self.depth, LANES) as inner,
        ):
            block.index[self.found.inner[0]] = dims.symbol(inner)
            block.index[self.found.column] = dims.symbol(columns)
            self._named(block)
            block.outside = True
            value = block.lower(self.found.key)
            block.outside = False
            block.store_all(self.keys, (dims.symbol(inner), self._inside(columns, self.columns)), value)

    def _named(self, block: Block) -> None:
        for let in self.found.before:
            block.later(let)

    def _row_blocks(self, block: Block, body: Callable[[Block, str | None], None]) -> None:
        """`body(rows)` for each register block of rows; rows is None where there is one row."""
        if self.found.row is None:
            body(block, None)
            return
        tail = tuple(n for n in (4, 1) if n < self.mr)
        with block.loop(self.found.row, "walk", 0, 0, self.mr, parent=self.found.row, tail=tail) as rows:
            block.index[self.found.row] = dims.symbol(rows)
            body(block, rows)

    def _step(self, block: Block, rows: str | None) -> None:
        self._score(block, rows)
        if rows is None:
            self._row(block, 0, 0)
        else:
            with block.loop("r", "walk", 0, 0, 1, parent=rows) as row:
                first = dims.symbol(f"{row}.first")
                self._row(block, first - dims.symbol(f"{rows}.first"), first - dims.symbol(f"{self.found.row}.first"))
        self._accumulate(block, rows)

    def _score(self, block: Block, rows: str | None) -> None:
        """scores[r, t] of one row block, -inf beyond the last column."""
        found, column = self.found, self.found.column
        with block.loop(column, "walk", 0, 0, self.nr, parent=self.columns) as lanes:
            block.index[column] = dims.symbol(lanes)
            axes = (rows, lanes) if rows else (lanes,)
            inner = block.axis(found.inner[0], 0, self.depth, self.depth)
            block.index[found.inner[0]] = dims.symbol(inner)
            query = self._query(block, rows, inner)
            key = block.load(self.keys, (dims.symbol(inner), self._inside(lanes, self.columns)), found.key.dtype)
            kind = TileType(self.dtype, axes)
            product = block.let(found.product.name, Dot(query, self._cast(block, key), block.full(0.0, self.dtype, axes), kind))
            block.axes.remove(inner)
            block.readers[found.product.name] = lambda _: product
            self._named(block)
            block.outside = True
            score = block.lower(found.score)
            block.outside = False
            if dims.divides(self.step, self.extents[column], self.problem.symbols) is not True:
                score = block.inside(dims.symbol(lanes), self.extents[column], score, float("-inf"))
            place = self._inside(lanes, self.columns)
            block.store(self.scores, (dims.symbol(f"{rows}.lane"), place) if rows else (0, place), score)

    def _query(self, block: Block, rows: str | None, inner: str) -> Value:
        if self.queries is None:
            return block.lower(self._wide(self.found.query))
        place: Dim = self._inside(rows, self.found.row or "") if rows else 0
        return block.load(self.queries, (place, dims.symbol(inner)), self.dtype)

    def _row(self, block: Block, local: Dim, place: Dim) -> None:
        """One row: scores become exponentials under the new maximum, what was summed is rescaled."""
        lanes = block.axis("t", 0, self._remaining(), self.step)
        at = (local, dims.symbol(lanes))
        scores = block.let("row", block.load(self.scores, at, self.dtype, Constant(float("-inf"), self.dtype)))
        old = block.let("old", block.load(self.highest, (place,), self.dtype))
        new = block.let("new", block.apply("max", old, Reduce("max", lanes, scores, TileType(self.dtype))))
        minus = block.full(float("-inf"), self.dtype)
        base = block.let("base", block.apply("where", block.apply("eq", new, minus), block.full(0.0, self.dtype), new))
        weights = block.let("weights", block.apply("exp", block.apply("sub", scores, base)))
        factor = block.let("factor", block.apply("exp", block.apply("sub", old, base)))
        block.store(self.scores, at, weights)
        block.store(self.highest, (place,), new)
        total = block.apply("mul", block.load(self.totals, (place,), self.dtype), factor)
        block.store(self.totals, (place,), block.apply("add", total, Reduce("sum", lanes, weights, TileType(self.dtype))))
        block.axes.remove(lanes)
        with self._features(block) as feature:
            sums = (place, self._lanes(feature))
            block.store(self.sums, sums, block.apply("mul", block.load(self.sums, sums, self.dtype), factor))

    def _remaining(self) -> Dim:
        """The columns of this step that are looked at: beyond them the scores were never written."""
        return dims.minimum(self.high - dims.symbol(f"{self.columns}.first"), self.step)

    def _sums(self, rows: str | None, feature: str) -> tuple[Dim, Dim]:
        return (self._inside(rows, self.found.row or ""), self._lanes(feature)) if rows else (0, self._lanes(feature))

    def _accumulate(self, block: Block, rows: str | None) -> None:
        """sums += weights * values for one row block."""
        found, columns = self.found, dims.symbol(f"{self.columns}.first")
        with self._features(block) as feature:
            axes = (rows, feature) if rows else (feature,)
            kind = TileType(self.dtype, axes)
            acc = block.let("acc", block.load(self.sums, self._sums(rows, feature), self.dtype))
            lanes = block.axis("t", 0, self._remaining(), self.step)
            place = dims.symbol(lanes)
            block.index[found.column] = columns + place
            block.index[found.feature] = dims.symbol(feature)
            weights = block.load(self.scores, (dims.symbol(f"{rows}.lane") if rows else 0, place), self.dtype, Constant(0.0, self.dtype))
            self._named(block)
            block.outside = True
            value = block.lower(self._wide(found.value))
            block.outside = False
            result = block.let("acc", Dot(weights, value, acc, kind))
            block.axes.remove(lanes)
            block.store(self.sums, self._sums(rows, feature), result)

    def _finish(self, block: Block, rows: str | None) -> None:
        """Write the rows of one block."""
        found = self.found
        with self._features(block) as feature:
            block.index[found.feature] = dims.symbol(feature)
            result = block.let(found.result.name, block.load(self.sums, self._sums(rows, feature), self.dtype))
            place: Dim = self._inside(rows, found.row or "") if rows else 0
            total = block.let(found.total.name, block.load(self.totals, (place,), self.dtype))
            block.readers[found.result.name] = lambda _: result
            block.readers[found.total.name] = lambda _: total
            for let in found.after:
                block.later(let)
            block.store(found.store.output, block.subscripts(found.store.subscripts, ()), block.lower(found.store.value))

    def _wide(self, value: Scalar) -> Scalar:
        return value if value.dtype == self.dtype else Apply("cast", (value,), self.dtype)

    def _cast(self, block: Block, value: Value) -> Value:
        return value if value.type.dtype == self.dtype else block.apply("cast", value, dtype=self.dtype)
