"""How an op is declared: one function whose signature, docstring and body are the op, and the facts beside it.

Operands are the parameters before `/` (or one `*xs`), attributes those after `*`. Three kinds:

- `pointwise`: the body uses scalar primitives only; structure and types are derived from it
- `structured`: the body is numpy; `op.region` declares its index structure
- `opaque`: the body is numpy or Python and runs as a host step

In a declaration, `infers`, `region` and `samples` attach the other facts. The table is complete after import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Array, Traced
from ..types import LARGEST, DType, TensorType, boolean, c64, c128, f64, from_numpy

Types: TypeAlias = "TensorType | tuple[TensorType, ...]"
TOO_LARGE = "no machine holds so much: check the sizes that the model computes"
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Attribute:
    """A compile-time parameter of an op; `default` is REQUIRED where there is none."""

    name: str
    annotation: str
    default: Any


@dataclass(frozen=True)
class OperandSpec:
    """An operand of an op; at most the last one is variadic."""

    name: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class Sample:
    """Operands (arrays, None for an absent one) and attributes to test an op with; `error` is a failing sample's text."""

    operands: tuple[np.ndarray[Any, Any] | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


class OpDef:
    """One op: name, operands, attributes, documentation, meaning, types, structure, importer names, samples."""

    def __init__(
        self, body: Callable[..., Any], kind: str, onnx: str | tuple[str, ...], torch: str | tuple[str, ...], traits: Iterable[str]
    ) -> None:
        self.name = body.__name__.rstrip("_")
        self.kind = kind
        self.body = body
        self.doc = inspect.getdoc(body) or ""
        self.onnx = (onnx,) if isinstance(onnx, str) else onnx
        self.torch = (torch,) if isinstance(torch, str) else torch
        self.traits = frozenset(traits)
        self.operands, self.attributes = _signature(body)
        self._infer: Callable[..., Types] | None = None
        self._region: Callable[..., None] | None = None
        self._samples: Callable[[], Iterator[Sample]] | None = None

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @property
    def is_pure(self) -> bool:
        """Whether the op may be removed, folded and shared (not random, no side effect)."""
        return "impure" not in self.traits

    @property
    def converts(self) -> bool:
        """Whether the op is a conversion that a model writes: its rounding is its meaning, not an effect of its dtype."""
        return "converts" in self.traits

    def infers(self, function: Callable[..., Types]) -> Callable[..., Types]:
        """Attach type inference: operand types in, result type or types out."""
        self._infer = function
        return function

    def region(self, function: Callable[..., None]) -> Callable[..., None]:
        """Attach the index structure: `function(r: RegionBuilder, *operand types, **attrs)` builds one region."""
        self._region = function
        return function

    def samples(self, function: Callable[[], Iterator[Sample]]) -> Callable[[], Iterator[Sample]]:
        """Attach sample operands and attributes, valid ones and failing ones."""
        self._samples = function
        return function

    @property
    def has_region(self) -> bool:
        return self._region is not None or self.kind == "pointwise"

    @property
    def build_region(self) -> Callable[..., None] | None:
        """The declared structure; None for pointwise (derived) and opaque ops."""
        return self._region

    def sample_list(self) -> list[Sample]:
        """The declared samples."""
        return list(self._samples()) if self._samples else []

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """`attrs` with defaults filled in; VerifyError for an unknown or a missing one."""
        known = {attribute.name: attribute for attribute in self.attributes}
        for name in attrs:
            if name not in known:
                raise VerifyError(f"{self.name}: unknown attribute {name!r}, expected one of {', '.join(sorted(known)) or 'none'}")
        result = {}
        for name, attribute in known.items():
            value = attrs.get(name, attribute.default)
            if value is REQUIRED:
                raise VerifyError(f"{self.name}: attribute {name!r} is missing")
            result[name] = value
        return result

    def infer(self, types: tuple[TensorType | None, ...], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """The result types; VerifyError says what was got and what was expected."""
        self._check_count(types)
        attrs = self.complete(attrs)
        result = self._infer(*types, **attrs) if self._infer else self._infer_pointwise(types, attrs)
        results: tuple[TensorType, ...] = result if isinstance(result, tuple) else (result,)
        for type in results:
            excess = type.excess()
            if excess is not None:
                raise VerifyError(f"{self.name}: the result {type} has {excess}, expected at most {LARGEST}", hint=TOO_LARGE)
        return results

    def trace(self, dtypes: Iterable[DType], attrs: Mapping[str, Any], names: Iterable[Any]) -> Traced:
        """The scalar expression of a pointwise op over leaf expressions `names` of these dtypes, in compute types."""
        leaves = [Traced(leaf, dtype) for leaf, dtype in zip(names, dtypes, strict=True)]
        compute = [scalar.cast(leaf, leaf.dtype.compute) for leaf in leaves]
        result: Traced = self.body(*compute, **self.complete(attrs))
        return result

    def _check_count(self, types: tuple[TensorType | None, ...]) -> None:
        variadic = bool(self.operands) and self.operands[-1].variadic
        least = sum(not (o.optional or o.variadic) for o in self.operands)
        if len(types) < least or (len(types) > len(self.operands) and not variadic):
            expected = f"{least}" if least == len(self.operands) else f"{least} to {'any number' if variadic else len(self.operands)}"
            raise VerifyError(f"{self.name}: got {len(types)} operands, expected {expected}")
        for spec, given in zip(self.operands, types, strict=False):
            if given is None and not spec.optional:
                raise VerifyError(f"{self.name}: operand {spec.name!r} is missing")

    def _is_scaling(self, types: Sequence[TensorType]) -> bool:
        """Whether a narrow float is multiplied or divided by a factor in the type that it is computed in: the result is narrow."""
        if "scaling" not in self.traits or len(types) != 2:
            return False
        pairs = (types, types[::-1]) if "commutative" in self.traits else (types,)
        return any(x.dtype.is_float and factor.dtype == x.dtype.compute for x, factor in pairs)

    def _infer_pointwise(self, types: tuple[TensorType | None, ...], attrs: Mapping[str, Any]) -> TensorType:
        if self.kind != "pointwise":
            raise VerifyError(f"{self.name}: has no type inference")
        known = [t for t in types if t is not None]
        for t in known:
            if t.dtype.kind == "string":
                raise VerifyError(f"{self.name}: got {t}, expected numbers; strings are computed by host steps")
        # A bool may be a condition beside other operands; the body says where it is not.
        values = [t for t in known if t.dtype != boolean]
        if values and not self._is_scaling(values):
            same_dtype(self.name, *values)
        shape = broadcast(self.name, *(t.shape for t in known))
        try:
            traced = self.trace([t.dtype for t in known], attrs, [None] * len(known))
        except TypeError as error:
            raise VerifyError(f"{self.name}: {error}; operands are {', '.join(str(t) for t in known)}") from error
        return TensorType(narrowed(traced.dtype, [t.dtype for t in known]), shape)


def narrowed(dtype: DType, operands: Iterable[DType]) -> DType:
    """The declared result type of a body that computed in `dtype`: the operands' own narrow float where there is one."""
    for operand in operands:
        if operand.is_float and operand.compute == dtype:
            return operand
    return dtype


OPS: dict[str, OpDef] = {}


def pointwise(
    *, onnx: str | tuple[str, ...] = (), torch: str | tuple[str, ...] = (), traits: Iterable[str] = ()
) -> Callable[[Callable[..., Array]], OpDef]:
    """Declare a pointwise op; traits: commutative, associative, idempotent, monotone, scaling, converts, impure."""
    return _declare("pointwise", onnx, torch, traits)


def structured(
    *, onnx: str | tuple[str, ...] = (), torch: str | tuple[str, ...] = (), traits: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], OpDef]:
    """Declare an op with a numpy body and an index structure of its own."""
    return _declare("structured", onnx, torch, traits)


def opaque(
    *, onnx: str | tuple[str, ...] = (), torch: str | tuple[str, ...] = (), traits: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], OpDef]:
    """Declare an op that runs as a host step."""
    return _declare("opaque", onnx, torch, traits)


