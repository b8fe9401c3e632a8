"""Legality: which values a kernel that reads them can compute or store, each rule a function that says in a sentence why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Op, Value
from ...ir.region import Axis, Load, Reduce, Region
from ...ir.types import f32
from ..match import is_finite
from ..regions.compose import plain_axes
from ..regions.facts import OpFacts, loads_of
from ..regions.simplify_region import simplify_region
from ..weights.weights import STORED
from .choices import Choices

RESULTS = 8
"""At most so many values are stored beside the results of one group: each is one more place that is written at once."""

SHORT_FOLD = 32
"""Along so few elements a fold needs no loop of its own: it is a part of one over rows that it divides."""
HELD_ROW = 16_384
"""A row of so many elements is held while it is folded by parts and then whole."""
HELD_FOLDS = 4_096
"""So many elements are folded, and their sums folded again, by the threads that hold them: 64 ranks of 64 elements. Of 128 two kernels take
less where there are many rows (estimated)."""

KINDS = {"contract": "a product", "reduce": "a reduction", "scan": "a scan", "scatter": "a scatter", "opaque": "a step of the host"}
"""What groups are called where they cannot take a value in."""


@dataclass(frozen=True)
class Question:
    """May `value`, the one result of `op`, be computed in these `readers` (roots of groups)?"""

    choices: Choices
    op: Op
    value: Value
    readers: frozenset[Op]

    @property
    def facts(self) -> OpFacts:
        return self.choices.facts[self.op]

    @property
    def kind(self) -> str:
        return self.facts.kind

    @property
    def first(self) -> Op:
        """The reading group that comes first."""
        return self.choices.first(self.readers)

    @property
    def ordered(self) -> list[Op]:
        """The readers in the graph's order."""
        return sorted(self.readers, key=self.choices.places.__getitem__)

    @property
    def users(self) -> list[Op]:
        """The ops that read the value in these groups."""
        return [user for user in self.value.uses if self.choices.sinks[user] & self.readers]

    @property
    def of_first(self) -> Question:
        """The same question of the first reading group alone."""
        return replace(self, readers=frozenset({self.first}))

    @property
    def stays_small(self) -> bool:
        """Codes are what is kept in memory, however many kernels read them: those of a weight, and those that are only multiplied."""
        operands = self.op.operands
        if all(v is None or v.constant is not None for v in operands):
            return not operands or self.op.name in STORED
        return self.op.name in STORED and all(_feeds_product(self.choices, user) for user in self.value.uses)

    @property
    def is_everywhere(self) -> bool:
        """Whether it is computed in each of several kernels because what it is made of is small."""
        return self.kind == "map" and len(self.readers) > 1 and self.stays_small

    def user_kinds(self) -> set[str]:
        """The kinds of the ops that read the value."""
        return {self.choices.facts[user].kind for user in self.value.uses}


Rule = Callable[[Question], str | None]
"""Why not, or None where the rule has nothing against it; every rule's docstring says what it refuses."""


def refusal(question: Question, rules: Sequence[Rule]) -> str | None:
    """What the first rule that refuses says."""
    return next((why for rule in rules if (why := rule(question)) is not None), None)


# --- of the op alone --------------------------------------------------------------------------------------------------


def host(q: Question) -> str | None:
    """What runs on the host is in memory."""
    return "the host computes it, outside of kernels" if q.facts.region is None else None


def scattered(q: Question) -> str | None:
    """A scatter's elements are not known by their places."""
    return "a scatter writes its elements at places that only the data say" if q.kind == "scatter" else None


def scanned(q: Question) -> str | None:
    """A scan's elements come one after the other."""
    return "a scan makes each element from the one before, in a kernel of its own" if q.kind == "scan" else None


def written_in_pieces(q: Question) -> str | None:
    """An op has one result, and each element of it one place, at axes of its own."""
    return None if q.facts.writes_plainly else "its op writes it piece by piece"


