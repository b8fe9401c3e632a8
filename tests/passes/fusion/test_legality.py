"""Why values are in memory: a program in text for every rule of legality and of profit, and the sentence that it gives."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ourcc.ir.graph import Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.passes.fusion import legality, profit
from ourcc.passes.fusion.choices import Choices
from ourcc.passes.fusion.legality import RESULTS
from ourcc.passes.fusion.partition import decided

ROWS = "f32[N, 48]"
SQUARE = "f32[48, 48]"


def module(results: str, types: str, body: str) -> Module:
    head = f"func @main(%x: {ROWS}, %z: {ROWS}, %q: {SQUARE}, %n: i64[N, 1]) -> ({types})"
    lines = body.strip().splitlines()
    constants, ops = ("".join(f"    {line}\n" for line in lines if line.startswith("const ") is first) for first in (True, False))
    return parse_module(f"module @m symbols {{ N in 2..512 }} {{\n{constants}  {head} {{\n{ops}    return {results}\n  }}\n}}\n")


def choices(found: Module, orders: Mapping[Value, tuple[int, ...]] | None = None, rows: int = 128) -> Choices:
    return decided(Choices(found, found.main, orders or {}, {"N": rows}))


def named(found: Module, name: str) -> Value:
    return next(value for op in found.main for value in op.results if value.name == name)


EXP = f"%v = exp(%x) : {ROWS}\n"
COLUMN = "%m = slice(%z) {starts = [0, 0], sizes = [N, 1], steps = [1, 1]} : f32[N, 1]\n"
ONE_READER = "one kernel reads it, and computes it itself"
CODES = "const @s : f32[] = 2.0\n%c = cast(%q) {dtype = i8} : i8[48, 48]\n%v = dequantize(%c, @s) {dtype = f32} : f32[48, 48]\n"
PRODUCT = "%v = matmul(%q, %q) : f32[48, 48]\n"
CHAIN = "\n".join(f"%v{n} = mul({f'%v{n - 1}' if n else '%x'}, %z) : {ROWS}" for n in range(RESULTS + 2))
CHAINED = ", ".join(f"%v{n}" for n in range(RESULTS + 2))

CASES: Mapping[str, tuple[str, str, str, str]] = {
    "host": (
        "%y",
        ROWS,
        f"%v = sort(%x) {{axis = 1}} : {ROWS}\n%y = neg(%v) : {ROWS}",
        "the host computes it, outside of kernels",
    ),
    "scattered": (
        "%y",
        ROWS,
        f"{COLUMN}%v = scatter_along_axis(%x, %n, %m) {{axis = 1}} : {ROWS}\n%y = neg(%v) : {ROWS}",
        "a scatter writes its elements at places that only the data say",
    ),
    "scanned": (
        "%y",
        ROWS,
        f"%v = cumsum(%x) {{axis = 1}} : {ROWS}\n%y = neg(%v) : {ROWS}",
        "a scan makes each element from the one before, in a kernel of its own",
    ),
    "written_in_pieces": (
        "%y",
        "f32[N, 960]",
        f"%v = concat({', '.join(['%x'] * 20)}) {{axis = 1}} : f32[N, 960]\n%y = neg(%v) : f32[N, 960]",
        "its op writes it piece by piece",
    ),
    "unread": ("%v", ROWS, EXP, "only the caller reads it"),
    "returned": (
        "%v, %y",
        f"{SQUARE}, {SQUARE}",
        PRODUCT + "%y = neg(%v) : f32[48, 48]",
        "it is also a result, which the caller reads; a product is written by its own kernel alone",
    ),
    "read_by_data": (
        "%y",
        "f32[N, 1]",
        EXP + "%y = take_along_axis(%v, %n) {axis = 1} : f32[N, 1]",
        "take_along_axis reads it at places that only the data say",
    ),
    "moved_for_scatter": (
        "%y",
        ROWS,
        f"{COLUMN.replace('%m', '%v')}%y = scatter_along_axis(%x, %n, %v) {{axis = 1}} : {ROWS}",
        "a scatter reads its operands from memory",
    ),
    "moved_for_product": (
        "%y",
        SQUARE,
        "%v = transpose(%q) {permutation = [1, 0]} : f32[48, 48]\n%y = matmul(%v, %q) : f32[48, 48]",
        "through it a product would read elements that do not lie side by side",
    ),
    "product_operand": (
        "%y",
        ROWS,
        f"{EXP}%y = matmul(%v, %q) : {ROWS}",
        "a product reads it, and would compute each element again for every row or column of its result",
    ),
    "computed_scale": (
        "%y",
        "f32[N, 48]",
        "%c = cast(%x) {dtype = i8} : i8[N, 48]\n%r = slice(%z) {starts = [0, 0], sizes = [N, 3], steps = [1, 1]} : f32[N, 3]\n"
        "%s = cast(%r) {dtype = f8e4m3} : f8e4m3[N, 3]\n%m = slice(%z) {starts = [0, 0], sizes = [N, 1], steps = [1, 1]} : f32[N, 1]\n"
        "%t = reshape(%m) {shape = [N]} : f32[N]\n%v = dequantize(%s, %t) {axis = 0, dtype = f32} : f32[N, 3]\n"
        "%d = dequantize(%c, %v) {axis = 1, block = 16, dtype = f32} : f32[N, 48]\n%y = matmul(%d, %q) : f32[N, 48]",
        "it scales the codes that a product reads, and would be computed again for every row or column of its result",
    ),
    "scale_of_a_sum": (
        "%y",
        ROWS,
        f"{CODES.replace('2.0', 'inf')}%y = matmul(%x, %v) : {ROWS}",
        "a scale of it is not finite, and may not multiply the sum instead of its terms",
    ),
    "scatter_operand": (
        "%y",
        ROWS,
        f"{COLUMN}{EXP}%y = scatter_along_axis(%v, %n, %m) {{axis = 1}} : {ROWS}",
        "a scatter reads its operands from memory",
    ),
    "folded_again": (
        "%y",
        SQUARE,
        PRODUCT + "%y = softmax(%v) {axis = 1} : f32[48, 48]",
        "a kernel that reads it is a reduction, which cannot make sums of its own for it",
    ),
    "folded_whole": (
        "%y",
        ROWS,
        f"%v = sum(%x) {{axes = [0, 1], keepdims = true}} : f32[1, 1]\n%y = mul(%x, %v) : {ROWS}",
        "it sums up everything, which inside of another kernel would run on one thread",
    ),
    "other_rows": (
        "%y",
        ROWS,
        f"%v = mean(%x) {{axes = [0], keepdims = true}} : f32[1, 48]\n%w = mean(%z) {{axes = [1], keepdims = true}} : f32[N, 1]\n"
        f"%a = mul(%x, %v) : {ROWS}\n%y = mul(%a, %w) : {ROWS}",
        "the kernel that reads it sums along other rows, and has one loop over rows",
    ),
    "epilogue": (
        "%y",
        "f32[2, 48, 48]",
        PRODUCT + "%a = broadcast_to(%v) {shape = [2, 48, 48]} : f32[2, 48, 48]\n%y = neg(%a) : f32[2, 48, 48]",
        "the kernel that reads it does not make one element for each element of the product",
    ),
    "no_element": (
        "%v, %y",
        "f32[48, N], f32[48, N]",
        "%v = transpose(%x) {permutation = [1, 0]} : f32[48, N]\n%y = neg(%v) : f32[48, N]",
        "it is also a result, which the caller reads; a movement is written by its own kernel alone",
    ),
    "other_loops": (
        "%v, %y",
        f"{ROWS}, {ROWS}",
        f"{EXP}%y = matmul(%v, %q) : {ROWS}",
        "the first kernel that reads it is a product, which writes its results alone",
    ),
    "own_order": (
        "%v, %y",
        f"{ROWS}, {ROWS}",
        f"{EXP}%y = neg(%v) : {ROWS}",
        "it lies in memory in another order than the first kernel that reads it writes",
    ),
    "many_results": (CHAINED, ", ".join([ROWS] * (RESULTS + 2)), CHAIN, f"writes {RESULTS} other values beside its results already"),
    "in_several_loops": (
        "%y, %a",
        f"{ROWS}, {ROWS}",
        f"%v = neg(%x) : {ROWS}\n%y = cumsum(%v) {{axis = 0}} : {ROWS}\n%a = softmax(%v) {{axis = 1}} : {ROWS}",
        "2 kernels read it, and one of them is a scan, which computes nothing that others need too; "
        "the first kernel that reads it is a scan, "
        "which writes its results alone",
    ),
    "computed_again": (
        "%a, %y",
        f"{ROWS}, {ROWS}",
        f"%v = gelu(%x) : {ROWS}\n%a = softmax(%v) {{axis = 1}} : {ROWS}\n%y = softmax(%v) {{axis = 0}} : {ROWS}",
        "2 kernels read it, and to compute it in each costs more than memory does; "
        "it is expensive, and the first kernel that reads it would compute it once for each of its sums",
    ),
    "dear_again": (
        "%y",
        ROWS,
        f"{COLUMN}%v = exp(%m) : f32[N, 1]\n%y = mul(%x, %v) : {ROWS}",
        "it is expensive, and each of its elements would be computed every time that it is read",
    ),
    "end_of_product": (
        "%y",
        SQUARE,
        PRODUCT.replace("%v", "%p") + "%v = add(%p, %q) : f32[48, 48]\n%y = softmax(%v) {axis = 1} : f32[48, 48]",
        "the kernel of the product before it computes it at no cost",
    ),
    "stored_by_product": (
        "%v, %y",
        f"{SQUARE}, {SQUARE}",
        PRODUCT.replace("%v", "%p") + "%v = add(%p, %q) : f32[48, 48]\n%y = neg(%v) : f32[48, 48]",
        "it is also a result, which the caller reads; the kernel of the product before it writes it",
    ),
    "dear_in_folds": (
        "%v, %y",
        f"{ROWS}, {ROWS}",
        f"{EXP}%y = layer_norm(%v, _, _) {{axes = [1], epsilon = 1e-05}} : {ROWS}",
        "it is expensive, and the first kernel that reads it would compute it once for each of its sums",
    ),
}
RULES = {*legality.OF_THE_OP, *legality.WHERE_READ, *legality.BESIDE, *profit.WHERE_READ, *profit.BESIDE}


def test_every_rule_has_a_program_here() -> None:
    assert set(CASES) == {rule.__name__ for rule in RULES}
    assert all(rule.__doc__ for rule in RULES)


def test_scales_of_codes_that_are_multiplied_as_they_are_go_with_them() -> None:
    found = module(*CASES["computed_scale"][:3])
    value = named(found, "v")
    assert value in decided(Choices(found, found.main, {}, {"N": 128}, narrow=True)).inlined


@pytest.mark.parametrize(("length", "count", "narrow", "is_inlined"), [(64, 8, True, True), (64, 64, True, True), (64, 8, False, False)])
def test_short_sums_that_are_folded_again_are_held_on_gpus(length: int, count: int, narrow: bool, is_inlined: bool) -> None:
    _expect_folded_again(length, count, narrow, is_inlined)


@pytest.mark.parametrize(("length", "count"), [(65, 8), (256, 256)])
def test_as_many_rows_are_other_rows_where_they_are_folded_again(length: int, count: int) -> None:
    _expect_folded_again(length, count, True, False)


def _expect_folded_again(length: int, count: int, narrow: bool, is_inlined: bool) -> None:
    body = f"""%a = slice(%z) {{starts = [0, 0], sizes = [N, 1], steps = [1, 1]}} : f32[N, 1]
        %b = broadcast_to(%a) {{shape = [N, {length}]}} : f32[N, {length}]
        %e = exp(%b) : f32[N, {length}]
        %v = rank_along_axis(%e) {{axis = 1}} : i32[N, {length}]
        %y = place_of_rank(%v) {{axis = 1, count = {count}}} : i64[N, {count}]"""
    found = module("%y", f"i64[N, {count}]", body)
    value, made = named(found, "v"), decided(Choices(found, found.main, {}, {"N": 128}, narrow))
    assert (value in made.inlined) == is_inlined
    assert is_inlined or made.why[value] == CASES["other_rows"][3]


@pytest.mark.parametrize("name", CASES)
def test_a_value_that_a_rule_keeps_in_memory_has_its_sentence(name: str) -> None:
    results, types, body, why = CASES[name]
    found = module(results, types, body)
    value = named(found, "v0" if name == "many_results" else "v")
    made = choices(found, {value: (1, 0)} if name == "own_order" else None)
    assert made.why[value].endswith(why)
    assert value not in made.inlined and value not in made.beside


INSIDE: Mapping[str, tuple[str, str, str, str]] = {
    "movement": (
        "%y",
        "f32[48, N]",
        "%v = transpose(%x) {permutation = [1, 0]} : f32[48, N]\n%y = neg(%v) : f32[48, N]",
        "a movement is a change of subscripts in what reads it",
    ),
    "map": ("%y", ROWS, f"{EXP}%y = neg(%v) : {ROWS}", ONE_READER),
    "reduction": (
        "%y",
        ROWS,
        f"%v = mean(%x) {{axes = [1], keepdims = true}} : f32[N, 1]\n%y = sub(%x, %v) : {ROWS}",
        "one kernel reads it, and sums it up on its way",
    ),
    "product": (
        "%y",
        SQUARE,
        PRODUCT + "%y = neg(%v) : f32[48, 48]",
        "the product's kernel computes what reads it as well, before anything is written",
    ),
    "finite scales": ("%y", ROWS, f"{CODES}%y = matmul(%x, %v) : {ROWS}", ONE_READER),
    "infinite scales of no sum": ("%y", SQUARE, f"{CODES.replace('2.0', 'inf')}%y = neg(%v) : {SQUARE}", ONE_READER),
    "cheap": (
        "%a, %y",
        f"{ROWS}, {ROWS}",
        f"%v = relu(%x) : {ROWS}\n%a = softmax(%v) {{axis = 1}} : {ROWS}\n%y = softmax(%v) {{axis = 0}} : {ROWS}",
        "to compute it in each of the 2 kernels that read it costs less than memory does",
    ),
    "widened": (
        "%y, %b",
        "f32[1, N, 48], bf16[1, N, 48]",
        "%r = reshape(%x) {shape = [1, N, 48]} : f32[1, N, 48]\n%b = cast(%r) {dtype = bf16} : bf16[1, N, 48]\n"
        "%v = cast(%b) {dtype = f32} : f32[1, N, 48]\n%y = attention(%r, %v, %r) {scale = 0.5} : f32[1, N, 48]",
        ONE_READER,
    ),
    "iota": (
        "%y, %w",
        "i64[48, 48], i64[48]",
        "%v = iota() {axis = 0, dtype = i64, shape = [48]} : i64[48]\n%a = broadcast_to(%v) {shape = [48, 48]} : i64[48, 48]\n"
        "%y = cumsum(%a) {axis = 0} : i64[48, 48]\n"
        "%w = cumsum(%v) {axis = 0} : i64[48]",
        "it is made of less than it holds: each of the 2 kernels that read it computes it",
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_value_that_is_computed_where_it_is_read_says_why(name: str) -> None:
    results, types, body, why = INSIDE[name]
    found = module(results, types, body)
    value, made = named(found, "v"), choices(found)
    assert (made.why[value], value in made.inlined) == (why, True)


TURNED = f"%t = transpose(%v) {{permutation = [1, 0]}} : {SQUARE}\n"
AGAIN = f"%u = transpose(%s) {{permutation = [1, 0]}} : {SQUARE}\n"
FLAT = "f32[2304]"
BACKWARDS = f"%w = reshape(%v) {{shape = [2304]}} : {FLAT}\n%r = slice(%w) {{starts = [2303], sizes = [2304], steps = [-1]}} : {FLAT}\n"
SEVERAL = "what reads the product needs several of its elements for one, or movements take its axes apart"
READ_OFTEN: Mapping[str, tuple[str, str | None]] = {
    "by one op": (f"%y = mul(%v, %v) : {SQUARE}", None),
    "by several": (f"%s = sigmoid(%v) : {SQUARE}\n%y = mul(%v, %s) : {SQUARE}", None),
    "what is made of it": (
        f"%a = add(%v, %q) : {SQUARE}\n%s = erf(%a) : {SQUARE}\n%h = mul(%a, %q) : {SQUARE}\n%b = mul(%s, %h) : {SQUARE}\n"
        f"%y = add(%b, %v) : {SQUARE}",
        None,
    ),
    "through one movement": (f"{TURNED}%s = sigmoid(%t) : {SQUARE}\n%a = mul(%t, %s) : {SQUARE}\n%y = add(%a, %q) : {SQUARE}", None),
    "through equal movements": (f"{TURNED}%s = sigmoid(%v) : {SQUARE}\n{AGAIN}%y = mul(%t, %u) : {SQUARE}", None),
    "there and back": (f"{TURNED}%s = sigmoid(%t) : {SQUARE}\n{AGAIN}%y = mul(%v, %u) : {SQUARE}", None),
    "at two places": (f"{TURNED}%y = mul(%v, %t) : {SQUARE}", SEVERAL),
    "made of it at two places": (f"{TURNED}%s = sigmoid(%t) : {SQUARE}\n%y = mul(%v, %s) : {SQUARE}", SEVERAL),
    "forwards and backwards": (f"{BACKWARDS}%y = mul(%w, %r) : {FLAT}", SEVERAL),
    "taken apart": (
        f"%s = sigmoid(%v) : {SQUARE}\n%a = mul(%v, %s) : {SQUARE}\n%w = reshape(%a) {{shape = [2304]}} : {FLAT}\n%y = neg(%w) : {FLAT}",
        SEVERAL,
    ),
}


@pytest.mark.parametrize("name", READ_OFTEN)
def test_a_product_that_is_read_often_is_inside_where_one_element_is_needed(name: str) -> None:
    body, why = READ_OFTEN[name]
    found = module("%y", FLAT if FLAT in body else SQUARE, PRODUCT + body)
    value, made = named(found, "v"), choices(found)
    assert (made.why[value] if value not in made.inlined else None) == why


def test_a_product_and_what_the_caller_reads_of_it_are_not_written_by_one_kernel() -> None:
    body = f"%s = sigmoid(%v) : {SQUARE}\n%a = mul(%v, %s) : {SQUARE}\n%y = neg(%a) : {SQUARE}"
    found = module("%a, %y", f"{SQUARE}, {SQUARE}", PRODUCT + body)
    made = choices(found)
    assert named(found, "v") in made.inlined
    assert made.why[named(found, "a")].endswith("the kernel of the product before it writes it")


def test_what_is_made_of_a_product_by_several_reads_ends_its_kernel() -> None:
    body = f"%s = sigmoid(%p) : {SQUARE}\n%v = mul(%p, %s) : {SQUARE}\n%y = softmax(%v) {{axis = 1}} : {SQUARE}"
    found = module("%y", SQUARE, PRODUCT.replace("%v", "%p") + body)
    made = choices(found)
    assert named(found, "p") in made.inlined
    assert made.why[named(found, "v")] == CASES["end_of_product"][3]


def test_what_a_plain_product_reads_is_widened_once() -> None:
    body = f"%b = cast(%x) {{dtype = bf16}} : bf16[N, 48]\n%v = cast(%b) {{dtype = f32}} : {ROWS}\n%y = matmul(%v, %q) : {ROWS}"
    found = module("%y, %b", f"{ROWS}, bf16[N, 48]", body)
    value, made = named(found, "v"), choices(found)
    assert value not in made.inlined and made.why[value] == CASES["product_operand"][3]


@pytest.mark.parametrize(("rows", "is_inlined"), [(2, True), (512, False)])
def test_the_workload_decides_whether_memory_costs_less(rows: int, is_inlined: bool) -> None:
    results, types, body, _ = CASES["computed_again"]
    found = module(results, types, body)
    assert (named(found, "v") in choices(found, rows=rows).inlined) == is_inlined


def test_a_value_that_is_stored_beside_says_for_whom() -> None:
    body = f"%v = mul(%x, %z) : {ROWS}\n%a = neg(%v) : {ROWS}\n%y = cumsum(%v) {{axis = 0}} : {ROWS}"
    for results, why in (
        ("%v, %y", "the kernel that reads it computes it, and writes it for the caller too"),
        ("%a, %y", "the first of the 2 kernels that read it"),
    ):
        text = body if "%a" in results else f"%v = mul(%x, %z) : {ROWS}\n%y = neg(%v) : {ROWS}"
        found = module(results, f"{ROWS}, {ROWS}", text)
        value, made = named(found, "v"), choices(found)
        assert value in made.beside and made.why[value].startswith(why)


def test_what_the_first_reader_cannot_read_plainly_is_not_stored_by_it() -> None:
    body = EXP + "%y = take_along_axis(%v, %n) {axis = 1} : f32[N, 1]"
    found = module("%v, %y", f"{ROWS}, f32[N, 1]", body)
    assert (
        choices(found).why[named(found, "v")]
        == "it is also a result, which the caller reads; take_along_axis reads it at places that only the data say"
    )


def test_a_product_that_is_stored_as_a_view_says_so() -> None:
    body = PRODUCT + "%y = transpose(%v) {permutation = [1, 0]} : f32[48, 48]"
    found = module("%y", SQUARE, body)
    made = choices(found)
    assert made.why[named(found, "v")] == "its kernel writes it in the shape of %y at once"
    assert made.why[named(found, "y")] == "only the caller reads it"


@pytest.mark.parametrize(
    ("source", "wide", "flat", "is_view"),
    [
        ("N, 1, 48", "N, 5, 48", "N, 240", True),
        ("1, N, 48", "7, N, 48", "7*N, 48", True),
        ("N, 1, 8", "N, 5, 8", "N, 40", False),
        ("N, 48, 1", "N, 48, 2", "N, 96", False),
    ],
)
def test_rows_that_are_repeated_are_stored_as_rows(source: str, wide: str, flat: str, is_view: bool) -> None:
    """Read from there each element is found by a division; short rows are read as they lie."""
    width = 48 if "48" in source else 8
    body = f"""%s = exp(%x) : f32[N, 48]
        %r = slice(%s) {{starts = [0, 0], sizes = [N, {width}], steps = [1, 1]}} : f32[N, {width}]
        %a = reshape(%r) {{shape = [{source}]}} : f32[{source}]
        %v = broadcast_to(%a) {{shape = [{wide}]}} : f32[{wide}]
        %y = reshape(%v) {{shape = [{flat}]}} : f32[{flat}]"""
    found = module("%y", f"f32[{flat}]", body)
    made = choices(found)
    assert (named(found, "v").op in made.views) is is_view


@pytest.mark.parametrize(
    ("between", "product"),
    [
        ("%r = slice(%v) {starts = [0, 0], sizes = [N, 48], steps = [1, 1]} : f32[N, 48]", "matmul(%r, %q) : f32[N, 48]"),
        ("%r = reshape(%v) {shape = [1, N, 48]} : f32[1, N, 48]", "matmul(%r, %q) : f32[1, N, 48]"),
    ],
)
def test_what_a_product_reads_through_movements_is_not_computed_in_it(between: str, product: str) -> None:
    """It would be computed for each row or column, as it would be without the movement."""
    found = module("%y", product.split(" : ")[1], f"{EXP}{between}\n%y = {product}")
    value, made = named(found, "v"), choices(found)
    assert named(found, "r") in made.inlined
    assert value not in made.inlined and made.why[value] == CASES["product_operand"][3]


def test_what_a_product_reads_through_movements_is_not_looked_up_in_it() -> None:
    body = """const @t : f32[4] = [1.0, 2.0, 3.0, 4.0]
        %c = cast(%q) {dtype = u8} : u8[48, 48]
        %v = take(@t, %c) {axis = 0} : f32[48, 48]
        %r = reshape(%v) {shape = [1, 48, 48]} : f32[1, 48, 48]
        %y = matmul(%x, %r) : f32[1, N, 48]"""
    found = module("%y", "f32[1, N, 48]", body)
    value, made = named(found, "v"), choices(found)
    assert named(found, "r") in made.inlined
    assert value not in made.inlined and made.why[value] == "through it a product would gather single elements, or read beyond edges"
