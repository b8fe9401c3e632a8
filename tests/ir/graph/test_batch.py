"""A symbol that is alone is a batch where it leads every input that has it."""

import pytest

from ourcc.compiler.options import build_options
from ourcc.ir.graph.batch import lone_batch
from ourcc.ir.graph.parse import parse_module

CASES = {
    "images": (("%x: f32[N, 3, 8]",), "N", 1),
    "beside inputs of known sizes": (("%x: f32[N, 3]", "%m: f32[5]"), "N", 1),
    "two that have it": (("%x: f32[N, 3]", "%y: f32[N, 3]"), "N", 1),
    "tokens of one text": (("%x: f32[1, N]",), None, 128),
    "the only axis": (("%x: f32[N]",), None, 128),
    "scores of all by all": (("%x: f32[N, N]",), None, 128),
    "it leads one of two": (("%x: f32[N, 3]", "%y: f32[3, N]"), None, 128),
    "twice as many": (("%x: f32[N*2, 3]", "%y: f32[N, 3]"), None, 128),
}


@pytest.mark.parametrize(("inputs", "batch", "size"), CASES.values(), ids=list(CASES))
def test_a_lone_symbol(inputs: tuple[str, ...], batch: str | None, size: int) -> None:
    kind = inputs[0].partition(": ")[2]
    module = parse_module(
        f"module @m symbols {{ N in 1..1000 }} {{ func @main({', '.join(inputs)}) -> {kind} {{ %r = relu(%x) : {kind} return %r }} }}"
    )
    assert lone_batch(module) == batch
    workload = build_options({}).reckoned(module).workload
    assert (workload.sizes if workload else None) == (None if batch is None else {"N": size})
    assert build_options({"workload": "N=7"}).reckoned(module).workload_for(module.facts) is not None


def test_several_symbols_or_none_have_no_lone_one() -> None:
    for symbols, kind in (("symbols { B in 1..9, N in 1..9 } ", "f32[B, N]"), ("", "f32[2, 3]")):
        module = parse_module(f"module @m {symbols}{{ func @main(%x: {kind}) -> {kind} {{ %r = relu(%x) : {kind} return %r }} }}")
        assert lone_batch(module) is None and build_options({}).reckoned(module).workload is None