def unread(q: Question) -> str | None:
    """There has to be a kernel to compute it in."""
    if q.readers:
        return None
    return "only the caller reads it" if q.value in q.choices.outputs else "nothing reads it"


# --- computed where it is read ----------------------------------------------------------------------------------------


def returned(q: Question) -> str | None:
    """What the caller reads is in memory."""
    return "it is also a result, which the caller reads" if q.value in q.choices.outputs else None


def read_by_data(q: Question) -> str | None:
    """Every load of it is inside of it and at places that are known, not those of a gather."""
    return next((why for user in q.users if (why := why_not_plainly(q.choices, user, q.value)) is not None), None)


def moved_for_scatter(q: Question) -> str | None:
    """A scatter reads its operands as they lie; one into a product may not stand between."""
    alone = q.kind != "movement" or "contract" in q.user_kinds()
    return None if alone or "scatter" not in q.user_kinds() else "a scatter reads its operands from memory"


def moved_for_product(q: Question) -> str | None:
    """Into a product only where every subscript stays free of divisions and the innermost stride stays; however often it is moved on."""
    if q.kind != "movement":
        return None
    load = q.facts.moves
    gathers = load is not None and bool(load.gathers) and any(_feeds_product(q.choices, user) for user in q.value.uses)
    if "contract" not in q.user_kinds() and not gathers:
        return None
    if load is None or load.gathers or q.facts.region is None or (load.other is not None and not all(map(_folds_channels, q.value.uses))):
        return "through it a product would gather single elements, or read beyond edges"
    simple = simplify_region(q.facts.region, q.choices.module.facts).body[-1].value
    affine = isinstance(simple, Load) and not any(map(dims.has_division, (*simple.subscripts, *load.subscripts)))
    if not affine and not _resolves(q):
        return "through it a product would need divisions to find each element"
    return "through it a product would read elements that do not lie side by side" if q.facts.is_strided else None


def product_operand(q: Question) -> str | None:
    """A product reads its operands from memory, but for weights in a stored form, and of one attention mask and narrow keys and values."""
    if q.kind != "map" or q.is_everywhere or q.op.name in STORED or _is_mask(q) or _is_widened(q):
        return None
    if not any(_feeds_product(q.choices, user) for user in q.value.uses):
        return None
    return "a product reads it, and would compute each element again for every row or column of its result"


def computed_scale(q: Question) -> str | None:
    """A scale that is made of codes while a model runs is in memory, but where products multiply those codes as they are."""
    if q.choices.narrow or q.op.name not in STORED or all(v is None or v.constant is not None for v in q.op.operands):
        return None
    if not any(_feeds_product(q.choices, user) for user in q.value.uses) or not _scales_codes(q.choices, q.value):
        return None
    return "it scales the codes that a product reads, and would be computed again for every row or column of its result"


def scale_of_a_sum(q: Question) -> str | None:
    """What a product reads decoded has finite scales: they leave the sum (`hoist_scales`), and infinity times a sum is another number."""
    if q.op.name not in STORED or not any(_feeds_product(q.choices, user) for user in q.value.uses):
        return None
    shared = [v for v in q.op.operands if v is not None and v.shape != q.value.shape]
    return None if all(map(is_finite, shared)) else "a scale of it is not finite, and may not multiply the sum instead of its terms"


def in_several_loops(q: Question) -> str | None:
    """In several kernels only where all of them run along plain axes, or fold."""
    if q.kind not in ("map", "contract", "reduce") or q.is_everywhere or len(q.readers) == 1:
        return None
    kinds = [q.choices.group_kinds[root] for root in q.ordered]
    other = "contract" if q.kind == "contract" else next((kind for kind in kinds if kind not in ("map", "movement", "reduce")), None)
    count = len(q.readers)
    if other is None:
        return None
    if q.kind == "contract":
        return f"{count} kernels read it, and a product is computed only once"
    return f"{count} kernels read it, and one of them is {KINDS.get(other, other)}, which computes nothing that others need too"


