"""An engine opened again: its program with its constants, and the engine with some of its parts exchanged.

An engine keeps both, so that tuning it or building it for one more machine needs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...autotune.lock import Lock
from ...ir.errors import EngineError
from ...ir.graph import Module
from ...ir.graph.parse import parse_module
from ...ir.ops.table import bound
from ...ir.plan import storage
from ...ir.types import TensorType
from ...runtime.contents import EngineContents
from ...runtime.weights import Constant
from .built import Built, faults_of, unpack
from .tuning import Tuning


def module_of(contents: EngineContents) -> Module:
    """The engine's program with its constants, from the order in which kernels read them back to their own."""
    holders: dict[str, tuple[str, storage.Constant]] = {}
    for name, part in contents.parts.items():
        for constant in part.constants.values():
            if constant.making is None:
                holders.setdefault(constant.value, (name, constant))
    names: dict[str, str] = {}
    module = parse_module(contents.graph, _unpacker(contents, holders, names))
    # Values are unpacked when first asked for, and by then the digests have names.
    names |= {value.constant.digest: name for name, value in module.constants.items() if value.constant is not None and name in holders}
    return module


def _unpacker(
    contents: EngineContents, holders: Mapping[str, tuple[str, storage.Constant]], names: Mapping[str, str]
) -> Callable[[str, TensorType], Any]:
    def array(digest: str, type: TensorType) -> Any:
        name = names.get(digest)
        if name is None:
            raise EngineError(f"engine holds no values of the constant with digest {digest[:16]}", hint="build it again from the model")
        part, held = holders[name]
        return unpack(held, contents.constant(part, held.key).array(), bound(type.shape))

    return array


def exchange(contents: EngineContents, parts: Sequence[Built], tuning: Tuning) -> EngineContents:
    """The contents with these parts new or in the place of old ones; the others stay as they are."""
    new = {part.name: part for part in parts}
    held = {**contents.parts, **{name: part.contents for name, part in new.items()}}
    weights: dict[str, Mapping[str, Constant | Any]] = {name: part.weights for name, part in new.items()}
    for name, part in contents.parts.items():
        if name not in new:
            weights[name] = {key: contents.constant(name, key) for key in part.constants}
    lock = Lock.parse(tuning.lock_text())
    lock.levels = {**(Lock.parse(contents.lock).levels if contents.lock else {}), **lock.levels}
    report = _merged(contents.report, new, tuning)
    rest = {"graph": contents.graph, "lock": lock.text(), "report": report, "provenance": contents.provenance, "assets": contents.assets}
    return EngineContents.of(held, weights, **rest)


def _merged(old: Mapping[str, Any], new: Mapping[str, Built], tuning: Tuning) -> dict[str, Any]:
    """The report with the rows of what was compiled again replaced."""
    tuned, fresh = {level for _, level in tuning.levels}, tuning.report()
    before = old.get("tuning", {})
    rows = [row for row in before.get("rows", ()) if row["architecture"] not in tuned]
    contract = [row for row in old.get("contract", ()) if row["op"] != "schedules" or row["source"] not in tuned]
    notes = [note for note in old.get("notes", ()) if note.partition(": internal error: ")[0] not in new]
    notes += faults_of(list(new.values()))
    return {
        **{name: rows for name, rows in old.items() if name != "notes"},
        **({"notes": notes} if notes else {}),
        "contract": [*contract, *tuning.contract()],
        "kernels": {**old.get("kernels", {}), **{name: part.rows for name, part in new.items()}},
        "kept": {**old.get("kept", {}), **{name: part.kept_rows() for name, part in new.items()}},
        "fusion": {**old.get("fusion", {}), **{name: part.fusion_rows() for name, part in new.items()}},
        "tuning": {"rows": [*rows, *fresh["rows"]], "problems": {**before.get("problems", {}), **fresh["problems"]}},
    }
