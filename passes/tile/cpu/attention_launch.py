"""The launch of attention on CPUs: scores, softmax and sums over one head's rows, step by step along the columns.

A grid point owns `m` rows of one head. Columns go in steps of `t`: the keys are transposed once into a cache tile,
then each row block makes its scores, rescales what it has by the new maximum, and adds its product with the values.
Factors that the target multiplies in groups lie so in cache tiles: those of 16 bits, keys and values and the rounded weights,
and queries and keys that are codes of 8 bits, whose sums are integers (codes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Constant
from ....ir.region import Ref as Name
from ....ir.region import Scalar
from ....ir.target import CpuLevel
from ....ir.tile.program import Dot, GridAxis, Launch, Reduce, Ref, TileType, Value
from ....ir.types import DType, boolean, i8, i32, u8
from ...regions.contraction import unwidened
from ..limits import Block as Rows
from ..limits import looked_at
from ..lower import Block, parameters, upper_bound, zero
from ..powers import LOG2_E, Base, Words, powers_of
from ..schedule import Problem, Schedule
from ..softmax import Attention
from .attention_factors import Group, grouped, groups_of, in_type, is_at_hand, kept_by, sharing
from .codes import CodedScores
from .matrix import ladder
from .register_blocks import few_rows, lengths_of, whole_blocks
from .traffic import LINE

LANES = 16
"""Columns and elements of keys that are turned at once."""
HIGHER = 8.0
"""How far the highest score may lie above the one that weights are taken against, as an exponent of two, before sums are rescaled."""
TOGETHER = 8
"""Heads of which single rows are multiplied together at most."""


class AttentionLaunch:
    """Builds the launch; `first` and `lane` give subscripts into the cache tiles."""

    def __init__(self, problem: Problem, schedule: Schedule, found: Attention, target: CpuLevel) -> None:
        self.problem, self.schedule, self.found, self.target = problem, schedule, found, target
        self.scored, self.summed = groups_of(problem, found, target)
        """How queries are multiplied by keys, and weights by values."""
        self.in_tiles = self.scored is not None and self.scored.is_matrix
        self.codes = None if self.scored is None else self.scored.codes
        self.query, self.key, self.value = found.query, found.key, found.value
        if self.codes is not None:
            self.query, self.key = self.codes.query, self.codes.key
        elif self.scored is not None:
            self.query, self.key = unwidened(found.query), unwidened(found.key)
        if self.summed is not None:
            self.value = unwidened(found.value)
        self.extents = problem.region.extents
        self.dtype: DType = found.product.dtype
        self.powers = powers_of(found.score, found.before)
        self.total = self.dtype if self.codes is None else i32
        """The type of the sums of queries times keys."""
        self.mr, self.nr, self.step = schedule["mr"], schedule["nr"], schedule["t"]
        self.depth = dims.number(self.extents[found.inner[0]])
        self.features = dims.number(self.extents[found.feature])
        self.high = self.extents[found.column]
        self.heads, self.head = schedule["heads"], ""
        if self.heads > 1:
            self.head, _ = sharing(problem, found) or ("", 1)
        self.together = max(n for n in range(1, TOGETHER + 1) if self.heads % n == 0)
        self.most = max(self.mr, self.together)
        """Rows of a register block."""
        self.base: Dim = 0
        """Where the rows of the head at hand begin in cache tiles."""
        self.among: Callable[[Dim], Dim] = self._place
        """Where the rows of a register block are in the tiles of the grid point."""
        self.kept = kept_by(found) if self.mr > 1 else None
        """The mask that whole register blocks are asked for before anything of them is computed."""
        self.is_asked = False
        """Whether the rows of the register blocks at hand are those of the mask, and as many as fill the registers."""
        self.rows = 1
        if found.row is not None:
            bound = upper_bound(self.extents[found.row], problem.symbols)
            self.rows = schedule["m"] if bound is None else min(schedule["m"], max(1, -(-bound // self.mr)) * self.mr)
        # Tiles are stored before they are looked at, in so many vectors that none waits for the one before it.
        whole = {self.step} if self.in_tiles else self._widths()
        vectors = next(
            n for n in (4, 2, 1) if n <= (4 if self.in_tiles else 2) and all(columns % (n * target.lanes) == 0 for columns in whole)
        )
        self.lanes = max(vectors * target.lanes, 1 if self.summed is None else self.summed.step)
        """Scores of a row that are looked at together, in every register block alike: at least as many as are multiplied at once."""

    def launch(self) -> Launch:
        found, problem = self.found, self.problem
        block = Block(problem, names={axis.name: 1 for axis in problem.region.axes})
        grid = []
        for name in found.batch:
            heads = self.heads if name == self.head else 1
            block.index[name] = dims.symbol(name) * heads
            grid.append(GridAxis(name, 0, self.extents[name] // heads, None))
        if found.row is not None:
            grid.append(GridAxis(found.row, 0, self.extents[found.row], self.rows))
            block.axes.append(found.row)
        self._locals(block)
        self._start(block)
        first: Dim = 0
        if found.row is not None:
            rows = Rows(found.row, dims.symbol(f"{found.row}.first"), self.rows, found.column, self.high, self.step)
            first, self.high = looked_at(rows, found.limits, problem.symbols)
        with block.loop(found.column, "tile", first, self.high, self.step) as columns:
            self.columns = columns
            self._transpose(block)
            if self.codes is not None:
                self._start_columns(block, self.codes)
            if self.values is not None:
                self._group_values(block, self.values)
            self._row_blocks(block, self._step)
        self._row_blocks(block, self._finish)
        return Launch(f"{problem.region.name}.attention", parameters(problem), tuple(grid), tuple(block.body))

    @contextmanager
    def _each_head(self, block: Block) -> Iterator[None]:
        """A loop over the heads that share keys and values."""
        if self.heads == 1:
            yield
            return
        with block.loop("member", "scalar", 0, self.heads, 1) as member:
            block.index[self.head] = dims.symbol(self.head) * self.heads + dims.symbol(member)
            self.base = dims.symbol(member) * self.rows
            yield
        self.base = 0

    def _locals(self, block: Block) -> None:
        width, rows = -(-self.features // self.nr) * self.nr, self.rows * self.heads
        shape = (("r", rows), ("d", self.depth))
        at_hand = is_at_hand(self.problem, self.found, self.scored) and self.codes is None
        self.queries = None if at_hand else block.local("queries", self._wide(self.query, self.scored).dtype, shape)
        self.keys = block.local("keys", self.key.dtype, (("d", self.depth), ("t", self.step)), grouped(self.scored, "d", "t"))
        if self.codes is not None:
            self.ones = block.local("ones", u8, (("d", self.depth),))
            self.starts = block.local("starts", i32, (("t", self.step),))
            self.row_starts = block.local("row_starts", i32, (("r", rows),)) if self.codes.key_zero is not None else None
        self.values = None
        if self.summed is not None:
            self.values = block.local("values", self.summed.dtype, (("t", self.step), ("e", width)), grouped(self.summed, "t", "e"))
        self.scores = block.local("scores", self.dtype, (("r", self.most), ("t", self._apart(self.dtype))))
        self.weights, self.factor = self.scores, self.dtype
        if self.summed is not None:
            self.factor = self.summed.dtype
            self.weights = block.local("weights", self.factor, (("r", self.most), ("t", self._apart(self.factor))))
        self.sums = block.local("sums", self.dtype, (("r", rows), ("e", width)))
        self.highest = block.local("highest", self.dtype, (("r", rows),))
        # Of the rows of a register block: what is subtracted from their scores, by what they are rescaled, and what is added.
        self.bases, self.rates, self.factors, self.added = (
            block.local(name, self.dtype, (("r", self.most),)) for name in ("bases", "rates", "factors", "added")
        )
        self.totals = block.local("totals", self.dtype, (("r", rows),))
        if self.kept is not None:
            self.seen = block.local("seen", boolean, (("r", self.mr),))

    def _apart(self, dtype: DType) -> int:
        """Columns from row to row. Tiles take whole lines of many rows, which would lie in few places of a cache if they were a power of
        two apart.
        """
        return self.step + (LINE // dtype.itemsize if self.in_tiles else 0)

    def _start(self, block: Block) -> None:
        if self.codes is not None:
            inner = block.axis("d", 0, self.depth, self.depth)
            block.store(self.ones, (dims.symbol(inner),), block.full(1, u8, (inner,)))
            block.axes.remove(inner)
        with self._each_head(block), self._each_row(block) as place:
            block.store(self.highest, (place,), block.full(float("-inf"), self.dtype))
            block.store(self.totals, (place,), block.full(0.0, self.dtype))
            with self._features(block) as feature:
                block.store(self.sums, (place, self._lanes(feature)), block.full(0.0, self.dtype, (feature,)))
            if self.queries is not None:
                self._compute_query(block, self.queries, place)
                self._start_row(block, self.queries, place)

    @contextmanager
    def _each_row(self, block: Block) -> Iterator[Dim]:
        """A loop over the rows of a grid point; yields the place of a row in cache tiles."""
        if self.found.row is None:
            yield self.base
            return
        with block.loop(self.found.row, "walk", 0, 0, 1, parent=self.found.row) as row:
            block.index[self.found.row] = dims.symbol(f"{row}.first")
            yield self._place(dims.symbol(f"{row}.first"))

    def _compute_query(self, block: Block, queries: str, place: Dim) -> None:
        """queries[r, d]: what is computed for a query is computed once for all columns."""
        with block.loop("d", "tile", 0, self.depth, LANES) as inner:
            block.index[self.found.inner[0]] = dims.symbol(inner)
            self._named(block)
            block.outside = True
            query = block.lower(self._wide(self.query, self.scored))
            block.outside = False
            block.store_all(queries, (place, dims.symbol(inner)), query)

    def _start_row(self, block: Block, queries: str, place: Dim) -> None:
        """row_starts[r] = the zero point of the keys times all that a row's numbers add up to, taken away."""
        if self.codes is None or self.row_starts is None or self.codes.key_zero is None:
            return
        inner = block.axis("d", 0, self.depth, self.depth)
        codes = self._cast(block, block.load(queries, (place, dims.symbol(inner)), u8), i32)
        total: Value = Reduce("sum", inner, codes, TileType(i32))
        block.axes.remove(inner)
        zero = self.codes.query_zero
        moved = block.full(0, i32) if zero is None else block.apply("mul", block.lower(zero), block.full(self.depth, i32))
        block.store(self.row_starts, (place,), block.apply("mul", block.apply("sub", moved, total), block.lower(self.codes.key_zero)))

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
        self._clear(block)
        with (
            block.loop(self.found.column, "walk", 0, 0, LANES, parent=self.columns, tail=(1,)) as columns,
            block.loop("d", "tile", 0, self.depth, LANES) as inner,
        ):
            block.index[self.found.inner[0]] = dims.symbol(inner)
            block.index[self.found.column] = dims.symbol(columns)
            self._named(block)
            block.outside = True
            value = block.lower(self.key)
            block.outside = False
            block.store_all(self.keys, (dims.symbol(inner), self._inside(columns, self.columns)), value)

    def _clear(self, block: Block) -> None:
        """keys[d, t] = 0 for the columns beyond the last that register blocks multiply as well: what lies there otherwise may be a number
        below the normal range, which takes a hundred times as long. Pairs are multiplied with these as 0; after whole steps keys lie there.
        """
        widest = max(self._widths())
        if self.scored is not None or dims.divides(widest, self.extents[self.found.column], self.problem.symbols) is True:
            return
        low = self._remaining() // LANES * LANES
        is_short = block.apply("lt", block.index_value(self._remaining()), block.index_value(self.step))
        is_first = block.apply("le", block.index_value(dims.symbol(f"{self.columns}.first")), block.index_value(0))
        with (
            block.condition(block.apply("bit_and", is_short, is_first)),
            block.loop("d", "scalar", 0, self.depth, 1) as inner,
            block.loop("t", "tile", low, self._pieces(widest) * widest, LANES) as lanes,
        ):
            zeros = block.full(zero(self.key.dtype), self.key.dtype, (lanes,))
            block.store(self.keys, (dims.symbol(inner), self._lanes(lanes)), zeros)

    def _start_columns(self, block: Block, codes: CodedScores) -> None:
        """starts[t] = the zero point of the queries times the sum of a key's codes, taken away."""
        with block.loop(self.found.column, "walk", 0, 0, self.nr, parent=self.columns) as lanes:
            inner = block.axis("d", 0, self.depth, self.depth)
            ones = self._cast(block, block.load(self.ones, (dims.symbol(inner),), u8), i32)
            place = self._inside(lanes, self.columns)
            keys = self._cast(block, block.load(self.keys, (dims.symbol(inner), place), i8), i32)
            total: Value = Dot(ones, keys, block.full(0, i32, (lanes,)), TileType(i32, (lanes,)))
            block.axes.remove(inner)
            zero = block.full(0, i32) if codes.query_zero is None else block.lower(codes.query_zero)
            total = block.let("total", total)
            block.store(self.starts, (place,), block.apply("mul", total, block.apply("neg", zero)))

    def _group_values(self, block: Block, values: str) -> None:
        """values[t, e] = value[t, e] for the columns of this step, 0 beyond the last one: neighbours along t lie together."""
        with (
            block.loop("t", "tile", 0, self.step, LANES) as columns,
            block.loop(self.found.feature, "tile", 0, self.features, LANES) as feature,
        ):
            block.index[self.found.column] = dims.symbol(f"{self.columns}.first") + dims.symbol(columns)
            block.index[self.found.feature] = dims.symbol(feature)
            self._named(block)
            block.outside = True
            value = block.lower(self.value)
            block.outside = False
            block.store_all(values, (dims.symbol(columns), self._lanes(feature)), value)

    def _named(self, block: Block) -> None:
        for let in self.found.before:
            block.later(let)

    def _row_blocks(self, block: Block, body: Callable[[Block, str | None], None]) -> None:
        """`body(rows)` for each register block of rows; rows is None where there is one row."""
        if self.found.row is None:
            if self.heads > 1:
                self._heads(block, body, 0)
            else:
                body(block, None)
            return
        row, usual = self.found.row, self.nr
        start: Dim = dims.symbol(f"{row}.first")
        end = dims.minimum(start + self.rows, self.extents[row])
        for height in self._heights(self.extents[row]):
            high = end if height == 1 else whole_blocks(start, end, height)
            if height == 1 and self.heads > 1:
                self.is_asked = False
                with block.loop(row, "scalar", start, high, 1) as single:
                    block.index[row] = dims.symbol(single)
                    self._heads(block, body, dims.symbol(single) - dims.symbol(f"{row}.first"))
                return
            self.is_asked = height == self.mr
            self.nr = usual if height == self.mr else self._columns(height)
            with self._each_head(block), block.loop(row, "tile", start, high, height) as rows:
                block.index[row] = dims.symbol(rows)
                body(block, rows)
            start, self.nr = high, usual

    def _widths(self) -> set[int]:
        """Columns of all register blocks."""
        if self.found.row is None:
            return {self.nr, self._columns(self.together)} if self.heads > 1 else {self.nr}
        return {self.nr, *map(self._columns, (*self._heights(self.extents[self.found.row]), self.together))}

    def _heights(self, extent: Dim) -> tuple[int, ...]:
        """Rows of register blocks, in falling order, which leave none."""
        if not self.in_tiles:
            return tuple(dict.fromkeys((self.mr, min(4, self.mr), 1)))
        return ladder(self.mr, lengths_of(extent, self.rows))

    def _heads(self, block: Block, body: Callable[[Block, str | None], None], place: Dim) -> None:
        """`body(rows)` for one row of the heads that share keys and values: theirs are the rows of register blocks."""
        usual, among = self.nr, self.among
        self.nr, self.among = self._columns(self.together), lambda member: member * self.rows + place
        with block.loop("member", "tile", 0, self.heads, self.together) as members:
            block.index[self.head] = dims.symbol(self.head) * self.heads + dims.symbol(members)
            body(block, members)
        self.nr, self.among = usual, among

    def _columns(self, rows: int) -> int:
        """Columns of a block of few rows: as many as the registers hold, or one row of few columns would wait for its own sums."""
        if self.in_tiles:
            return self.nr
        fits = (n for _, widths in few_rows(self.target, 1, (rows,)) for n in widths)
        return max(
            (n for n in (vectors * self.target.lanes for vectors in fits) if self.step % n == self.features % n == 0), default=self.nr
        )

    def _step(self, block: Block, rows: str | None) -> None:
        """One register block, unless a mask leaves nothing of it: what it adds is 0 then, and nothing is scaled."""
        if rows is None or self.kept is None or not self.is_asked:
            self._weighed(block, rows)
            return
        with block.condition(self._any_kept(block, rows, self.kept)):
            self._weighed(block, rows)

    def _any_kept(self, block: Block, rows: str, kept: Scalar) -> Value:
        """Whether a mask keeps anything of a register block's rows in the columns of this step."""
        row, column, usual = self.found.row, self.found.column, dict(block.index)
        members = block.axis("r", 0, self.mr, self.mr)
        block.store(self.seen, (dims.symbol(members),), block.full(False, boolean, (members,)))
        block.axes.remove(members)
        with block.loop("r", "walk", 0, 0, 1, parent=rows) as each:
            lanes = block.axis("t", 0, self._remaining(), self.step)
            block.index[column] = dims.symbol(f"{self.columns}.first") + dims.symbol(lanes)
            if row is not None:
                block.index[row] = dims.symbol(f"{each}.first")
            self._named(block)
            block.outside = True
            found = block.lower(kept)
            block.outside = False
            block.axes.remove(lanes)
            place = dims.symbol(f"{each}.first") - dims.symbol(f"{rows}.first")
            block.store(self.seen, (place,), Reduce("any", lanes, found, TileType(boolean)))
        block.index.update(usual)
        members = block.axis("r", 0, self.mr, self.mr)
        seen = block.load(self.seen, (dims.symbol(members),), boolean)
        block.axes.remove(members)
        return block.let("kept", Reduce("any", members, seen, TileType(boolean)))

    def _weighed(self, block: Block, rows: str | None) -> None:
        """Each row by itself between what is done for all of them at once, so that rows do not wait for folds."""
        self._score(block, rows)
        self._beyond(block, rows)
        for part, count in ((self._look, 1), (self._rebase, self.most), (self._weigh, 1), (self._add, self.most)):
            if rows is None:
                part(block, 0, self.base)
                continue
            with block.loop("r", "walk", 0, 0, count, parent=rows) as row:
                part(block, *self._places(dims.symbol(f"{row}.first" if count == 1 else row), rows))
        self._rescale(block, rows)
        self._accumulate(block, rows)

    def _places(self, index: Dim, rows: str) -> tuple[Dim, Dim]:
        """Where rows are in the tiles of a register block and in those of the grid point."""
        return index - dims.symbol(f"{rows}.first"), self.among(index)

    def _place(self, index: Dim) -> Dim:
        """Where a row of the head at hand is in the tiles of the grid point."""
        return index - dims.symbol(f"{self.found.row}.first") + self.base

    def _place_of(self, rows: str | None) -> Dim:
        """The same for all rows of a register block."""
        return self.among(self._lanes(rows)) if rows else self.base

    def _score(self, block: Block, rows: str | None) -> None:
        """scores[r, t] of one row block, without the factor that is in the rate of powers."""
        found, column = self.found, self.found.column
        with block.loop(column, "walk", 0, 0, self.nr, parent=self.columns) as lanes:
            block.index[column] = dims.symbol(lanes)
            axes = (rows, lanes) if rows else (lanes,)
            inner = block.axis(found.inner[0], 0, self.depth, self.depth)
            block.index[found.inner[0]] = dims.symbol(inner)
            query = self._query(block, rows, inner)
            key = block.load(self.keys, (dims.symbol(inner), self._inside(lanes, self.columns)), self.key.dtype)
            first = self._first(block, axes, self._place_of(rows), self._inside(lanes, self.columns))
            total: Value = Dot(query, self._cast(block, key, self.total), first, TileType(self.total, axes))
            place = (self._lane_of(rows), self._inside(lanes, self.columns))
            if self.powers.score == Name(found.product.name, self.dtype) and self.total == self.dtype:
                block.axes.remove(inner)
                block.store(self.scores, place, total)
                return
            product = self._cast(block, block.let(found.product.name, total))
            block.axes.remove(inner)
            block.readers[found.product.name] = lambda _: product
            self._named(block)
            block.outside = True
            score = block.lower(self.powers.score)
            block.outside = False
            block.store(self.scores, place, score)

    def _beyond(self, block: Block, rows: str | None) -> None:
        """-inf for what is looked at beyond the last column."""
        if dims.divides(self.lanes, self.extents[self.found.column], self.problem.symbols) is True:
            return
        with block.loop("t", "scalar", self._remaining(), self._pieces(self.lanes) * self.lanes, 1) as column:
            minus = block.full(float("-inf"), self.dtype, (rows,) if rows else ())
            block.store(self.scores, (self._lane_of(rows), dims.symbol(column)), minus)

    def _lane_of(self, rows: str | None) -> Dim:
        """The rows of a register block in its own tiles."""
        return dims.symbol(f"{rows}.lane") if rows else 0

    def _first(self, block: Block, axes: tuple[str, ...], row: Dim, column: Dim) -> Value:
        """What the sums of a block of scores begin with."""
        if self.codes is None:
            return block.full(0.0, self.dtype, axes)
        first = block.apply("add", block.full(0, i32, axes), block.load(self.starts, (column,), i32))
        if self.row_starts is not None:
            first = block.apply("add", first, block.load(self.row_starts, (row,), i32))
        return block.let("first", first)

    def _query(self, block: Block, rows: str | None, inner: str) -> Value:
        if self.queries is None:
            return block.lower(in_type(self.dtype, self.query))
        dtype = self._wide(self.query, self.scored).dtype
        return self._cast(block, block.load(self.queries, (self._place_of(rows), dims.symbol(inner)), dtype), self.total)

    @contextmanager
    def _scores_of(self, block: Block, local: Dim, start: Value) -> Iterator[tuple[Ref, Value, Dim]]:
        """A loop over the scores of a row in this step, some at a time: what it carries, which begins with `start` in each lane, the
        scores, and where they are in the step. Those beyond the last column are -inf.
        """
        lanes = start.type.axes[-1]
        carried = block.let("carried", start)
        with block.loop("some", "scalar", 0, self._pieces(self.lanes), 1, carries=(carried,)) as number:
            place = dims.symbol(number) * self.lanes + dims.symbol(lanes)
            yield carried, block.load(self.scores, (local, place), self.dtype), place

    def _look(self, block: Block, local: Dim, place: Dim) -> None:
        """The highest score of a row in this step. What is NaN may be passed over: it makes its own weight and all sums NaN."""
        lanes = block.axis("t", 0, self.lanes, self.lanes)
        with self._scores_of(block, local, block.full(float("-inf"), self.dtype, (lanes,))) as (highest, scores, _):
            block.rebind(highest, block.apply("where", block.apply("lt", highest, scores), scores, highest))
        block.store(self.bases, (local,), Reduce("max", lanes, highest, TileType(self.dtype)))
        block.axes.remove(lanes)

    def _rebase(self, block: Block, local: Dim, place: Dim) -> None:
        """The base of some rows, and by what their sums are rescaled: not at all while no score is much higher than what they go by."""
        old = block.let("old", block.load(self.highest, (place,), self.dtype))
        new = block.let("new", block.apply("max", old, block.load(self.bases, (local,), self.dtype)))
        margin = HIGHER / (LOG2_E if self.powers.rate is None else self.powers.rate)
        near = block.apply("le", block.apply("sub", new, old), block.full(margin, self.dtype))
        highest = block.let("highest", block.apply("where", near, old, new))
        words, rows = self._words(block), highest.type.axes
        base = self.powers.base(words, highest)
        block.store(self.highest, (place,), highest)
        block.store(self.factors, (local,), self.powers.factor(words, old, base))
        block.store(self.bases, (local,), base.value)
        if base.rate is not None:
            block.store(self.rates, (local,), block.spread(base.rate, rows))

    def _words(self, block: Block, power: str = "exp2") -> Words[Value]:
        """How powers are said in tiles; `power` is the primitive of two to a power."""
        names = {"exp2": power}

        def apply(primitive: str, *args: Value) -> Value:
            return block.apply(names.get(primitive, primitive), *args)

        return Words[Value](apply, lambda number: block.full(number, self.dtype), block.let)

    def _weigh(self, block: Block, local: Dim, place: Dim) -> None:
        """The exponentials of a row against its base."""
        is_narrow = self.found.weights.bits <= 16
        words = self._words(block, "exp2_narrow" if is_narrow else "exp2")
        rate = None if self.powers.rate is None else block.let("rate", block.load(self.rates, (local,), self.dtype))
        base = Base[Value](block.let("base", block.load(self.bases, (local,), self.dtype)), rate)
        lanes = block.axis("t", 0, self.lanes, self.lanes)
        with self._scores_of(block, local, block.full(0.0, self.dtype, (lanes,))) as (added, scores, column):
            # Without a name where it is narrow, so that its rounding knows what it rounds.
            weights = self.powers.weight(words, scores, base)
            weights = weights if is_narrow else block.let("weights", weights)
            rounded = block.apply("round", weights, dtype=self.found.weights) if is_narrow else weights
            narrow = rounded if self.factor == self.found.weights else self._cast(block, rounded)
            block.rebind(added, block.apply("add", added, weights))
            block.store(self.weights, (local, column), narrow)
        block.store(self.added, (local,), Reduce("sum", lanes, added, TileType(self.dtype)))
        block.axes.remove(lanes)

    def _rescale(self, block: Block, rows: str | None) -> None:
        """sums *= factors for one row block, if any of these is not 1."""
        factors = block.let("factors", block.load(self.factors, (self._lane_of(rows),), self.dtype))
        changed: Value = block.apply("ne", factors, block.full(1.0, self.dtype))
        if rows:
            changed = Reduce("any", rows, changed, TileType(boolean))
        with block.condition(block.let("changed", changed)), self._features(block) as feature:
            sums = block.load(self.sums, self._sums(rows, feature), self.dtype)
            block.store(
                self.sums, self._sums(rows, feature), block.apply("mul", sums, block.load(self.factors, (self._lane_of(rows),), self.dtype))
            )

    def _add(self, block: Block, local: Dim, place: Dim) -> None:
        """The totals of some rows with what was added."""
        total = block.load(self.totals, (place,), self.dtype)
        scaled = block.apply("mul", total, block.load(self.factors, (local,), self.dtype))
        block.store(self.totals, (place,), block.apply("add", scaled, block.load(self.added, (local,), self.dtype)))

    def _remaining(self) -> Dim:
        """The columns of this step that are looked at."""
        return dims.minimum(self.high - dims.symbol(f"{self.columns}.first"), self.step)

    def _whole(self) -> Dim:
        """The same in so many as are multiplied at once."""
        step = 1 if self.summed is None else self.summed.step
        return self._pieces(step) * step

    def _pieces(self, columns: int) -> Dim:
        """How many pieces of so many columns of this step are looked at, the last of them perhaps in part."""
        left = dims.ceil_div(self.high - dims.symbol(f"{self.columns}.first"), columns)
        return dims.minimum(left, self.step // columns)

    def _sums(self, rows: str | None, feature: str) -> tuple[Dim, Dim]:
        return self._place_of(rows), self._lanes(feature)

    def _accumulate(self, block: Block, rows: str | None) -> None:
        """sums += weights * values for one row block."""
        found, columns = self.found, dims.symbol(f"{self.columns}.first")
        with self._features(block) as feature:
            kind = TileType(self.dtype, (rows, feature) if rows else (feature,))
            acc = block.load(self.sums, self._sums(rows, feature), self.dtype)
            lanes = block.axis("t", 0, self._whole(), self.step)
            place = dims.symbol(lanes)
            block.index[found.column] = columns + place
            block.index[found.feature] = dims.symbol(feature)
            other = Constant(0.0, self.factor)
            weights = block.load(self.weights, (self._lane_of(rows), place), self.factor, other)
            result = Dot(self._cast(block, weights), self._value(block, place, feature), acc, kind)
            block.axes.remove(lanes)
            block.store(self.sums, self._sums(rows, feature), result)

    def _value(self, block: Block, place: Dim, feature: str) -> Value:
        """The values at these columns of the step: from where they were grouped, or as they lie."""
        if self.values is not None:
            dtype = self.value.dtype
            return self._cast(block, block.load(self.values, (place, self._lanes(feature)), dtype, Constant(0.0, dtype)))
        self._named(block)
        block.outside = True
        value = block.lower(self._wide(self.value, self.summed))
        block.outside = False
        return value

    def _finish(self, block: Block, rows: str | None) -> None:
        """Write the rows of one block."""
        found = self.found
        with self._features(block) as feature:
            block.index[found.feature] = dims.symbol(feature)
            result = block.let(found.result.name, block.load(self.sums, self._sums(rows, feature), self.dtype))
            total = block.let(found.total.name, block.load(self.totals, (self._place_of(rows),), self.dtype))
            block.readers[found.result.name] = lambda _: result
            block.readers[found.total.name] = lambda _: total
            for let in found.after:
                block.later(let)
            block.store(found.store.output, block.subscripts(found.store.subscripts, ()), block.lower(found.store.value))

    def _wide(self, value: Scalar, group: Group | None) -> Scalar:
        """A factor as it is multiplied: in the type of the sums, or of groups."""
        return value if group is not None else in_type(self.dtype, value)

    def _cast(self, block: Block, value: Value, dtype: DType | None = None) -> Value:
        dtype = dtype or self.dtype
        return value if value.type.dtype == dtype else block.apply("cast", value, dtype=dtype)