def scatter_operand(q: Question) -> str | None:
    """A scatter reads what it adds from memory."""
    if q.kind != "map" or q.is_everywhere or "scatter" not in q.user_kinds():
        return None
    return "a scatter reads its operands from memory"


def folded_again(q: Question) -> str | None:
    """Into a group that folds, scans or scatters goes no fold, but a reduction into one of reductions."""
    kinds = [q.choices.group_kinds[root] for root in q.ordered] if q.facts.sums else []
    full = next((kind for kind in kinds if kind not in ("map", "movement") and not q.kind == kind == "reduce"), None)
    return None if full is None else f"a kernel that reads it is {KINDS.get(full, full)}, which cannot make sums of its own for it"


def folded_whole(q: Question) -> str | None:
    """A reduction of everything would run in a row inside of a kernel."""
    if q.kind != "reduce" or q.facts.keeps_parallelism:
        return None
    return "it sums up everything, which inside of another kernel would run on one thread"


def other_rows(q: Question) -> str | None:
    """One loop over rows serves all reductions of a group, but for short ones of parts of a row."""
    if q.kind != "reduce" or all(_shares_rows(q, root) for root in q.readers):
        return None
    return "the kernel that reads it sums along other rows, and has one loop over rows"


def epilogue(q: Question) -> str | None:
    """A product goes into pointwise ops that make each of their elements of one of its elements, however often they read that."""
    if q.kind != "contract" or len(q.readers) != 1:
        return None
    root = q.first
    if len(root.results) != 1 or dims.equal(q.value.type.elements, root.results[0].type.elements) is not True:
        return "the kernel that reads it does not make one element for each element of the product"
    one = _is_read_at_one_place(q, root)
    return None if one else "what reads the product needs several of its elements for one, or movements take its axes apart"


# --- stored beside ----------------------------------------------------------------------------------------------------


def no_element(q: Question) -> str | None:
    """What is stored beside is computed there: a pointwise value or a reduction."""
    if q.kind in ("map", "reduce"):
        return None
    return f"a {q.kind if q.kind == 'movement' else 'product'} is written by its own kernel alone"


def other_loops(q: Question) -> str | None:
    """The first group that reads it runs along plain axes, or folds."""
    kind = q.choices.group_kinds[q.first]
    return (
        None
        if kind in ("map", "movement", "reduce")
        else f"the first kernel that reads it is {KINDS.get(kind, kind)}, which writes its results alone"
    )


def own_order(q: Question) -> str | None:
    """A group stores beside its results in the order of rows."""
    return "it lies in memory in another order than the first kernel that reads it writes" if q.value in q.choices.orders else None


def many_results(q: Question) -> str | None:
    """A group stores so many values at most."""
    full = len(q.choices.stored.get(q.first, ())) >= RESULTS
    return f"the first kernel that reads it writes {RESULTS} other values beside its results already" if full else None


OF_THE_OP: tuple[Rule, ...] = (unread, host, scattered, scanned, written_in_pieces)
"""Where one refuses the value is in memory, whoever reads it."""

WHERE_READ: tuple[Rule, ...] = (
    *(returned, read_by_data, moved_for_scatter, moved_for_product),
    *(product_operand, computed_scale, scale_of_a_sum, in_several_loops, scatter_operand, folded_again, folded_whole, other_rows, epilogue),
)
"""Where none refuses, all groups that read the value can compute it."""

BESIDE: tuple[Rule, ...] = (no_element, other_loops, own_order, many_results, folded_whole, other_rows, read_by_data)
"""Where none refuses, asked of the first group that reads the value, that can store it too; its root comes before all others."""


# --- what the rules ask -----------------------------------------------------------------------------------------------


