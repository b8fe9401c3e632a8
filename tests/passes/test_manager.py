"""The pass manager: verification, honesty of passes, printing, bounds, statistics, reproducers; pipelines as text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest

import ourcc.passes as registry
from ourcc.ir.errors import InternalError, UnsupportedError, UsageError, VerifyError
from ourcc.ir.graph import Module
from ourcc.ir.graph.compare import difference
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.rewrite import Event
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import Verifier
from ourcc.passes import PASSES, load_pass
from ourcc.passes.base import Pass, PassContext
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import make_pass, parse_pipeline, pass_text, pipeline_text
from ourcc.passes.tidy.canonicalize import Canonicalize
from ourcc.passes.tidy.eliminate_dead_code import EliminateDeadCode
from ourcc.passes.tidy.fold_constants import FoldConstants

TEXT = """module @m symbols { B in 1..8 } {
  const @one : f32[] = 1.0
  const @big : f32[20]   # sha256:9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b
  func @main(%x: f32[B, 20]) -> f32[B, 20] {
    %a = mul(%x, @one) : f32[B, 20]   loc("a")
    %b = neg(%a) : f32[B, 20]   loc("b")
    %c = neg(%b) : f32[B, 20]   loc("c")
    %d = add(%c, @big) : f32[B, 20]
    %y = div(%d, @one) : f32[B, 20]
    return %y
  }
}
"""


@dataclass(frozen=True)
class Liar(Pass):
    """Says the opposite of the truth."""

    changes: bool = False

    def run(self, module: Module, context: PassContext) -> bool:
        if self.changes:
            Canonicalize().run(module, context)
        return not self.changes


@dataclass(frozen=True)
class Breaker(Pass):
    """Breaks the module, raises, or demands."""

    how: str = "type"

    def requires(self, module: Module) -> None:
        if self.how == "requires":
            raise UnsupportedError("this module is not supported")

    def run(self, module: Module, context: PassContext) -> bool:
        if self.how == "type":
            module.main.first.result.type = module.constants["one"].type
        if self.how == "raises":
            Canonicalize().run(module, context)
            raise KeyError("lost")
        return False

    def ensures(self, module: Module) -> None:
        if self.how == "ensures":
            raise InternalError("something is left")


def test_runs_verifies_and_counts():
    module = parse_module(TEXT)
    events: list[Event] = []
    records = PassManager([Canonicalize(), EliminateDeadCode(), EliminateDeadCode()], strict=True, listeners=(events.append,)).run(module)
    assert [(record.text, record.changed) for record in records] == [
        ("canonicalize", True),
        ("eliminate_dead_code", True),
        ("eliminate_dead_code", False),
    ]
    assert records[0].rewrites == {"NeutralElement": 2, "Involution": 2} and records[0].seconds > 0
    assert sum(record.rewrites.total() for record in records) == len(events)
    assert {event.action for event in events} == {"replace", "erase"}
    assert [op.name for op in module.main] == ["add"]


def test_prints_what_changed():
    printed: list[tuple[str, str]] = []
    PassManager([Canonicalize(), Canonicalize()], print_change=lambda step, diff: printed.append((step, diff))).run(parse_module(TEXT))
    assert len(printed) == 1
    assert printed[0][0] == "canonicalize" and '-    %b = neg(%a) : f32[B, 20]   loc("b")' in printed[0][1].splitlines()


def test_stops_after_so_many_passes_and_rewrites():
    module = parse_module(TEXT)
    assert PassManager([Canonicalize()], stop_after=0).run(module) == []
    assert difference(module, parse_module(TEXT)) is None
    for limit, left in ((0, 5), (1, 4), (2, 2), (3, 1), (9, 1)):
        module = parse_module(TEXT)
        PassManager([Canonicalize(), EliminateDeadCode()], rewrite_limit=limit).run(module)
        Verifier().verify(module)
        assert len(module.main) == left


def test_a_pass_that_is_not_honest_is_found():
    with pytest.raises(InternalError, match="pass liar says changed=True, and the module is the same"):
        PassManager([Liar()], strict=True).run(parse_module(TEXT))
    with pytest.raises(InternalError, match="pass liar says that nothing changed and made 4 rewrites"):
        PassManager([Liar(changes=True)]).run(parse_module(TEXT))


def test_a_module_that_is_broken_before_is_the_callers_fault():
    module = parse_module(TEXT)
    module.main.first.result.type = module.constants["one"].type
    with pytest.raises(VerifyError, match="mul: %a has type"):
        PassManager([Canonicalize()]).run(module)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("type", r"pass breaker failed: mul: %a has type f32\[\], expected f32\[B, 20\]"),
        ("raises", "pass breaker failed: 'lost'"),
        ("ensures", "something is left"),
    ],
)
def test_a_failure_leaves_a_reproducer(tmp_path: Path, how: str, message: str):
    with pytest.raises(InternalError, match=message) as caught:
        PassManager([EliminateDeadCode(), Breaker(how=how)], reproducers=tmp_path / "new").run(parse_module(TEXT))
    (path,) = (tmp_path / "new").iterdir()
    assert caught.value.reproducer == str(path) and str(path) in str(caught.value)
    text = path.read_text()
    pipeline = "eliminate_dead_code, breaker" + ("" if how == "type" else f"{{how={how}}}")
    first, second, *_ = text.splitlines()
    assert first == f"# pipeline: {pipeline}" and second.startswith("# failed in breaker")
    assert module_text(parse_module(text)) == TEXT


def test_what_the_user_asked_for_wrongly_stays_the_users_error(tmp_path: Path):
    with pytest.raises(UnsupportedError, match="this module is not supported") as caught:
        PassManager([Breaker(how="requires")], reproducers=tmp_path).run(parse_module(TEXT))
    assert any("reproducer" in note for note in caught.value.__notes__)


def test_pipelines_are_spelled_both_ways():
    text = "canonicalize, fold_constants{limit=100}, eliminate_dead_code"
    passes = parse_pipeline(text)
    assert passes == (Canonicalize(), FoldConstants(limit=100), EliminateDeadCode())
    assert pipeline_text(passes) == text
    assert parse_pipeline(" fold_constants { growth = 7 , limit=3 } ,canonicalize") == (FoldConstants(limit=3, growth=7), Canonicalize())
    assert parse_pipeline("") == ()
    assert pass_text(Breaker(how="a, b")) == 'breaker{how="a, b"}'
    assert pass_text(Breaker(how="true")) == 'breaker{how="true"}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "there is no pass 'nonsense'"),
        ("canonicalize fold_constants", "cannot read pipeline at 'canonicalize fold_constants'"),
        ("canonicalize, ,", "cannot read pipeline at"),
        ("canonicalize{limit=1}", "pass canonicalize has no option 'limit'"),
        ("fold_constants{limit}", "pass fold_constants: cannot read options at 'limit'"),
        ("fold_constants{limit=many}", "pass fold_constants: option limit is many, expected a value like"),
        ("fold_constants{limit=true}", "pass fold_constants: option limit is true, expected a value like"),
        ("fold_constants{limit=1", "cannot read pipeline at"),
        ("encode_weights{format=int4}", "pass encode_weights: number format 'int4' is not known, expected one of"),
        ("narrow_products{dtype=int4}", "pass narrow_products: dtype is 'int4', expected bf16 or f16"),
        ("integer_products{codes=u4}", "pass integer_products: codes is 'u4', expected u8 or i8"),
        ('fold_constants{limit="\\q"}', 'cannot read the string "'),
    ],
)
def test_broken_pipelines(text, message):
    with pytest.raises(UsageError) as caught:
        parse_pipeline(text)
    assert message in caught.value.message


def test_options_keep_their_types():
    assert make_pass("fold_constants", {"limit": 5}) == FoldConstants(limit=5)
    with pytest.raises(UsageError, match="expected a value like 65536"):
        make_pass("fold_constants", {"growth": 0.5})


def test_the_registry_is_complete_sorted_and_true():
    assert list(PASSES) == sorted(PASSES)
    for name in PASSES:
        kind = load_pass(name)
        assert kind.name == name and issubclass(kind, Pass) and dataclasses.is_dataclass(kind)
        assert "Before:" in (kind.__doc__ or "") and "After:" in (kind.__doc__ or ""), name
        assert kind.numerics in ("EXACT", "REASSOCIATES", "LOSSY")
        assert parse_pipeline(pass_text(kind())) == (kind(),)
    folder = Path(registry.__file__).parent
    written = [path for path in folder.rglob("*.py") if "(Pass)" in path.read_text() or "(RulePass)" in path.read_text()]
    on_disk = {".".join(path.relative_to(folder).with_suffix("").parts) for path in written} - {"base"}
    assert on_disk == {entry.split(":")[0] for entry in PASSES.values()}
