"""`ourcc opt`: passes on a program, from its text, from an engine that keeps it, or as a model is imported."""

from __future__ import annotations

from pathlib import Path

from ...ir.errors import UsageError
from ...ir.graph import Module
from ...ir.graph.parse import parse_module
from ...ir.graph.text import module_text
from ...passes.manager import PassManager
from ...passes.pipeline import parse_pipeline
from ..engines.kinds import MODELS, is_checkpoint, is_engine
from ..engines.trust import open_contents
from ..options import OptimizeOptions
from ..progress import SILENT, Progress
from ..report.table import Report


def optimize(options: OptimizeOptions, progress: Progress = SILENT) -> Report:
    """Run the passes and print the program."""
    passes = parse_pipeline(options.pipeline)
    changes: list[str] = []
    module = _module(options, progress)
    show = (lambda name, diff: changes.append(f"# {name}\n{diff}")) if options.print_changes else None
    for record in PassManager(passes, print_change=show, stop_after=options.limit).run(module):
        for note in record.notes:
            progress.note(note)
    return Report(text="\n".join([*changes, module_text(module)]))


def _module(options: OptimizeOptions, progress: Progress) -> Module:
    if options.program.suffix in MODELS or is_checkpoint(options.program):
        from ..models.importing import import_model

        return import_model(options.program, options.build, progress)
    if is_engine(options.program):
        from ..backends.reopen import module_of

        return module_of(open_contents(options.program, options.build.environment.directory, options.trust, progress))
    return parse_module(_text(options.program))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        hint = f"a model is told by its suffix: {', '.join(MODELS)}, .gguf; a language model is also a folder; an engine is told by .ourcc"
        raise UsageError(f"{str(path)!r} is not a program in text: byte {error.start} is not UTF-8", hint=hint) from error
