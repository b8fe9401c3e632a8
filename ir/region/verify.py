"""The region verifier: the rules of the form, each broken one a VerifyError that shows the statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import dims
from ..dims import Dim
from ..errors import VerifyError
from ..expression import Apply, Index
from ..scalar import PRIMITIVES, rounds
from ..types import DType, boolean, i64
from .region import REDUCTIONS, SCANS, Let, Load, Reduce, Ref, Region, Scalar, Scan, Statement, Store, walk
from .text import print_statement

COMBINES = ("add", "mul", "max", "min")


def verify_region(region: Region, facts: dims.Facts = dims.NO_FACTS) -> None:
    """VerifyError unless the region keeps the rules of its form; `facts` are what is known of the symbols."""
    _Verifier(region, facts).run()


class _Verifier:
    """One pass over the statements with what was defined so far."""

    def __init__(self, region: Region, facts: dims.Facts) -> None:
        self.region = region
        self.facts = region.facts(facts)
        self.values: dict[str, tuple[tuple[str, ...], DType]] = {}
        self.statement: Statement | None = None

    def fail(self, message: str) -> VerifyError:
        """The message, with the statement it is about."""
        note = None if self.statement is None else print_statement(self.statement, self.region)
        return VerifyError(f"region {self.region.name}: {message}", note=note)

    def run(self) -> None:
        self.check_names()
        for statement in self.region.body:
            self.statement = statement
            self.check(statement)
        self.statement = None
        stored = {statement.output for statement in self.region.body if isinstance(statement, Store)}
        for output in self.region.outputs:
            if output.name not in stored:
                raise self.fail(f"output %{output.name} is never stored")

    def check_names(self) -> None:
        names = [operand.name for operand in (*self.region.inputs, *self.region.outputs)]
        names += [statement.name for statement in self.region.body if not isinstance(statement, Store)]
        self.once(names, "value %")
        axes = [axis.name for axis in self.region.axes]
        self.once(axes, "axis ")
        sizes = [size for operand in (*self.region.inputs, *self.region.outputs) for size in operand.type.shape]
        for size in (*sizes, *(axis.extent for axis in self.region.axes)):
            shared = dims.symbols(size) & set(axes)
            if shared:
                raise self.fail(f"axis {min(shared)} has the name of a symbol in the size {size}")

    def once(self, names: Sequence[str], what: str) -> None:
        for name in names:
            if names.count(name) > 1:
                raise self.fail(f"{what}{name} is defined twice")

    # statements

    def check(self, statement: Statement) -> None:
        scope = statement.axes
        if isinstance(statement, Reduce):
            self.check_reduce(statement)
            scope = (*statement.axes, *statement.over)
        elif isinstance(statement, Scan):
            self.check_scan(statement)
        for axis in scope:
            if axis not in self.region.extents:
                raise self.fail(f"{axis} is not an axis")
        self.once(scope, "axis ")
        self.check_value(statement.value, scope)
        if isinstance(statement, Store):
            self.check_store(statement)
        else:
            dtype = statement.value.dtype if isinstance(statement, Let) else statement.dtype
            self.values[statement.name] = (statement.axes, dtype)

    def check_reduce(self, statement: Reduce) -> None:
        if statement.kind not in REDUCTIONS:
            raise self.fail(f"got reduction {statement.kind!r}, expected one of {', '.join(REDUCTIONS)}")
        if not statement.over:
            raise self.fail("a reduction names no axis to fold")
        if statement.kind.startswith("arg") and len(statement.over) != 1:
            raise self.fail(f"{statement.kind} folds {len(statement.over)} axes, expected 1")
        expected = i64 if statement.kind.startswith("arg") else statement.value.dtype
        if statement.dtype != expected:
            raise self.fail(f"{statement.kind} has dtype {statement.dtype}, expected {expected}")
        if statement.kind in ("any", "all") and statement.dtype != boolean:
            raise self.fail(f"{statement.kind} of {statement.dtype}, expected bool")

    def check_scan(self, statement: Scan) -> None:
        if statement.kind not in SCANS:
            raise self.fail(f"got scan {statement.kind!r}, expected one of {', '.join(SCANS)}")
        if statement.along not in statement.axes:
            raise self.fail(f"a scan along {statement.along} must vary over it")
        if statement.dtype != statement.value.dtype:
            raise self.fail(f"{statement.kind} has dtype {statement.dtype}, expected {statement.value.dtype}")

    def check_store(self, statement: Store) -> None:
        outputs = {operand.name: operand.type for operand in self.region.outputs}
        if statement.output not in outputs:
            raise self.fail(f"%{statement.output} is not an output")
        type_ = outputs[statement.output]
        if statement.value.dtype != type_.dtype:
            raise self.fail(f"got a value of {statement.value.dtype}, expected {type_.dtype}")
        if statement.combine is not None and statement.combine not in COMBINES:
            raise self.fail(f"got combine {statement.combine!r}, expected one of {', '.join(COMBINES)}")
        self.check_access(statement.output, type_.shape, statement.subscripts, statement.gathers, statement.axes)

    # values

    def check_value(self, value: Scalar, scope: Sequence[str]) -> None:
        for part in walk(value):
            if isinstance(part, Apply):
                self.check_apply(part)
            elif isinstance(part, Load):
                self.check_load(part, scope)
            elif isinstance(part, Ref):
                self.check_reference(part, scope)
            elif isinstance(part, Index):
                self.check_symbols(part.value, scope, ())

    def check_apply(self, value: Apply[Scalar]) -> None:
        entry = PRIMITIVES.get(value.primitive)
        if entry is None:
            raise self.fail(f"{value.primitive} is not a scalar primitive")
        if entry.result == "given":
            if value.primitive == "round" and not rounds(value.args[0].dtype, value.dtype):
                raise self.fail(
                    f"round of {value.args[0].dtype} to {value.dtype}, expected f32 to a narrower float; a conversion is a cast"
                )
            return
        if len(value.args) != entry.arity:
            raise self.fail(f"{value.primitive} has {len(value.args)} operands, expected {entry.arity}")
        args = value.args[1:] if value.primitive == "where" else value.args
        if value.primitive == "where" and value.args[0].dtype != boolean:
            raise self.fail(f"the condition of where is {value.args[0].dtype}, expected bool")
        for arg in args[1:]:
            if arg.dtype != args[0].dtype:
                raise self.fail(f"{value.primitive} of {args[0].dtype} and {arg.dtype}, expected one dtype")
        expected = entry.result_of(args[0].dtype)
        if value.dtype != expected:
            raise self.fail(f"{value.primitive} has dtype {value.dtype}, expected {expected}")

    def check_reference(self, value: Ref, scope: Sequence[str]) -> None:
        if value.name not in self.values:
            raise self.fail(f"%{value.name} is read before it is defined")
        axes, dtype = self.values[value.name]
        if dtype != value.dtype:
            raise self.fail(f"%{value.name} is {dtype}, read as {value.dtype}")
        for axis in axes:
            if axis not in scope:
                raise self.fail(f"%{value.name} varies over {axis}, which is not an axis of its reader")

    def check_load(self, value: Load, scope: Sequence[str]) -> None:
        inputs = {operand.name: operand.type for operand in self.region.inputs}
        if value.operand not in inputs:
            raise self.fail(f"%{value.operand} is not an input")
        type_ = inputs[value.operand]
        if value.dtype != type_.dtype:
            raise self.fail(f"%{value.operand} is {type_.dtype}, loaded as {value.dtype}")
        if value.other is not None and value.other.dtype != value.dtype:
            raise self.fail(f"the value outside %{value.operand} is {value.other.dtype}, expected {value.dtype}")
        self.check_access(value.operand, type_.shape, value.subscripts, value.gathers, scope)
        empty = any(extent == 0 for extent in self.region.extents.values())
        for subscript, size in zip(value.subscripts, type_.shape, strict=True):
            held = dims.at_most(0, subscript, self.facts) is not False and dims.at_most(subscript, size - 1, self.facts) is not False
            if not held and value.other is None and not empty:
                raise self.fail(f"subscript {subscript} leaves the size {size} of %{value.operand}, which has no value outside")

    def check_access(
        self, name: str, shape: Sequence[Dim], subscripts: Sequence[Dim], gathers: Iterable[tuple[str, Scalar]], scope: Sequence[str]
    ) -> None:
        if len(subscripts) != len(shape):
            raise self.fail(f"got {len(subscripts)} subscripts of %{name}, expected {len(shape)}")
        placeholders = []
        for placeholder, gather in gathers:
            placeholders.append(placeholder)
            if not gather.dtype.is_integer:
                raise self.fail(f"subscript {placeholder} of %{name} is {gather.dtype}, expected an integer")
            self.check_value(gather, scope)
        for subscript in subscripts:
            self.check_symbols(subscript, scope, placeholders)

    def check_symbols(self, value: Dim, scope: Sequence[str], placeholders: Sequence[str]) -> None:
        for name in sorted(dims.symbols(value)):
            if name in self.region.extents and name not in scope:
                raise self.fail(f"{value} uses the axis {name}, over which the statement does not vary")
            if name.startswith("%") and name not in placeholders:
                raise self.fail(f"{value} uses {name}, which no gather defines")