def _declare(
    kind: str, onnx: str | tuple[str, ...], torch: str | tuple[str, ...], traits: Iterable[str]
) -> Callable[[Callable[..., Any]], OpDef]:
    def declare(body: Callable[..., Any]) -> OpDef:
        definition = OpDef(body, kind, onnx, torch, traits)
        if definition.name in OPS:
            raise ValueError(f"op {definition.name} is declared twice")
        OPS[definition.name] = definition
        return definition

    return declare


def _signature(body: Callable[..., Any]) -> tuple[tuple[OperandSpec, ...], tuple[Attribute, ...]]:
    operands, attributes = [], []
    for parameter in inspect.signature(body).parameters.values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            operands.append(OperandSpec(parameter.name, optional=parameter.default is None))
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            operands.append(OperandSpec(parameter.name, variadic=True))
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            attributes.append(Attribute(parameter.name, str(parameter.annotation), parameter.default))
        else:
            raise TypeError(f"op {body.__name__}: {parameter.name} is neither before '/' nor after '*'")
    return tuple(operands), tuple(attributes)


# --- helpers for inference --------------------------------------------------------------------------------------------


def broadcast(op: str, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The numpy broadcast of shapes; VerifyError where two sizes differ or cannot be shown equal."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = []
    for position in range(rank):
        size: Dim = 1
        for shape in shapes:
            place = position - rank + len(shape)
            if place < 0 or shape[place] == 1:
                continue
            if size == 1:
                size = shape[place]
            elif dims.equal(size, shape[place]) is not True:
                shown = " and ".join(f"[{', '.join(str(d) for d in s)}]" for s in shapes)
                raise VerifyError(f"{op}: sizes {size} and {shape[place]} do not broadcast in {shown}")
        result.append(size)
    return tuple(result)


def same_dtype(op: str, *types: TensorType | None) -> DType:
    """The one dtype of all operands; VerifyError if they differ."""
    known = [t for t in types if t is not None]
    for other in known[1:]:
        if other.dtype != known[0].dtype:
            raise VerifyError(f"{op}: operand dtypes differ: got {known[0].dtype} and {other.dtype}, expected one dtype")
    return known[0].dtype


def axis_of(op: str, axis: int, rank: int) -> int:
    """A possibly negative axis as 0..rank-1."""
    if not -rank <= axis < rank:
        raise VerifyError(f"{op}: axis {axis} is out of range for rank {rank}")
    return axis % rank


def bound(values: Iterable[Dim]) -> tuple[int, ...]:
    """Sizes as the integers that they are when a body runs; VerifyError for one that nobody bound."""
    result = []
    for value in values:
        if not isinstance(value, int):
            raise VerifyError(f"size {value} has no value when the op runs")
        result.append(value)
    return tuple(result)


# --- running a body ---------------------------------------------------------------------------------------------------


def run(
    definition: OpDef,
    operands: tuple[np.ndarray[Any, Any] | None, ...],
    attrs: Mapping[str, Any],
    results: tuple[TensorType, ...],
    wide: bool,
) -> tuple[np.ndarray[Any, Any], ...]:
    """Execute an op's body. Stepwise: in the compute type, rounded to the result's dtype; wide: floats are f64.

    An op that `converts` rounds to its dtype in both modes: that is what it is for.
    """
    attrs = definition.complete(attrs)
    if wide and not definition.converts:
        attrs = {name: _widened(value) if isinstance(value, DType) else value for name, value in attrs.items()}
    arrays = tuple(None if operand is None else _prepared(operand, wide) for operand in operands)
    with np.errstate(all="ignore"):
        output = definition.body(*arrays, **attrs)
    outputs = output if isinstance(output, tuple) else (output,)
    return tuple(_finished(np.asarray(array), result, wide) for array, result in zip(outputs, results, strict=True))


def _widened(dtype: DType) -> DType:
    return f64 if dtype.is_float else c128 if dtype == c64 else dtype


def _prepared(array: np.ndarray[Any, Any], wide: bool) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "O":
        return array
    dtype = from_numpy(array.dtype)
    return scalar.convert(array, _widened(dtype) if wide else dtype.compute)


def _finished(array: np.ndarray[Any, Any], result: TensorType, wide: bool) -> np.ndarray[Any, Any]:
    if result.dtype.kind == "string":
        return array.astype(object)
    return scalar.convert(array, _widened(result.dtype) if wide else result.dtype)


__all__ = [
    *("OPS", "Array", "OpDef", "OperandSpec", "Attribute", "Sample", "REQUIRED", "pointwise", "structured", "opaque"),
    *("broadcast", "same_dtype", "axis_of", "bound", "run", "narrowed", "boolean"),
]