def why_not_plainly(choices: Choices, user: Op, value: Value) -> str | None:
    """Why not every load of `value` in `user` is inside the operand and no gather."""
    facts, made = choices.facts[user], choices.facts[value.op] if value.op is not None else None
    if facts.region is None:
        return f"{user.name}, a step of the host, reads it"
    for load in loads_of(facts.region, user, value):
        if load.gathers:
            return f"{user.name} reads it at places that only the data say"
        if load.other is not None and (facts.kind not in ("map", "movement") or made is None or not made.is_plain):
            return f"{user.name} reads beyond its edges, where it has no elements"
    return None


def _folds_channels(user: Op) -> bool:
    """Whether an op is a convolution of each channel by itself: it tests where an image ends once, when it copies that."""
    image, filters = user.operands[:2] if user.name == "conv" else (None, None)
    return image is not None and filters is not None and image.shape[1] == user.attrs["groups"]


def _resolves(q: Question) -> bool:
    """Whether a reshape's divisions vanish: it only splits or merges whole dimensions."""
    load, region = q.facts.moves, q.facts.region
    if load is None or region is None:
        return False
    facts = region.facts(q.choices.module.facts)
    return not any(dims.has_division(dims.simplify(s, facts)) for s in load.subscripts)


def _feeds_product(choices: Choices, user: Op, moved: bool = False) -> bool:
    """Whether an op is a product, or inside of one says how a factor lies in memory or moves it; attention's operands may be moved."""
    if choices.facts[user].kind == "contract":
        return not (moved and user.name == "attention")
    passes = user.name in STORED or choices.facts[user].kind == "movement"
    if not passes or not any(result in choices.inlined for result in user.results):
        return False
    return any(_feeds_product(choices, other, moved or user.name not in STORED) for result in user.results for other in result.uses)


def _scales_codes(choices: Choices, value: Value) -> bool:
    """Whether a value, moved or not, says what codes are multiplied by."""
    for user in value.uses:
        if user.name in STORED and value in user.operands[1:]:
            return True
        if choices.facts[user].kind == "movement" and any(_scales_codes(choices, result) for result in user.results):
            return True
    return False


def _is_mask(q: Question) -> bool:
    """A mask read by attention may be computed where it is used."""
    return len(q.users) == 1 and all(user.name == "attention" and user.operands[3:4] == (q.value,) for user in q.users)


def _is_widened(q: Question) -> bool:
    """Keys and values that attention reads may be kept in a narrower float: widening is exact, and costs next to nothing."""
    (source,) = q.op.operands if q.op.name == "cast" else (None,)
    if source is None or q.value.dtype != f32 or not source.dtype.is_float or source.dtype.bits >= f32.bits:
        return False
    return len(q.users) == 1 and all(user.name == "attention" and q.value in user.operands[1:3] for user in q.users)


def _shares_rows(q: Question, root: Op) -> bool:
    """Whether a group's reductions run over the same rows: one loop over rows serves them all."""
    rows, present = q.facts.rows, q.choices.group_rows.get(root)
    if rows is None or present is None:
        return present is None
    elements = _folded_again(q) if q.choices.narrow else None
    # However many there are, its rows are others than those that fold them; a GPU's threads hold short ones together.
    shares = dims.equal(rows, present) if elements is None else dims.at_most(elements, HELD_FOLDS, q.choices.module.facts)
    # Rows that are held lie in registers of many threads; processors that walk along them lose more than a buffer costs.
    return shares is True or (q.choices.narrow and _folds_parts(q, present))


def _folded_again(q: Question) -> Dim | None:
    """How many elements are folded for one result of a reader that folds a reduction's sums again; None where none does."""
    own = q.facts.region
    fold = next((s for s in own.body if isinstance(s, Reduce)), None) if own is not None else None
    along = plain_axes(own) if own is not None else None
    if own is None or fold is None or along is None:
        return None
    dimensions = [along[axis] for axis in fold.axes if axis in along]
    for user in q.users:
        region = q.choices.facts[user].region
        if region is None:
            continue
        read = {name for load in loads_of(region, user, q.value) for d in dimensions for name in dims.symbols(load.subscripts[d])}
        for again in (s for s in region.body if isinstance(s, Reduce)):
            if read & set(again.over):
                return dims.product([*(own.axis(n).extent for n in fold.over), *(region.axis(n).extent for n in again.over)])
    return None


