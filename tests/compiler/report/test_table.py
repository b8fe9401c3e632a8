"""Reports as text, which is what Python prints of them."""

from __future__ import annotations

from ourcc.compiler.report.table import Report, Table


def test_a_report_prints_as_aligned_text() -> None:
    table = Table("kernels", ("name", "calls"), (("first", 12), ("k", None)), ("sizes are typical ones",))
    report = Report({"engine": "m.ourcc", "gpu": None}, (table,), "done", ("op: fp32",))
    assert str(report) == (
        "engine  m.ourcc\ngpu     -\n\n"
        "kernels:\n  name   calls\n  first  12\n  k      -\n  (sizes are typical ones)\n\n"
        "done\n\nviolated: op: fp32"
    )
    assert str(Report()) == ""