def _folds_parts(q: Question, rows: Dim) -> bool:
    """Whether a reduction folds short parts of the rows that a group folds whole: blocks that have a scale, in rows that have one too."""
    region, shape, facts = q.facts.region, q.value.shape, q.choices.module.facts
    fold = next((s for s in region.body if isinstance(s, Reduce)), None) if region is not None else None
    if region is None or fold is None or len(shape) < 2 or dims.equal(shape[0], rows) is not True:
        return False
    length = dims.product(region.axis(name).extent for name in fold.over)
    short = dims.at_most(length, SHORT_FOLD, facts) is True
    return short and dims.at_most(length * dims.product(shape[1:]), HELD_ROW, facts) is True


def _is_read_at_one_place(q: Question, root: Op) -> bool:
    """Whether `root` is made of a product by pointwise ops and, if it is no chain of sums, movements that keep every element, and all
    that read it, or what is made of it, need the same element of it for one of the root's.

    Movements that together take an axis apart would leave a contraction without rows and columns.
    """
    facts, kinds = q.choices.facts, ("map",) if q.facts.is_chained else ("map", "movement")
    made = _made_of(q.value, root)
    if any(value in q.choices.beside for value in made):
        return False
    ops = sorted({user for value in made for user in value.uses}, key=q.choices.places.__getitem__, reverse=True)
    if any(facts[op].kind not in kinds or dims.equal(op.results[0].type.elements, q.value.type.elements) is not True for op in ops):
        return False
    if facts[root].kind == "movement" and facts[root].is_strided:
        return False
    # No symbol of the graph is called so.
    axes = tuple(Axis(f"${n}", size) for n, size in enumerate(root.results[0].shape))
    known = Region("", (), (), axes, ()).facts(q.choices.module.facts)
    places: dict[Value, tuple[Dim, ...]] = {root.results[0]: tuple(0 if axis.extent == 1 else dims.symbol(axis.name) for axis in axes)}
    for op in ops:
        for value in dict.fromkeys(v for v in op.operands if v in made):
            found = _places_read(facts[op].region, op, value, places[op.results[0]], known)
            if len(found) != 1 or places.setdefault(value, found[0]) != found[0]:
                return False
    return not any(map(dims.has_division, places[q.value]))


def _made_of(value: Value, root: Op) -> dict[Value, None]:
    """A value and what the group of `root` makes of it on the way to its result."""
    made = {value: None}
    pending = [value]
    for each in pending:
        fresh = [result for user in each.uses if user is not root for result in user.results if result not in made]
        made.update(dict.fromkeys(fresh))
        pending += fresh
    return made


def _places_read(region: Region | None, op: Op, value: Value, place: tuple[Dim, ...], facts: dims.Facts) -> list[tuple[Dim, ...]]:
    """Where an op reads a value for the element of its result at `place`: a place for each of its loads, the same ones once."""
    along = plain_axes(region) if region is not None else None
    if region is None or along is None or any(axis.extent != 1 and axis.name not in along for axis in region.axes):
        return []
    mapping = {axis.name: 0 if axis.extent == 1 else place[along[axis.name]] for axis in region.axes}
    loads = loads_of(region, op, value)
    return list(dict.fromkeys(tuple(dims.simplify(dims.substitute(s, mapping), facts) for s in load.subscripts) for load in loads))


__all__ = ["BESIDE", "OF_THE_OP", "RESULTS", "WHERE_READ", "Question", "Rule", "refusal"]
